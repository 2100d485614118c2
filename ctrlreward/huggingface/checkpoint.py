"""Selection of checkpoints by held-out scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from ctrlreward.arguments import Mode, checked_keywords
from ctrlreward.callbacks.monitoring import OTHER_NAMES
from ctrlreward.huggingface.decision import DecisionCallback
from ctrlreward.huggingface.run_state import PREFIX, resolve_mode
from ctrlreward.selection import BestRule, BestState, ParetoRule, ParetoState
from ctrlreward.selection.best import Bounds, ConstraintTest, Ties


@checked_keywords(**OTHER_NAMES, save_total_limit="TrainingArguments(save_total_limit=...)")
class RewardCheckpoint(DecisionCallback):
    """Selects the checkpoint with the best held-out score (`ctrlreward.selection.BestRule`).

    Saves a checkpoint at each evaluation whose score is the best so far, in addition to the
    checkpoints of the trainer's `save_strategy`, and sets `state.best_global_step`,
    `state.best_model_checkpoint` and `state.best_metric`: `save_total_limit` keeps the selected
    checkpoint, and `load_best_model_at_end=True` loads it, whatever `metric_for_best_model` says.
    If no evaluation met the constraints, nothing is loaded, with a warning: the model of the last
    step remains. With `save_strategy="best"` the trainer writes no other checkpoint to resume from.

    Args:
        monitor: Key of the score, with or without `eval_`.
        mode: "max" if higher is better, "min" if lower is better. Defaults to the direction that a
            `GenerationScorer` declares, and to "min" for a loss.
        constraints: Key → smallest and largest allowed value, both inclusive, None for no bound.
        ties_by: Choice among checkpoints whose score is not distinguishable from the best:
            "earliest", or one key → its better direction, {"objective/kl": "min"}. Then every
            evaluation that meets the constraints saves a checkpoint.
        constraint_test: "point", "unless_violated" or "if_shown"; see `BestRule`.
        level: Probability that any interval of the run misses its value.

    Attributes:
        state: The `BestState`; None before the first evaluation.

    Raises:
        ValueError: A setting is out of range; at the start: `ties_by` with settings of the trainer
            that would remove checkpoints; after the first evaluation: a key is not logged, or its
            direction is unknown.

    Examples:
        >>> checkpoint = RewardCheckpoint(
        ...     "score/relevance", constraints={"score/distinct_2": (0.8, None)}
        ... )
        >>> checkpoint.selected_step is None
        True
    """

    def __init__(
        self,
        monitor: str = "score/attribute_relevance",
        mode: Mode | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        ties_by: Ties | None = None,
        constraint_test: ConstraintTest = "point",
        level: float = 0.05,
    ) -> None:
        super().__init__(monitor, BestState)
        self.monitor = monitor
        self.mode = mode
        self.constraints = dict(constraints or {})
        self._settings: dict[str, Any] = {
            "top_k": 1 if ties_by is None else -1,
            "constraints": self.constraints,
            "ties_by": ties_by,
            "constraint_test": constraint_test,
            "level": level,
        }
        self._rule = BestRule(monitor, mode or "max", **self._settings)

    def rule(self, state: TrainerState) -> BestRule:
        """Return the rule."""
        mode = resolve_mode(state, self.monitor, self.mode)
        self._rule = BestRule(self.monitor, mode, **self._settings)
        return self._rule

    @property
    def selected_step(self) -> int | None:
        """Step of the selected checkpoint, None if no evaluation qualified."""
        return self._rule.best(self.state) if self.state else None

    @property
    def reason(self) -> str:
        """Reason for the selected checkpoint, and the checkpoints not distinguishable from it."""
        return self._rule.explain(self.state) if self.state else "there was no evaluation"

    @property
    def optimism(self) -> float | None:
        """Expected excess of the selected score over its true value; None if unknown."""
        return self._rule.optimism(self.state) if self.state else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the trainer keeps the checkpoints that the rule chooses from."""
        super().on_train_begin(args, state, control, **kwargs)
        if self._settings["ties_by"] is None:
            return
        if args.save_strategy == SaveStrategy.BEST or args.save_total_limit is not None:
            raise ValueError(
                "ties_by chooses among several checkpoints, which save_total_limit and "
                "save_strategy='best' remove or do not write. Leave them out."
            )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Decide, and make the trainer agree, which compares the metric that it reads here next."""
        metrics = {} if metrics is None else metrics
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if not self._training:
            return
        best = self.selected_step
        score = None if best is None else self.state.kept[best]
        if args.metric_for_best_model is not None:
            worst = -math.inf if args.greater_is_better else math.inf
            value = worst
            if best == state.global_step and score is not None:
                state.best_metric, value = None, score  # better than nothing
            key = args.metric_for_best_model
            metrics[key if key.startswith(PREFIX) else PREFIX + key] = value
        if best != state.global_step or args.metric_for_best_model is None:
            state.best_metric, state.best_global_step = score, best
        self.on_save(args, state, control)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Name the folder of the selected checkpoint, as soon as it exists."""
        folder = Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{self.selected_step}"
        if folder.is_dir():
            state.best_model_checkpoint = str(folder)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the selection."""
        super().on_train_end(args, state, control, **kwargs)
        loaded = (
            ": the model has the weights of the last step" if self.selected_step is None else ""
        )
        self.say(state, self.reason + loaded)


@checked_keywords(objectives="metrics", directions="metrics")
class ParetoCheckpoint(DecisionCallback):
    """Saves the checkpoints on the Pareto front of several scores, by `ParetoRule`.

    The trainer's `save_total_limit` must be None, as it would remove them. Dominated checkpoints
    stay on disk; `kept` names the checkpoints of the front.

    Args:
        metrics: Key → "max" or "min", or keys whose direction a `GenerationScorer` declares.

    Attributes:
        state: The `ParetoState`; None before the first evaluation.

    Raises:
        ValueError: Fewer than two metrics, or an unknown direction; at the start: the trainer has a
            `save_total_limit`; after the first evaluation: a key is not logged.

    Examples:
        >>> ParetoCheckpoint({"score/sim": "max", "score/perplexity": "min"}).kept
        {}
    """

    def __init__(self, metrics: Mapping[str, Mode] | Sequence[str]) -> None:
        self._given: dict[str, Mode | None] = (
            dict(metrics) if isinstance(metrics, Mapping) else dict.fromkeys(metrics)
        )
        ParetoRule({key: mode or "max" for key, mode in self._given.items()})
        super().__init__(", ".join(self._given), ParetoState)

    def rule(self, state: TrainerState) -> ParetoRule:
        """Return the rule."""
        modes = {
            key: resolve_mode(state, key, mode, f"metrics[{key!r}]")
            for key, mode in self._given.items()
        }
        return ParetoRule(modes)

    @property
    def kept(self) -> dict[int, tuple[float, ...]]:
        """Step → values of the checkpoints on the front, oldest first."""
        return dict(self.state.kept) if self.state else {}

    @property
    def pruned(self) -> dict[int, tuple[float, ...]]:
        """Step → values of the dominated checkpoints."""
        return dict(self.state.pruned) if self.state else {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the trainer keeps the front."""
        super().on_train_begin(args, state, control, **kwargs)
        if args.save_total_limit is not None:
            raise ValueError(
                f"save_total_limit = {args.save_total_limit} would remove checkpoints of the "
                "Pareto front. Leave it out."
            )
