"""Our callbacks beside the callbacks of transformers: the trainer behaves as without ours.

Each situation runs without our callbacks, and with all of them before and after the other one.
Learning rates, steps, the trainer's own log and the checkpoints at its own steps are compared. The
scores of the prompts are scripted, best at step 3, and never stop a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import Scripted
from thinned import thinned
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer_utils import HPSearchBackend, default_compute_objective

from ctrlreward.huggingface import (
    GenerationScorer,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

pytestmark = pytest.mark.usefixtures("one_thread")

VALUES = [0.0, 0.25, 0.5, 0.75, 0.25, 0.125, 0.0]  # of our score, best at step 3
LOSSES = [0.0, 3.0, 2.0, 2.5, 2.5, 2.5, 2.5]  # the trainer's metric, best at step 2
STEPS = 6


class EMA(TrainerCallback):
    """Evaluates and saves the mean of all weights so far, and trains with the last ones."""

    def __init__(self) -> None:
        self.mean: dict[str, torch.Tensor] = {}
        self.last: dict[str, torch.Tensor] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        self.last = {key: value.clone() for key, value in model.state_dict().items()}
        for key, value in self.last.items():
            self.mean[key] = self.mean.get(key, value).lerp(value, 0.5)
        model.load_state_dict(self.mean)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if self.last:
            model.load_state_dict(self.last)


class Records(TrainerCallback):
    """Records what other callbacks see at an evaluation."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **_: Any) -> None:
        own = {key: value for key, value in metrics.items() if theirs(key)}
        self.seen.append((state.global_step, state.best_metric, args.metric_for_best_model, own))


def theirs(key: str) -> bool:
    timed = any(word in key for word in ("runtime", "per_second"))
    return not (timed or "score/" in key or "guard/" in key)


@dataclass(frozen=True)
class Situation:
    settings: dict[str, Any] = field(default_factory=dict)
    other: Callable[[], TrainerCallback] | None = None
    steps: int = STEPS
    checkpoints: frozenset[int] = frozenset()  # without ours
    selected: int = 3  # by us


EACH = {"save_strategy": "steps", "save_steps": 1}
BY_METRIC = {"metric_for_best_model": "eval_own", "greater_is_better": False}
PLATEAU = {
    "lr_scheduler_type": "reduce_lr_on_plateau",
    "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
}
ALL = frozenset(range(1, STEPS + 1))

SITUATIONS = {
    "EarlyStoppingCallback, plateau scheduler": Situation(
        # 2.0 at step 2, then three evaluations that are not better
        EACH | BY_METRIC | PLATEAU | {"load_best_model_at_end": True},
        lambda: EarlyStoppingCallback(3),
        5,
        frozenset(range(1, 6)),
    ),
    "averaged weights": Situation(EACH, EMA, checkpoints=ALL),
    "saves less often than it evaluates": Situation(
        {"save_strategy": "steps", "save_steps": 4}, checkpoints=frozenset({4, 6})
    ),
    "epochs": Situation(
        {
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "max_steps": -1,
            "num_train_epochs": 5,
            "per_device_train_batch_size": 32,
        },
        steps=5,
        checkpoints=frozenset(range(1, 6)),
    ),
}


@pytest.fixture
def run(make_trainer: Callable[..., Trainer], tmp_path: Path) -> Callable[..., Any]:
    """Function that trains in a situation, and returns what the trainer did."""

    def train(
        settings: dict[str, Any], other: TrainerCallback | None, place: str
    ) -> SimpleNamespace:
        trainer = make_trainer(
            **{"max_steps": STEPS, "learning_rate": 0.01, **settings},
            output_dir=str(tmp_path / place),
        )
        trainer.compute_metrics = lambda _: {"own": LOSSES[trainer.state.global_step]}
        records = Records()
        others = [records] if other is None else [other, records]
        ours = our_callbacks(trainer, place, settings) if place != "without" else []
        for callback in [*ours, *others] if place == "before" else [*others, *ours]:
            trainer.add_callback(callback)
        trainer.train()
        log = [{k: v for k, v in row.items() if theirs(k)} for row in trainer.state.log_history]
        folder = tmp_path / place
        return SimpleNamespace(
            steps=trainer.state.global_step,
            log=[row for row in log if row.keys() - {"step", "epoch"} and "train_loss" not in row],
            rates=[row["learning_rate"] for row in log if "learning_rate" in row],
            seen=records.seen,
            best_metric=trainer.state.best_metric,
            checkpoints={int(p.name.split("-")[1]) for p in folder.glob("checkpoint-*")},
            weights={key: value.clone() for key, value in trainer.model.state_dict().items()},
            args=trainer.args.to_dict() | {"output_dir": ""},
            trainer=trainer,
            best=next((each for each in ours if isinstance(each, RewardCheckpoint)), None),
        )

    return train


