"""Texts that TRL, verl or a loop of your own stores, read as the texts of a run's steps."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isnan, nan
from pathlib import Path
from sys import float_info
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.files import parse_json
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.sequential import PromptScores
from ctrlreward.held_out import FAIL_RATE
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_samples
from ctrlreward.tables.rows import Row, parquet_rows

READ_TEXTS = (
    "completions_*.parquet (TRL), *.jsonl of verl, or JSONL or Parquet with step, prompt, "
    "completion and scores"
)
_OTHERS = re.compile(r"samples|rescored|wandb|\..*")  # folders of ours and of W&B
_STEP = re.compile(
    r"(?:(?:^|[-_=.])(?:global_?)?(?:step|checkpoint|ckpt|iter|iteration|completions)[-_=]?|^)\d+$"
)


@dataclass(frozen=True)
class StoredTexts:
    """Texts of a step in files of a trainer; the texts of a prompt follow each other.

    Attributes:
        file: The first file.
        samples: Texts with prompts, groups, and references if all texts of the run have one.
        scores: Name → score of each text, shape (texts,), NaN for a failed one.
        failed: 1 for a text without a score that its row should have, else 0, shape (texts,).
        prompts: Identity of each prompt, in an order that all steps share.
        counts: Number of texts of each prompt.
    """

    file: Path
    samples: Samples
    scores: Mapping[str, Scores]
    failed: Scores
    prompts: Sequence[str]
    counts: Sequence[int]

    def __str__(self) -> str:
        """Return the first file."""
        return str(self.file)

    @property
    def by_prompt(self) -> dict[str, PromptScores]:
        """Name → score of each prompt, shape (prompts,), with the fail rate if there are scores."""
        ends = np.cumsum(self.counts)[:-1]
        digest = hashlib.sha256(" ".join(self.prompts).encode()).hexdigest()[:16]
        rows = {**self.scores, **({FAIL_RATE: self.failed} if self.scores else {})}
        return {
            name: PromptScores([valid_mean(part) for part in np.split(row, ends)], digest)
            for name, row in rows.items()
        }


# A file of a `GenerationScorer`, or texts of another trainer.
TextSource: TypeAlias = Path | StoredTexts


def scored_samples(source: TextSource) -> tuple[Samples, Mapping[str, Scores]]:
    """Return texts and scores of a step."""
    if isinstance(source, StoredTexts):
        return source.samples, source.scores
    return read_scored_samples(source)


def is_even(source: TextSource) -> bool:
    """Return whether all prompts have as many texts, as in the files of a `GenerationScorer`."""
    return isinstance(source, Path) or len(set(source.counts)) == 1


def note_of(name: str, digests: Mapping[int, str]) -> tuple[str, bool]:
    """Return a line about steps with other prompts, and whether steps are compared by prompt.

    `digests` maps a step to its prompts. If they change for good, a new reference begins; if each
    step has others, as in rollouts, the steps are compared by means.
    """
    steps = sorted(digests)
    changes = [step for last, step in pairwise(steps) if digests[last] != digests[step]]
    if not changes:
        return "", True
    if len(set(digests.values())) == len(changes) + 1 < len(digests):
        at = ", ".join(map(str, changes[:5]))
        return f"{name} has other prompts or completions from step {at} on: a new reference", True
    return f"{name} has other prompts at each step: compared by means, not by prompt", False


# Files


class _Text(NamedTuple):
    """A row: `prompt` is text or messages, `of` the identity of the prompt apart from that."""

    step: Any
    prompt: Any
    text: Any
    scores: Mapping[str, Any]
    of: Any = None
    reference: Any = None
    file: Path = Path()


def _trl(cells: Row) -> _Text:
    """Read a row of `completions/completions_*.parquet` of TRL 1.16 (`log_completions=True`).

    Each reward function has a column, as has what it passes to `log_extra`. A file has the last
    generation batch before the step was logged, of training or of an evaluation.
    """
    scores = _without(cells, "step", "prompt", "completion", "advantage")
    return _Text(cells["step"], cells["prompt"], cells["completion"], scores)


def _verl(cells: Row) -> _Text:
    """Read a row of verl's `validation_data_dir` or `rollout_data_dir` (commit 0094eb2).

    `score` is the reward, other numbers are its `reward_extra_info`.
    """
    truth = cells.get("gts")
    scores = _without(cells, "input", "output", "gts", "step", "request_id")
    return _Text(cells["step"], cells["input"], cells["output"], scores, truth, truth)


def _record(cells: Row) -> _Text:
    """Read a record: `step`, `prompt`, `completion`, `scores`, perhaps `prompt_id`, `reference`."""
    of, reference = cells.get("prompt_id"), cells.get("reference")
    return _Text(
        cells["step"], cells["prompt"], cells["completion"], cells["scores"], of, reference
    )


def _without(cells: Row, *names: str) -> Row:
    return {key: value for key, value in cells.items() if key not in names}


# The first that fits counts: a file of TRL lacks the scores of a record.
_FORMATS: Sequence[tuple[str, Callable[[Row], _Text]]] = (
    ("step prompt completion scores", _record),
    ("step prompt completion", _trl),
    ("input output score step", _verl),
)


def read_texts(path: Path) -> dict[str, dict[int, StoredTexts]]:
    """Read the texts that a trainer stored: name → step → texts; empty if there are none.

    Reads only complete lines: a killed run may leave half of the last one.

    Args:
        path: Folder or file. The name of a text is that of its folders and file, without steps.

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
    """Yield the rows of a file as plain texts; none of a file of another kind."""
    read: Callable[[Row], _Text] | None = None
    for place, cells in _rows(file):
        if read is None:
            names = cells.keys() if isinstance(cells, dict) else set()
            read = next((f for columns, f in _FORMATS if {*columns.split()} <= names), None)
            if read is None:
                return
        try:
            row = read(cells)
            if not isinstance(row.scores, Mapping) or int(row.step) != row.step:
                raise TypeError("scores must be name → number, and step an integer")
            text = plain_text(_words(row.text), "assistant")
            prompt = as_prompt(_words(row.prompt))
        except KeyError as error:
            raise ValueError(f"{place} has no {error.args[0]!r}, as rows before it have") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{place} is not a row like the first: {error}") from None
        identity = json.dumps([row.of, prompt, row.reference], default=str)
        of = hashlib.sha256(identity.encode()).hexdigest()[:16]
        yield row._replace(step=int(row.step), text=text, prompt=prompt, of=of, file=file)


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield place and cells; an incomplete last line is left out, as is a file that is not JSON."""
    with open(file, "rb") as raw:
        if file.suffix == ".parquet":
            for number, row in parquet_rows(raw.read(), str(file)):
                yield f"{file}:{number}", row
            return
        for number, line in enumerate(raw, 1):
            try:
                if not line.isspace():
                    yield f"{file}:{number}", parse_json(line.rstrip(b"\r\n"), file, number)
            except ValueError:
                if number > 1 and line.endswith(b"\n"):
                    raise
                return


def _words(given: Any) -> Any:
    if not isinstance(given, str | list | tuple):
        raise TypeError(f"prompt and completion must be a text or messages, got {given!r}")
    return given


def _by_step(texts: Sequence[_Text]) -> dict[int, StoredTexts]:
    """Return step → texts of one name; prompts are in the order of their first appearance."""
    texts = sorted(texts, key=lambda each: each.step)
    order = {of: i for i, of in enumerate(dict.fromkeys(each.of for each in texts))}
    cells = [(k, c) for each in texts for k, c in each.scores.items() if c is not None]
    others = {key for key, cell in cells if not isinstance(cell, int | float)}
    names = dict.fromkeys(key for key, _ in cells if key not in others)
    scored = sorted(names, key=lambda key: key not in ("reward", "score"))
    referenced = all(isinstance(each.reference, str) and each.reference for each in texts)
    steps: dict[int, StoredTexts] = {}
    for step, group in groupby(texts, key=lambda each: each.step):
        rows = sorted(group, key=lambda each: order[each.of])
        counts = Counter(each.of for each in rows)
        numbers = [{k: _number(c) for k, c in row.scores.items() if k in names} for row in rows]
        samples = Samples(
            [row.text for row in rows],
            references=[row.reference for row in rows] if referenced else None,
            prompts=[row.prompt for row in rows],
            groups=[str(order[row.of]) for row in rows],
        )
        steps[step] = StoredTexts(
            rows[0].file,
            samples,
            {key: np.array([row.get(key, nan) for row in numbers]) for key in scored},
            np.array([float(any(map(isnan, row.values()))) for row in numbers]),
            list(counts),
            list(counts.values()),
        )
    return steps


def _number(cell: float | None) -> float:
    return float(cell) if cell is not None and abs(cell) <= float_info.max else nan
