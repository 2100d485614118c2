"""A table of runs: what is scored, and when training has to stop and which files have to be left.

Each run watches two metrics, `a` and `b`. Their values at steps 1, 2, 3, … are written as digits,
eighths, so that they are exact; "n" is NaN, and the last digit goes on. The expected steps were
found by hand.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from ctrlreward.callbacks import (
    GenerationScorer,
    ParetoCheckpoint,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from ctrlreward.callbacks import pareto as pareto_module

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:the checkpoint of")

PATIENCE, THRESHOLD = "patience_exhausted", "stopping_threshold"
DIVERGENCE, NAN = "divergence_threshold", "non_finite_metric"


@dataclass(frozen=True)
class Case:
    """One run; where `reason` is None it ends at `steps`, else it stops at `stop`."""

    a: str
    stop: int
    reason: str | None
    best: set[int]  # steps whose checkpoints RewardCheckpoint has left
    front: set[int]  # and ParetoCheckpoint
    b: str = "4"
    every: int = 1
    patience: int = 3
    min_steps: int = 0
    min_delta: int = 0
    threshold: int | None = None
    divergence: int | None = None
    finite: bool = True
    mode: str = "max"
    top_k: int = 1
    constraint: tuple[int | None, int | None] | None = None  # on b
    steps: int = 8
    resume: int | None = None  # where the run is cut, and resumed


TABLE = {
    # values and patience
    "rises": Case("12345678", 8, None, {8}, {8}),
    "falls": Case("87654321", 4, PATIENCE, {1}, {1}),
    "flat": Case("4", 4, PATIENCE, {1}, {1, 2, 3, 4}),
    "patience of one": Case("2132", 2, PATIENCE, {1}, {1}, patience=1),
    "recovers in time": Case("132543", 6, PATIENCE, {4}, {4}, patience=2),
    "NaN ends": Case("n1324", 1, NAN, set(), set()),
    "NaN ends later": Case("13n4", 3, NAN, {2}, {2}),
    "NaN passed over": Case("2n3n1", 5, None, {3}, {3}, finite=False, steps=5),
    "NaN counts": Case("4nnn", 4, PATIENCE, {1}, {1}, finite=False),
    "an improvement is larger than min_delta": Case(
        "13457", 5, None, {5}, {5}, min_delta=2, patience=2, steps=5
    ),
    "small improvements count as none": Case("1233", 4, PATIENCE, {3}, {3, 4}, min_delta=2),
    "lower is better": Case("43256", 5, PATIENCE, {3}, {3}, mode="min", patience=2),
    # two metrics against each other
    "all on the front": Case("12345678", 8, None, {8}, set(range(1, 9)), b="87654321"),
    "front of a run that stops": Case("87654321", 4, PATIENCE, {1}, {1, 2, 3, 4}, b="12345678"),
    "some on the front": Case("25136", 5, None, {5}, {2, 3, 4, 5}, b="42741", patience=8, steps=5),
    "one beats all": Case("12348", 5, None, {5}, {5}, b="12348", steps=5),
    "equals fall together": Case("3352", 4, None, {3}, {3}, b="3351", steps=4),
    "the first beats all": Case("82345678", 8, None, {1}, {1}, b="87654321", patience=8),
    "NaN in one": Case("54321", 5, None, {1}, {1, 3, 4, 5}, b="1n345", patience=8, steps=5),
    "lower and higher": Case(
        "43256", 5, None, {3}, {3, 4, 5}, b="12345", mode="min", patience=8, steps=5
    ),
    # how often it is scored
    "every second, rises": Case("81726354", 8, None, {8}, {8}, every=2, patience=2),
    "every second, falls": Case("18273645", 6, PATIENCE, {2}, {2}, every=2, patience=2),
    "every third": Case("88288188", 8, None, {3}, {3}, every=3, patience=2),
    "every third, patience of one": Case("88288188", 6, PATIENCE, {3}, {3}, every=3, patience=1),
    "every fourth, two fronts": Case(
        "00050004", 8, PATIENCE, {4}, {4, 8}, b="00010002", every=4, patience=1
    ),
    # minimum steps
    "not before min_steps": Case("87654321", 6, PATIENCE, {1}, {1}, patience=2, min_steps=6),
    "min_steps between scores": Case(
        "18273645", 6, PATIENCE, {2}, {2}, every=2, patience=1, min_steps=5
    ),
    "improves before min_steps": Case(
        "43256666", 7, PATIENCE, {5}, {5, 6, 7}, patience=2, min_steps=4
    ),
    "a threshold before min_steps is a score as any": Case(
        "26345678", 4, PATIENCE, {2}, {2}, threshold=5, patience=2, min_steps=4
    ),
    "NaN before min_steps counts": Case("4n55", 6, PATIENCE, {3}, {3, 4, 5, 6}, min_steps=3),
    # thresholds
    "threshold": Case("24567", 4, THRESHOLD, {4}, {4}, threshold=5),
    "threshold at once": Case("7", 1, THRESHOLD, {1}, {1}, threshold=5),
    "threshold, lower is better": Case("6543", 4, THRESHOLD, {4}, {4}, threshold=4, mode="min"),
    "divergence": Case(
        "54321", 4, DIVERGENCE, {1}, {1, 2, 3, 4}, b="12345", divergence=3, patience=8
    ),
    # how many are kept, and which may be
    "two are kept": Case("13254", 5, None, {4, 5}, {4}, top_k=2, patience=8, steps=5),
    "all that were scored": Case("12345678", 8, None, {2, 4, 6, 8}, {8}, top_k=-1, every=2),
    "constraint": Case(
        "12345678", 8, None, {5}, set(range(1, 9)), b="87654321", constraint=(4, None)
    ),
    "constraint from both sides": Case(
        "82345678", 8, None, {6}, {1}, b="87654321", constraint=(3, 5), patience=8
    ),
    "constraint that none meets": Case("1234", 4, None, set(), {4}, constraint=(None, 3), steps=4),
    "NaN meets no constraint": Case(
        "1234", 4, None, {3}, {3}, b="4n4n", constraint=(0, 8), steps=4
    ),
}
RESUMED = {
    "recovers in time": (1, 3, 5),
    "NaN ends": (1,),
    "NaN passed over": (2,),
    "some on the front": (2, 3),
    "every third, patience of one": (2, 4),
    "improves before min_steps": (3,),
    "threshold": (4,),
    "divergence": (2,),
    "two are kept": (3,),
    "constraint from both sides": (5,),
}
CASES = TABLE | {
    f"{name}, resumed at {step}": replace(TABLE[name], resume=step)
    for name, steps in RESUMED.items()
    for step in steps
}


def values(digits: str) -> list[float]:
    """By step; nothing is scored at step 0."""
    return [0.0] + [math.nan if d == "n" else int(d) / 8 for d in digits]


def eighths(number: int | None) -> float | None:
    return None if number is None else number / 8


@dataclass
class Outcome:
    """What a run left: its stopper, files by their paths, and what the picture shows."""

    stopper: RewardEarlyStopping
    files: list[str]
    drawn: list[tuple[Any, ...]]
    states: dict[str, Any]  # of all callbacks, as the last checkpoint holds them

    def kept(self, folder: str) -> set[int]:
        """The steps of the checkpoints in a folder, the last one left out."""
        names = [Path(f).name for f in self.files if f.startswith(f"{folder}/step=")]
        return {int(name[5:11]) for name in names}


@pytest.fixture
def play(fit, counter, curve, held_out, tmp_path, monkeypatch) -> Callable[..., Outcome]:
    """Runs a case in `tmp_path/run`, up to `max_steps`; "last" resumes it there."""
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(pareto_module, "draw_front", lambda *given: drawn.append(given))
    root = tmp_path / "run"

    def run(
        case: Case, max_steps: int, resume: bool = False, more: tuple[pl.Callback, ...] = ()
    ) -> Outcome:
        lower = case.mode == "min"
        first = curve([1 - value for value in values(case.a)] if lower else values(case.a))
        scores = {"a": first["loss" if lower else "value"], "b": curve(values(case.b))["value"]}
        stopper = RewardEarlyStopping(
            "score/a",
            mode=case.mode,
            patience=case.patience,
            min_delta=case.min_delta / 8,
            min_steps=case.min_steps,
            stopping_threshold=eighths(case.threshold),
            divergence_threshold=eighths(case.divergence),
            check_finite=case.finite,
        )
        bounds = None if case.constraint is None else tuple(map(eighths, case.constraint))
        best = RewardCheckpoint(
            "score/a",
            mode=case.mode,
            dirpath=str(root / "best"),
            save_top_k=case.top_k,
            constraints=bounds and {"score/b": bounds},
        )
        front = ParetoCheckpoint(
            {"score/a": case.mode, "score/b": "max"}, dirpath=str(root / "front")
        )
        last = root / "front" / "last.ckpt"  # written after the other one's: it knows all
        drawn.clear()
        fit(
            counter(),
            [stopper, best, front, GenerationScorer(scores, held_out, case.every), *more],
            max_steps=max_steps,
            default_root_dir=tmp_path / "log",
            ckpt_path=last if resume else None,
        )
        files = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
        saved = torch.load(last, weights_only=True)["callbacks"]
        for state in saved.values():
            state.pop("current_score", None)  # Lightning writes it and never reads it
        return Outcome(stopper, files, list(drawn), saved)

    return run


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) >= 30


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_stops_and_keeps_as_the_table_says(case: Case, play) -> None:
    if case.resume is not None:
        play(case, case.resume)
    outcome = play(case, case.steps, resume=case.resume is not None)
    stop = case.stop if case.reason else -1
    assert (outcome.stopper.stopped_step, outcome.stopper.stopped_by) == (stop, case.reason)
    assert outcome.kept("best") == case.best
    assert outcome.kept("front") == case.front
    expected = ["best/last.ckpt", "front/last.ckpt"]
    for step in case.best | case.front:
        a, b = (values(digits)[min(step, len(digits))] for digits in (case.a, case.b))
        expected += [f"best/step={step:06d}-a={a:.3f}.ckpt"] * (step in case.best)
        expected += [f"front/step={step:06d}-a={a:.3f}-b={b:.3f}.ckpt"] * (step in case.front)
    assert outcome.files == sorted(expected)


class Snapshots(pl.Callback):
    """Copies the folder of a run after each validation, as a kill would leave it."""

    def __init__(self, root: Path, copies: Path) -> None:
        self.root, self.copies = root, copies

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > 0:
            shutil.copytree(self.root, self.copies / str(trainer.global_step))


@pytest.mark.parametrize(
    "name",
    [
        "recovers in time",
        "some on the front",
        "every third, patience of one",
        "improves before min_steps",
        "threshold",
        "NaN in one",
        "two are kept",
        "constraint from both sides",
    ],
)
def test_resumed_from_any_validation_it_ends_as_the_run_that_was_never_cut(
    name: str, play, tmp_path
) -> None:
    case, root, copies = TABLE[name], tmp_path / "run", tmp_path / "copies"
    whole = play(case, case.steps, more=(Snapshots(root, copies),))
    shutil.copytree(root, copies / str(case.stop))
    assert len(list(copies.iterdir())) == case.stop
    for copy in copies.iterdir():
        shutil.rmtree(root)
        shutil.copytree(copy, root)
        resumed = play(case, case.steps, resume=True)
        for attribute in ("stopped_step", "stopped_by", "stopping_reason_message", "wait_count"):
            assert getattr(resumed.stopper, attribute) == getattr(whole.stopper, attribute)
        assert resumed.files == whole.files
        assert resumed.drawn == whole.drawn
        assert repr(resumed.states) == repr(whole.states)
