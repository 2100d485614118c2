"""Texts of a run's steps: files of ours, and what TRL or verl stores."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.files import parse_json
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.functional.sequential import PromptScores
from ctrlreward.held_out import FAIL_RATE, prompts_digest
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.runs.logs import finite_or_nan
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_file
from ctrlreward.tables.rows import parquet_rows

READ_TEXTS = "completions_*.parquet of TRL, or *.jsonl of verl"
_OTHERS = re.compile(r"samples|rescored|wandb|\..*")  # folders of ours and of W&B
_KEYS = (("prompt", "completion"), ("input", "output"))  # of TRL and of verl
_NO_SCORES = {"step", "advantage", "gts", "request_id"}.union(*_KEYS)
_STEP = re.compile(
    r"(?:(?:^|[-_=.])(?:global_?)?(?:step|checkpoint|ckpt|iter|iteration|completions)[-_=]?|^)\d+$"
)


@dataclass(frozen=True)
class StoredTexts:
    """Texts of a step; the texts of a prompt follow each other."""

    file: Path  # the first one
    samples: Samples  # of other trainers with prompts and groups
    scores: Mapping[str, Scores]  # name → (texts,), NaN for a failed one
    by_prompt: Mapping[str, PromptScores]  # name, and fail_rate → (prompts,)
    counts: Sequence[int]  # texts of each prompt
    measure: str  # digest of prompts and completions, of other trainers of the prompts
    ours: bool = False  # so that the log has the means of the scores
    held_out: bool = False  # a `GenerationScorer` wrote the measure
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of a judge, by score


def note_of(name: str, by_step: Mapping[int, StoredTexts]) -> tuple[str, bool]:
    """Return a line about steps with other prompts, and whether steps are compared by prompt.

    If the measure changes for good, or a `GenerationScorer` names a new one, a new reference
    begins; if each step has other prompts, as in rollouts, the steps are compared by means.
    """
    measures = {step: by_step[step].measure for step in sorted(by_step)}
    changes = [step for last, step in pairwise(measures) if measures[last] != measures[step]]
    if not changes:
        return "", True
    for_good = len(set(measures.values())) == len(changes) + 1 < len(measures)
    if for_good or all(texts.held_out for texts in by_step.values()):
        at = ", ".join(map(str, changes[:5]))
        return f"{name} has other prompts or completions from step {at} on: a new reference", True
    return f"{name} has other prompts at each step: compared by means, not by prompt", False


# Files of ours


def sample_files(folder: Path) -> dict[str, dict[int, Path]]:
    """Return name of a `GenerationScorer` → step → JSONL file of its texts and scores.

    Names may have slashes. Texts of `trainer.test` are left out.
    """
    files: dict[str, dict[int, Path]] = {}
    root = folder / "samples"
    for file in sorted(root.rglob("step=*.jsonl")):
        digits = file.stem.removeprefix("step=")
        if digits.isdecimal() and file.is_file():
            files.setdefault(str(file.parent.relative_to(root)), {})[int(digits)] = file
    return files


def read_own_texts(path: Path) -> StoredTexts:
    """Read a file of `write_scored_samples`."""
    # Scores of groups have values by prompt, not of a text.
    samples, scores, by_prompt, reasons, measure = read_scored_file(path)
    repeats = completions_per_prompt(samples)
    rows = {key: valid_row_means(row.reshape(-1, repeats)) for key, row in scores.items()}
    if scores:
        failed = np.isnan(np.stack(list(scores.values()))).any(axis=0)
        rows[FAIL_RATE] = failed.reshape(-1, repeats).mean(axis=1)
    held_out, measure = bool(measure), measure or prompts_digest(samples, repeats)
    keyed = {key: PromptScores(row, measure) for key, row in {**rows, **by_prompt}.items()}
    counts = [repeats] * (len(samples) // repeats)
    return StoredTexts(path, samples, scores, keyed, counts, measure, True, held_out, reasons)


def completions_per_prompt(samples: Samples) -> int:
    """Return how many rows of a prompt follow each other, in samples returned by `generate`."""
    columns = {k: v for k, v in samples.columns().items() if k != "texts"}
    rows = list(zip(*columns.values(), strict=True)) if columns else list(range(len(samples)))
    repeats = math.gcd(*(len(list(group)) for _, group in groupby(rows)))
    return max(1, repeats)


# Files of others


class _Text(NamedTuple):
    """A row: step, prompt as `as_prompt` returns it, and `of`, the identity of the prompt."""

    step: int
    prompt: str
    text: str
    scores: Mapping[str, Any]
    of: str
    file: Path


def read_texts(path: Path) -> dict[str, dict[int, StoredTexts]]:
    """Read the texts that a trainer stored: name → step → texts; empty if there are none.

    Reads only complete lines: a killed run may leave half of the last one.

    Args:
        path: Folder or file. A text is named by its folders and file, without steps.

    Raises:
        ValueError: A file is damaged or lacks a column; names file and row.
    """
    root = path if path.is_dir() else path.parent
    by_name: dict[str, list[_Text]] = {}
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        relative = file.relative_to(root)
        hidden = any(map(_OTHERS.fullmatch, relative.parts[:-1]))
        is_table = relative.suffix in (".jsonl", ".parquet") and not hidden
        if rows := list(_texts_of(file)) if is_table else []:
            parts = [_STEP.sub("", part) for part in relative.with_suffix("").parts]
            name = "/".join(part for part, _ in groupby(filter(None, parts)))
            name = name or _STEP.sub("", root.resolve().name) or "texts"
            by_name.setdefault(name, []).extend(rows)
    return {name: _by_step(rows) for name, rows in by_name.items()}


def _texts_of(file: Path) -> Iterator[_Text]:
    """Yield the rows of a file as plain texts; none of a file of another kind.

    - `completions_*.parquet` of TRL 1.16 (`log_completions=True`) has a column for each reward
      function and for what it passes to `log_extra`, and the last generation batch before the step
      was logged, of training or of an evaluation.
    - verl's `validation_data_dir` or `rollout_data_dir` (commit 0094eb2) has `score`, the reward,
      and the numbers of its `reward_extra_info`.
    """
    keys: tuple[str, str] | None = None
    for place, cells in _rows(file):
        if keys is None:
            names = cells.keys() if isinstance(cells, dict) else set()
            keys = next((pair for pair in _KEYS if {"step", *pair} <= names), None)
            if keys is None:
                return
        try:
            given, written, step = cells[keys[0]], cells[keys[1]], cells["step"]
            if int(step) != step:
                raise TypeError(f"step must be an integer, got {step!r}")
            for each in (given, written):
                if not isinstance(each, str | list):
                    raise TypeError(f"prompt and completion must be text or messages, got {each!r}")
            prompt = as_prompt(given)
            identity = json.dumps([cells.get("gts"), prompt], default=str)
            digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
            scores = {name: cell for name, cell in cells.items() if name not in _NO_SCORES}
            yield _Text(int(step), prompt, plain_text(written, "assistant"), scores, digest, file)
        except KeyError as error:
            raise ValueError(f"{place} has no {error.args[0]!r}, as rows before it have") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{place} is not a row like the first: {error}") from None


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield place and cells; an incomplete last line is left out, as is a file that is not JSON."""
    if file.suffix == ".parquet":
        for number, row in parquet_rows(file.read_bytes(), str(file)):
            yield f"{file}:{number}", row
        return
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if not line.isspace():
                    yield f"{file}:{number}", parse_json(line.rstrip(b"\r\n"), file, number)
            except ValueError:
                if number > 1 and line.endswith(b"\n"):
                    raise
                return


