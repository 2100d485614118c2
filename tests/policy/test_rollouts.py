"""Rollouts of decoder-only and encoder-decoder policies, and their log-probabilities."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_choice import LoRA, pl
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tuner_records import drift, read_by, written_by

from ctrlreward import Samples
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Generation, Rollout, log_probs, sample

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
    tokenizer, (end, _) = AutoTokenizer.from_pretrained(place), SPECIAL[family]
    rows = written_by(rollout)
    assert read_by(rollout) == [tokenizer(prompt).input_ids for prompt in PROMPTS]
    assert len({len(new) for new in rows}) > 2  # some end early
    assert max(map(len, rows)) == 8
    width = max(len(tokenizer(prompt).input_ids) for prompt in PROMPTS)
    for i, new in enumerate(rows):
        read = rollout.attention[i, :width].tolist()
        assert read == sorted(read, reverse=family != "llama")  # padded on one side
        assert rollout.attention[i, width:].tolist() == rollout.mask[i].tolist()
        assert rollout.mask[i].tolist() == [1.0] * len(new) + [0.0] * (8 - len(new))
        assert end not in new[:-1]
        assert bool(rollout.ended[i]) == (new[-1] == end) or len(new) == 8
        assert rollout.completions[i] == tokenizer.decode(new, skip_special_tokens=True)


@families
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_their_gradient_equal_one_row_at_a_time(
    policy: Any, rollout: Rollout, family: str, temperature: float
) -> None:
    result = log_probs(policy, rollout, temperature)
    assert result.dtype == torch.float32
    expected = torch.zeros_like(result)
    for i, (prompt, new) in enumerate(zip(read_by(rollout), written_by(rollout), strict=True)):
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
    torch.manual_seed(0)
    options = Generation(max_completion_length=length)
    rollout = sample(policy, load_tokenizer(place), ["ab"] * 2000, options)
    written = rollout.ids[:, -length:]
    counts = written[:, 0].bincount()
    counts[SPECIAL[family][0]] = 0
    first = int(counts.argmax())  # often, and not the end
    last = written[(written[:, :-1] == first).all(dim=1), -1]
    prompt = AutoTokenizer.from_pretrained(place)("ab").input_ids
    with torch.no_grad():
        logits = logits_of(policy, family, prompt, [first] * length)[-1]
    expected = logits.softmax(dim=-1)
    assert expected.max() < 0.9
    frequencies = last.bincount(minlength=len(expected)) / len(last)
    for frequency, p in zip(frequencies.tolist(), expected.tolist(), strict=True):
        assert frequency == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(last)) + 1e-3)


@pytest.mark.parametrize("family", ["llama"])
@pytest.mark.parametrize(
    "options",
    [
        *({"top_p": p} for p in (1e-6, 0.5)),
        *({"top_k": k} for k in (3, 60)),
        *({"min_p": p} for p in (0.1, 1.0)),
        {"top_k": 5, "top_p": 0.8, "min_p": 0.2},
    ],
)
def test_the_tokens_that_transformers_keeps_are_drawn(policy, place, options) -> None:
    tokenizer, temperature = load_tokenizer(place), 1.3
    with torch.no_grad():
        ids = torch.tensor([tokenizer.encode("ab", add_special_tokens=False)])
        logits = policy(ids).logits[:, -1] / temperature
    kinds = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    theirs = LogitsProcessorList([kinds[name](value) for name, value in options.items()])
    kept = theirs(None, logits)[0].isfinite()
    torch.manual_seed(0)
    sampling = Generation(max_completion_length=1, **options)
    rollout = sample(policy, tokenizer, ["ab"] * 4000, sampling, temperature)
    tokens = rollout.ids[:, -1]
    assert tokens.unique().tolist() == kept.nonzero()[:, 0].tolist()
    # The whole distribution is learned from.
    found = log_probs(policy, rollout, temperature)[:, 0].detach()
    torch.testing.assert_close(found, logits[0].log_softmax(dim=-1)[tokens])


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_greedy_decoding_is_that_of_transformers(kind: str, folder: str) -> None:
    """Prompt by prompt without padding. GPT-2 has layers that are no `nn.Linear`."""
    tokenizer = load_tokenizer(folder)
    torch.manual_seed(1)
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=8, initializer_range=0.5, **sizes))
    model.eval().generation_config.eos_token_id = 0
    written = written_by(sample(model, tokenizer, PROMPTS, OPTIONS, 0.0))
    options = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": tokenizer.pad_token_id}
    for prompt, new in zip(PROMPTS, written, strict=True):
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        expected = model.generate(**inputs, **options)[0, inputs.input_ids.shape[1] :]
        assert new == expected.tolist()


# White space at the end of a prompt


def test_a_space_that_ends_a_prompt_belongs_to_the_completion(tuner, share, tiny_causal) -> None:
    module = tuner(model=tiny_causal("llama"), eval_temperature=0.0)
    completions = module.complete(["The food", "The food ", "The food  "])
    assert len({*completions}) == 1
    prompts = ["The food", "The food ", "The food\n", "The food\n  ", " "]
    read = [module.tokenizer.decode(ids) for ids in read_by(module.rollout(prompts))]
    assert read == ["The food", "The food", "The food\n", "The food\n", " "]
    module.training_step(Samples(["The food "]), 0)
    (scored,) = share.scored
    assert scored.prefixes == scored.prompts == ("The food ",) * 4


# Learning


@families
def test_few_steps_raise_a_planted_reward_of_the_completions_alone(
    tuner, fit, share, folder, tiny_seq2seq, family: str
) -> None:
    model = folder if family == "llama" else tiny_seq2seq(family)
    module = tuner(model=model, learning_rate=0.05, num_generations=16, beta=0.0)

    def share_of_a() -> float:
        torch.manual_seed(2)
        texts = [text for text in module.complete(["abc"] * 256) if text]
        return sum(text.count("a") / len(text) for text in texts) / len(texts)

    pl.seed_everything(0, verbose=False)
    module.configure_model()
    before = share_of_a()
    fit(module, 5, batch=Samples([""] * 3, prefixes=[""] * 3, prompts=["abc", "cd", "f"]))
    assert share_of_a() > before + 0.1
    texts = {text for samples in share.scored for text in samples.texts}
    assert all(len(text) <= 6 and set(text) <= set("abcdef?") for text in texts)
    assert share.releases == 1  # when the run ended
