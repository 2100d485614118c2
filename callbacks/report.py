"""Report of a run: the untuned policy compared with the selected one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from ctrlreward.arguments import checked_keywords, positive
from ctrlreward.callbacks.base_callback import CallbackMixin
from ctrlreward.callbacks.checkpoint import RewardCheckpointMixin
from ctrlreward.callbacks.completion import (
    Generator,
    check_generator,
    fixed_randomness,
    generate,
)
from ctrlreward.callbacks.judges import AUC, Mean, comparison, judges_by_name
from ctrlreward.callbacks.logged_scores import SAMPLING_NAMES, components_by_name
from ctrlreward.callbacks.loggers.records import read_scored_samples, write_scored_samples
from ctrlreward.callbacks.monitoring import known_modes
from ctrlreward.callbacks.report_text import console_table, text_pairs
from ctrlreward.callbacks.saving import SelectingCheckpointMixin
from ctrlreward.callbacks.stopping import stopped_by
from ctrlreward.files import JsonLog, finite_or_none, write_whole
from ctrlreward.lightning_package import (
    LightningModule,
    ModelCheckpoint,
    Trainer,
    is_instance,
    misconfigured,
)
from ctrlreward.plots.curves import Rows, draw_curves
from ctrlreward.progress import phase
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Component, Scores, check_columns, score
from ctrlreward.scorers.components import ComponentLike

log = logging.getLogger(__name__)

ScoredTexts: TypeAlias = tuple[Samples, dict[str, Scores]]


@checked_keywords(**SAMPLING_NAMES)
class BeforeAfterMixin(CallbackMixin):
    """Compares the policy that `RewardCheckpoint` selected with the untuned policy.

    Generates and scores texts before the first step, and again with the selected weights when
    training has ended; the module keeps these weights. The trainer needs a `RewardCheckpoint`.
    Prints a table, and six pairs of an untuned and a selected text, evenly spaced over all.

    Writes to the trainer's `default_root_dir`: `before.jsonl`, `after.jsonl` and a `<name>.jsonl`
    of each entry of `others` (texts with the scores and, by its name, the score of each judge),
    `summary.json`, and `curves.png` if a `HistoryLogger` writes to the same folder. A resumed run
    reads `before.jsonl` back, and scores its texts where scores or judges are missing.

    Keys of `summary.json`:
    - `score`: the name of the first score;
    - `before`, `after`: mean of each score, `fail_rate`, and the number of `generations`;
    - `difference`: after - before of the first score; `difference_ci95`: lower and upper end of
      its 95 % interval, by paired bootstrap over groups of samples;
    - `others`: by name, the same keys as `before`, and `difference` and `difference_ci95` of
      after - other;
    - `judges`: by name, `before` and `after`, the mean or AUC of all texts; `difference` and
      `difference_ci95` as above; `failed`, the number of texts of each file that were left out, as
      they have no score; `others`: by name, `value`, `difference` and `difference_ci95`;
    - `intervals`: `before` and `after`, the 95 % interval of each mean and AUC;
    - `steps`, `stopped_by`;
    - `best_checkpoint`: the folder of the adapter if it was exported, else the checkpoint;
    - `constraints_met`: false if no validation met the constraints of `RewardCheckpoint`, so that
      the last checkpoint was used instead of the best;
    - `selection`: `monitor`, `step` and `constraints` of `RewardCheckpoint`; `directions`: logged
      key → "max" if higher is better, "min" if lower is better;
    - `seconds`: of `start` (up to the first generation), `before`, `train` (with validations),
      `after`, and `total`.

    Args:
        scores: As in `GenerationScorer`. Differences are reported for the first one.
        samples: Prompts that neither training nor selection uses, as for `generate`.
        generations_per_prompt: Completions per prompt.
        seed: Seed of both generations, so that they differ by the weights alone.
        others: Name → texts to score beside the generations, one for each of `samples` and in their
            order: human references, or the inputs themselves as a copy baseline.
        judges: Name → a score that the reward and the selection do not use, compared by its mean,
            or an `AUC`.

    Attributes:
        seconds: Phase → seconds so far, as in `summary.json` without `total`.

    Raises:
        TypeError: A value of `scores` or `judges` is not a score.
        ValueError: There are no scores, a name is reserved, or `others` has a different number of
            texts than `samples`. In `setup`: the samples are of one group, or lack a
            column or label of a judge.
        MisconfigurationException: In `setup`: the trainer has no `RewardCheckpoint`, or `generate`
            refuses module or samples.

    Examples:
        >>> from pytorch_lightning import Trainer
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> from ctrlreward import Samples, Similarity, WordVectors
        >>> from ctrlreward.callbacks import BeforeAfter, GenerationScorer, RewardCheckpoint
        >>> class Writer(BoringModel):
        ...     def complete(self, prompts):
        ...         word = "broth" if self.global_step < 50 else "soup"  # as if it had learnt
        ...         return [f" {word}" for prompt in prompts]
        >>> content = {"content": Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))}
        >>> held_out = Samples(["A hot", "Some cold"], sources=["soup", "soup"])
        >>> test = Samples(["The best", "The worst"], sources=["soup", "soup"])
        >>> callbacks = [
        ...     GenerationScorer(content, held_out),
        ...     RewardCheckpoint("score/content"),
        ...     BeforeAfter(content, test),
        ... ]
        >>> Trainer(max_epochs=1, callbacks=callbacks, default_root_dir="runs/mine").fit(Writer())
        6 of 8 pairs of texts, evenly spaced, with their content
        <BLANKLINE>
        The best
          untuned    0.600  The best broth
          selected   1.000  The best soup
        ...
                                    before     after
        content                      0.600     1.000
        fail_rate                    0.000     0.000
        content, after - before: +0.400 (95 % interval +0.400 to +0.400)
        64 steps in ... s; stopped by end of the data
        best checkpoint: runs/mine/.../step=000064-content=1.000.ckpt
    """

    def __init__(
        self,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int = 4,
        seed: int = 1,
        others: Mapping[str, Samples] | None = None,
        judges: Mapping[str, ComponentLike | AUC] | None = None,
    ) -> None:
        super().__init__()
        self.components = components_by_name(scores)
        self.samples = as_samples(samples)
        self.generations_per_prompt = positive("generations_per_prompt", generations_per_prompt)
        self.seed = seed
        self.judges = judges_by_name(judges or {}, self.components)
        self.others = dict(others or {})
        for name, texts in self.others.items():
            if name in ("before", "after"):
                raise ValueError(f"others has the key {name!r}, a file of its own: rename it")
            if len(texts) != len(self.samples):
                raise ValueError(
                    f"others[{name!r}] has {len(texts)} texts for {len(self.samples)} samples: "
                    "give one text per sample"
                )
        self.seconds: dict[str, float] = {}
        self._created = self._mark = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds of each phase so far."""
        return {"seconds": {**self.seconds, "train": self._train_seconds()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the seconds of the interrupted run."""
        self.seconds = dict(state_dict["seconds"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise if the trainer has no `RewardCheckpoint`, or the samples cannot be compared."""
        super().setup(trainer, pl_module, stage)
        prompts = self.samples.as_prompts()
        for samples in (prompts, *self.others.values()):
            check_columns(self._all_components(), samples)
        for judge in (Mean(next(iter(self.components.values()))), *self.judges.values()):
            judge.check(prompts)
        if stage == "fit" and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            check_generator(self, pl_module, self.samples)
            _checkpoint_callback(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the language model gets its input apart from the beginning of its output."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            check_generator(self, pl_module, self.samples)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate and score with the untuned policy, unless the run is resumed."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if trainer.global_step == 0:
            self.seconds["start"] = time.perf_counter() - self._created
            self._measure(trainer, pl_module, "before")
        else:
            on_rank_zero(lambda: self._check_files(Path(trainer.default_root_dir)))
        self._mark = time.perf_counter()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Generate and score with the selected weights, and write the summary."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self.seconds["train"] = self._train_seconds()
        best = _selected_checkpoint(trainer)
        state = torch.load(best, map_location=pl_module.device, weights_only=True)["state_dict"]
        pl_module.load_state_dict(state, strict=False)
        pl_module.eval()
        self._measure(trainer, pl_module, "after")
        if trainer.is_global_zero:
            self._write_summary(trainer)

    def release(self) -> None:
        """Free the scorers' models."""
        for component in self._all_components().values():
            component.scorer.release()

    def _all_components(self) -> dict[str, Component]:
        """Return what scores each text: the scores, and those that the judges use."""
        return self.components | {name: judge.score for name, judge in self.judges.items()}

    def _train_seconds(self) -> float:
        return self.seconds.get("train", 0.0) + time.perf_counter() - self._mark

    def _measure(self, trainer: Trainer, module: LightningModule, phase: str) -> None:
        """Generate, score and write the texts of a phase, and time it."""
        started = time.perf_counter()
        folder = Path(trainer.default_root_dir)

        def work() -> None:
            with trainer.precision_plugin.val_step_context(), torch.no_grad():
                generator = cast(Generator, module)
                texts = generate(generator, self.samples, self.generations_per_prompt, self.seed)
            self._score(folder, texts, phase)
            if phase == "before":
                rows = np.repeat(np.arange(len(self.samples)), self.generations_per_prompt).tolist()
                for name, other in self.others.items():
                    self._score(folder, other[rows], name)

        training = module.training
        module.eval()
        on_rank_zero(work)
        module.train(training)
        self.seconds[phase] = time.perf_counter() - started

    def _score(self, folder: Path, texts: Samples, name: str) -> None:
        """Write texts and then their scores, so that a scorer that fails loses no texts."""
        write_scored_samples(folder / f"{name}.jsonl", texts, {})
        self._scored(folder, name)

    def _scored(self, folder: Path, name: str) -> ScoredTexts:
        """Read texts and scores back, and compute the scores that the file lacks."""
        path = folder / f"{name}.jsonl"
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist: BeforeAfter wrote it before the first step of this run; "
                "resume with the default_root_dir of that time, or start a new run"
            )
        texts, scores = read_scored_samples(path)
        missing = {key: each for key, each in self._all_components().items() if key not in scores}
        if missing:
            with fixed_randomness(self.seed), phase(f"scoring {len(texts)} texts"):
                scores |= score(missing, texts)
            write_scored_samples(path, texts, scores)
        return texts, scores

    def _check_files(self, folder: Path) -> None:
        """Fail before a resumed training rather than after it, if texts are absent."""
        for name in ("before", *self.others):
            self._scored(folder, name)

    def _write_summary(self, trainer: Trainer) -> None:
        folder = Path(trainer.default_root_dir)
        sets = {name: self._scored(folder, name) for name in ("before", "after", *self.others)}
        texts, _ = sets["after"]
        facts = run_facts(trainer)
        own = {f"score/{name}": component.spec for name, component in self.components.items()}
        own |= {f"judges/{name}": judge.score.spec for name, judge in self.judges.items()}
        facts["directions"] |= {
            key: "max" if spec.higher_is_better else "min" for key, spec in own.items()
        }
        summary = {
            **comparison(self.components, self.judges, texts, {n: s for n, (_, s) in sets.items()}),
            **facts,
            "seconds": {**self.seconds, "total": sum(self.seconds.values())},
        }
        write_report(folder, summary, JsonLog(folder / "metrics.jsonl").read() or None)
        key = next(iter(self.judges or self.components))
        shown = self.judges[key].score.name if self.judges else key
        untuned, selected = (
            (each, scores[key]) for each, scores in (sets["before"], sets["after"])
        )
        print(text_pairs(shown, untuned, selected), console_table(summary), sep="\n\n", flush=True)


def run_facts(trainer: Trainer) -> dict[str, Any]:
    """Return what `summary.json` says of a run whatever its scores: steps, choice, directions."""
    ours, first = _our_keeper(trainer), trainer.checkpoint_callback
    theirs = first if is_instance(first, "callbacks.ModelCheckpoint") else None
    keeper = cast("ModelCheckpoint | None", ours or theirs)
    bounds = ours.constraints if isinstance(ours, RewardCheckpointMixin) else {}
    best = keeper.best_model_path or keeper.last_model_path if keeper else ""
    return {
        "steps": trainer.global_step,
        "stopped_by": stopped_by(trainer),
        "best_checkpoint": (ours.best_adapter_path if ours else "") or str(best),
        "constraints_met": bool(keeper and keeper.best_model_path),
        "selection": {
            "monitor": keeper.monitor if keeper else None,
            "step": ours.selected_step if ours else None,
            "constraints": {key: list(interval) for key, interval in bounds.items()},
        },
        "directions": dict(known_modes(trainer)),
    }


def write_report(folder: Path, summary: Mapping[str, Any], history: Rows | None) -> None:
    """Write `summary.json` and, if there is a history, `curves.png`."""
    content = json.dumps(_nan_to_none(dict(summary)), indent=2)
    write_whole(folder / "summary.json", content + "\n")
    if history is None:
        return
    try:
        draw_curves(history, summary, folder / "curves.png")
    except ImportError as error:  # without matplotlib the run still counts
        log.warning("%s", error)


def _selected_checkpoint(trainer: Trainer) -> str:
    """Return the best checkpoint, or the last one if none qualified as the best."""
    callback = _checkpoint_callback(trainer)
    path = callback.best_model_path or callback.last_model_path
    if not path:
        raise RuntimeError(
            "training ended before the first validation, so no checkpoint was selected: "
            "validate more often or train longer"
        )
    return str(path)


def _our_keeper(trainer: Trainer) -> SelectingCheckpointMixin | None:
    keepers = trainer.checkpoint_callbacks
    return next((one for one in keepers if isinstance(one, SelectingCheckpointMixin)), None)


def _checkpoint_callback(trainer: Trainer) -> SelectingCheckpointMixin:
    callback = _our_keeper(trainer)
    if callback is not None:
        return callback
    raise misconfigured(
        trainer,
        "BeforeAfter evaluates the policy that a RewardCheckpoint selected, and the trainer "
        "has none: add RewardCheckpoint to its callbacks",
    )


def _nan_to_none(value: Any) -> Any:
    """Replace NaN and infinite numbers in nested data by None, as JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nan_to_none(item) for item in value]
    return finite_or_none(value) if isinstance(value, float) else value
