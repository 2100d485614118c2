"""Generating from held-out prompts at validation, and logging what the scorers say of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn

from ctrlreward.callbacks.completion import TextGenerator, fixed_randomness, generate
from ctrlreward.callbacks.overlap import Pending
from ctrlreward.callbacks.records import log_table, write_records
from ctrlreward.callbacks.scoring import FAIL_RATE, SCORED_STEP, TABLE, check_scores, summary
from ctrlreward.placement import shared_device
from ctrlreward.ranks import on_every_rank, on_rank_zero
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scorer, Scores, ScoreSpec, score


class GenerationScorer(pl.Callback):
    """Generates from held-out prompts at validation, scores the texts and logs the means.

    Logs `<name>/<score>`, the mean over the samples that could be scored (NaN if none could), and
    `<name>/fail_rate`, the share of samples in which a score is NaN. All texts with their scores
    go to `<log dir>/samples/<name>/step=000123.jsonl`, and a table of some to Weights & Biases
    where the trainer logs there. The seed is the same at each validation, and training goes on
    with the random state it had.

    Under a distributed strategy each rank generates from its share of the prompts, rank 0 scores,
    and all ranks log the same values. The sanity check is skipped; `fast_dev_run` scores two
    samples and writes no file. `trainer.validate` scores too, and counts nothing.

    With `overlap` training does not wait for the scorers: texts are scored on a thread, and what
    a validation logs are the scores of the last texts before it. `<name>/scored_step` says of
    which step; the JSONL file and the table have that step too. When training ends the last scores
    are written, and logged as one more row. A `RewardEarlyStopping` decides one validation late. A
    checkpoint would be kept for the scores of earlier weights, and is refused. The checkpoint
    holds texts that wait for their scores, so a resumed run decides as it would have without the
    break. Scorers may draw no random numbers then, except while they are loaded.

    A scorer may share the device of training where there is one only, and costs it memory and
    time. Where training has several, the scorer's has to lie outside of them.

    Args:
        scores: What to log under which name: `{"attribute_relevance":
            ctrleval["attribute_relevance"]}`. A scorer is called once per validation, however many
            of its scores are asked for.
        samples: The held-out prompts, as `generate` takes them.
        every_n_validations: Scores the n-th validation, the 2n-th and so on.
        generations_per_prompt: Texts per prompt.
        name: Begins each logged key. Two of these callbacks in one trainer need different names.
        table_rows: Rows of the table.
        seed: Of the generation.
        overlap: Score while training goes on, one validation late.

    Attributes:
        fresh: Whether the last validation logged scores anew. `trainer.callback_metrics` keeps the
            values of earlier validations, so a callback that acts on a score has to ask this.
        validations: Validations seen while fitting, the sanity check left out.
        last_scored_step: `trainer.global_step` when the texts were generated whose scores were
            last logged while fitting, -1 before.
        folder: Where the samples are written; None before `setup` and under `fast_dev_run`.

    Raises:
        TypeError: One of the scores is not a component of a scorer.
        ValueError: No scores, no samples, a count that is not positive, or a reserved name.
        MisconfigurationException: In `setup`: the module is no `TextGenerator`, the run has no
            validation, a scorer shares one of several devices of training, or a checkpoint waits
            for a score that comes late.
    """

    def __init__(
        self,
        scores: Mapping[str, Component],
        samples: Samples,
        every_n_validations: int = 1,
        generations_per_prompt: int = 1,
        name: str = "score",
        table_rows: int = 16,
        seed: int = 0,
        overlap: bool = False,
    ) -> None:
        super().__init__()
        check_scores(scores)
        if len(samples) == 0:
            raise ValueError("samples has no items: give at least one held-out prompt")
        for argument, count in (
            ("every_n_validations", every_n_validations),
            ("generations_per_prompt", generations_per_prompt),
            ("table_rows", table_rows),
        ):
            if count < 1:
                raise ValueError(f"{argument} = {count}: give a positive number")
        self.scores = dict(scores)
        self.samples = samples.as_prompts()
        self.every_n_validations = every_n_validations
        self.generations_per_prompt = generations_per_prompt
        self.name = name
        self.table_rows = table_rows
        self.seed = seed
        self.fresh = False
        self.validations = 0
        self.last_scored_step = -1
        self.folder: Path | None = None
        self.overlap = overlap
        self._trial = False
        self._pending = Pending(self._score)

    @property
    def state_key(self) -> str:
        """Under which a checkpoint holds the counters and the texts that wait."""
        return self._generate_state_key(name=self.name)

    def state_dict(self) -> dict[str, Any]:
        """The counters, and the texts whose scores have not been logged."""
        return {
            "validations": self.validations,
            "last_scored_step": self.last_scored_step,
            "pending": self._pending.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the counters and texts of a checkpoint."""
        self.validations = state_dict["validations"]
        self.last_scored_step = state_dict["last_scored_step"]
        self._pending.load_state_dict(state_dict.get("pending"))

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Each key that is logged, with its direction and range."""
        metrics = {f"{self.name}/{key}": c.spec for key, c in self.scores.items()}
        return {**metrics, f"{self.name}/{FAIL_RATE}": ScoreSpec(False, (0.0, 1.0))}

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks module, validation, devices and checkpoints."""
        if stage not in ("fit", "validate"):
            return
        if not isinstance(pl_module, TextGenerator):
            raise MisconfigurationException(
                f"GenerationScorer generates with the module's method complete, and "
                f"{type(pl_module).__name__} has none: define "
                "complete(self, prompts: Sequence[str]) -> list[str], which returns what follows "
                "each prompt"
            )
        if stage == "fit" and not trainer.enable_validation:
            raise MisconfigurationException(
                "GenerationScorer scores at validation, and this run has none: define "
                "validation_step, give the trainer val_dataloaders (one item is enough) and leave "
                "limit_val_batches above 0"
            )
        if stage == "fit" and self.overlap:
            self._check_checkpoints(trainer)
        clash = shared_device(
            {
                f"{type(one.scorer).__name__}, of the score {key!r},": one.scorer.devices
                for key, one in self.scores.items()
            },
            trainer.strategy.root_device.type,
            trainer.device_ids,
            trainer.world_size,
        )
        if clash is not None:
            raise MisconfigurationException(clash)
        if trainer.strategy.root_device.type == "cpu":
            self._pending.worker.yield_cpu()
        self._trial = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        if not self._trial:
            log_dir = trainer.log_dir or trainer.default_root_dir
            self.folder = Path(log_dir) / "samples" / self.name

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Has the texts of a resumed run's checkpoint scored."""
        step, samples = self._pending.step, self._pending.samples
        if samples is None:
            return
        self._start(step, samples)
        if not self.overlap:  # any more: they are written, and nothing waits for them
            self._pending.result(lambda scores: self._show(trainer, step, samples, scores))
            self._pending.clear()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Generates, scores and logs, where it is time to."""
        self.fresh = False
        if trainer.sanity_checking:
            return
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            self.validations += 1
        due = not fitting or self._trial or self.validations % self.every_n_validations == 0
        step = trainer.global_step
        samples = self._generate(trainer, cast(TextGenerator, pl_module)) if due else None
        if self.overlap and fitting and not self._trial:
            self._log_pending(trainer, pl_module)
            if samples is not None:
                self._start(step, samples)
        elif samples is not None:
            scores = on_rank_zero(lambda: self._score_now(trainer, step, samples))
            self._log(pl_module, summary(scores))
            if fitting:
                self.last_scored_step = step

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Waits for the last scores and gives them to the loggers; nothing else can act on them.

        They stay in the state: a run that goes on from here logs them at its next validation, as
        it would have without the break.
        """
        step, samples = self._pending.step, self._pending.samples
        if samples is None:
            return
        scores = self._pending.result(lambda scores: self._show(trainer, step, samples, scores))
        row = {**summary(scores), SCORED_STEP: float(step)}
        for logger in trainer.loggers:
            logger.log_metrics(
                {f"{self.name}/{key}": value for key, value in row.items()},
                step=trainer.fit_loop.epoch_loop._batches_that_stepped,
            )

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Frees the scorers' models."""
        self._release()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Frees the scorers' models."""
        self._release()

    def _release(self) -> None:
        self._pending.close()
        for scorer in self._scorers():
            scorer.release()

    def _scorers(self) -> list[Scorer]:
        return list(dict.fromkeys(component.scorer for component in self.scores.values()))

    def _check_checkpoints(self, trainer: pl.Trainer) -> None:
        for callback in trainer.checkpoint_callbacks:
            key = callback.monitor if isinstance(callback, ModelCheckpoint) else None
            if key is not None and key in self.specs:
                raise MisconfigurationException(late_score(callback, key))

    def _log(self, module: pl.LightningModule, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            module.log(
                f"{self.name}/{key}",
                value,
                on_step=False,
                on_epoch=True,
                sync_dist=True,
                batch_size=1,
            )
        self.fresh = True

    def _start(self, step: int, samples: Samples) -> None:
        """Loads the models here, where random numbers can be put back, and scores on a thread."""
        on_rank_zero(self._load)
        self._pending.start(step, samples)

    def _load(self) -> None:
        with fixed_randomness(self.seed):
            for scorer in self._scorers():
                scorer.load()

    def _log_pending(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Logs the scores of the texts before, where there are any."""
        step, samples = self._pending.step, self._pending.samples
        if samples is None:
            return
        scores = self._pending.result(lambda scores: self._show(trainer, step, samples, scores))
        self._log(module, {**summary(scores), SCORED_STEP: float(step)})
        self.last_scored_step = step
        self._pending.clear()

    def _generate(self, trainer: pl.Trainer, module: TextGenerator) -> Samples:
        """All texts on every rank, in the order of the prompts."""
        prompts = self.samples[:2] if self._trial else self.samples
        repeats = 1 if self._trial else self.generations_per_prompt
        rank, ranks = trainer.global_rank, trainer.world_size

        def share() -> Samples:
            # Mixed precision is on in Lightning's steps only, and this hook is none.
            with trainer.precision_plugin.val_step_context():
                return generate(module, prompts[rank::ranks], repeats, self.seed + rank)

        parts = Samples.concat(on_every_rank(share))
        owners = [i for r in range(ranks) for i in range(r, len(prompts), ranks)]
        rows = np.repeat(owners, repeats)
        return parts[np.argsort(rows, kind="stable").tolist()]

    def _score_now(self, trainer: pl.Trainer, step: int, samples: Samples) -> dict[str, Scores]:
        with fixed_randomness(self.seed):
            scores = self._score(step, samples)
        self._show(trainer, step, samples, scores)
        return scores

    def _score(self, step: int, samples: Samples) -> dict[str, Scores]:
        """Keeps texts and scores on the disk before anything else can go wrong."""
        scores = score(self.scores, samples)
        if self.folder is not None:
            write_records(self.folder / f"step={step:06d}.jsonl", samples, scores)
        return scores

    def _show(
        self, trainer: pl.Trainer, step: int, samples: Samples, scores: Mapping[str, Scores]
    ) -> None:
        """A table for Weights & Biases."""
        key = f"{self.name}/{TABLE}"
        log_table(trainer.loggers, key, samples, scores, self.table_rows, step)


def late_score(callback: pl.Callback, key: str) -> str:
    """Why a checkpoint may not be chosen by the scores of an overlapped `GenerationScorer`."""
    return (
        f"{type(callback).__name__} chooses checkpoints by {key!r}, which comes one validation "
        "late, when the weights that earned it are gone: give the GenerationScorer overlap=False"
    )
