from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from fakes import Letters
from trl.rewards import accuracy_reward, get_soft_overlong_punishment, think_format_reward

from ctrlreward import FunctionScorer, LexiconSentiment, Reward, Samples
from ctrlreward.samples import MissingColumn
from ctrlreward.scorers.base import score
from ctrlreward.scorers.components import as_component, name_components

SAMPLES = Samples(
    ["The soup is hot.", "The soup"],
    prefixes=["The soup"] * 2,
    labels=["warm", "cold"],
    prompts=["Praise it:", "Blame it:"],
    groups=[3, 3],
)


def of_texts(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


def given(**expected: Any) -> list[float]:
    """Check what a function got: lists of strings."""
    columns = {**SAMPLES.columns(), "completions": (" is hot.", "")}
    for name, (got, column) in expected.items():
        assert got == list(columns[column]), name
    return [1.0, 2.0]


class AsObject:
    def __call__(self, texts: list[str]) -> list[float]:
        return [1.0, 2.0]


def as_trl(prompts, completions, labels, **kwargs):  # type: ignore[no-untyped-def]
    assert set(kwargs) == {"prefixes", "groups"}
    return given(p=(prompts, "prompts"), c=(completions, "completions"), t=(labels, "labels"))


def with_keywords_alone(**kwargs):  # type: ignore[no-untyped-def]
    return as_trl(**kwargs)


def with_columns(outputs, label, sources=None, strict=True):  # type: ignore[no-untyped-def]
    assert (sources, strict) == (None, True)
    return given(x=(outputs, "texts"), t=(label, "labels"))


def with_all(texts, **columns):  # type: ignore[no-untyped-def]
    assert set(columns) == {"prefixes", "labels", "prompts", "groups"}
    return given(x=(texts, "texts"), g=(columns["groups"], "groups"))


def of_samples(samples: Samples) -> list[float]:
    assert samples == SAMPLES
    return [1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (as_trl, "as_trl"),
        (with_keywords_alone, "with_keywords_alone"),
        (with_columns, "with_columns"),
        (with_all, "with_all"),
        (of_samples, "of_samples"),
        (lambda samples: [1.0, 2.0], "reward"),
        (AsObject(), "AsObject"),
        (functools.partial(with_columns, sources=None), "with_columns"),
    ],
)
def test_a_function_is_called_by_the_names_of_its_parameters(function: Any, name: str) -> None:
    component = as_component("r", function)
    assert (component.name, component.spec.higher_is_better) == (name, True)
    assert component(SAMPLES).tolist() == [1.0, 2.0]


def test_prefixes_are_prompts_and_a_missing_column_is_named() -> None:
    def echo(prompts: list[str], completions: list[str]) -> list[int]:
        return [len(p) - len(c) for p, c in zip(prompts, completions, strict=True)]

    assert FunctionScorer(echo).score(["ab", "a"], prefix="a")["echo"].tolist() == [0, 1]
    with pytest.raises(MissingColumn, match="prompts"):
        FunctionScorer(echo).score(["ab"])
    with pytest.raises(MissingColumn, match="labels"):
        Reward(with_columns)(["ab"])
    with pytest.raises(MissingColumn, match="completion_ids"):
        Reward(get_soft_overlong_punishment(4, 2))(["ab"])


