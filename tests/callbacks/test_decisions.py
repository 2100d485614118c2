"""Cases of the table of decisions, driven through Lightning's trainer and our callbacks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from decision_cases import BY_PROMPT, TABLE, Case, HandDriven, eighths, values
from lightning_choice import ParetoCheckpoint, RewardCheckpoint, RewardEarlyStopping, pl

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:the checkpoint of")

# tests/selection has all cases.
CASES = ("recovers in time", "some on the front", "constraint from both sides", "two are kept")
PROMPTS = ("alarm after a rise", "a decline stops")


@dataclass
class Outcome:
    """Results of a run: its callbacks and files."""

    stopper: RewardEarlyStopping
    best: RewardCheckpoint
    front: ParetoCheckpoint
    files: list[str]
    states: dict[str, Any]  # of all callbacks, from the last checkpoint


@pytest.fixture
def play(fit, counter, curve, watch, tmp_path) -> Callable[..., Outcome]:
    """Run a case in `tmp_path/run` up to `max_steps`, or resume it there."""
    root = tmp_path / "run"

    def run(
        case: Case, max_steps: int, resume: bool = False, more: tuple[pl.Callback, ...] = ()
    ) -> Outcome:
        scores = {"a": curve(values(case.a))["value"], "b": curve(values(case.b))["value"]}
        stopper = RewardEarlyStopping("score/a", **case.stopping)
        bounds = None if case.constraint is None else tuple(map(eighths, case.constraint))
        best = RewardCheckpoint(
            "score/a",
            dirpath=str(root / "best"),
            save_top_k=case.top_k,
            constraints={"score/b": bounds} if bounds else {},
        )
        front = ParetoCheckpoint(["score/a", "score/b"], dirpath=str(root / "front"))
        last = root / "front" / "last.ckpt"  # written last: contains all states
        fit(
            counter(),
            [stopper, best, front, watch(scores), *more],
            max_steps=max_steps,
            default_root_dir=tmp_path / "log",
            ckpt_path=last if resume else None,
        )
        files = sorted(str(p.relative_to(root)) for p in root.rglob("*.ckpt"))
        saved = torch.load(last, weights_only=True)["callbacks"]
        return Outcome(stopper, best, front, files, saved)

    return run


@pytest.mark.parametrize("name", CASES)
def test_stops_and_keeps_as_the_table_says(name: str, play) -> None:
    case = TABLE[name]
    outcome = play(case, case.steps)
    stop = case.stop if case.reason else -1
    assert (outcome.stopper.stopped_step, outcome.stopper.stopped_by) == (stop, case.reason)
    expected = ["best/last.ckpt", "front/last.ckpt"]
    for step in case.best | case.front:
        a, b = (values(digits)[min(step, len(digits))] for digits in (case.a, case.b))
        expected += [f"best/step={step:06d}-a={a:.3f}.ckpt"] * (step in case.best)
        expected += [f"front/step={step:06d}-a={a:.3f}-b={b:.3f}.ckpt"] * (step in case.front)
    assert outcome.files == sorted(expected)
    # The rules alone decide: Lightning neither adds nor changes anything.
    hand = HandDriven(case).play()
    found = {"stop": outcome.stopper, "best": outcome.best, "front": outcome.front}
    assert {name: callback.state for name, callback in found.items()} == hand.states
    best = hand.rules["best"].best(hand.states["best"])
    assert Path(outcome.best.best_model_path).name[:11] == f"step={best:06d}"


class Copies(pl.Callback):
    """Copies of a run's folder after each validation, as a kill would leave it."""

    def __init__(self, root: Path, copies: Path) -> None:
        self.root, self.copies = root, copies

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > 0:
            shutil.copytree(self.root, self.copies / str(trainer.global_step))


@pytest.mark.lightning
@pytest.mark.parametrize("name", ["some on the front", "two are kept"])
def test_resuming_from_any_validation_equals_the_uninterrupted_run(
    name: str, play, tmp_path
) -> None:
    case, root, copies = TABLE[name], tmp_path / "run", tmp_path / "copies"
    whole = play(case, case.steps, more=(Copies(root, copies),))
    shutil.copytree(root, copies / str(case.stop))
    assert len(list(copies.iterdir())) == case.stop
    for copy in copies.iterdir():
        shutil.rmtree(root)
        shutil.copytree(copy, root)
        resumed = play(case, case.steps, resume=True)
        assert resumed.stopper.state == whole.stopper.state
        assert resumed.files == whole.files
        assert resumed.front.kept == whole.front.kept
        assert repr(resumed.states) == repr(whole.states)


def states_of(callbacks: list[pl.Callback]) -> dict[str, Any]:
    names = {"ProxyGuard": "alarm", "RewardEarlyStopping": "stop", "RewardCheckpoint": "best"}
    return {names[type(c).__name__]: c.state for c in callbacks[1:]}


@pytest.mark.filterwarnings("ignore:ProxyGuard")
@pytest.mark.parametrize("name", PROMPTS)
def test_decides_by_prompt_as_the_rules_do(name: str, fit, counter, by_prompt, tmp_path):
    case = BY_PROMPT[name]
    steps = len(case.a)
    hand = HandDriven(case).play()
    whole = by_prompt(case, tmp_path / "whole")
    trainer = fit(counter(), whole, max_steps=steps)
    assert trainer.global_step == case.stop
    assert states_of(whole) == hand.states
    # Resumed.
    fit(counter(), by_prompt(case, tmp_path / "parts"), max_steps=2)
    resumed = by_prompt(case, tmp_path / "parts")
    fit(counter(), resumed, max_steps=steps, ckpt_path=tmp_path / "parts" / "last.ckpt")
    assert states_of(resumed) == hand.states
