"""New values and repeated evaluations: all rules in a table of situations.

`q` rises to step 3 and falls, `r` rises throughout; 1 to 8 are steps, 0 is before training:

    step  1   2   3   4   5   6   7   8
    q    .1  .2  .9  .8  .7  .6  .5  .4
    r    .1  .2  .3  .4  .5  .6  .7  .8

By hand, with both at every step: the best q with r >= 0.35 is at step 4. Steps 4, 5 and 6 are no
improvement on step 3, so that patience 3 stops at step 6. Up to there 3, 4, 5 and 6 are on the
front, 1 and 2 are dominated by 3. A `ProxyGuard`, which has no scores by prompt here, says so.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from thinned import thinned
from trainer_runs import outcome, resumed
from transformers import Trainer, TrainerCallback

from ctrlreward.huggingface import (
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

pytestmark = pytest.mark.usefixtures("one_thread")

Q = [0.0, 0.1, 0.2, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
R = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
WRONG = {"q": 5.0, "r": -5.0}  # of an evaluation that is none of training
ROWS = {"a": [{"input_ids": [2, 3]}] * 2, "b": [{"input_ids": [2, 3]}] * 3}


@dataclass(frozen=True)
class Situation:
    """Settings, and the expected decisions."""

    settings: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)  # evaluation set → its metric
    others: tuple[Callable[[Trainer], TrainerCallback], ...] = ()
    r: str = "eval_r"
    cut: int = 0  # the run is interrupted after this step, and resumed
    peft: bool = False
    best: int = 4
    front: tuple[int, ...] = (3, 4, 5, 6)
    dominated: tuple[int, ...] = (1, 2)
    stop: int = 6


class Nested(TrainerCallback):
    """Evaluates at each step, before the trainer does; the trainer's `control` doesn't see it."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        copy = deepcopy(control)
        self.trainer.evaluate()
        return copy


class AtEpochs(Nested):
    """Evaluates other samples at the end of an epoch, after the trainer has decided to."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        copy = deepcopy(control)
        self.trainer.evaluate(ROWS["a"] * 3, metric_key_prefix="train")
        return copy

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        return control


class AfterEvaluation(Nested):
    """Evaluates inside an evaluation of training, once per step."""

    seen = -1

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.seen != state.global_step:
            self.seen = state.global_step
            self.trainer.evaluate()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        return control


class LogsTraining(TrainerCallback):
    """Logs `r` as a metric of training, at steps 1, 3, 5 and 7."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % 2:
            self.trainer.log({"r": R[state.global_step]})


EPOCHS = {
    "eval_strategy": "epoch",
    "max_steps": -1,
    "num_train_epochs": 8,
    "per_device_train_batch_size": 32,
}

SITUATIONS = {
    "one set": Situation(),
    "q in the first of two sets": Situation(sets={"a": "q", "b": "r"}, r="eval_b_r"),
    # r is new at 1, 3 and 5. A bound is compared with its last value: .3 at step 4.
    "r is logged in training, less often": Situation(
        others=(LogsTraining,), r="r", best=5, front=(3, 5), dominated=(1,)
    ),
    "resumed, evaluated at the start": Situation({"eval_on_start": True}, cut=5),
    "accumulated and resumed": Situation({"gradient_accumulation_steps": 3}, cut=5),
    "nested in an evaluation": Situation(others=(AfterEvaluation,)),
    "nested and resumed": Situation(others=(Nested,), cut=5),
    "another set at epochs": Situation(EPOCHS, others=(AtEpochs,)),
    "an adapter, resumed": Situation(peft=True, cut=5),
}


@pytest.fixture
def ready() -> Callable[..., dict[str, Any]]:
    """Function that adds the metrics, the other callbacks and ours to a trainer."""

    def add(trainer: Trainer, case: Situation, first: bool) -> dict[str, Any]:
        if case.sets:
            trainer.eval_dataset = {name: ROWS[name] for name in case.sets}

        def compute(predicted: Any) -> dict[str, float]:
            rows, step = len(predicted.predictions), trainer.state.global_step
            if rows == len(ROWS["a"]) * 3 or not trainer.is_in_train:
                return WRONG
            values = {"q": Q[step]} | ({"r": R[step]} if case.r == "eval_r" else {})
            if case.sets:
                (key,) = (case.sets[name] for name in case.sets if len(ROWS[name]) == rows)
                values = {key: {"q": Q, "r": R}[key][step]}
            return values

        trainer.compute_metrics = compute
        q = "eval_a_q" if case.sets else "eval_q"
        ours = {
            "guard": ProxyGuard(case.r, {q: "max"}, "max"),
            "best": RewardCheckpoint(q, "max", constraints={case.r: (0.35, None)}),
            "front": ParetoCheckpoint({q: "max", case.r: "max"}),
            "stop": RewardEarlyStopping(q, "max", patience=3),
        }
        others = [make(trainer) for make in case.others]
        for callback in [*ours.values(), *others] if first else [*others, *ours.values()]:
            trainer.add_callback(callback)
        return ours

    return add


