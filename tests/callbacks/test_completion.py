from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_choice import generate

from ctrlreward import Samples, as_samples


class Echo:
    """Generator that repeats its prompt, with random numbers."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [f"<{prompt}|{torch.rand(()).item()}|{random.random()}>" for prompt in prompts]


class EchoOfSamples:
    """Echo of the prompts of samples, by the method that gets all columns."""

    def complete_samples(self, samples: Samples) -> list[str]:
        return Echo().complete(samples.prompts or ())


class Restyler:
    """Generator that rewrites the source into the style of the label."""

    def complete_samples(self, samples: Samples) -> list[str]:
        rows = zip(samples.require("sources", ""), samples.require("labels", ""), strict=True)
        return [f"{source}, {label}" for source, label in rows]


class Mute:
    def complete(self, prompts: Sequence[str]) -> list[str]:
        return ["only one"]


def test_text_is_beginning_plus_completion_and_columns_are_kept(held_out: Samples) -> None:
    samples = generate(Echo(), held_out, repeats=2)
    assert samples.prefixes == ("The food", "The food", "The film", "The film", "A dog", "A dog")
    assert samples.labels == ("positive",) * 4 + ("negative",) * 2
    assert samples.groups == ("0", "0", "1", "1", "2", "2")
    assert samples.prompts is not None
    for text, prefix, prompt in zip(samples.texts, samples.prefixes, samples.prompts, strict=True):
        assert text.startswith(f"{prefix}<{prompt}|")  # the prompt, not the prefix
    assert len(set(samples.texts)) == 6


@given(
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_the_rest_after_a_prefix_is_ignored(
    rows: list[tuple[str, str]], repeats: int, seed: int
) -> None:
    prefixes = [prefix for prefix, _ in rows]
    bare = generate(Echo(), Samples(texts=prefixes), repeats, seed)
    written = Samples(texts=[prefix + rest for prefix, rest in rows], prefixes=prefixes)
    assert generate(Echo(), written, repeats, seed) == bare
    assert len(bare) == repeats * len(rows)


def test_the_seed_fixes_the_texts_and_the_random_state_is_restored() -> None:
    prompts = Samples(texts=["a", "b"])
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    first = generate(Echo(), prompts, seed=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002
    assert generate(Echo(), prompts, seed=1) == first
    assert generate(Echo(), prompts, seed=2) != first


def test_groups_of_the_prompts_and_prompts_without_columns() -> None:
    assert generate(Echo(), Samples(texts=["A"])).texts[0].startswith("A<A|")
    assert generate(Echo(), Samples(texts=["a", "b"], groups=["x", "x"])).groups == ("x", "x")
    assert len(generate(Echo(), Samples(texts=[]))) == 0


@pytest.mark.parametrize("method", ["complete", "complete_samples"])
@pytest.mark.parametrize("returned", [["one"], ["one", None], ["one"] * 3, None, "on", iter("ab")])
def test_what_is_not_one_string_per_prompt_is_named(method: str, returned: object) -> None:
    class Wrong:
        pass

    setattr(Wrong, method, lambda self, rows: returned)
    with pytest.raises((TypeError, ValueError), match=rf"Wrong\.{method}"):
        generate(Wrong(), Samples(texts=["a", "b"]))


def test_a_module_needs_one_of_the_methods() -> None:
    with pytest.raises(ValueError, match="complete_samples"):
        generate(object(), ["a"])


# Modules that need more than prompts


@given(
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_both_methods_give_the_same_texts(rows: list[tuple[str, str]], repeats: int) -> None:
    texts, prompts = zip(*rows, strict=True)
    samples = Samples(texts=texts, prompts=prompts)
    assert generate(EchoOfSamples(), samples, repeats) == generate(Echo(), samples, repeats)


def test_a_module_gets_all_columns_of_the_repeated_rows() -> None:
    seen: list[Samples] = []

    class Both(Restyler, Mute):
        def complete_samples(self, samples: Samples) -> list[str]:
            seen.append(samples)
            return super().complete_samples(samples)

    given_rows = Samples(
        texts=["", "I say: old"],
        prefixes=["", "I say: "],
        labels=["glad", "sad"],
        sources=["soup", "tea"],
    )
    samples = generate(Both(), given_rows, repeats=2)
    assert samples.texts == ("soup, glad",) * 2 + ("I say: tea, sad",) * 2
    assert seen == [given_rows.as_prompts()[[0, 0, 1, 1]]]
    assert seen[0].replace(texts=samples.texts) == samples


def test_texts_of_a_data_set_are_no_beginnings() -> None:
    """They would be glued to the rewritten sources, and be scored with them."""
    data = Samples(texts=["soup", "tea"], sources=["soup", "tea"], labels=["glad", "sad"])
    for texts, module, problem in (
        (["soup", "tea"], Restyler(), "prefixes"),
        (["", "cup"], Restyler(), "prefixes"),
        (["", "tea"], Echo(), r"sources\[1\]"),
    ):
        with pytest.raises(ValueError, match=problem):
            generate(module, data.replace(texts=texts))
    expected = ("soup, glad", "tea, sad")
    assert generate(Restyler(), as_samples(data, prefixes="")).texts == expected
    assert generate(Restyler(), data.replace(texts=["", ""])).texts == expected
    assert generate(Restyler(), data.replace(prefixes=data.texts)).texts[1] == "teatea, sad"


def test_completions_that_repeat_their_prompts_are_a_warning() -> None:
    def decoded(prompts: Sequence[str]) -> list[str]:
        return [f"{prompt} was good" for prompt in prompts]  # of all ids, not only of the new ones

    with pytest.warns(UserWarning, match="decoded"):
        generate(decoded, ["The soup", "The view"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(lambda prompts: ["The soup was good", " was fine"], ["The soup", "The view"])
        generate(
            decoded, Samples(["", ""], prompts=["a", "b"], sources=["a", "b"], prefixes=["", ""])
        )