def _by_step(texts: Sequence[_Text]) -> dict[int, StoredTexts]:
    """Return step → texts of one name; prompts are in the order of their first appearance."""
    texts = sorted(texts, key=lambda each: each.step)
    order = {of: i for i, of in enumerate(dict.fromkeys(each.of for each in texts))}
    cells = [(k, c) for each in texts for k, c in each.scores.items() if c is not None]
    others = {key for key, cell in cells if not isinstance(cell, int | float)}
    names = dict.fromkeys(key for key, _ in cells if key not in others)
    steps: dict[int, StoredTexts] = {}
    for step, group in groupby(texts, key=lambda each: each.step):
        rows = sorted(group, key=lambda each: order[each.of])
        counts = Counter(each.of for each in rows)
        samples = Samples(
            [row.text for row in rows],
            prompts=[row.prompt for row in rows],
            groups=[str(order[row.of]) for row in rows],
        )
        scores = {
            key: np.array([finite_or_nan(row.scores.get(key)) for row in rows])
            for key in sorted(names, key=lambda key: key != "score")
        }
        # A text failed if it lacks a score that its row should have.
        own = [[scores[key][i] for key in names if key in row.scores] for i, row in enumerate(rows)]
        failed = {FAIL_RATE: np.array([float(np.isnan(each).any()) for each in own])}
        ends, measure = np.cumsum([*counts.values()])[:-1], " ".join(counts)
        digest = hashlib.sha256(measure.encode()).hexdigest()[:16]
        by_prompt = {
            name: PromptScores([valid_mean(part) for part in np.split(row, ends)], digest)
            for name, row in {**scores, **(failed if scores else {})}.items()
        }
        file = rows[0].file
        steps[step] = StoredTexts(file, samples, scores, by_prompt, [*counts.values()], digest)
    return steps
