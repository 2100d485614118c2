"""Early stopping on a held-out score."""

from __future__ import annotations

from typing import Any, Literal

from transformers import TrainerControl, TrainerState, TrainingArguments

from ctrlreward.arguments import Mode, checked_keywords
from ctrlreward.callbacks.monitoring import OTHER_NAMES
from ctrlreward.huggingface.decision import DecisionCallback
from ctrlreward.huggingface.run_state import resolve_mode
from ctrlreward.selection import StopRule, StopState
from ctrlreward.selection.stopping import StopDecision


@checked_keywords(
    **OTHER_NAMES,
    early_stopping_patience="patience",
    early_stopping_threshold="min_delta",
)
class RewardEarlyStopping(DecisionCallback):
    """Early stopping that counts each held-out score once (`ctrlreward.selection.StopRule`).

    Unlike `EarlyStoppingCallback`, it needs no `load_best_model_at_end`, and a resumed run decides
    like an uninterrupted one.

    Args:
        monitor: Key of the score, with or without `eval_`.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that a
            `GenerationScorer` declares, and to "min" for a loss.
        patience: Number of scores in a row without improvement that stops training.
        min_delta: An improvement must exceed this; "noise" counts one only if the scores of the
            prompts show it.
        min_steps: Never stop before this step.
        stopping_threshold: Stop at a score better than this.
        divergence_threshold: Stop at a score worse than this.
        check_finite: Stop at NaN (no sample could be scored) or infinity.
        decline: Stop as soon as the scores of the prompts show a decline since the best score.
        futility: Stop as soon as they exclude an improvement by `min_delta` since `patience` scores
            ago.
        level: Probability that any interval of the run misses its difference.

    Attributes:
        state: The `StopState`: `stopped_by`, `stopping_reason`, `stopped_step`, `best`; None before
            the first evaluation.

    Raises:
        ValueError: A setting is out of range; after the first evaluation: the key is not logged, or
            its direction is unknown.

    Examples:
        >>> RewardEarlyStopping("score/relevance", patience=2, min_delta="noise").monitor
        'score/relevance'
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: Mode | None = None,
        patience: int = 3,
        min_delta: float | Literal["noise"] = 0.0,
        min_steps: int = 0,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_finite: bool = True,
        decline: bool = False,
        futility: bool = False,
        level: float = 0.05,
    ) -> None:
        super().__init__(monitor, StopState)
        self.monitor = monitor
        self.mode = mode
        self._settings: dict[str, Any] = {
            "patience": patience,
            "min_delta": min_delta,
            "min_steps": min_steps,
            "stopping_threshold": stopping_threshold,
            "divergence_threshold": divergence_threshold,
            "check_finite": check_finite,
            "decline": decline,
            "futility": futility,
            "level": level,
        }
        StopRule(monitor, mode or "max", **self._settings)  # checks settings

    def rule(self, state: TrainerState) -> StopRule:
        """Return the rule."""
        mode = resolve_mode(state, self.monitor, self.mode)
        return StopRule(self.monitor, mode, **self._settings)

    def resume(self, rule: StopRule, state: TrainerState) -> bool:
        """Return whether the run had stopped, unless its new settings would not have stopped it."""
        self.state, decision = rule.resume(self.state, state.global_step)
        return decision.stop

    def act(
        self,
        decision: StopDecision,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
    ) -> None:
        """Stop training."""
        if decision.stop:
            control.should_training_stop = True
            self.say(state, decision.reason)
