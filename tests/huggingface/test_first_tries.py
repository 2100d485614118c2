"""What users of `Trainer` and TRL write first: callbacks in any order, and common mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import Scripted
from trainer_runs import train
from transformers import Trainer

from ctrlreward.callbacks import RewardEarlyStopping as OfLightning
from ctrlreward.huggingface import (
    GenerationScorer,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
SHORT = {"max_new_tokens": 2}


def falling(key: str, step: int) -> list[float]:
    return [1.0 - step / 8] * 2


def scorer_of(trainer: Trainer, **settings: Any) -> GenerationScorer:
    scores = {"a": Scripted(falling, trainer, "max")["a"]}
    return GenerationScorer(trainer, scores, ["ab", "cd"], generation=SHORT, **settings)


def test_rules_decide_at_the_same_evaluation_in_any_order(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer(**SAVING, load_best_model_at_end=True)
    best, stop = RewardCheckpoint("score/a"), RewardEarlyStopping("second/a", patience=2)
    train(trainer, best, stop, scorer_of(trainer), scorer_of(trainer, name="second"))
    assert trainer.state.global_step == 3
    assert best.selected_step == 1
    assert trainer.state.best_model_checkpoint == f"{trainer.args.output_dir}/checkpoint-1"
    scorers = [c for c in trainer.callback_handler.callbacks if isinstance(c, GenerationScorer)]
    assert [each.name for each in scorers] == ["score", "second"]


@pytest.mark.parametrize(("patience", "steps"), [(1, 3), (9, 4)])
def test_a_resumed_run_that_had_stopped_makes_one_step(
    make_trainer: Callable[..., Trainer], patience: int, steps: int
) -> None:
    first, again = make_trainer(**SAVING), make_trainer(**SAVING)
    train(first, scorer_of(first), RewardEarlyStopping("score/a", patience=1))
    assert first.state.global_step == 2
    again.add_callback(scorer_of(again))
    again.add_callback(RewardEarlyStopping("score/a", patience=patience))
    again.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-2")
    assert again.state.global_step == steps
    assert (Path(first.args.output_dir or "") / "checkpoint-3").is_dir() is (steps == 4)


def test_an_evaluation_without_a_checkpoint_is_not_selected(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer = make_trainer(**SAVING, eval_on_start=True)
    best, front = RewardCheckpoint("score/a"), ParetoCheckpoint(["score/a", "eval_loss"])
    stop = RewardEarlyStopping("score/a", patience=9)
    train(trainer, scorer_of(trainer), best, front, stop)
    assert best.selected_step == 1  # not 0, the best
    assert 0 not in front.kept
    assert stop.state.best == 1.0


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"logging_steps": 3, "eval_on_start": True}, 3),
        ({"logging_first_step": True, "logging_steps": 3}, 1),
    ],
)
def test_a_key_of_training_is_awaited(
    make_trainer: Callable[..., Trainer], settings: dict[str, Any], first: int
) -> None:
    """`loss` was `eval_loss` before training had logged one, and `reward` an error."""
    trainer = make_trainer(**{"max_steps": 5, **settings})
    guard = ProxyGuard("loss", "score/a")
    stop = RewardEarlyStopping("loss", patience=9)
    train(trainer, scorer_of(trainer), guard, stop)
    rows = trainer.state.log_history
    assert min(r["step"] for r in rows if "eval_guard/alarm" in r) == first
    losses = [row["loss"] for row in rows if "loss" in row]
    assert stop.state.best == min(losses)
    (reference,) = guard.state.references.values()
    assert reference.metrics["loss"] == losses[0]


def test_a_key_that_is_not_logged(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(max_steps=3)
    with pytest.raises(ValueError, match="reward"):
        train(trainer, RewardEarlyStopping("reward", "max"))
    assert trainer.state.global_step == 1


def evaluate(trainer: Trainer, scorer: GenerationScorer) -> None:
    trainer.add_callback(scorer)
    trainer.evaluate()


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "eval_strategy": lambda make: train(make(eval_strategy="no"), RewardEarlyStopping("loss")),
    "max_new_token": lambda make: GenerationScorer(
        make(), {"a": len}, ["ab"], generation={"max_new_token": 4}
    ),
    "built with another trainer": lambda make: evaluate(make(), scorer_of(make())),
    "name 'score'": lambda make: train(trainer := make(), scorer_of(trainer), scorer_of(trainer)),
    "eval_loss": lambda make: train(make(), *(RewardEarlyStopping("eval_loss") for _ in range(2))),
    "ProxyGuard first": lambda make: train(
        trainer := make(**SAVING),
        scorer_of(trainer),
        RewardCheckpoint("score/a", constraints={"guard/alarm": (None, 0)}),
        ProxyGuard("loss", "score/a"),
    ),
    "Lightning": lambda make: train(make(), OfLightning("score/a")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(make_trainer: Callable[..., Trainer], name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        MISTAKES[name](make_trainer)


@pytest.mark.parametrize(
    ("best", "name"),
    [
        (("score/a", "min"), "mode"),
        (("score/a", None, {"score/fail_rat": (None, 0.1)}), "score/fail_rat"),
    ],
)
def test_keys_and_directions_are_checked_before_the_first_step(
    make_trainer: Callable[..., Trainer], best: tuple[Any, ...], name: str
) -> None:
    trainer = make_trainer(**SAVING, eval_steps=2)
    with pytest.raises(ValueError, match=name):
        train(trainer, RewardCheckpoint(*best), scorer_of(trainer))
    assert trainer.state.global_step == 0
