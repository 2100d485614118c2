"""Texts of a module: `generate`, and modules that callbacks refuse."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    MisconfigurationException,
    RewardCheckpoint,
    generate,
)
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from ctrlreward import Samples, as_samples, completion
from ctrlreward.completion import complete

ROWS = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), min_size=1, max_size=4)


class Echo:
    """Generator that repeats its prompt, with random numbers."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [f"<{prompt}|{torch.rand(()).item()}|{random.random()}>" for prompt in prompts]


class EchoOfSamples(Echo):
    """Echo of the prompts of samples, by the method that gets all columns and is preferred."""

    def complete_samples(self, samples: Samples) -> list[str]:
        return self.complete(samples.prompts or ())


def test_text_is_beginning_plus_completion_and_columns_are_kept(held_out: Samples) -> None:
    samples = generate(Echo(), held_out, repeats=2)
    assert samples.prefixes == ("The food", "The food", "The film", "The film", "A dog", "A dog")
    assert samples.labels == ("positive",) * 4 + ("negative",) * 2
    assert samples.groups == ("0", "0", "1", "1", "2", "2")
    assert samples.prompts is not None
    for text, prefix, prompt in zip(samples.texts, samples.prefixes, samples.prompts, strict=True):
        assert text.startswith(f"{prefix}<{prompt}|")  # the prompt, not the prefix
    assert len(set(samples.texts)) == 6
    assert generate(Echo(), Samples(texts=["a", "b"], groups=["x", "x"])).groups == ("x", "x")
    assert len(generate(Echo(), Samples(texts=[]))) == 0


@given(ROWS, st.integers(1, 3), st.integers(0, 5))
def test_rest_and_method_make_no_difference(
    rows: list[tuple[str, str]], repeats: int, seed: int
) -> None:
    prefixes = [prefix for prefix, _ in rows]
    bare = generate(Echo(), Samples(texts=prefixes), repeats, seed)
    written = Samples(texts=[prefix + rest for prefix, rest in rows], prefixes=prefixes)
    assert generate(EchoOfSamples(), written, repeats, seed) == bare
    assert len(bare) == repeats * len(rows)


def test_a_rank_may_have_no_prompts_for_a_model_that_reasons(monkeypatch) -> None:
    class Reasoner(Echo):
        tokenizer = SimpleNamespace(chat_template="<think>…</think>")

    prompts = Samples(["a", "b"]).as_prompts()
    parts = [complete(Reasoner(), prompts[rank::3], 2, rank) for rank in range(3)]
    monkeypatch.setattr(completion, "rank_and_ranks", lambda: (2, 3))
    monkeypatch.setattr(completion, "on_every_rank", lambda work: [*parts[:2], work()])
    samples = completion.generate_across_ranks(Reasoner(), prompts, 2, 0)
    assert samples.prompts == ("a", "a", "b", "b")
    assert samples.answer_after == ("</think>",) * 4


def test_the_random_state_of_any_accelerator_is_restored(monkeypatch) -> None:
    restored = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("mps"))
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: "before")
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda *given: restored.append(given))
    with completion.fixed_randomness(0):
        pass
    assert restored == [("before", 0)]


def test_the_seed_fixes_the_texts_and_the_random_state_is_restored() -> None:
    prompts = Samples(texts=["a", "b"])
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    first = generate(Echo(), prompts, seed=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002
    assert generate(Echo(), prompts, seed=1) == first
    assert generate(Echo(), prompts, seed=2) != first


@pytest.mark.parametrize("method", ["complete", "complete_samples"])
@pytest.mark.parametrize(
    "returned",
    [["one"], ["one", None], ["one"] * 3, None, "on", iter("ab"), {"a": "x", "b": "y"}, {"x", "y"}],
)
def test_what_is_not_one_string_per_prompt_is_named(method: str, returned: object) -> None:
    class Wrong:
        pass

    with pytest.raises(ValueError, match="complete_samples"):
        generate(Wrong(), ["a"])
    setattr(Wrong, method, lambda self, rows: returned)
    with pytest.raises((TypeError, ValueError), match=rf"Wrong\.{method}"):
        generate(Wrong(), Samples(texts=["a", "b"]))


def test_completions_that_repeat_their_prompts_are_a_warning() -> None:
    def decoded(prompts: Sequence[str]) -> list[str]:
        return [f"{prompt} was good" for prompt in prompts]  # of all ids, not only of the new ones

    rewrite = Samples(["", ""], prompts=["a", "b"], sources=["a", "b"], prefixes=["", ""])
    with pytest.warns(UserWarning, match="decoded"):
        generate(decoded, ["The soup", "The view"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(lambda prompts: ["The soup was good", " was fine"], ["The soup", "The view"])
        generate(decoded, rewrite)


TINY = {"vocab_size": 20, "pad_token_id": 0, "eos_token_id": 1}
T5 = partial(T5Config, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, **TINY)
GPT2 = partial(GPT2Config, n_embd=8, n_layer=1, n_head=2, **TINY)
SOURCES = ["The soup", "The view"]


@pytest.mark.parametrize("kind", [GenerationScorer, BeforeAfter])
def test_what_would_be_scored_with_its_input_is_refused_before_training(
    fit, counter, curve, kind: type
) -> None:
    class Transfer(counter):
        complete = None

        def complete_samples(self, samples: Samples) -> list[str]:
            return list(samples.sources or ())

    class Silent(Transfer):
        complete_samples = None

    class Rewriter(counter):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.models = [model]  # a list hides it from PyTorch

        def configure_model(self) -> None:
            self.model = self.models[0]

    def run(module: Any, samples: Samples) -> None:
        right = Samples(["", ""], prefixes=["", ""], prompts=SOURCES)
        callbacks = [kind({"v": scorer["value"]}, samples), RewardCheckpoint("score/v")]
        if kind is BeforeAfter and isinstance(module, Rewriter):
            callbacks.append(GenerationScorer({"v": scorer["value"]}, right))
        fit(module, callbacks, max_steps=1)

    scorer, given = curve([0.5, 0.9]), Samples(["", ""], prefixes=["", ""], sources=SOURCES)
    data = given.replace(texts=["A rewrite"] * 2, prefixes=None)
    module = Rewriter(T5ForConditionalGeneration(T5()))
    for wrong, samples, named in (
        (Silent(), given, "complete_samples"),
        (Transfer(), data, "prefixes"),
        (module, Samples(SOURCES), "prefixes or prompts"),
    ):
        with pytest.raises((MisconfigurationException, ValueError), match=named):
            run(wrong, samples)
    assert module.weight == 0  # before the first step
    run(module, as_samples(Samples(SOURCES), prefixes="", prompts=SOURCES))
    assert all(text.startswith(" at ") for text in scorer.scored[-1].texts)
    decoder = Rewriter(GPT2LMHeadModel(GPT2()))
    decoder.judge = module.models[0]  # not all of its models are encoder-decoders
    run(decoder, Samples(SOURCES))
