"""Files of a finished or running job, as the sequence of its steps.

Numbers come from the log of any trainer (`logs.py`), texts and scores by prompt from the files of a
`GenerationScorer` or of another trainer (`stored_texts.py`), checkpoints from names of files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.arguments import Mode
from ctrlreward.files import read_json
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.functional.sequential import PromptScores
from ctrlreward.held_out import FAIL_RATE, prompts_digest
from ctrlreward.runs.logs import (
    Log,
    NoLog,
    SeveralRuns,
    checkpoint_folders,
    noted,
    read_log,
)
from ctrlreward.runs.stored_texts import READ_TEXTS, StoredTexts, TextSource, note_of, read_texts
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_file

PREFIX = "eval_"  # of keys in the log of transformers
TEXTS = "texts"  # source of a run without a log


@dataclass(frozen=True)
class StoredStep:
    """A step at which the run logged something.

    Attributes:
        step: Training step.
        metrics: Key → value that was logged at this step, NaN if it was NaN or infinite. Values of
            earlier steps are not repeated.
        evidence: Key → value of each held-out prompt, shape (prompts,), as from
            `GenerationScorer.evidence`; empty without files of samples, or if each step has others.
        samples: Name of a `GenerationScorer` → JSONL file with its texts and scores; name of the
            files of another trainer → its texts.
        checkpoint: File or folder of the checkpoint, None without one.
    """

    step: int
    metrics: Mapping[str, float]
    evidence: Mapping[str, Scores] = field(default_factory=dict)
    samples: Mapping[str, TextSource] = field(default_factory=dict)
    checkpoint: Path | None = None


@dataclass(frozen=True)
class StoredRun:
    """A run, read from its files.

    Attributes:
        folder: Folder of the run.
        log: Source: the file of a log, or a folder of TensorBoard or of samples.
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
    samples: Mapping[str, Mapping[int, TextSource]] = field(default_factory=dict)
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
            of texts. Samples and checkpoints are searched in this folder and in that of the log.
            Without texts of a `GenerationScorer`, those that another trainer stored.
        checkpoints: Folder of the checkpoints, if it is elsewhere and no callback noted it.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: No known log or texts, damaged ones, or a log without a number.
    """
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    places = [path, *path.glob("**/version_*")] if path.is_dir() else []
    ours = any(sample_files(each) for each in places)
    theirs = read_texts(path) if path.exists() and not ours else {}
    log = _log_of(path, ours, theirs)
    parts = dict.fromkeys((folder, log.folder), math.inf) | dict(log.parts)
    sets: dict[str, dict[int, TextSource]] = {name_: {**each} for name_, each in theirs.items()}
    for part, end in parts.items() if not theirs else ():
        for name_, by_step in sample_files(part).items():
            kept = {step: file for step, file in by_step.items() if step < end}
            sets.setdefault(name_, {}).update(kept)
    if checkpoints is not None and not checkpoints.is_dir():
        raise ValueError(f"{checkpoints} is not a folder, must be the folder of the checkpoints")
    others = [each for part in parts for each in checkpoint_folders(part) if each.is_dir()]
    saved = find_checkpoints([checkpoints] if checkpoints else [*parts, *others], [*parts])
    steps, notes = _steps(log, sets, saved, 0 if sets else _lightning_shift(log, saved))
    files = [each / "summary.json" for each in parts]
    reports = [as_mapping(read_json(file)) for file in files if file.is_file()]
    notes_ = [noted(each) for each in parts]
    rules = {name: rule for each in notes_ for name, rule in as_mapping(each.get("rules")).items()}
    modes: dict[str, Mode] = {f"{name_}/{FAIL_RATE}": "min" for name_ in theirs}
    for report in (*notes_, *reports):
        modes |= as_mapping(report.get("directions"))
    for entry in as_mapping(log.declared.get("stateful_callbacks")).values():
        ours_ = as_mapping(as_mapping(entry).get("ctrlreward"))
        rules |= as_mapping(ours_.get("rules"))
        for scorer in as_mapping(ours_.get("scores")).values():
            modes |= {PREFIX + key: mode for key, mode in as_mapping(scorer.get("modes")).items()}
    summary = reports[-1] if reports else {}
    return StoredRun(folder, log.path, log.source, steps, modes, saved, sets, notes, rules, summary)


def _log_of(path: Path, ours: bool, theirs: Mapping[str, Mapping[int, StoredTexts]]) -> Log:
    """Return the log of a run, without rows if it has texts alone."""
    files = {texts.file for by_step in theirs.values() for texts in by_step.values()}
    if theirs and not path.is_dir():
        return Log(TEXTS, path, [])
    try:
        return read_log(path, files)
    except NoLog as error:
        if ours or theirs:
            return Log(TEXTS, path, [])
        if path.is_dir() and not isinstance(error, SeveralRuns):
            raise NoLog(f"{error}; nor texts: {READ_TEXTS}") from None
        raise


def _steps(
    log: Log,
    sets: Mapping[str, Mapping[int, TextSource]],
    saved: Mapping[int, Sequence[Path]],
    shift: int,
) -> tuple[list[StoredStep], dict[str, str]]:
    """Return the steps, and a note for each name whose texts are not compared by prompt."""
    metrics: dict[int, dict[str, float]] = {}
    for step, values in log.rows:
        metrics.setdefault(step + shift, {}).update(values)
    evidence: dict[int, dict[str, Scores]] = {}
    notes: dict[str, str] = {}
    for name, by_step in sets.items():
        rows = {step: scores_by_prompt(source) for step, source in sorted(by_step.items())}
        first = {s: next(iter(each.values()), None) for s, each in rows.items()}
        digests = {step: "" if row is None else row.prompts for step, row in first.items()}
        note, paired = note_of(name, digests)
        notes |= {name: note} if note else {}
        for step, by_prompt in rows.items():
            keyed = {f"{name}/{key}": row for key, row in by_prompt.items()}
            if isinstance(by_step[step], StoredTexts) or not log.rows:  # no log has these scores
                means = {key: valid_mean(np.asarray(row)) for key, row in keyed.items()}
                metrics.setdefault(step, {}).update(means)
            if paired:
                evidence.setdefault(step, {}).update(keyed)
    steps = []
    for step, values in sorted(metrics.items()):
        # Transformers' log has a prefix that the scorer's keys lack.
        logged = {
            key: row
            for scored, row in evidence.get(step, {}).items()
            for key in (scored, f"eval_{scored}", f"eval/{scored}")
            if key in values
        }
        texts = {name: by_step[step] for name, by_step in sets.items() if step in by_step}
        checkpoint = saved[step][0] if step in saved else None
        steps.append(StoredStep(step, values, logged, texts, checkpoint))
    return steps, notes


def _lightning_shift(log: Log, found: Mapping[int, Sequence[Path]]) -> int:
    """Return the offset from the steps of a log to the steps of its checkpoints.

    Lightning logs step 99 for the checkpoint of step 100, unless a callback of this package
    makes both 100.
    """
    saved = {step for step, paths in found.items() if any(p.suffix == ".ckpt" for p in paths)}
    logged = {step for step, _ in log.rows}
    return int(not saved <= logged and {step - 1 for step in saved} <= logged)


# Samples


def sample_files(folder: Path) -> dict[str, dict[int, Path]]:
    """Return name of a `GenerationScorer` → step → JSONL file of its texts and scores.

    Names may have slashes. Texts of `trainer.test` are left out.
    """
    found: dict[str, dict[int, Path]] = {}
    root = folder / "samples"
    for file in sorted(root.rglob("step=*.jsonl")):
        digits = file.stem.removeprefix("step=")
        if digits.isdecimal() and file.is_file():
            found.setdefault(str(file.parent.relative_to(root)), {})[int(digits)] = file
    return found


def measure_of(source: TextSource) -> str:
    """Return a digest of what was measured: prompts and completions, of another trainer prompts."""
    if isinstance(source, StoredTexts):
        return next((row.prompts for row in source.by_prompt.values()), "")
    samples, _, _, _, measure = read_scored_file(source)
    return measure or prompts_digest(samples, completions_per_prompt(samples))


def scores_by_prompt(source: TextSource) -> dict[str, PromptScores]:
    """Return score → value of each prompt, and the fail rate."""
    if isinstance(source, StoredTexts):
        return source.by_prompt
    # Scores of groups have values by prompt, not of a text.
    samples, scores, kept, _, measure = read_scored_file(source)
    repeats = completions_per_prompt(samples)
    rows = {key: valid_row_means(row.reshape(-1, repeats)) for key, row in scores.items()}
    if scores:
        failed = np.isnan(np.stack(list(scores.values()))).any(axis=0)
        rows[FAIL_RATE] = failed.reshape(-1, repeats).mean(axis=1)
    prompts = measure or prompts_digest(samples, repeats)
    return {key: PromptScores(row, prompts) for key, row in {**rows, **kept}.items()}


def completions_per_prompt(samples: Samples) -> int:
    """Return how many rows of a prompt follow each other, in samples returned by `generate`."""
    columns = {k: v for k, v in samples.columns().items() if k != "texts"}
    rows = list(zip(*columns.values(), strict=True)) if columns else list(range(len(samples)))
    runs, repeats = 0, 0
    for place, row in enumerate(rows):
        runs += 1
        if place + 1 == len(rows) or rows[place + 1] != row:
            repeats, runs = math.gcd(repeats, runs), 0
    return max(1, repeats)


# Checkpoints

# Lightning: "epoch=1-step=20.ckpt", "step=000020-sim=0.800.ckpt"; transformers: "checkpoint-20";
# verl: "global_step_20"; OpenRLHF: "global_step20", "best_global_step20", "global_step20_hf".
_CHECKPOINT = re.compile(r"(?:^|[-_=.])(?:step|checkpoint|ckpt|iter|iteration)[-_=]?0*(\d+)(?!\d)")
_WEIGHTS = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_DEPTH = 4


def find_checkpoints(
    folders: Sequence[Path], own: Sequence[Path] = ()
) -> dict[int, tuple[Path, ...]]:
    """Return step → files and folders of its checkpoint, files first, in the order of the steps.

    Links are neither followed nor returned, nor are checkpoints in a subfolder with the log of
    another run than the one of the folders `own`.
    """
    found: dict[int, dict[Path, Path]] = {}
    for path in (path for each in folders for path in _checkpoint_paths(each, _DEPTH, own)):
        match = _CHECKPOINT.search(path.name)
        assert match is not None
        found.setdefault(int(match[1]), {}).setdefault(path.resolve(), path)

    def rank(path: Path) -> tuple[bool, bool, int, str]:
        return path.is_dir(), path.name.endswith("-adapter"), len(path.parts), str(path)

    return {step: tuple(sorted(found[step].values(), key=rank)) for step in sorted(found)}


def _checkpoint_paths(folder: Path, depth: int, own: Sequence[Path]) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.is_symlink() or entry.name.startswith(".") or entry.name in _NOT_SEARCHED:
                continue
            path, is_folder = folder / entry.name, entry.is_dir(follow_symlinks=False)
            if _CHECKPOINT.search(entry.name) and (is_folder or entry.name.endswith(_WEIGHTS)):
                yield path
            elif is_folder and depth and not _is_another_run(path, own):
                yield from _checkpoint_paths(path, depth - 1, own)


_NOT_SEARCHED = ("samples", "wandb")
_LOGS = ("metrics.jsonl", "metrics.csv", "trainer_state.json", "checkpoint-*/trainer_state.json")


def _is_another_run(folder: Path, own: Sequence[Path]) -> bool:
    if any(each.resolve().is_relative_to(folder.resolve()) for each in own):
        return False
    return any(True for name in _LOGS for _ in folder.glob(name))


def as_mapping(value: object) -> dict[str, Any]:
    """Return an object of JSON; an empty one for another value."""
    return value if isinstance(value, dict) else {}
