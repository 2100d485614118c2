"""Texts that TRL, verl or a loop of your own stores, read as the texts of a run's steps.

One function for each kind of file returns a row of it as a `TextRow`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
from ctrlreward.tables.row_streams import Row, parquet_rows

_OTHERS = re.compile(r"samples|rescored|wandb|\..*")  # folders of ours and of W&B
_STEP = re.compile(
    r"(?:(?:^|[-_=.])(?:global_?)?(?:step|checkpoint|ckpt|iter|iteration|completions)[-_=]?|^)\d+$"
)


class TextRow(NamedTuple):
    """A text of a trainer's file.

    Attributes:
        prompt: Text, or messages with role and content.
        text: Completion without the prompt, also as messages, of which the assistant's count.
        scores: Name → cell. Numbers and booleans are scores, None is a failed one.
        step: Training step.
        of: Identity of the prompt apart from its text, such as the index of a task.
        reference: Reference text, None without one.
    """

    prompt: Any
    text: Any
    scores: Mapping[str, Any]
    step: Any
    of: Any = None
    reference: Any = None


def trl_row(cells: Row) -> TextRow:
    """Read a row of `completions/completions_*.parquet` of TRL 1.16 (`log_completions=True`).

    Each reward function has a column, as has what it passes to `log_extra`. A file has the last
    generation batch before the step was logged, of training or of an evaluation.
    """
    scores = _without(cells, "step", "prompt", "completion", "advantage")
    return TextRow(cells["prompt"], cells["completion"], scores, cells["step"])


def verl_row(cells: Row) -> TextRow:
    """Read a row of verl's `validation_data_dir` or `rollout_data_dir` (commit 0094eb2).

    `score` is the reward, other numbers are its `reward_extra_info`.
    """
    truth = cells.get("gts")
    scores = _without(cells, "input", "output", "gts", "step", "request_id")
    scores["score"] = cells["score"]
    return TextRow(cells["input"], cells["output"], scores, cells["step"], truth, truth)


def record_row(cells: Row) -> TextRow:
    """Read a record: `step`, `prompt`, `completion`, `scores`, perhaps `prompt_id`, `reference`."""
    of, reference = cells.get("prompt_id"), cells.get("reference")
    return TextRow(
        cells["prompt"], cells["completion"], cells["scores"], cells["step"], of, reference
    )


def _without(cells: Row, *names: str) -> Row:
    return {key: value for key, value in cells.items() if key not in names}


class TextFormat(NamedTuple):
    """Kind of file: its name in messages, its reader, and the columns by which it is known."""

    title: str
    read: Callable[[Row], TextRow]
    columns: str
    one_step: bool = False  # of all rows of a file


# The first that fits counts: a file of TRL lacks the scores of a record.
_FORMATS = (
    TextFormat("records", record_row, "step prompt completion scores"),
    TextFormat("TRL", trl_row, "step prompt completion", one_step=True),
    TextFormat("verl", verl_row, "input output score step", one_step=True),
)
READ_TEXTS = (
    "completions_*.parquet (TRL), *.jsonl of verl, or JSONL or Parquet with step, prompt, "
    "completion and scores"
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


@dataclass(frozen=True)
class FoundTexts:
    """Texts of a run: the name of their kind, their files, and name → step → texts."""

    title: str
    files: Sequence[Path]
    sets: Mapping[str, Mapping[int, StoredTexts]]


def read_texts(path: Path) -> FoundTexts | None:
    """Read the texts that a trainer stored; None if there are none that are known.

    Reads only complete lines: a killed run may leave half of the last one.

    Args:
        path: Folder or file.

    Raises:
        ValueError: A file is damaged or lacks a column, or there are several kinds of files; names
            file and row.
    """
    root = path if path.is_dir() else path.parent
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    kinds = {file: _kind_of(file) for file in files if _may_have_texts(file.relative_to(root))}
    known = {file: kind for file, kind in kinds.items() if isinstance(kind, TextFormat)}
    if not known:
        return None
    titles = sorted({kind.title for kind in known.values()})
    if len(titles) > 1:
        raise ValueError(
            f"{path} has texts of {', '.join(titles)}, choose one of: "
            f"{', '.join(map(str, [*known][:5]))}"
        )
    folders = {file.parent for file in known}
    for file, kind in kinds.items():
        if isinstance(kind, ValueError) and file.parent in folders:  # an error only beside texts
            raise kind
    form = next(iter(known.values()))
    by_name: dict[str, list[_Text]] = {}
    for file in known:
        name = _name_of(root.resolve().name, file.relative_to(root))
        by_name.setdefault(name, []).extend(_texts_of(file, form))
    return FoundTexts(form.title, [*known], {n: _by_step(rows) for n, rows in by_name.items()})


def shared_prompts(digests: Mapping[int, str]) -> set[int]:
    """Return the steps with the prompts that most steps have; none if no two have the same.

    Of several such sets of prompts, the one of the last step. `digests` maps a step to its prompts.
    """
    counts = Counter(digests.values())
    best = max(digests, key=lambda step: (counts[digests[step]], step), default=-1)
    found = {step for step, digest in digests.items() if digest == digests[best]}
    return found if len(found) > 1 or len(digests) < 2 else set()


def note_of(name: str, steps: Iterable[int], shared: Collection[int]) -> str:
    """Return a line about the steps whose prompts others do not have."""
    others = [str(step) for step in sorted(steps) if step not in shared]
    which = f"{', '.join(others[:5])}{', …' if len(others) > 5 else ''}"
    which = f"step {which}" if shared else "each step"
    return f"{name} has other prompts at {which}: compared by means, not by prompt"


# Files


def _may_have_texts(relative: Path) -> bool:
    folders = relative.parts[:-1]
    return relative.suffix in (".jsonl", ".parquet") and not any(map(_OTHERS.fullmatch, folders))


def _rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Yield place and cells; an incomplete last line is left out."""
    with open(file, "rb") as raw:
        if file.suffix == ".parquet":
            for number, row in enumerate(parquet_rows(raw, str(file)), 1):
                yield f"{file}:{number}", row
            return
        for number, line in enumerate(raw, 1):
            if line.isspace():
                continue
            try:
                cells = parse_json(line.rstrip(b"\r\n"), file, number)
            except ValueError:
                if line.endswith(b"\n"):
                    raise
                return
            if not isinstance(cells, dict):
                raise ValueError(f"{file}:{number} is not a JSON object, must be one per line")
            yield f"{file}:{number}", cells


