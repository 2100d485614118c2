from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from ctrlreward.policy.rollouts import Generation, Rollout, log_probs, sample
from ctrlreward.weights.loading import load_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["ab", "f", "abcdef", "ddd"] * 4
END = 0


@pytest.fixture
def model(folder: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder).eval()


@pytest.fixture
def rollout(model: LlamaForCausalLM, folder: str) -> Rollout:
    torch.manual_seed(3)
    return sample(model, load_tokenizer(folder), PROMPTS, Generation(max_completion_length=8))


def rows_without_padding(folder: str, rollout: Rollout) -> list[tuple[list[int], list[int]]]:
    """Return each row's prompt, and its completion up to and including the end token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for prompt, ids in zip(PROMPTS, rollout.ids.tolist(), strict=True):
        new = ids[-rollout.mask.shape[1] :]
        length = new.index(END) + 1 if END in new else len(new)
        rows.append((tokenizer(prompt).input_ids, new[:length]))
    return rows


def test_a_rollout_has_the_prompts_and_the_completions(folder: str, rollout: Rollout) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = rows_without_padding(folder, rollout)
    lengths = [len(new) for _, new in rows]
    assert len({*lengths}) > 2  # some end early
    assert max(lengths) == 8
    width = max(len(prompt) for prompt, _ in rows)
    for i, (prompt, new) in enumerate(rows):
        padding = width - len(prompt)
        read = [0] * padding + [1] * (len(prompt) + len(new)) + [0] * (8 - len(new))
        assert rollout.ids[i, padding:width].tolist() == prompt
        assert rollout.attention[i].tolist() == read
        assert rollout.mask[i].tolist() == [1.0] * len(new) + [0.0] * (8 - len(new))
        assert rollout.completions[i] == tokenizer.decode(new, skip_special_tokens=True)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_equal_one_row_at_a_time(model, folder, rollout, temperature) -> None:
    with torch.no_grad():
        result = log_probs(model, rollout, temperature)
    assert result.dtype == torch.float32
    expected = torch.zeros_like(result)
    for i, (prompt, new) in enumerate(rows_without_padding(folder, rollout)):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + new])).logits[0].double() / temperature
        table = logits.log_softmax(dim=-1)
        for t, token in enumerate(new):
            expected[i, t] = table[len(prompt) + t - 1, token]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    assert (result[rollout.mask == 0] == 0).all()


def test_log_probs_have_the_gradient_of_the_kept_tokens(model, rollout) -> None:
    log_probs(model, rollout, 1.0).sum().backward()
    result = model.lm_head.weight.grad.clone()
    model.zero_grad()
    prompt = rollout.ids.shape[1] - rollout.mask.shape[1]
    positions = (rollout.attention.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(rollout.ids, rollout.attention, position_ids=positions).logits[:, :-1]
    values = logits.log_softmax(dim=-1).gather(2, rollout.ids[:, 1:, None]).squeeze(2)
    (values[:, prompt - 1 :] * rollout.mask).sum().backward()
    torch.testing.assert_close(result, model.lm_head.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ends", [[2, 5], None])
def test_a_model_may_have_several_end_tokens_or_none(model, folder, ends) -> None:
    model.generation_config.eos_token_id = ends
    torch.manual_seed(0)
    options = Generation(max_completion_length=8)
    rollout = sample(model, load_tokenizer(folder), PROMPTS, options)
    new = rollout.ids[:, -rollout.mask.shape[1] :].tolist()
    lengths = [
        next((t + 1 for t, token in enumerate(row) if token in (ends or [])), len(row))
        for row in new
    ]
    assert rollout.mask.sum(dim=1).tolist() == lengths
    assert (min(lengths) < 8) == bool(ends)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3, 1], [2]])
def test_a_seeded_completion_does_not_depend_on_its_batch(folder: str, rows: list[int]) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer, seeds = load_tokenizer(folder), [7, 2**62, 0, 7]
    prompts, options = ["ab", "abcd", "f", "ab"], Generation(max_completion_length=8)
    whole = sample(model, tokenizer, prompts, options, seeds=seeds)
    torch.rand(3)
    part = sample(
        *(model, tokenizer, [prompts[row] for row in rows], options),
        seeds=[seeds[row] for row in rows],
    )
    assert part.completions == [whole.completions[row] for row in rows]
    assert whole.completions[0] == whole.completions[3]  # one prompt, one seed
    others = sample(model, tokenizer, prompts, options, seeds=[1, 2, 3, 4])
    assert others.completions != whole.completions


def test_seeded_tokens_are_sampled_with_their_probability(folder: str) -> None:
    draws = 4000
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer, options = load_tokenizer(folder), Generation(max_completion_length=1)
    rollout = sample(model, tokenizer, ["ab"] * draws, options, seeds=range(draws))
    with torch.no_grad():
        logits = model(rollout.ids[:1, :-1]).logits[0, -1]
    expected = logits.softmax(dim=-1)
    frequencies = rollout.ids[:, -1].bincount(minlength=len(expected)) / draws
    for frequency, p in zip(frequencies.tolist(), expected.tolist(), strict=True):
        assert frequency == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / draws) + 1e-3)
