"""One decision per set of weights, on values of this validation, for one run at a time."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_module import Counting
from lightning_choice import (
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from torch.utils.data import DataLoader

from ctrlreward import Samples

pytestmark = [pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:the checkpoint of")]

# Values by step, from 0. Patience of 2 on `a` ends at 5; 2 is best with `b` of at least 0.5.
A = [0.5, 0.25, 0.75, 0.875, 0.5, 0.5, 0.5, 0.5, 0.5]
B = [0.5, 0.75, 0.5, 0.25, 0.5, 0.5, 0.5, 0.5, 0.5]


class OwnKeys(Counting):
    """Logs both metrics itself, after the callbacks."""

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"a": A[self.trainer.global_step], "b": B[self.trainer.global_step]})


class KeysOfTraining(Counting):
    """Logs both metrics in every second training step; each step is validated."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        step = self.trainer.global_step + 1
        if step % 2:
            self.log_dict({"a": A[step], "b": B[step]}, on_step=True, on_epoch=False)
        return super().training_step(batch, batch_idx)


class TwoLoaders(Counting):
    """Logs the first metric at every validation, the second at every other one."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        step = self.trainer.global_step
        if dataloader_idx == 0:
            self.log("a", A[step], batch_size=1)
        elif step % 2:
            self.log("b", B[step], batch_size=1)

    def val_dataloader(self) -> list[DataLoader[int]]:  # type: ignore[override]
        return [DataLoader(range(1)), DataLoader(range(1))]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Situation:
    """How a run is validated, and what its rules decide, worked out by hand."""

    stop: int = 5
    best: int = 2
    front: tuple[int, ...] = (1, 2, 3)
    scored: int = 5  # validations with scores of the held-out prompts
    module: type[Counting] | None = None  # by default, a GenerationScorer logs both
    keys: tuple[str, str] = ("a", "b")
    options: dict[str, Any] = field(default_factory=dict)
    cut: int = 0  # the run is interrupted after this step and resumed


ACCUMULATED = {"accumulate_grad_batches": 4, "val_check_interval": 1}  # step 0 is scored, too
SITUATIONS = {
    "plain": Situation(),
    "resumed": Situation(cut=3),
    "several validations of a step, resumed": Situation(scored=6, options=ACCUMULATED, cut=2),
    "keys of the module, resumed": Situation(module=OwnKeys, options=ACCUMULATED, cut=3),
    # New at 1, 3, 5, 7; of these, 5 is the first of the best that meet the constraint.
    "keys of training": Situation(7, 5, (1, 3, 5, 7), module=KeysOfTraining),
    # At 2 the constraint has its value of 1.
    "two dataloaders": Situation(
        front=(1, 3, 5), module=TwoLoaders, keys=("a/dataloader_idx_0", "b/dataloader_idx_1")
    ),
}


@pytest.fixture
def rules(curve, watch):
    """Return a function that builds all rules of a situation, by name."""

    def build(situation: Situation, folder: Path) -> dict[str, Any]:
        a, b = situation.keys
        built: dict[str, Any] = {}
        if situation.module is None:
            built["scorer"] = watch({"a": curve(A)["value"], "b": curve(B)["value"]})
            a, b = "score/a", "score/b"
        constraints = {b: (0.5, None)}
        return built | {
            "guard": ProxyGuard(a, {b: "max"}, "max"),
            "stop": RewardEarlyStopping(a, "max", patience=2),
            "best": RewardCheckpoint(a, "max", str(folder / "best"), constraints=constraints),
            "front": ParetoCheckpoint({a: "max", b: "max"}, str(folder / "front")),
        }

    return build


@pytest.mark.parametrize("name", SITUATIONS)
def test_rules_decide_once_on_new_values(name, rules, fit, counter, tmp_path) -> None:
    case = SITUATIONS[name]
    module, ours, path = case.module or counter, rules(case, tmp_path), None
    if case.cut:
        fit(module(), list(ours.values()), **{**case.options, "max_steps": case.cut})
        ours = rules(case, tmp_path)
        # The first checkpoint callback's file has the decisions of the second.
        path = tmp_path / "best/last.ckpt"
    trainer = fit(module(), list(ours.values()), ckpt_path=path, **case.options)

    assert (ours["stop"].stopped_step, trainer.global_step) == (case.stop, case.stop)
    assert ours["best"].selected_step == case.best
    assert ours["front"].kept == {step: (A[step], B[step]) for step in case.front}
    if "scorer" in ours:  # scores by prompt are compared with the first
        assert ours["scorer"].validations == ours["guard"].state.tests + 1 == case.scored


def test_a_second_run_starts_afresh_in_its_own_folder(rules, fit, counter, tmp_path) -> None:
    case = SITUATIONS["plain"]
    again, fresh = rules(case, tmp_path / "again"), rules(case, tmp_path / "fresh")
    kept = RewardCheckpoint("score/a")
    for name in ("first", "second"):
        folder = tmp_path / name
        trainer = fit(counter(), [*again.values(), kept], default_root_dir=folder)
        assert trainer.global_step == case.stop
        assert Path(kept.best_model_path).parent == folder / "checkpoints"
        assert Path(kept.best_model_path).exists()
    fit(counter(), list(fresh.values()))
    for name in ("scorer", "guard", "stop"):
        assert again[name].state_dict() == fresh[name].state_dict()
    assert again["best"].state == fresh["best"].state
    assert again["front"].kept == fresh["front"].kept
    assert Path(again["front"].last_model_path).exists()


def test_the_same_trainer_goes_on(fit, counter, watch) -> None:
    scorer, stop, module = watch(A), RewardEarlyStopping("score/v", patience=9), counter()
    trainer = fit(module, [scorer, stop], max_steps=3)
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(module)
    assert (trainer.global_step, scorer.validations) == (6, 6)
    assert (stop.state.best, stop.state.wait_count) == (0.875, 3)  # at 3, then 4 to 6


def test_evaluations_after_training(rules, fit, counter, tmp_path) -> None:
    ours, module = rules(SITUATIONS["plain"], tmp_path), counter()
    module.test_step = module.validation_step
    trainer = fit(module, list(ours.values()))
    folder = tmp_path / "samples/score"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    decided = [ours[name].state for name in ("guard", "stop", "best", "front")]
    with torch.no_grad():
        module.weight.fill_(7.0)  # other texts at the same step
    trainer.validate(module, verbose=False)
    trainer.test(module, module.val_dataloader(), verbose=False)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"validate-step=000005.jsonl", "test-step=000005.jsonl"}
    assert ours["scorer"].last_scored_step == 5
    assert [ours[name].state for name in ("guard", "stop", "best", "front")] == decided


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "prompts": ({"samples": Samples(["The wine", "A cat"])}, {}),
    "length": ({}, {"max_new_tokens": 9}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_is_measured_starts_a_new_reference(
    fit, counter, watch, tmp_path: Path, change: str
) -> None:
    values = [0.0, 0.9, 0.8, 0.7, 0.3, 0.4, 0.2, 0.1]

    def run(steps: int, options: dict[str, Any], hparams: dict[str, Any], **resumed: Any) -> Any:
        module = counter()
        module.hparams.update({"max_new_tokens": 4, **hparams})
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "best"))
        front = ParetoCheckpoint({"score/v": "max", "score/l": "min"}, str(tmp_path / "front"))
        stopper = RewardEarlyStopping("score/v", patience=4)
        scorer = watch(values, names="vl", **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(module, [scorer, stopper, keeper, front], max_steps=steps, **resumed)
        said = [str(each.message) for each in caught if "measured with" in str(each.message)]
        assert Path(keeper.best_model_path).is_file()
        return (keeper.selected_step, stopper.stopped_step, list(front.kept)), len(said)

    run(3, {}, {})
    last = str(tmp_path / "best" / "last.ckpt")
    # The best since the resume; the stop counts from there.
    expected = (1, 5, [1]) if change == "nothing" else (5, -1, [5])
    assert run(7, *CHANGES[change], ckpt_path=last) == (expected, change != "nothing")
    assert (tmp_path / "best" / "step=000001-v=0.900.ckpt").is_file()
    again, _ = run(7, *CHANGES[change], ckpt_path=last)  # the measure is in the checkpoint
    assert again[0] == expected[0]