def _kind_of(file: Path) -> TextFormat | ValueError | None:
    """Return the format that fits the first row, None if there is none; the error if damaged."""
    try:
        cells = next(_rows(file), ("", {}))[1]
    except ValueError as error:
        return error
    return next((each for each in _FORMATS if {*each.columns.split()} <= cells.keys()), None)


class _Text(NamedTuple):
    """A row with its file and the identity of its prompt."""

    file: Path
    prompt: str
    row: TextRow


def _texts_of(file: Path, form: TextFormat) -> Iterator[_Text]:
    """Yield the rows of a file; texts are plain, prompts and steps are checked."""
    first: tuple[str, int] | None = None
    for place, cells in _rows(file):
        try:
            row = form.read(cells)
            text = plain_text(_words(row.text, "completion"), "assistant")
            prompt = as_prompt(_words(row.prompt, "prompt"))
            row = row._replace(text=text, prompt=prompt, step=_whole(row.step))
            if not isinstance(row.scores, Mapping):
                raise TypeError(f"scores must be name → number, got {row.scores!r}")
        except KeyError as error:
            raise ValueError(
                f"{place} has no {error.args[0]!r}, which a row of {form.title} has, only "
                f"{', '.join(cells)}"
            ) from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{place} is not a row of {form.title}: {error}") from None
        first = first or (place, row.step)
        if form.one_step and row.step != first[1]:
            raise ValueError(
                f"{place} has step {row.step}, but {first[0]} has {first[1]}: a file of "
                f"{form.title} must have one step"
            )
        identity = json.dumps([row.of, prompt, row.reference], default=str)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        yield _Text(file, digest, row)


def _words(given: Any, what: str) -> Any:
    if not isinstance(given, str | list | tuple):
        raise TypeError(f"{what} must be a text or messages, got {given!r}")
    return given


def _whole(step: Any) -> int:
    if isinstance(step, bool) or not isinstance(step, int | float) or step != int(step):
        raise ValueError(f"step must be an integer, got {step!r}")
    return int(step)


def _number(cell: float | None) -> float:
    return float(cell) if cell is not None and abs(cell) <= float_info.max else nan


def _name_of(outer: str, relative: Path) -> str:
    """Return the name of the texts in a file: its folders and its own name, without steps."""
    parts = [_STEP.sub("", part) for part in relative.with_suffix("").parts]
    parts = [part for part, _ in groupby(filter(None, parts))]
    return "/".join(parts) or _STEP.sub("", outer) or "texts"


def _by_step(texts: Sequence[_Text]) -> dict[int, StoredTexts]:
    """Return step → texts of one name; prompts are in the order of their first appearance."""
    texts = sorted(texts, key=lambda each: each.row.step)
    order = {prompt: i for i, prompt in enumerate(dict.fromkeys(each.prompt for each in texts))}
    cells = [(k, c) for each in texts for k, c in each.row.scores.items() if c is not None]
    others = {key for key, cell in cells if not isinstance(cell, int | float)}
    names = dict.fromkeys(key for key, _ in cells if key not in others)
    scored = sorted(names, key=lambda key: key not in ("reward", "score"))
    referenced = all(isinstance(each.row.reference, str) and each.row.reference for each in texts)
    steps: dict[int, StoredTexts] = {}
    for step, found in groupby(texts, key=lambda each: each.row.step):
        own = sorted(found, key=lambda each: order[each.prompt])
        rows = [each.row for each in own]
        counts = Counter(each.prompt for each in own)
        numbers = [{k: _number(c) for k, c in row.scores.items() if k in names} for row in rows]
        samples = Samples(
            [row.text for row in rows],
            references=[row.reference for row in rows] if referenced else None,
            prompts=[row.prompt for row in rows],
            groups=[str(order[each.prompt]) for each in own],
        )
        steps[step] = StoredTexts(
            own[0].file,
            samples,
            {key: np.array([row.get(key, nan) for row in numbers]) for key in scored},
            np.array([float(any(map(isnan, row.values()))) for row in numbers]),
            list(counts),
            list(counts.values()),
        )
    return steps
