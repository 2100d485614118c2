"""Files of a finished or running job, as the sequence of its steps.

Numbers come from the log of any trainer (`logs.py`), texts and scores by prompt from the files of a
`GenerationScorer` or of another trainer (`stored_texts.py`), checkpoints from names of files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.arguments import Mode
from ctrlreward.files import read_json
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.functional.sequential import PromptScores
from ctrlreward.held_out import FAIL_RATE, prompts_digest
from ctrlreward.runs.logs import Log, NoLog, read_log
from ctrlreward.runs.stored_texts import (
    READ_TEXTS,
    FoundTexts,
    StoredTexts,
    TextSource,
    note_of,
    read_texts,
    shared_prompts,
)
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_file

PREFIX = "eval_"  # of keys in the log of transformers

# A lock file of the process that writes there, from `ctrlreward train`. In the folder, so that it
# also locks for other machines that mount it. The system frees it when the process ends.
LOCK = ".ctrlreward.lock"


@dataclass(frozen=True)
class StoredStep:
    """A step at which the run logged something.

    Attributes:
        step: Training step.
        metrics: Key → value that was logged at this step, NaN if it was NaN or infinite. Values of
            earlier steps are not repeated.
        evidence: Key → value of each held-out prompt, shape (prompts,), as
            from `GenerationScorer.evidence`; empty without files of samples.
        samples: Name of a `GenerationScorer` → JSONL file with its texts and scores
            (`ctrlreward.scorers.records.read_scored_samples`); name of the files of another trainer
            → its texts (`ctrlreward.runs.stored_texts`).
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
        modes: Key → better direction, if the log declares it.
        ranges: Key → smallest and largest possible value, None for no bound, likewise.
        checkpoints: Step → files and folders of its checkpoint, the checkpoint itself first.
        checkpoint_folder: Folder in which they were searched.
        texts: Name → step → texts that another trainer stored.
        notes: Name of samples or texts → a line about steps that are not compared by prompt.
    """

    folder: Path
    log: Path
    source: str
    steps: Sequence[StoredStep]
    modes: Mapping[str, Mode] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    checkpoints: Mapping[int, tuple[Path, ...]] = field(default_factory=dict)
    checkpoint_folder: Path | None = None
    texts: Mapping[str, Mapping[int, StoredTexts]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """All logged keys, in the order in which they appear."""
        return list(dict.fromkeys(key for each in self.steps for key in each.metrics))


def read_stored_run(name: str | Path, checkpoints: Path | None = None) -> StoredRun:
    """Read the log, the samples and the checkpoints of a run.

    Args:
        name: Folder of the run, or another argument of `ctrlreward.runs.logs.read_log`, or a file
            of texts. Samples and checkpoints are searched in the folder, or in the folder of the
            file. Without texts of a `GenerationScorer`, those that another trainer stored.
        checkpoints: Folder of the checkpoints, if the trainer writes them elsewhere.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: No known log or texts, damaged ones, or a log without a number.
    """
    path = Path(name)
    files = sample_files(path) if path.is_dir() else {}
    found = read_texts(path) if path.exists() and not files else None
    log = _log_of(path, bool(files), found)
    folder = path if path.is_dir() else path.parent
    if found is None:
        files = files or sample_files(folder)
    if checkpoints is not None and not checkpoints.is_dir():
        raise ValueError(f"{checkpoints} is not a folder, must be the folder of the checkpoints")
    place = checkpoints or folder
    saved = find_checkpoints(place, log.path)
    shift = 0 if files or found else _lightning_shift(log, saved)
    metrics: dict[int, dict[str, float]] = {}
    for step, values in log.rows:
        metrics.setdefault(step + shift, {}).update(values)
    sets: Mapping[str, Mapping[int, TextSource]] = found.sets if found else files
    samples: dict[int, dict[str, TextSource]] = {}
    evidence: dict[int, dict[str, Scores]] = {}
    notes: dict[str, str] = {}
    for name_, by_step in sets.items():
        by_prompt = {step: _by_prompt(source) for step, source in by_step.items()}
        digests = {
            step: next((row.prompts for row in rows.values()), "")
            for step, rows in by_prompt.items()
        }
        shared = shared_prompts(digests)
        notes |= {name_: note_of(name_, digests, shared)} if len(shared) < len(digests) else {}
        for step, rows in by_prompt.items():
            samples.setdefault(step, {})[name_] = by_step[step]
            keyed = {f"{name_}/{key}": row for key, row in rows.items()}
            if found or not log.rows:  # the texts alone have these scores
                means = {key: valid_mean(np.asarray(row)) for key, row in keyed.items()}
                metrics.setdefault(step, {}).update(means)
            if step in shared:
                evidence.setdefault(step, {}).update(keyed)
    steps = []
    for step, values in sorted(metrics.items()):
        # Transformers' log has a prefix that the scorer's keys lack.
        logged = {
            key: row
            for name_, row in evidence.get(step, {}).items()
            for key in (name_, f"eval_{name_}", f"eval/{name_}")
            if key in values
        }
        checkpoint = saved[step][0] if step in saved else None
        steps.append(StoredStep(step, values, logged, samples.get(step, {}), checkpoint))
    texts_ = found.sets if found else {}
    modes: dict[str, Mode] = {f"{name_}/{FAIL_RATE}": "min" for name_ in texts_}
    ranges: dict[str, Sequence[float | None]] = dict.fromkeys(modes, (0.0, 1.0))
    for reported in _reported({folder, log.path.parent if log.rows or files else folder}):
        modes |= as_mapping(reported.get("directions"))
        ranges |= as_mapping(reported.get("ranges"))
    for scorer in _declared(log.declared):
        modes |= {PREFIX + key: mode for key, mode in as_mapping(scorer.get("modes")).items()}
        ranges |= {PREFIX + key: bounds for key, bounds in as_mapping(scorer.get("ranges")).items()}
    return StoredRun(
        folder, log.path, log.source, steps, modes, ranges, saved, place, texts_, notes
    )


def _log_of(path: Path, has_samples: bool, found: FoundTexts | None) -> Log:
    """Return the log of a run, without rows if it has texts alone."""
    what = "samples"
    if found is not None:
        steps = len({step for by_step in found.sets.values() for step in by_step})
        what = f"texts of {found.title}, {steps} steps"
        if not path.is_dir():
            return Log(what, path, [])
    try:
        log = read_log(path, found.files if found else ())
    except NoLog as error:
        if has_samples or found is not None:
            return Log(what, path if found else path / "samples", [])  # of a run without a logger
        if path.is_dir():
            raise NoLog(f"{error}; nor has it texts that are read: {READ_TEXTS}") from None
        raise
    return log._replace(source=f"{log.source}; {what}") if found else log


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


def _by_prompt(source: TextSource) -> dict[str, PromptScores]:
    """Return score → value of each prompt, and the fail rate."""
    if isinstance(source, StoredTexts):
        return source.by_prompt
    # Scores of groups have values by prompt, not of a text.
    samples, scores, kept, _ = read_scored_file(source)
    repeats = completions_per_prompt(samples)
    rows = {key: valid_row_means(row.reshape(-1, repeats)) for key, row in scores.items()}
    if scores:
        failed = np.isnan(np.stack(list(scores.values()))).any(axis=0)
        rows[FAIL_RATE] = failed.reshape(-1, repeats).mean(axis=1)
    prompts = prompts_digest(samples, repeats)
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


def find_checkpoints(folder: Path, log: Path | None = None) -> dict[int, tuple[Path, ...]]:
    """Return step → files and folders of its checkpoint, files first, in the order of the steps.

    Links are neither followed nor returned, nor are checkpoints in a subfolder with another log
    than the given one, which belong to another run.
    """
    found: dict[int, list[Path]] = {}
    for path in _checkpoint_paths(folder, _DEPTH, log):
        match = _CHECKPOINT.search(path.name)
        assert match is not None
        found.setdefault(int(match[1]), []).append(path)

    def rank(path: Path) -> tuple[bool, bool, int, str]:
        return path.is_dir(), path.name.endswith("-adapter"), len(path.parts), str(path)

    return {step: tuple(sorted(found[step], key=rank)) for step in sorted(found)}


def _checkpoint_paths(folder: Path, depth: int, log: Path | None) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.is_symlink() or entry.name in ("samples", "wandb"):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if _CHECKPOINT.search(entry.name) and (is_folder or entry.name.endswith(_WEIGHTS)):
                yield folder / entry.name
            elif is_folder and depth and not _is_another_run(folder / entry.name, log):
                yield from _checkpoint_paths(folder / entry.name, depth - 1, log)


def _is_another_run(folder: Path, log: Path | None) -> bool:
    if log is not None and log.resolve().is_relative_to(folder.resolve()):
        return False
    logs = ("metrics.jsonl", "metrics.csv", "trainer_state.json", "checkpoint-*/trainer_state.json")
    return any(True for name in logs for _ in folder.glob(name))


def _reported(folders: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield what `BeforeAfter` wrote to `summary.json`."""
    for file in (folder / "summary.json" for folder in folders):
        if file.is_file():
            yield as_mapping(read_json(file))


def _declared(state: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what each `GenerationScorer` wrote to `trainer_state.json`."""
    for entry in as_mapping(state.get("stateful_callbacks")).values():
        ours = as_mapping(as_mapping(entry).get("ctrlreward"))
        yield from as_mapping(ours.get("scores")).values()


def as_mapping(value: object) -> dict[str, Any]:
    """Return an object of JSON; an empty one for another value."""
    return value if isinstance(value, dict) else {}
