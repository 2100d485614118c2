from __future__ import annotations

import pytest

from ctrlreward.arguments import did_you_mean, one_of, positive, some_of

KNOWN = ("mean", "sum")


def test_several_names() -> None:
    assert some_of("aggregate", "sum", KNOWN) == ("sum",)
    assert some_of("aggregate", iter(["sum", "mean"]), KNOWN) == ("sum", "mean")
    for given in ([], "", ["mean", "mean"], ["mean", "maen"], "max"):
        with pytest.raises(ValueError, match="aggregate"):
            some_of("aggregate", given, KNOWN)


def test_one_name_and_a_positive_number() -> None:
    assert one_of("aggregate", "sum", KNOWN) == "sum"
    assert (positive("n", 0.5), positive("n", None)) == (0.5, None)
    with pytest.raises(ValueError, match="aggregate"):
        one_of("aggregate", "maen", KNOWN)
    for number in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="n must"):
            positive("n", number)


def test_the_most_similar_name() -> None:
    assert "'score/relevance'" in did_you_mean("relevance", ["score/relevance", "score/length"])
    assert did_you_mean("bleu", ["score/relevance"]) == ""