def our_callbacks(trainer: Trainer, place: str, settings: dict[str, Any]) -> list[Any]:
    scorer = Scripted(lambda key, step: [VALUES[step]] * 2, trainer, "max")
    scores = {"a": scorer["a"], "b": scorer["b"]}
    limited = "save_total_limit" in settings
    return [
        GenerationScorer(trainer, scores, ["ab", "cd"], generation={"max_new_tokens": 1}),
        ProxyGuard("loss", "score/a"),
        RewardCheckpoint("score/a"),
        *([] if limited else [ParetoCheckpoint(["score/a", "score/b"])]),
        RewardEarlyStopping("score/a", patience=99),
    ]


@pytest.mark.parametrize(
    ("name", "place"),
    thinned(SITUATIONS, ("before", "after"), [next(iter(SITUATIONS))]),
)
def test_the_trainer_does_as_without_our_callbacks(
    name: str, place: str, run: Callable[..., Any]
) -> None:
    case = SITUATIONS[name]
    plain = run(case.settings, case.other and case.other(), "without")
    found = run(case.settings, case.other and case.other(), place)
    assert plain.steps == found.steps == case.steps
    assert found.log == plain.log
    assert found.seen == plain.seen
    assert found.rates == plain.rates
    if case.other is not None and "lr_scheduler_type" in case.settings:  # each of 3 to 5 halves it
        assert found.rates == [0.01, 0.01, 0.01, 0.005, 0.0025]
    assert found.best_metric == plain.best_metric
    assert found.args == plain.args
    assert plain.checkpoints == case.checkpoints
    assert plain.checkpoints <= found.checkpoints
    assert found.checkpoints - plain.checkpoints <= {1, 2, 3}  # where our score rose
    assert found.best.selected_step == case.selected
    loads = case.settings.get("load_best_model_at_end", False)
    same = all(torch.equal(found.weights[key], plain.weights[key]) for key in plain.weights)
    assert same is not loads  # step 3 is loaded instead of step 2


@pytest.mark.parametrize(
    ("saving", "theirs", "ours", "place"),
    [
        # Where its metric fell, our score rose.
        ({"save_strategy": "best"}, {1, 2}, {1, 2, 3}, "before"),
        (EACH | {"save_total_limit": 2}, {2, 6}, {3, 6}, "after"),
    ],
)
def test_saving_is_where_we_select(
    saving: Any, theirs: set[int], ours: set[int], place: str, run: Callable[..., Any]
) -> None:
    settings = BY_METRIC | saving | {"load_best_model_at_end": True}
    plain, found = run(settings, None, "without"), run(settings, None, place)
    assert (plain.checkpoints, found.checkpoints) == (theirs, ours)
    assert found.trainer.state.best_model_checkpoint.endswith("checkpoint-3")
    assert (found.log, found.seen, found.rates) == (plain.log, plain.seen, plain.rates)
    assert found.best_metric == plain.best_metric == 2.0
    assert found.args == plain.args


class Trial:
    """A trial of Optuna that notes what is reported."""

    def __init__(self, number: int) -> None:
        self.params: dict[str, Any] = {}
        self.number = number
        self.study = SimpleNamespace(_is_multi_objective=lambda: False)
        self.reported: list[tuple[int, float]] = []

    def report(self, value: float, step: int) -> None:
        self.reported.append((step, value))

    def should_prune(self) -> bool:
        return False


def test_a_hyperparameter_search(
    make_trainer: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trial reports the trainer's metric, by the default objective, and has its own folder."""
    optuna: Any = ModuleType("optuna")  # only what a trial needs of it
    optuna.__spec__ = ModuleSpec("optuna", None)
    optuna.trial = SimpleNamespace(BaseTrial=Trial)
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    trainer = make_trainer(**EACH, **BY_METRIC, max_steps=STEPS, load_best_model_at_end=True)
    trainer.compute_metrics = lambda _: {"own": LOSSES[trainer.state.global_step]}
    for callback in our_callbacks(trainer, "before", {}):
        trainer.add_callback(callback)
    trainer.hp_search_backend = HPSearchBackend.OPTUNA
    trainer.hp_space, trainer.hp_name = lambda _: {}, None
    trainer.compute_objective = default_compute_objective  # the sum of all metrics, here of one
    for number in range(2):
        trial = Trial(number)
        trainer.train(trial=trial)
        assert trial.reported == [(step, LOSSES[step]) for step in range(1, STEPS + 1)]
        folder = tmp_path / "run" / f"run-{number}"
        assert trainer.state.best_model_checkpoint == str(folder / "checkpoint-3")
        steps = range(1, STEPS + 1)
        assert {path.name for path in folder.iterdir()} == {f"checkpoint-{step}" for step in steps}
