"""Rollouts of decoder-only and encoder-decoder policies, and their log-probabilities."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_choice import LoRA
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM
from tuner_records import drift

from ctrlreward import Samples
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, Rollout, encode_prompts, log_probs, sample

PROMPTS = ["ab", "f", "abcdef", "ddd"] * 4
OPTIONS = Generation(max_completion_length=8)
# Of each family: the end, and what the decoder starts with.
SPECIAL = {"llama": (0, None), "t5": (1, 0), "bart": (2, 2)}
families = pytest.mark.parametrize("family", SPECIAL)


@pytest.fixture
def place(family: str, folder: str, tiny_seq2seq, tmp_path: Path) -> str:
    """Folder of a model whose generation config would change the distribution."""
    if family != "llama":
        return tiny_seq2seq(family)
    advised = str(tmp_path / "advised")
    shutil.copytree(folder, advised)
    options = {"repetition_penalty": 5.0, "min_new_tokens": 5, "top_k": 1, "do_sample": True}
    GenerationConfig(eos_token_id=0, **options).save_pretrained(advised)
    return advised


@pytest.fixture
def policy(place: str) -> Any:
    torch.manual_seed(4)
    return drift(load_policy(place, LoRA(4, dtype="float32"), "cpu").eval())


@pytest.fixture
def rollout(policy: Any, place: str) -> Rollout:
    torch.manual_seed(3)
    return sample(policy, load_tokenizer(place), PROMPTS, OPTIONS)


def rows_without_padding(place: str, rollout: Rollout, end: int) -> list[list[list[int]]]:
    """Each row's prompt, and its completion up to and including the end token."""
    tokenizer = AutoTokenizer.from_pretrained(place)
    rows = []
    for prompt, ids in zip(PROMPTS, rollout.ids.tolist(), strict=True):
        new = ids[-rollout.mask.shape[1] :]
        length = new.index(end) + 1 if end in new else len(new)
        rows.append([tokenizer(prompt).input_ids, new[:length]])
    return rows


def logits_of(model: Any, family: str, prompt: list[int], new: list[int]) -> torch.Tensor:
    """Logits of the completion's tokens, of the model's own forward pass without padding."""
    if family == "llama":
        return model(torch.tensor([prompt + new])).logits[0, len(prompt) - 1 : -1]
    start = [SPECIAL[family][1], *new[:-1]]
    read = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([start])}
    return model(**read).logits[0]


@families
def test_a_rollout_has_the_prompts_and_the_completions(
    place: str, rollout: Rollout, family: str
) -> None:
    tokenizer, left = AutoTokenizer.from_pretrained(place), family == "llama"
    rows = rows_without_padding(place, rollout, SPECIAL[family][0])
    lengths = [len(new) for _, new in rows]
    assert len({*lengths}) > 2  # some end early
    assert max(lengths) == 8
    width = max(len(prompt) for prompt, _ in rows)
    for i, (prompt, new) in enumerate(rows):
        padding, rest = [0] * (width - len(prompt)), [0] * (8 - len(new))
        ones = [1] * len(prompt)
        read = [*padding, *ones] if left else [*ones, *padding]
        assert rollout.ids[i, :width][torch.tensor(read).bool()].tolist() == prompt
        assert rollout.attention[i].tolist() == [*read, *[1] * len(new), *rest]
        assert rollout.mask[i].tolist() == [1.0] * len(new) + rest
        assert bool(rollout.ended[i]) == (new[-1] == SPECIAL[family][0])
        assert rollout.completions[i] == tokenizer.decode(new, skip_special_tokens=True)


@families
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_their_gradient_equal_one_row_at_a_time(
    policy: Any, place: str, rollout: Rollout, family: str, temperature: float
) -> None:
    result = log_probs(policy, rollout, temperature)
    assert result.dtype == torch.float32
    expected = torch.zeros_like(result)
    for i, (prompt, new) in enumerate(rows_without_padding(place, rollout, SPECIAL[family][0])):
        table = (logits_of(policy, family, prompt, new) / temperature).log_softmax(dim=-1)
        expected[i, : len(new)] = table[range(len(new)), new]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    assert (result[rollout.mask == 0] == 0).all()
    trained = [p for p in policy.parameters() if p.requires_grad]
    gradients = (torch.autograd.grad(each.sum(), trained) for each in (result, expected))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


@families
@pytest.mark.parametrize("length", [1, 2])
def test_samples_from_the_whole_distribution_despite_the_generation_config(
    policy: Any, place: str, family: str, length: int
) -> None:
    """The last position, where BART's config forces the end token."""
    draws = 2000
    torch.manual_seed(0)
    options = Generation(max_completion_length=length)
    rollout = sample(policy, load_tokenizer(place), ["ab"] * draws, options)
    written = rollout.ids[:, -length:]
    counts = written[:, 0].bincount()
    counts[SPECIAL[family][0]] = 0
    first = int(counts.argmax())  # often, and not the end
    before = written[:, :-1] == first
    last = written[before.all(dim=1), -1]
    prompt = AutoTokenizer.from_pretrained(place)("ab").input_ids
    with torch.no_grad():
        logits = logits_of(policy, family, prompt, [first] * length)[-1]
    expected = logits.softmax(dim=-1)
    assert expected.max() < 0.9
    frequencies = last.bincount(minlength=len(expected)) / len(last)
    for frequency, p in zip(frequencies.tolist(), expected.tolist(), strict=True):
        assert frequency == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(last)) + 1e-3)


@pytest.mark.parametrize("ends", [[2, 5], None])
def test_a_model_may_have_several_end_tokens_or_none(
    folder: str, tmp_path: Path, ends: list[int] | None
) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    model.generation_config.eos_token_id = ends
    model.save_pretrained(tmp_path)
    policy = load_policy(str(tmp_path), LoRA(4), "cpu").eval()
    torch.manual_seed(0)
    rollout = sample(policy, load_tokenizer(folder), PROMPTS, OPTIONS)
    new = rollout.ids[:, -rollout.mask.shape[1] :].tolist()
    lengths = [
        next((t + 1 for t, token in enumerate(row) if token in (ends or [])), len(row))
        for row in new
    ]
    assert rollout.mask.sum(dim=1).tolist() == lengths
    assert (min(lengths) < 8) == bool(ends)


# White space at the end of a prompt


def test_a_space_that_ends_a_prompt_belongs_to_the_completion(tuner, share, tiny_causal) -> None:
    module = tuner(model=tiny_causal("llama"), eval_temperature=0.0)
    completions = module.complete(["The food", "The food ", "The food  "])
    assert len({*completions}) == 1
    model, tokenizer = module.policy, module.tokenizer
    prompts = ["The food", "The food ", "The food\n", "The food\n  ", " "]
    ids, mask = encode_prompts(model, tokenizer, prompts, special_tokens=True)
    read = [tokenizer.decode(row[kept.bool()]) for row, kept in zip(ids, mask, strict=True)]
    assert read == ["The food", "The food", "The food\n", "The food\n", " "]
    module.training_step(Samples(["The food "]), 0)
    (scored,) = share.scored
    assert scored.prefixes == scored.prompts == ("The food ",) * 4


def test_an_encoder_reads_a_prompt_as_it_is(tiny_bart: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bart)
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_bart)
    ids, _ = encode_prompts(model, tokenizer, ["The food "], special_tokens=True)
    assert ids[0].tolist() == tokenizer("The food ").input_ids
