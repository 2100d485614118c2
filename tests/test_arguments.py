from __future__ import annotations

import numpy as np
import pytest

from ctrlreward import huggingface
from ctrlreward.arguments import (
    check_kind,
    checked_keywords,
    did_you_mean,
    one_of,
    positive,
    some_of,
)
from ctrlreward.callbacks import GenerationScorer, ProxyGuard

KNOWN = ("mean", "sum")


def test_known_names_are_returned() -> None:
    assert one_of("aggregate", "sum", KNOWN) == "sum"
    assert some_of("aggregate", "sum", KNOWN) == ("sum",)
    assert some_of("aggregate", ["sum", "mean"], KNOWN) == ("sum", "mean")
    assert some_of("aggregate", iter(["mean"]), KNOWN) == ("mean",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("maen", r"^a must be one of mean, sum, got 'maen' \(did you mean 'mean'\?\)$"),
        ("MEAN", r"got 'MEAN' \(did you mean 'mean'\?\)$"),
        ("x", r"^a must be one of mean, sum, got 'x'$"),
        (None, r"^a must be one of mean, sum, got None$"),
        (["mean"], r"^a must be one of mean, sum, got \['mean'\]"),
    ],
)
def test_an_unknown_name_is_listed(given: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_of("a", given, KNOWN)


@pytest.mark.parametrize("given", [[], "", ["mean", "mean"], ["mean", "maen"], "max"])
def test_several_names(given: object) -> None:
    with pytest.raises(ValueError, match=r"^a must be 'all' or one or more of mean, sum, got "):
        some_of("a", given, KNOWN)


@pytest.mark.parametrize(
    ("given", "known", "hint"),
    [
        ("score/A", ["score/b", "score/a"], "score/a"),  # the case counts least
        ("CTRLEvl", ["ctrleval", "CTRLEval"], "CTRLEval"),
        ("fail_rate", ["score/pos", "score/fail_rate", "eval_score/pos"], "score/fail_rate"),
        ("pos", ["score/pos", "score/fail_rate"], "score/pos"),  # without its prefix
        ("pos", ["score/pos", "score/fail_rate", "eval_score/pos"], None),  # two
        ("val_loss", ["train_loss", "val_loss/dataloader_idx_0"], "val_loss/dataloader_idx_0"),
    ],
)
def test_the_most_similar_name(given: str, known: list[str], hint: str | None) -> None:
    assert did_you_mean(given, known) == (f" (did you mean {hint!r}?)" if hint else "")


def test_missing_arguments_and_all_that_are_required() -> None:
    """A callback for `Trainer` takes the trainer first, and the one for Lightning does not."""
    with pytest.raises(
        TypeError, match=r"1 .*'samples'\. Call it with \(trainer, scores, samples, "
    ):
        huggingface.GenerationScorer({}, ["a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"1 .*'scores'\. Call it with \(scores, samples, \.\.\.\)"):
        GenerationScorer(samples=["a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"missing 2 required arguments: 'proxy', 'held_out'\."):
        ProxyGuard()  # type: ignore[call-arg]


def test_positive_numbers() -> None:
    assert positive("n", 3) == 3
    assert positive("n", 0.5) == 0.5
    assert positive("n", None) is None
    for number in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=f"n must be positive, got {number}"):
            positive("n", number)
    with pytest.raises(TypeError, match="n must be a number, got '3'"):
        positive("n", "3")


@pytest.mark.parametrize(
    ("annotation", "given", "message"),
    [
        ("int", "3", "n must be an integer, got '3'"),
        ("int", 1.5, "n must be an integer, got 1.5"),
        ("int", True, "n must be an integer, got True"),
        ("int", None, "n must be an integer, got None"),
        ("float | None", "1", "n must be a number or None, got '1'"),
        ("bool", "true", "n must be True or False, got 'true'"),
        ("bool", 1, "n must be True or False, got 1"),
    ],
)
def test_numbers_and_flags_of_another_type(annotation: str, given: object, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        check_kind("n", annotation, given)


def test_numbers_and_flags() -> None:
    for annotation, given in (
        ("int", np.int64(3)),
        ("float", 3),
        ("float", np.float32(0.5)),
        ("int | None", None),
        ("bool", True),
        ("str", 3),
        ("float | Literal['noise']", "noise"),
    ):
        check_kind("n", annotation, given)


def test_decorated_classes_check_positions_and_keywords() -> None:
    @checked_keywords()
    class StoppingMixin:
        def __init__(self, monitor: str, patience: int = 3, verbose: bool = False) -> None: ...

    StoppingMixin("loss", 2, verbose=True)
    for arguments, keywords in ((("loss", "2"), {}), (("loss",), {"patience": "2"})):
        with pytest.raises(TypeError, match="patience must be an integer, got '2'"):
            StoppingMixin(*arguments, **keywords)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Stopping\.__init__\(\) missing 1 .*'monitor'"):
        StoppingMixin()  # type: ignore[call-arg]
