"""Cases of the table of decisions, driven through Lightning's trainer and our callbacks.

tests/selection has all cases.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from decision_cases import BY_PROMPT, TABLE, HandDriven, eighths, values
from lightning_choice import ParetoCheckpoint, RewardCheckpoint, RewardEarlyStopping, pl

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:the checkpoint of")

# Each with the steps at which a run is interrupted and resumed.
CASES = {
    "recovers in time": (),
    "constraint from both sides": (),
    "some on the front": (1, 2, 3, 4, 5),
    "two are kept": (1, 2, 3, 4, 5),
}


class Copies(pl.Callback):
    """Copies of a run's folder after each validation, as a kill would leave it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > 0:
            shutil.copytree(self.root, self.root.with_name(f"copy{trainer.global_step}"))


@pytest.mark.parametrize("name", CASES)
def test_stops_keeps_and_resumes_as_the_table_says(
    name: str, fit, counter, curve, watch, tmp_path: Path
) -> None:
    case, root = TABLE[name], tmp_path / "run"
    bounds = {"score/b": tuple(map(eighths, case.constraint))} if case.constraint else {}

    def play(*more: pl.Callback, resume: bool = False) -> tuple[dict[str, Any], list[str], Any]:
        """Return the callbacks of a run, its files, and all states of its last checkpoint."""
        scores = {"a": curve(values(case.a))["value"], "b": curve(values(case.b))["value"]}
        ours = {
            "stop": RewardEarlyStopping("score/a", **case.stopping),
            "best": RewardCheckpoint(
                "score/a", dirpath=str(root / "best"), save_top_k=case.top_k, constraints=bounds
            ),
            "front": ParetoCheckpoint(["score/a", "score/b"], dirpath=str(root / "front")),
        }
        last = root / "front" / "last.ckpt"  # written last: contains all states
        options = {"max_steps": case.steps, "default_root_dir": tmp_path / "log"}
        path = last if resume else None
        fit(counter(), [*ours.values(), watch(scores), *more], ckpt_path=path, **options)
        files = sorted(str(p.relative_to(root)) for p in root.rglob("*.ckpt"))
        return ours, files, torch.load(last, weights_only=True)["callbacks"]

    ours, files, states = play(Copies(root))
    stop = case.stop if case.reason else -1
    assert (ours["stop"].stopped_step, ours["stop"].stopped_by) == (stop, case.reason)
    expected = ["best/last.ckpt", "front/last.ckpt"]
    for step in case.best | case.front:
        a, b = (values(digits)[min(step, len(digits))] for digits in (case.a, case.b))
        expected += [f"best/step={step:06d}-a={a:.3f}.ckpt"] * (step in case.best)
        expected += [f"front/step={step:06d}-a={a:.3f}-b={b:.3f}.ckpt"] * (step in case.front)
    assert files == sorted(expected)
    # The rules alone decide: Lightning neither adds nor changes anything.
    hand = HandDriven(case).play()
    assert {name: callback.state for name, callback in ours.items()} == hand.states
    best = hand.rules["best"].best(hand.states["best"])
    assert Path(ours["best"].best_model_path).name[:11] == f"step={best:06d}"

    shutil.copytree(root, root.with_name(f"copy{case.stop}"))
    for step in CASES[name]:
        shutil.rmtree(root)
        root.with_name(f"copy{step}").rename(root)
        resumed = play(resume=True)
        assert resumed[1] == files
        assert repr(resumed[2]) == repr(states)


@pytest.mark.lightning
@pytest.mark.filterwarnings("ignore:ProxyGuard")
@pytest.mark.parametrize("name", ["alarm after a rise", "a decline stops"])
def test_decides_by_prompt_as_the_rules_do(name: str, fit, counter, by_prompt, tmp_path) -> None:
    case = BY_PROMPT[name]
    hand = HandDriven(case).play()

    def states(*cuts: int) -> dict[str, Any]:
        folder = tmp_path / str(len(cuts))
        for i, steps in enumerate((*cuts, len(case.a))):
            _, *ours = callbacks = by_prompt(case, folder)
            path = folder / "last.ckpt" if i else None
            fit(counter(), callbacks, max_steps=steps, ckpt_path=path)
        return dict(zip(("alarm", "stop", "best"), (each.state for each in ours), strict=True))

    assert states() == hand.states
    assert states(2) == hand.states  # resumed
    assert hand.states["stop"].stopped_step == (case.stop if case.cause else -1)
