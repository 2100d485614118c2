"""Comparison of the untuned model with the selected one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, Trainer, TrainerCallback
from transformers import TrainerControl as Control
from transformers import TrainerState as State
from transformers import TrainingArguments as Arguments

from ctrlreward.arguments import check_type
from ctrlreward.callbacks.judges import AUC, check_judges, judges_by_name, with_judges
from ctrlreward.callbacks.report import scored_texts, selection_facts, write_comparison
from ctrlreward.held_out import HeldOutScorer
from ctrlreward.huggingface.decision import RewardCheckpoint, RewardEarlyStopping
from ctrlreward.huggingface.generation import GenerationScorer, TrainerGenerator, check_own
from ctrlreward.huggingface.run_state import (
    RestoresItself,
    directions,
    join_state,
    plain_names,
)
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import Samples, SamplesLike
from ctrlreward.scorers.base import Scores, check_columns
from ctrlreward.scorers.components import ComponentLike
from ctrlreward.scorers.records import write_scored_samples
from ctrlreward.selection.best import LAST_STEP


class BeforeAfter(RestoresItself, TrainerCallback):
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
        self.held_out = HeldOutScorer(scores, prompts, generations_per_prompt, seed=seed)
        self.judges = judges_by_name(judges or {}, self.held_out.components)
        self._components = with_judges(self.held_out.components, self.judges)
        check_columns(self._components, self.held_out.prompts)
        check_judges(self.judges.values(), self.held_out.prompts)
        self._folder = Path(trainer.args.output_dir or ".")
        self._seconds: dict[str, float] = {}  # in the trainer's state
        self._mark = self._trained = 0.0

    def on_train_begin(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Generate and score with the untuned model, unless the run is resumed."""
        check_own(self, state)
        self._seconds = join_state(state, self).setdefault("seconds", {})
        if state.global_step == 0:
            self._measure("before")
        else:  # an absent file is an error now rather than after the training
            on_rank_zero(lambda: self._scored("before"))
        self._mark, self._trained = time.perf_counter(), self._seconds.get("train", 0.0)

    def on_step_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Note the seconds, which a checkpoint has."""
        self._seconds["train"] = self._trained + time.perf_counter() - self._mark

    def on_train_end(self, args: Arguments, state: State, control: Control, **_: Any) -> None:
        """Generate and score with the trained model, and write the summary."""
        self.on_step_end(args, state, control)
        self._measure("after")

        def write() -> None:
            sets = {name: self._scored(name) for name in ("before", "after")}
            scores, facts = self.held_out.components, self._facts(args, state)
            write_comparison(self._folder, scores, self.judges, sets, facts, self._seconds)

        on_rank_zero(write)
        for component in self._components.values():
            component.scorer.release()

    def _measure(self, name: str) -> None:
        """Generate texts, and score and write them on rank 0."""
        started, held_out = time.perf_counter(), self.held_out
        repeats, seed = held_out.generations_per_prompt, held_out.seed
        texts = self._generator.generate(held_out.prompts, repeats, seed)

        def work() -> None:
            write_scored_samples(self._folder / f"{name}.jsonl", texts, {})  # kept if scoring fails
            self._scored(name)

        on_rank_zero(work)
        self._seconds[name] = time.perf_counter() - started

    def _scored(self, name: str) -> tuple[Samples, dict[str, Scores]]:
        path = self._folder / f"{name}.jsonl"
        return scored_texts(path, self._components, self.held_out.seed, "output_dir")

    def _facts(self, args: Arguments, state: State) -> dict[str, Any]:
        """Return steps, reason of the stop, and the selection."""
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
