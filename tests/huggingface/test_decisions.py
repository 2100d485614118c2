"""The table of decisions, driven through `Trainer` and our callbacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decision_cases import (
    BY_PROMPT,
    CASES,
    PROMPTS,
    ByPrompt,
    Case,
    HandDriven,
    HandDrivenByPrompt,
    eighths,
    values,
)
from scripted_scores import Scripted
from transformers import Trainer

from ctrlreward.huggingface import (
    GenerationScorer,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def add(trainer: Trainer, scorer: Scripted, prompts: int, *callbacks: Any, every: int = 1) -> None:
    scores = {"a": scorer["a"], "b": scorer["b"]}
    held_out = GenerationScorer(
        trainer, scores, ["ab"] * prompts, every, generation={"max_new_tokens": 1}
    )
    for callback in (held_out, *callbacks):
        trainer.add_callback(callback)


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].resume])
def test_a_case_by_means(make_trainer: Callable[..., Trainer], name: str) -> None:
    case: Case = CASES[name]
    by_hand = HandDriven(case)
    by_hand.play()
    trainer = make_trainer(max_steps=case.steps)

    def scripted(key: str, step: int) -> list[float]:
        row = values(getattr(case, key))
        return [row[min(step, len(row) - 1)]] * PROMPTS

    low, high = case.constraint or (None, None)
    stop = RewardEarlyStopping(
        "score/a",
        patience=case.patience,
        min_delta=case.min_delta / 8,
        min_steps=case.min_steps,
        stopping_threshold=eighths(case.threshold),
        divergence_threshold=eighths(case.divergence),
        check_finite=case.finite,
    )
    bounds = {"eval_score/b": (eighths(low), eighths(high))} if case.constraint else {}
    best = RewardCheckpoint("score/a", constraints=bounds)
    front = ParetoCheckpoint(["score/a", "score/b"])
    add(
        trainer,
        Scripted(scripted, trainer, case.mode),
        PROMPTS,
        stop,
        best,
        front,
        every=case.every,
    )
    trainer.train()
    assert trainer.state.global_step == case.stop
    assert stop.state.stopped_by == by_hand.stop.stopped_by == case.reason
    assert set(front.kept) == set(by_hand.front.kept) == case.front
    if case.top_k == 1:
        assert best.selected_step == (max(case.best) if case.best else None)
        folders = {
            int(path.name.split("-")[1]) for path in Path(trainer.args.output_dir).glob("c*")
        }
        assert case.best | case.front <= folders
        expected = f"checkpoint-{best.selected_step}" if case.best else "None"
        assert str(trainer.state.best_model_checkpoint).endswith(expected)


@pytest.mark.parametrize("cut", [0, 2])
@pytest.mark.parametrize("name", list(BY_PROMPT))
def test_a_case_by_prompt(make_trainer: Callable[..., Trainer], name: str, cut: int) -> None:
    case: ByPrompt = BY_PROMPT[name]
    by_hand = HandDrivenByPrompt(case)
    by_hand.play()

    def run(steps: int, checkpoint: str | None) -> tuple[Trainer, Any, Any, Any]:
        trainer = make_trainer(max_steps=len(case.a), save_strategy="steps", save_steps=1)
        stop = RewardEarlyStopping("score/a", **case.stopping)
        best = RewardCheckpoint("score/a", **case.keeping)
        guard = ProxyGuard(**{"proxy": "score/b", "held_out": "score/a", **case.guarding})
        scripted = Scripted(case.scores, trainer, "max")
        add(trainer, scripted, 12, stop, best, guard)
        if steps:
            trainer.args.max_steps = steps
        trainer.train(resume_from_checkpoint=checkpoint)
        return trainer, stop, best, guard

    checkpoint = None
    if cut:
        first, *_ = run(cut, None)
        checkpoint = str(Path(first.args.output_dir) / f"checkpoint-{cut}")
    trainer, stop, best, guard = run(0, checkpoint)
    assert trainer.state.global_step == case.stop
    assert stop.state.stopped_by == case.cause
    assert best.selected_step == case.selected
    assert guard.state.alarm_step == case.alarm
    assert stop.state == by_hand.states["stop"]
    assert best.state.candidates == by_hand.states["best"].candidates
    assert guard.state == by_hand.states["alarm"]
    assert trainer.state.best_global_step == case.selected