def test_a_function_reads_further_columns_by_their_names() -> None:
    extra = {"completion_ids": [[1, 1, 1], [1]], "difficulty": [2, 3], "environments": [{}, {1: 2}]}
    samples = Samples(["aa", "aa"], labels=["x", "y"], extra=extra)

    def ids(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        assert {*kwargs} == {"completions", "labels", "difficulty", "environments"}
        return [len(tokens) / 4 for tokens in completion_ids]

    def state(environments: list[dict[int, int]], label: list[str]) -> list[int]:
        return [len(e) + (name == "y") for e, name in zip(environments, label, strict=True)]

    def hard(texts: list[str], difficulty: list[int]) -> list[int]:
        return [len(text) * d for text, d in zip(texts, difficulty, strict=True)]

    # Equal texts, but not equal samples.
    reward = Reward([FunctionScorer(f, pointwise=True) for f in (ids, state, hard)])
    batch = reward(samples[[1, 0, 1]])
    assert {name: values.tolist() for name, values in batch.components.items()} == {
        "ids": [0.25, 0.75, 0.25],
        "state": [2.0, 0.0, 2.0],
        "hard": [6.0, 4.0, 6.0],
    }


def test_a_function_sees_the_whole_batch_unless_it_is_pointwise() -> None:
    def count(texts: list[str]) -> list[int]:
        return [len(texts)] * len(texts)

    assert Reward(count)(["a", "a"]).total.tolist() == [2, 2]
    assert Reward(FunctionScorer(count, pointwise=True))(["a", "a"]).total.tolist() == [1, 1]


def test_equal_samples_with_other_further_columns_are_not_one() -> None:
    """Long arrays are printed alike; scorers that read no such column get a sample once."""
    ids = [np.zeros(2000), np.eye(1, 2000, 1000)[0]]
    letters = Letters()

    def total(texts: list[str], ids: list[Any]) -> list[float]:
        return [each.sum() for each in ids]

    components = {"t": FunctionScorer(total, pointwise=True)["total"], "l": letters["letters"]}
    samples = Samples(["a", "a"], labels=["o", "o"], extra={"ids": ids})
    assert score(components, samples).scores["t"].tolist() == [0, 1]
    assert letters.calls == [("a",)]


def test_its_range_and_direction_are_declared() -> None:
    bounded = FunctionScorer(of_texts, higher_is_better=False, range=(0, 2))
    assert bounded.specs["of_texts"].bounds == [0, 2]
    assert Reward(bounded).weights == {"of_texts": -1.0}
    with pytest.raises(ValueError, match="of_texts"):
        bounded.score(["ab", "abc"])
    with pytest.raises(ValueError, match="range"):
        FunctionScorer(of_texts, range=(1, 0))


async def later(texts: list[str]) -> list[float]:
    return []


WRONG: dict[str, Any] = {
    "labels": lambda labels, texts: [],
    "later": later,
    "function": FunctionScorer,
}


@pytest.mark.parametrize("message", WRONG)
def test_a_function_that_cannot_be_called_is_refused(message: str) -> None:
    with pytest.raises(TypeError, match=message):
        FunctionScorer(WRONG[message])


def test_trls_functions_get_messages_and_solutions() -> None:
    """The functions of TRL beside a plain one, with a gain that only right answers earn."""
    rewards = {
        "accuracy": accuracy_reward,
        "format": (think_format_reward, 0.5),
        "length": (lambda texts: [len(text.split()) for text in texts], 0.1),
    }
    texts = [
        r"<think>Half.</think> It is \boxed{\frac{1}{2}}.",
        r"\boxed{\frac{2}{4}} it is",
        r"<think>No.</think> \boxed{3}",
    ]
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Half of 1?"}]
    samples = Samples(texts, prompts=[chat] * 3, references=[r"$\frac{1}{2}$"] * 3)
    reward = Reward(rewards, given={"length": ("accuracy", 1.0)})
    batch = reward(samples)
    np.testing.assert_array_equal(batch.components["accuracy"], [1, 1, 0])
    np.testing.assert_array_equal(batch.components["format"], [1, 0, 1])
    np.testing.assert_array_equal(batch.components["length"], [4, 3, 0])
    np.testing.assert_allclose(batch.total, [1 + 0.5 + 0.4, 1 + 0.3, 0.5])


@pytest.mark.parametrize("kind", [list[list[dict[str, str]]], "Sequence[list[dict[str, Any]]]"])
def test_annotated_messages_have_prompts_as_messages(kind: Any) -> None:
    seen: dict[str, Any] = {}

    def look(prompts, completions, ground_truth):
        seen.update(prompts=prompts, completions=completions, ground_truth=ground_truth)
        return [1.0] * len(prompts)

    look.__annotations__["completions"] = kind
    FunctionScorer(look).score(["Yes."], prompts=["Is it?"], references=["Yes"])
    assert seen == {
        "prompts": [[{"role": "user", "content": "Is it?"}]],
        "completions": [[{"role": "assistant", "content": "Yes."}]],
        "ground_truth": ["Yes"],
    }


def test_scores_of_several_scorers_have_names_of_their_own() -> None:
    first, second = LexiconSentiment(), LexiconSentiment("polarity")
    assert [*name_components([first], None)] == ["polarity", "accuracy"]
    assert [*name_components([first], None, Samples(["Soup."]))] == ["polarity"]
    named = name_components([first, second], ["a", "b"])
    assert [*named] == ["a.polarity", "a.accuracy", "b.polarity"]
    assert named["b.polarity"] == second["polarity"]
    for names in (None, ["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="names"):
            name_components([first, second], names)
    with pytest.raises(ValueError, match="scorers"):
        name_components([], None)
