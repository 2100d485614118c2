"""Scoring of generations from held-out prompts at validation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import nn

from ctrlreward.arguments import positive
from ctrlreward.callbacks.base_callback import LOADED_STEP, CallbackMixin, log_folder
from ctrlreward.callbacks.wandb_rows import (
    ALIKE,
    define_curves,
    log_at_validation,
    log_sample_table,
)
from ctrlreward.completion import (
    Generator,
    generate_across_ranks,
    mismatch,
    unclear_input,
)
from ctrlreward.files import remove_unfinished
from ctrlreward.held_out import SCORED_STEP, TABLE, HeldOutScorer
from ctrlreward.lightning_package import LightningModule, Trainer, averaging_callbacks
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import SamplesLike, Unfinished
from ctrlreward.scorers.base import check_columns
from ctrlreward.scorers.components import ComponentLike
from ctrlreward.sharded_weights import whole_weights

# Hyperparameters of a module that the length of its completions depends on.
_LENGTHS = ("max_new_tokens", "max_completion_length")


class GenerationScorerMixin(HeldOutScorer, CallbackMixin):
    """Generates from held-out prompts at validation, scores the texts and logs the mean scores.

    Logs `<name>/<score>`, the mean over the samples with a valid score (NaN if there are none), and
    `<name>/fail_rate`, the share of samples with a NaN score. Perplexity and the four scores of
    `TransferQuality` are also logged of all texts as one corpus, as `<name>/corpus/<score>`. All
    texts with their scores go to `<log dir>/samples/<name>/step=000123.jsonl`, some to a table of a
    Weights & Biases logger. The random state of training is restored afterwards.

    Under a distributed strategy each rank generates from its share of the prompts, rank 0 scores,
    and all ranks log the same values. Under FSDP each rank needs the memory of the whole model. The
    sanity check is skipped. `fast_dev_run` scores two samples and writes no file.

    `trainer.validate` and `trainer.test` score without changing the counters, and return the scores
    with `<name>/scored_step`, the step of the weights; their texts go to `validate-step=…` or
    `test-step=000123.jsonl`. A run that resumes with other prompts, another
    `generations_per_prompt`, or another `max_new_tokens` among the module's `hparams`, warns, and
    rules start a new reference.

    The arguments are of `HeldOutScorer`. Two such callbacks in one trainer need different names.

    Args:
        every_n_validations: Interval; the n-th validation is the first one to be scored.

    Attributes:
        has_new_scores: Whether the last validation logged new scores, not again the scores of the
            same weights.
        validations: Validations during fitting so far; the same weights are one validation.
        last_scored_step: `trainer.global_step` of the last of them; -1 before.
        folder: Folder of the sample files; None before `setup` and with `fast_dev_run`.

    Examples:
        >>> from ctrlreward import LexiconSentiment
        >>> from ctrlreward.callbacks import GenerationScorer
        >>> scores = {"positive": LexiconSentiment()["polarity"]}
        >>> scorer = GenerationScorer(scores, ["The soup", "The view"])
        >>> list(scorer.specs)  # for Trainer(callbacks=[scorer])
        ['score/positive', 'score/fail_rate']
    """

    def __init__(
        self,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int = 1,
        name: str = "score",
        seed: int = 0,
        every_n_validations: int = 1,
        answer_after: str | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        super().__init__(
            scores, samples, generations_per_prompt, name, seed, answer_after, unfinished
        )
        self.every_n_validations = positive("every_n_validations", every_n_validations)
        self.identity = {"name": self.name}
        self.has_new_scores = False
        self.validations = 0
        self.last_scored_step = self._validated_step = -1
        self.folder: Path | None = None
        self._last_logged: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "validations": self.validations,
            "last_logged": dict(self._last_logged),
            "last_scored_step": self.last_scored_step,
            "validated_step": self._validated_step,
            "by_prompt": {key: table.tolist() for key, table in self.by_prompt.items()},
            "measured": self.measured,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them, but no scores of other prompts."""
        self.validations = state_dict["validations"]
        self._validated_step = state_dict["validated_step"]
        changed = self.changed_since(state_dict["measured"])
        if changed and state_dict["last_scored_step"] >= 0:
            rank_zero_warn(changed)
            return
        self._last_logged = dict(state_dict["last_logged"])
        self.last_scored_step = state_dict["last_scored_step"]
        self.by_prompt = {k: np.array(table) for k, table in state_dict["by_prompt"].items()}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Validate module, devices and columns, and choose the folder."""
        super().setup(trainer, pl_module, stage)
        if stage == "predict":
            return
        self.refuse(mismatch(pl_module, self.samples))
        self.needs_validation(trainer, stage)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if any(callbacks.index(c) < callbacks.index(self) for c in averaging_callbacks(trainer)):
            self.refuse(
                "averaged weights are saved, but others are back before a later callback "
                "generates. List this GenerationScorer before WeightAveraging."
            )
        check_columns(self.components, self.prompts)
        hparams, trial = pl_module.hparams, bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        self.settings = {key: hparams[key] for key in _LENGTHS if key in hparams}
        self._repeats = 1 if trial else self.generations_per_prompt
        folder = log_folder(trainer) / "samples" / self.name
        self.folder = None if trial else folder
        if stage == "fit" and not trial:
            on_rank_zero(lambda: remove_unfinished(folder, "step=*"))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record the step of the weights, which the trainer restores only for training."""
        vars(pl_module)[LOADED_STEP] = checkpoint["global_step"]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that an encoder-decoder's input is separate from the beginning of its output."""
        self.refuse(unclear_input(pl_module, self.samples))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        vars(pl_module).pop(LOADED_STEP, None)
        best = {key: f"{spec.mode},last" for key, spec in self.specs.items()}
        define_curves(trainer, best, f"{self.name}/{SCORED_STEP}")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate, score and log, once for the same weights of training."""
        self.has_new_scores = False
        if trainer.sanity_checking:
            return
        self._awaits_validation = False
        step, kind = trainer.global_step, trainer.state.fn
        if kind == "fit":
            if step == self.last_scored_step:  # the same weights
                log_at_validation(trainer, pl_module, self._last_logged)
                return
            if step != self._validated_step:
                self._validated_step = step
                self.validations += 1
            if self.folder and self.validations % self.every_n_validations:
                return
        else:
            step = vars(pl_module).get(LOADED_STEP, step)
        prompts = self.prompts if self.folder else self.prompts[:2]
        # Lightning enables mixed precision in its steps, not in this hook.
        precision = trainer.precision_plugin.val_step_context()
        with precision, whole_weights(cast(nn.Module, trainer.strategy.model)):
            generator = cast(Generator, pl_module)
            samples = generate_across_ranks(generator, prompts, self._repeats, self.seed)
        stage = {"fit": "", "test": "test-"}.get(kind or "", "validate-")
        path = self.folder and self.folder / f"{stage}step={step:06d}.jsonl"
        result = self.score_on_rank_zero(samples, path)
        table, steps = f"{self.name}/{TABLE}", {f"{self.name}/{SCORED_STEP}": step}
        shown = (samples, result.scores, result.reasons)
        on_rank_zero(lambda: log_sample_table(trainer, table, *shown, steps))
        log_at_validation(trainer, pl_module, result.metrics)
        self.has_new_scores = True
        if kind == "fit":
            self.last_scored_step, self._last_logged = step, result.metrics
        else:
            pl_module.log(f"{self.name}/{SCORED_STEP}", float(step), **ALIKE)

    on_test_epoch_end = on_validation_epoch_end
