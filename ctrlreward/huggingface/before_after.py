"""Comparison of the untuned model with the selected one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, Trainer, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments

from ctrlreward.arguments import check_type
from ctrlreward.callbacks.judges import AUC
from ctrlreward.callbacks.report import Comparison, selection_facts
from ctrlreward.huggingface.decision import RewardCheckpoint, RewardEarlyStopping
from ctrlreward.huggingface.generation import GenerationScorer, TrainerGenerator, check_own
from ctrlreward.huggingface.run_state import (
    RestoresItself,
    directions,
    join_state,
    plain_names,
)
from ctrlreward.samples import Samples, SamplesLike
from ctrlreward.scorers.components import ComponentLike
from ctrlreward.selection.best import LAST_STEP


class BeforeAfter(RestoresItself, Comparison, TrainerCallback):
    """Compares the model after training with the untuned one on prompts used for nothing else.

    Generates and scores before the first step, and again when training has ended: with
    `load_best_model_at_end=True`, by the checkpoint that `RewardCheckpoint` selected. Prints a
    table, and writes `before.jsonl`, `after.jsonl` and `summary.json` to `output_dir`, like
    `ctrlreward.callbacks.BeforeAfter`. A resumed run reads `before.jsonl` back.

    Args:
        trainer: The trainer to which the callback is added.
        samples: As in `GenerationScorer`, like `generation`; the others are of
            `ctrlreward.callbacks.BeforeAfter`.
    """

    setting = "output_dir"

    def __init__(
        self,
        trainer: Trainer,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int = 4,
        seed: int = 1,
        judges: Mapping[str, ComponentLike | AUC] | None = None,
        generation: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> None:
        check_type("trainer", Trainer, trainer)
        self.trainer = trainer
        self._generator = TrainerGenerator(trainer, samples, generation)
        prompts = self._generator.samples
        super().__init__(scores, prompts, generations_per_prompt, seed, judges)
        self.check()
        self.folder = Path(trainer.args.output_dir or ".")

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Generate and score with the untuned model, unless the run is resumed."""
        check_own(self, state)
        self.seconds = join_state(state, self).setdefault("seconds", {})  # in checkpoints
        self.begin(state.global_step > 0, self._generate)

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        self.seconds["train"] = self.train_seconds()

    def on_train_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Generate and score with the trained model, and write the summary."""
        self.end(self._generate, lambda: self._facts(args, state))
        self.release()

    def _generate(self) -> Samples:
        return self._generator.generate(self.prompts, self.generations_per_prompt, self.seed)

    def _facts(self, args: Arguments, state: State) -> dict[str, Any]:
        callbacks = self.trainer.callback_handler.callbacks
        keeper = next((each for each in callbacks if isinstance(each, RewardCheckpoint)), None)
        stops = [each.state for each in callbacks if isinstance(each, RewardEarlyStopping)]
        stopped = next((each.stopping_reason for each in stops if each.stopped_by), "")
        scorers = [each for each in callbacks if isinstance(each, GenerationScorer)]
        best = state.best_model_checkpoint
        loaded = args.load_best_model_at_end and best is not None and Path(best).is_dir()
        monitor, names = keeper.rule.monitor if keeper else None, plain_names(state)
        return {
            "steps": state.global_step,
            "stopped_by": f"RewardEarlyStopping: {stopped}" if stopped else "end of training",
            "best_checkpoint": best if loaded else LAST_STEP,
            "directions": directions(state),
            "ranges": {k: spec.bounds for each in scorers for k, spec in each.specs.items()},
            "constraints_met": keeper is None or keeper.selected_step is not None,
            "selection": selection_facts(keeper, monitor, names),
        }