@pytest.mark.parametrize(
    ("name", "first"), thinned(SITUATIONS, (True, False), ("nested in an evaluation",))
)
def test_decisions(
    name: str,
    first: bool,
    make_trainer: Callable[..., Trainer],
    ready: Callable[..., dict[str, Any]],
) -> None:
    case, used = SITUATIONS[name], {}

    def make(**settings: Any) -> Trainer:
        trainer = make_trainer(**case.settings, **settings)
        if case.peft:
            adapter = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
            parts = trainer.args, trainer.data_collator, trainer.train_dataset
            data = trainer.eval_dataset, trainer.processing_class
            trainer = Trainer(get_peft_model(trainer.model, adapter), *parts, *data)
        return trainer

    def prepare(trainer: Trainer) -> None:
        used.update(ready(trainer, case, first))

    trainer = resumed(make, case.cut, prepare)
    found = outcome(trainer, used)
    stop, front = found["states"]["stop"], found["states"]["front"]
    assert found["steps"] == found["states"]["best"]["validations"] == case.stop
    assert (stop["stopped_step"], stop["wait_count"], stop["best"]) == (case.stop, 3, Q[3])
    assert found["selected"] == case.best
    assert [*map(int, front["kept"])] == list(case.front)
    assert [*map(int, front["pruned"])] == list(case.dominated)
    assert found["states"]["guard"]["alarm_step"] == -1
    folder = Path(trainer.state.best_model_checkpoint or "")
    assert folder.name == f"checkpoint-{case.best}"
    assert len(list(folder.glob("adapter_model.safetensors" if case.peft else "model.*"))) == 1
    trainer.evaluate()  # with values that would change everything
    assert outcome(trainer, used) == found


def test_a_stop_counts_each_logged_value_of_training_once(
    make_trainer: Callable[..., Trainer],
) -> None:
    """`r` is .1, .3 and .5 at steps 1, 3 and 5: two that are not lower end the run at step 5."""
    used = []

    def prepare(trainer: Trainer) -> None:
        used.append(RewardEarlyStopping("r", "min", patience=2))
        trainer.add_callback(LogsTraining(trainer))
        trainer.add_callback(used[-1])

    trainer = resumed(make_trainer, 3, prepare)
    assert trainer.state.global_step == used[-1].state.stopped_step == 5
    assert used[-1].state.best == 0.1


def test_an_evaluation_without_the_score_is_not_counted(
    make_trainer: Callable[..., Trainer],
) -> None:
    """As of TRL, which logs no component whose samples all failed: here at step 5."""
    trainer = make_trainer()
    best, stop = RewardCheckpoint("eval_q", "max"), RewardEarlyStopping("eval_q", "max", patience=3)
    step = lambda: trainer.state.global_step  # noqa: E731
    trainer.compute_metrics = lambda _: {"r": 0.0} | ({} if step() == 5 else {"q": Q[step()]})
    trainer.add_callback(best)
    trainer.add_callback(stop)
    trainer.train()
    assert stop.state.stopped_step == trainer.state.global_step == 7  # 4, 6 and 7 are no better
    assert best.state.validations == 6
    assert trainer.state.best_global_step == 3


def test_the_first_evaluation_may_fail(make_trainer: Callable[..., Trainer]) -> None:
    """As of TRL: of a component whose samples all failed, only the share of failures is logged."""
    trainer = make_trainer()
    best = RewardCheckpoint("eval_reward/q", "max")
    failed = lambda: trainer.state.global_step == 1  # noqa: E731
    score = lambda: {"reward/q": Q[trainer.state.global_step]}  # noqa: E731
    trainer.compute_metrics = lambda _: (
        {"reward/fail_rate": float(failed())} | ({} if failed() else score())
    )
    trainer.add_callback(best)
    trainer.train()
    assert best.state.validations == trainer.state.max_steps - 1
    assert trainer.state.best_global_step == 3
