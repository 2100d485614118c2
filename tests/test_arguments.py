from __future__ import annotations

import pytest

from ctrlreward.arguments import did_you_mean, one_of, positive, some_of

KNOWN = ("mean", "sum")


def test_known_names_are_returned() -> None:
    assert one_of("aggregate", "sum", KNOWN) == "sum"
    assert some_of("aggregate", "sum", KNOWN) == ("sum",)
    assert some_of("aggregate", ["sum", "mean"], KNOWN) == ("sum", "mean")
    assert some_of("aggregate", iter(["mean"]), KNOWN) == ("mean",)


@pytest.mark.parametrize("given", ["maen", "MEAN", "x", None, ["mean"]])
def test_an_unknown_name_is_listed(given: object) -> None:
    with pytest.raises(ValueError, match="a must be one of mean, sum"):
        one_of("a", given, KNOWN)


@pytest.mark.parametrize("given", [[], "", ["mean", "mean"], ["mean", "maen"], "max"])
def test_several_names(given: object) -> None:
    with pytest.raises(ValueError, match=r"^a must be"):
        some_of("a", given, KNOWN)


def test_the_most_similar_name() -> None:
    assert "'score/relevance'" in did_you_mean("relevance", ["score/relevance", "score/length"])
    assert did_you_mean("bleu", ["score/relevance"]) == ""


def test_positive_numbers() -> None:
    assert positive("n", 3) == 3
    assert positive("n", 0.5) == 0.5
    assert positive("n", None) is None
    for number in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=f"n must be positive, got {number}"):
            positive("n", number)
    with pytest.raises(TypeError, match="n must be a number, got '3'"):
        positive("n", "3")
