"""What a run changed: the untuned policy against the selected one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Timer

from ctrlreward.callbacks.checkpoint import RewardCheckpoint
from ctrlreward.callbacks.completion import TextGenerator, fixed_randomness, generate
from ctrlreward.callbacks.records import read_records, write_records
from ctrlreward.callbacks.scoring import check_scores, summary
from ctrlreward.callbacks.stopping import RewardEarlyStopping
from ctrlreward.files import JsonLog, write_whole
from ctrlreward.functional.statistics import paired_bootstrap
from ctrlreward.plots.curves import draw_curves
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score

log = logging.getLogger(__name__)


class BeforeAfter(pl.Callback):
    """Scores generations of the untuned policy when training starts, and of the policy that
    `RewardCheckpoint` selected when it ends.

    Writes to the trainer's `default_root_dir`: `before.jsonl`, `after.jsonl` and `<name>.jsonl` of
    other texts (each text with its scores), `summary.json` and, where the history of the run is
    there too, `curves.png`. A resumed run reads `before.jsonl` back. The trainer needs a
    `RewardCheckpoint`.

    `summary.json` holds
    - `before`, `after`: the mean of each score, `fail_rate`, and the number of `generations`;
    - `difference_ci95`: of the first score, the lower and upper end of the 95 % interval of
      after - before, by paired bootstrap over groups of samples; `difference` itself;
    - `others`: by name, the same as of `before`, with `difference` and `difference_ci95` of
      after - other;
    - `steps`, `stopped_by`, `best_checkpoint` (the adapter's folder, else the checkpoint),
      `constraints_met` (false where no validation met those of the `RewardCheckpoint`, so that
      the last checkpoint stands in for the best), and `seconds` of `start` (up to the first
      generation), `before`, `train` (validations included), `after`, and `total`.

    Args:
        scores: As in `GenerationScorer`; the first is the one that the run is about.
        samples: Prompts that neither training nor selection sees, as `generate` takes them.
        generations_per_prompt: Texts per prompt.
        seed: Of both generations, so that the difference is not one of luck.
        others: Name → texts that no policy wrote, one for each of `samples` and in their order: the
            inputs themselves, where copying is something to beat, or what people wrote. They are
            scored as the generations are.
    """

    def __init__(
        self,
        scores: Mapping[str, Component],
        samples: Samples,
        generations_per_prompt: int = 4,
        seed: int = 1,
        others: Mapping[str, Samples] | None = None,
    ) -> None:
        super().__init__()
        check_scores(scores)
        self.scores = dict(scores)
        self.samples = samples.as_prompts()
        self.generations_per_prompt = generations_per_prompt
        self.seed = seed
        self.others = dict(others or {})
        for name, texts in self.others.items():
            if len(texts) != len(samples):
                raise ValueError(
                    f"others[{name!r}] has {len(texts)} texts for {len(samples)} samples: "
                    "give one for each"
                )
        self.seconds: dict[str, float] = {}
        self._created = self._mark = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """Seconds spent so far."""
        return {"seconds": {**self.seconds, "train": self._train_seconds()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on counting seconds."""
        self.seconds = dict(state_dict["seconds"])

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Checks that something will be selected."""
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            _checkpoint(trainer)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Generates and scores before the first step."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if trainer.global_step == 0:
            self.seconds["start"] = time.perf_counter() - self._created
            self._measure(trainer, pl_module, "before")
        self._mark = time.perf_counter()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Generates and scores with the selected weights, and writes the summary."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self.seconds["train"] = self._train_seconds()
        best = _selected(trainer)
        state = torch.load(best, map_location=pl_module.device, weights_only=True)["state_dict"]
        pl_module.load_state_dict(state, strict=False)
        pl_module.eval()
        self._measure(trainer, pl_module, "after")
        if trainer.is_global_zero:
            self._write_summary(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Frees the scorers' models."""
        for component in self.scores.values():
            component.scorer.release()

    def _train_seconds(self) -> float:
        return self.seconds.get("train", 0.0) + time.perf_counter() - self._mark

    def _measure(self, trainer: pl.Trainer, module: pl.LightningModule, phase: str) -> None:
        """Generates, scores and writes the records of one phase."""
        started = time.perf_counter()

        def work() -> None:
            with trainer.precision_plugin.val_step_context(), torch.no_grad():
                generator = cast(TextGenerator, module)
                texts = generate(generator, self.samples, self.generations_per_prompt, self.seed)
            self._judge(trainer, texts, phase)
            if phase == "before":
                rows = np.repeat(np.arange(len(self.samples)), self.generations_per_prompt).tolist()
                for name, other in self.others.items():
                    self._judge(trainer, other[rows], name)

        training = module.training
        module.eval()
        on_rank_zero(work)
        module.train(training)
        self.seconds[phase] = time.perf_counter() - started

    def _judge(self, trainer: pl.Trainer, texts: Samples, name: str) -> None:
        with fixed_randomness(self.seed):
            scores = score(self.scores, texts)
        write_records(Path(trainer.default_root_dir) / f"{name}.jsonl", texts, scores)

    def _write_summary(self, trainer: pl.Trainer) -> None:
        folder = Path(trainer.default_root_dir)
        first = next(iter(self.scores))
        texts, after = read_records(folder / "after.jsonl")
        groups = texts.require("groups", "BeforeAfter")

        def means(scores: Mapping[str, Scores]) -> dict[str, float]:
            return {**summary(scores), "generations": len(texts)}

        def gap(scores: Mapping[str, Scores]) -> dict[str, Any]:
            interval = paired_bootstrap(scores[first], after[first], groups)
            return {"difference": interval.difference, "difference_ci95": list(interval[1:])}

        before = read_records(folder / "before.jsonl")[1]
        others = {name: read_records(folder / f"{name}.jsonl")[1] for name in self.others}
        report = {
            "score": first,
            "before": means(before),
            "after": means(after),
            **gap(before),
            "others": {name: {**means(found), **gap(found)} for name, found in others.items()},
            "steps": trainer.global_step,
            "stopped_by": _stopped_by(trainer),
            "best_checkpoint": _adapter_or_checkpoint(trainer),
            "constraints_met": bool(_checkpoint(trainer).best_model_path),
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
        }
        text = json.dumps(_without_nan(report), indent=2)
        write_whole(folder / "summary.json", text + "\n")
        history = JsonLog(folder / "metrics.jsonl").read()
        if history:
            try:
                draw_curves(history, report, folder / "curves.png")
            except ImportError as error:  # no reason to fail a run that is done
                log.warning("%s", error)
        print(_table(report))


def _selected(trainer: pl.Trainer) -> str:
    """The best checkpoint, or the last one where none was a candidate for the best."""
    callback = _checkpoint(trainer)
    path = callback.best_model_path or callback.last_model_path
    if not path:
        raise RuntimeError(
            "training ended before the first validation, so nothing was selected: "
            "validate more often or train longer"
        )
    return str(path)


def _checkpoint(trainer: pl.Trainer) -> RewardCheckpoint:
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, RewardCheckpoint):
            return callback
    raise MisconfigurationException(
        "BeforeAfter compares with the policy that a RewardCheckpoint selected, and the trainer "
        "has none: add RewardCheckpoint to its callbacks"
    )


