"""Files of a finished or running job, as the sequence of its steps.

Numbers come from the log of any trainer (`logs.py`), texts and scores by prompt from the files of a
`GenerationScorer` or of another trainer (`stored_texts.py`), checkpoints from names of files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.arguments import Mode
from ctrlreward.files import read_json
from ctrlreward.functional.means import valid_mean
from ctrlreward.held_out import FAIL_RATE
from ctrlreward.runs.logs import Log, NoLog, as_mapping, checkpoint_folders, noted, read_log
from ctrlreward.runs.stored_texts import (
    READ_TEXTS,
    StoredTexts,
    note_of,
    read_own_texts,
    read_texts,
    sample_files,
)
from ctrlreward.scorers.base import Scores

PREFIX = "eval_"  # of keys in the log of transformers
TEXTS = "texts"  # source of a run without a log


@dataclass(frozen=True)
class StoredStep:
    """A step at which the run logged something; values of earlier steps are not repeated."""

    step: int
    metrics: Mapping[str, float]  # NaN for infinity too
    evidence: Mapping[str, Scores] = field(default_factory=dict)  # key → (prompts,), where compared


@dataclass(frozen=True)
class StoredRun:
    """A run, read from its files.

    Attributes:
        folder: Folder of the run.
        log: Source: the file of a log, or a folder of samples.
        source: Kind of the log, such as `"HistoryLogger"`.
        steps: Steps at which something was logged, in order.
        modes: Key → better direction, if the run declares it.
        checkpoints: Step → files and folders of its checkpoint, the checkpoint itself first.
        samples: Name → step → texts of a `GenerationScorer` or of another trainer.
        notes: Name of samples → a line about steps that are not compared by prompt.
        rules: Class of each rule of the run → its settings, as the callbacks noted them.
        summary: What `BeforeAfter` wrote to `summary.json`.
    """

    folder: Path
    log: Path
    source: str
    steps: Sequence[StoredStep]
    modes: Mapping[str, Mode] = field(default_factory=dict)
    checkpoints: Mapping[int, tuple[Path, ...]] = field(default_factory=dict)
    samples: Mapping[str, Mapping[int, StoredTexts]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """All logged keys, in the order in which they appear."""
        return list(dict.fromkeys(key for each in self.steps for key in each.metrics))


def read_stored_run(name: str | Path, checkpoints: Path | None = None) -> StoredRun:
    """Read the log, the samples and the checkpoints of a run.

    Args:
        name: Folder of the run, or another argument of `ctrlreward.runs.logs.read_log`, or a file
            of texts. Samples and checkpoints are searched in this folder and in the log's.
            Without texts of a `GenerationScorer`, another trainer's are read.
        checkpoints: Folder of the checkpoints, if it is elsewhere and no callback noted it.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: No known log or texts, damaged ones, or a log without a number.
    """
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    places = [path, *path.glob("**/version_*")] if path.is_dir() else []
    ours = any(sample_files(each) for each in places)
    sets = read_texts(path) if path.exists() and not ours else {}
    log = _log_of(path, ours, sets)
    parts = dict(log.parts) or {log.folder: math.inf}  # a later part counts more
    parts = parts if folder in parts else {folder: math.inf, **parts}
    modes: dict[str, Mode] = {f"{theirs}/{FAIL_RATE}": "min" for theirs in sets}
    modes |= {f"{theirs}/score": "max" for theirs in sets}  # the reward, in verl's files
    if not sets:
        files: dict[str, dict[int, Path]] = {}
        for part, end in parts.items():
            for scorer, by_step in sample_files(part).items():
                kept = {step: file for step, file in by_step.items() if step <= end}
                files.setdefault(scorer, {}).update(kept)
        sets = {
            scorer: {step: read_own_texts(file) for step, file in sorted(by_step.items())}
            for scorer, by_step in files.items()
        }
    if checkpoints is not None and not checkpoints.is_dir():
        raise ValueError(f"{checkpoints} is not a folder, must be the folder of the checkpoints")
    others = [each for part in parts for each in checkpoint_folders(part) if each.is_dir()]
    saved = find_checkpoints([checkpoints] if checkpoints else [*parts, *others], [*parts])
    steps, notes = _steps(log, sets, saved)
    summaries = [each / "summary.json" for each in parts]
    reports = [as_mapping(read_json(file)) for file in summaries if file.is_file()]
    decisions = [noted(each) for each in parts]
    rules = {k: rule for each in decisions for k, rule in as_mapping(each.get("rules")).items()}
    for report in (*decisions, *reports):
        modes |= as_mapping(report.get("directions"))
    for entry in as_mapping(log.declared.get("stateful_callbacks")).values():
        state = as_mapping(as_mapping(entry).get("ctrlreward"))
        rules |= as_mapping(state.get("rules"))
        for scorer in as_mapping(state.get("scores")).values():
            modes |= {PREFIX + key: mode for key, mode in as_mapping(scorer.get("modes")).items()}
    summary = reports[-1] if reports else {}
    return StoredRun(folder, log.path, log.source, steps, modes, saved, sets, notes, rules, summary)


def _log_of(path: Path, ours: bool, theirs: Mapping[str, Mapping[int, StoredTexts]]) -> Log:
    """Return the log of a run, without rows if it has texts alone."""
    if theirs and not path.is_dir():
        return Log(TEXTS, path, [])
    try:
        return read_log(path, {each.file for texts in theirs.values() for each in texts.values()})
    except NoLog as error:
        if ours or theirs:
            return Log(TEXTS, path, [])
        raise NoLog(f"{error}; nor texts: {READ_TEXTS}" if path.is_dir() else str(error)) from None


def _steps(
    log: Log,
    sets: Mapping[str, Mapping[int, StoredTexts]],
    saved: Mapping[int, Sequence[Path]],
) -> tuple[list[StoredStep], dict[str, str]]:
    """Return the steps, and a note for each name whose texts are not compared by prompt."""
    # Without a callback of this package, a `HistoryLogger` has step 99 for the checkpoint of step
    # 100, as Lightning counts.
    written = {step for step, paths in saved.items() if any(p.suffix == ".ckpt" for p in paths)}
    logged = {step for step, _ in log.rows}
    late = written if log.source == "HistoryLogger" and not sets else set()
    earlier = not late <= logged and {step - 1 for step in late} <= logged
    # The log of transformers is a checkpoint's: what was scored later is in the texts alone.
    partial = not log.rows or log.source == "trainer_state.json"
    end = max(logged, default=-1) if partial else math.inf
    metrics: dict[int, dict[str, float]] = {}
    for step, values in log.rows:
        metrics.setdefault(step + earlier, {}).update(values)
    evidence: dict[int, dict[str, Scores]] = {}
    notes: dict[str, str] = {}
    for name, by_step in sets.items():
        note, paired = note_of(name, by_step)
        notes |= {name: note} if note else {}
        for step, texts in by_step.items():
            if not texts.ours or step > end:  # no log has these scores
                start = f"{PREFIX}{name}/" if texts.ours and log.rows else f"{name}/"
                rows = {**texts.by_prompt, **texts.scores}  # means of texts, as trainers log them
                means = {start + key: valid_mean(np.asarray(row)) for key, row in rows.items()}
                metrics.setdefault(step, {}).update(means)
            if paired:
                keyed = {f"{name}/{key}": row for key, row in texts.by_prompt.items()}
                evidence.setdefault(step, {}).update(keyed)
    steps = []
    for step, values in sorted(metrics.items()):
        # Transformers' log has a prefix that the scorer's keys lack.
        rows = {
            key: row
            for scored, row in evidence.get(step, {}).items()
            for key in (scored, PREFIX + scored, f"eval/{scored}")
            if key in values
        }
        steps.append(StoredStep(step, values, rows))
    return steps, notes


# Checkpoints

# Lightning: "epoch=1-step=20.ckpt", "step=000020-sim=0.800.ckpt"; transformers: "checkpoint-20";
# verl: "global_step_20".
_CHECKPOINT = re.compile(r"(?:^|[-_=.])(?:step|checkpoint|ckpt|iter|iteration)[-_=]?0*(\d+)(?!\d)")
_WEIGHTS = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_DEPTH = 4
_NOT_SEARCHED = ("samples", "wandb")
_LOGS = ("metrics.jsonl", "metrics.csv", "trainer_state.json", "checkpoint-*/trainer_state.json")


def find_checkpoints(
    folders: Sequence[Path], own: Sequence[Path] = ()
) -> dict[int, tuple[Path, ...]]:
    """Return step → files and folders of its checkpoint, files first, in the order of the steps.

    Links are neither followed nor returned, nor are checkpoints in a subfolder with the log of
    another run than the one of the folders `own`.
    """
    steps: dict[int, dict[Path, Path]] = {}
    for step, path in (pair for each in folders for pair in _checkpoints(each, _DEPTH, own)):
        steps.setdefault(step, {}).setdefault(path.resolve(), path)

    def rank(path: Path) -> tuple[bool, bool, int, str]:
        return path.is_dir(), path.name.endswith("-adapter"), len(path.parts), str(path)

    return {step: tuple(sorted(steps[step].values(), key=rank)) for step in sorted(steps)}


def _checkpoints(folder: Path, depth: int, own: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name.startswith(".") or path.name in _NOT_SEARCHED:
            continue
        match = _CHECKPOINT.search(path.name)
        if match and (path.is_dir() or path.name.endswith(_WEIGHTS)):
            yield int(match[1]), path
        elif depth and path.is_dir():
            inside = any(each.resolve().is_relative_to(path.resolve()) for each in own)
            if inside or not any(True for name in _LOGS for _ in path.glob(name)):
                yield from _checkpoints(path, depth - 1, own)
