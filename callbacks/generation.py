"""Scoring of generations from held-out prompts at validation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_warn
from torch import nn

from ctrlreward.arguments import positive
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.lightning_internals import state_key
from ctrlreward.callbacks.loggers.wandb_rows import (
    ALIKE,
    define_curves,
    log_at_validation,
    log_sample_table,
)
from ctrlreward.completion import (
    Generator,
    fixed_randomness,
    generate_across_ranks,
    mismatch,
    unclear_input,
)
from ctrlreward.files import remove_unfinished
from ctrlreward.held_out import (
    SCORED_STEP,
    TABLE,
    HeldOutScorer,
    HeldOutScores,
)
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    averaging_callbacks,
)
from ctrlreward.placement import shared_device
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import SamplesLike
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
    with the `step` of the weights. The texts go to `validate-step=000123.jsonl` or
    `test-step=000123.jsonl`. The module of a test needs a `test_step`, which may do nothing, and a
    test dataloader.

    A run that resumes with other prompts, another `generations_per_prompt`, or another
    `max_new_tokens` among the module's `hparams`, warns, and rules start a new reference.

    A scorer may share the device of training if there is only one. The other arguments are as in
    `HeldOutScorer`.

    Args:
        scores: Name → score to log: `{"attribute_relevance": ctrleval["attribute_relevance"]}`, or
            a scorer with a single score.
        samples: The held-out prompts, as for `generate`.
        every_n_validations: Interval; the n-th validation is the first one to be scored.
        name: Prefix of each logged key. Two such callbacks in one trainer need different names.
        table_rows: Rows of the table.

    Attributes:
        has_new_scores: Whether the last validation logged scores. `trainer.callback_metrics` keeps
            old values, so a callback that acts on a score has to check this.
        by_prompt: See `HeldOutScorer`.
        validations: Validations during fitting so far; the same weights are one validation.
        last_scored_step: `trainer.global_step` at which the texts of the last logged scores were
            generated during fitting; -1 before.
        folder: Folder of the sample files; None before `setup` and with `fast_dev_run`.

    Raises:
        TypeError: As in `HeldOutScorer`.
        ValueError: As in `HeldOutScorer`.
        MisconfigurationException: In `setup`: `generate` rejects module or samples, the run has no
            validation, a scorer shares one of several training devices, or averaged weights
            are saved and others would generate.

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
        every_n_validations: int = 1,
        generations_per_prompt: int = 1,
        name: str = "score",
        table_rows: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__(scores, samples, generations_per_prompt, name, seed)
        self.every_n_validations = positive("every_n_validations", every_n_validations)
        self.table_rows = positive("table_rows", table_rows)
        self.has_new_scores = False
        self.validations = 0
        self._validated_step = -1
        self._last_logged: dict[str, float] = {}
        self.last_scored_step = -1
        self.folder: Path | None = None
        self._trial = False
        self._loaded_step: int | None = None

    @property
    def state_key(self) -> str:
        """Key of this callback's state in a checkpoint."""
        return state_key(self, name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the last scores by prompt."""
        return {
            "validations": self.validations,
            "validated_step": self._validated_step,
            "last_logged": dict(self._last_logged),
            "last_scored_step": self.last_scored_step,
            "by_prompt": {key: table.tolist() for key, table in self.by_prompt.items()},
            "measured": self.measured,
            "folder": str(self.folder or ""),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore them, but no scores of other prompts; remove what the killed run left."""
        self.validations = state_dict["validations"]
        if folder := state_dict.get("folder"):
            on_rank_zero(lambda: remove_unfinished(Path(folder), "step=*"))
        changed = self.changed_since(state_dict.get("measured", {}))
        if changed and state_dict["last_scored_step"] >= 0:
            rank_zero_warn(changed)
            return
        self._validated_step = state_dict.get("validated_step", -1)
        self._last_logged = dict(state_dict.get("last_logged", {}))
        self.last_scored_step = state_dict["last_scored_step"]
        self.by_prompt = {k: np.array(table) for k, table in state_dict["by_prompt"].items()}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Validate module, devices and columns, and choose the folder."""
        super().setup(trainer, pl_module, stage)
        if stage == "predict":
            return
        self._loaded_step = None
        self.refuse(mismatch(pl_module, self.samples))
        self.needs_validation(trainer, stage)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        for averaging in averaging_callbacks(trainer):
            if callbacks.index(averaging) < callbacks.index(self):
                self.refuse(
                    f"{type(averaging).__name__} saves averaged weights, and puts the others back "
                    "before a later callback generates. List this GenerationScorer before it."
                )
        devices = {
            f"{type(component.scorer).__name__} of scores[{key!r}]": component.scorer.devices
            for key, component in self.components.items()
        }
        kind = trainer.strategy.root_device.type
        self.refuse(shared_device(devices, kind, trainer.device_ids, trainer.world_size))
        check_columns(self.components, self.prompts)
        self._trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        self._repeats = 1 if self._trial else self.generations_per_prompt
        hparams = pl_module.hparams
        self.settings = {key: hparams[key] for key in _LENGTHS if key in hparams}
        log_dir = Path(trainer.log_dir or trainer.default_root_dir)
        self.folder = folder = None if self._trial else log_dir / "samples" / self.name
        if stage == "fit" and folder is not None:

            def tidy() -> None:
                remove_unfinished(folder, "step=*")
                # A start that was killed before its first checkpoint; another may be writing now.
                for start in log_dir.parent.glob("version_*"):
                    remove_unfinished(start / "samples" / self.name, "step=*", older=60.0)

            on_rank_zero(tidy)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record the step of the weights, which the trainer restores only for training."""
        self._loaded_step = checkpoint["global_step"]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that an encoder-decoder's input is separate from the beginning of its output."""
        self.refuse(unclear_input(pl_module, self.samples))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Define the curves in Weights & Biases."""
        best = {key: f"{spec.mode},last" for key, spec in self.specs.items()}
        define_curves(trainer, best, f"{self.name}/{SCORED_STEP}")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate, score and log: at every nth validation in training, and at each other one."""
        self.has_new_scores = False
        if trainer.sanity_checking:
            return
        step, fitting = trainer.global_step, trainer.state.fn == "fit"
        if fitting and not self._trial:
            if step == self._validated_step:  # the same weights, of the same texts
                if self.last_scored_step == step:
                    log_at_validation(trainer, pl_module, self._last_logged)
                return
            self._validated_step = step
        if fitting:
            self.validations += 1
        elif self._loaded_step is not None:
            step = self._loaded_step
        if fitting and not self._trial and self.validations % self.every_n_validations:
            return
        # Lightning enables mixed precision in its steps, not in this hook.
        precision = trainer.precision_plugin.val_step_context()
        with precision, whole_weights(cast(nn.Module, trainer.strategy.model)):
            prompts = self.prompts[:2] if self._trial else self.prompts
            generator = cast(Generator, pl_module)
            samples = generate_across_ranks(generator, prompts, self._repeats, self.seed)

        def score() -> HeldOutScores:
            kind = {"fit": "", "test": "test-"}.get(trainer.state.fn or "", "validate-")
            # Written to disk at once, in case the run fails later.
            path = self.folder and self.folder / f"{kind}step={step:06d}.jsonl"
            with fixed_randomness(self.seed):
                found = self.score_samples(samples, path)
            key, steps = f"{self.name}/{TABLE}", {f"{self.name}/{SCORED_STEP}": step}
            rows, reasons = self.table_rows, found.reasons
            log_sample_table(trainer, key, samples, found.scores, rows, steps, reasons)
            return found

        logged = self.metrics(on_rank_zero(score))
        log_at_validation(trainer, pl_module, logged)
        self.has_new_scores, self._last_logged = True, logged
        if fitting:
            self.last_scored_step = step
        else:  # Lightning passes it to the loggers as the step of their row
            pl_module.log("step", float(step), **ALIKE)

    on_test_epoch_end = on_validation_epoch_end

    def release(self) -> None:
        """Free the scorers' models."""
        for scorer in self.scorers:
            scorer.release()