def _adapter_or_checkpoint(trainer: pl.Trainer) -> str:
    return _checkpoint(trainer).best_adapter_path or _selected(trainer)


def _stopped_by(trainer: pl.Trainer) -> str:
    """What ended training, in a word or two."""
    for callback in trainer.early_stopping_callbacks:
        if isinstance(callback, RewardEarlyStopping) and callback.stopped_by:
            return f"RewardEarlyStopping: {callback.stopping_reason_message}"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Timer) and (callback.time_remaining() or 1.0) <= 0:
            return "max_time"
    return "max_steps" if trainer.global_step >= trainer.max_steps > 0 else "end of the data"


def _without_nan(value: Any) -> Any:
    """JSON has no word for NaN: null."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _table(report: Mapping[str, Any]) -> str:
    """Before and after side by side, for the console."""
    columns = {"before": report["before"], "after": report["after"], **report["others"]}
    names = [name for name in report["before"] if name != "generations"]
    lines = [f"{'':24}" + "".join(f"{column:>10}" for column in columns)]
    lines += [f"{n:24}" + "".join(f"{c[n]:10.3f}" for c in columns.values()) for n in names]
    for name, other in {"before": report, **report["others"]}.items():
        low, high = other["difference_ci95"]
        lines.append(
            f"{report['score']}, after - {name}: {other['difference']:+.3f} "
            f"(95 % interval {low:+.3f} to {high:+.3f})"
        )
    lines += [
        f"{report['steps']} steps in {report['seconds']['total']:.0f} s; "
        f"stopped by {report['stopped_by']}",
        f"{'best' if report['constraints_met'] else 'CONSTRAINTS NOT MET, last'} checkpoint: "
        f"{report['best_checkpoint']}",
    ]
    return "\n".join(lines)
