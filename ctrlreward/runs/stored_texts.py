"""Texts that trainers store, read as the texts of a run's steps.

One function for each kind of file returns a row of it as a `TextRow`. slime's
`--save-debug-rollout-data` is a pickle, which can run code when it is loaded, so that it is not
read. OpenRLHF stores no texts in files.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path, PurePosixPath
from sys import float_info
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.arguments import one_of
from ctrlreward.files import parse_json
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.sequential import PromptScores
from ctrlreward.held_out import FAIL_RATE
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_samples
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import Row, parquet_rows
from ctrlreward.text.chats import as_prompt, plain_text

_ENDINGS = re.compile(r"(_failures)?(\.jsonl|\.jsonl\.gz|\.parquet)$")
PICKLES = (".pt", ".pth", ".pkl", ".pickle")
_OTHERS = re.compile(r"(^|/)(samples|rescored|wandb|\.[^/]*)/")  # folders of ours and of W&B
_ABOUT = re.compile(r"_(materialized_inputs|reward_profiling)\.jsonl$")  # by NeMo Gym
_DEPTH = 6
_STEP = re.compile(
    r"(?:(?:^|[-_=.])(?:global_?)?(?:step|checkpoint|ckpt|iter|iteration|completions)[-_=]?|^)(\d+)$"
)


class TextRow(NamedTuple):
    """A text of a trainer's file.

    Attributes:
        prompt: Text, or messages with role and content.
        text: Completion without the prompt, also as messages, of which the assistant's count.
        scores: Name → cell. Numbers and booleans are scores, None is a failed one.
        step: Training step; None if the names of file and folders have it.
        of: Identity of the prompt apart from its text, such as the index of a task.
        reference: Reference text, None without one.
        attempt: Identity of the attempt if it may be repeated after a failure.
        failed: Whether generation or scoring failed, so that all scores are NaN.
    """

    prompt: Any
    text: Any
    scores: Mapping[str, Any]
    step: Any = None
    of: Any = None
    reference: Any = None
    attempt: Hashable = None
    failed: bool = False


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


def nemo_gym_row(cells: Row) -> TextRow:
    """Read a row of NeMo Gym (commit 00536e7): other numbers are of the resources server.

    A rollout that is masked (`mask_sample`), or only in the file of failures, has failed.
    """
    failed = "_ng_failure_class" in cells
    if failed:  # perhaps with nothing else
        cells = {"responses_create_params": None, "response": None, "reward": None, **cells}
    prompt = (cells["responses_create_params"] or {"input": None})["input"]
    output = (cells["response"] or {"output": ()})["output"]
    scores = {key: value for key, value in cells.items() if not key.startswith("_ng_")}
    task = cells.get("_ng_task_index")
    attempt = None if task is None else (task, cells.get("_ng_rollout_index"))
    said = [each for each in output if each.get("type", "message") == "message"]
    masked = bool(cells.get("mask_sample"))
    return TextRow(prompt, said, scores, None, task, None, attempt, failed or masked)


def verifiers_row(cells: Row) -> TextRow:
    """Read a row of verifiers' `results.jsonl` or `traces.jsonl` (commit 00eee6c), or of prime-rl.

    Of a trace, the last branch: its messages before the first sampled one are the prompt.
    """
    if "nodes" not in cells:
        scores = {**(cells.get("metrics") or {}), "reward": cells["reward"]}
        of, failed = [cells.get("env_id"), cells["example_id"]], bool(cells.get("error"))
        completion = cells["completion"] or []
        return TextRow(
            cells["prompt"], completion, scores, None, of, cells.get("answer"), failed=failed
        )
    nodes: list[Any] = cells["nodes"]
    path: list[Any] = []
    at = len(nodes) - 1 if nodes else None
    while at is not None and len(path) < len(nodes):
        path.insert(0, nodes[at])
        at = nodes[at].get("parent")
    first = next((i for i, node in enumerate(path) if node.get("sampled")), len(path))
    rewards = {
        name: each if isinstance(each, Mapping) else {"score": each}
        for name, each in cells["rewards"].items()
    }
    parts = {name: each["score"] for name, each in rewards.items()}
    weights = {name: each.get("weight", 1.0) for name, each in rewards.items()}
    total = [weights[name] * score for name, score in parts.items() if score is not None]
    scores = {**(cells.get("metrics") or {}), **parts, "reward": sum(total) if total else None}
    task = cells["task"]
    identity = task.get("key") or task.get("hash") or (task.get("data") or {}).get("idx")
    failed = not cells.get("ok", not cells.get("errors"))
    said = [node["message"] for node in path[first:] if node.get("sampled")]
    prompt = [node["message"] for node in path[:first]]
    return TextRow(prompt, said, scores, of=identity, failed=failed)


def record_row(cells: Row) -> TextRow:
    """Read a record: `step`, `prompt`, `completion`, `scores`, perhaps `prompt_id`, `reference`."""
    of, reference = cells.get("prompt_id"), cells.get("reference")
    return TextRow(
        cells["prompt"], cells["completion"], cells["scores"], cells["step"], of, reference
    )


def _without(cells: Row, *names: str) -> Row:
    return {key: value for key, value in cells.items() if key not in names}


class TextFormat(NamedTuple):
    """Kind of file: its name in messages, its reader, and sets of columns by which it is known."""

    title: str
    read: Callable[[Row], TextRow]
    known_by: Sequence[str]
    one_step: bool = False  # of all rows of a file


_GYM = ("responses_create_params response reward", "_ng_failure_class")
_VERIFIERS = ("example_id prompt completion reward", "task nodes rewards")

# The first that fits counts: a file of TRL lacks the scores of a record.
TEXT_FORMATS: Mapping[str, TextFormat] = {
    "records": TextFormat("records", record_row, ["step prompt completion scores"]),
    "trl": TextFormat("TRL", trl_row, ["step prompt completion"], one_step=True),
    "verl": TextFormat("verl", verl_row, ["input output score step"], one_step=True),
    "nemo_gym": TextFormat("NeMo Gym", nemo_gym_row, _GYM),
    "verifiers": TextFormat("verifiers", verifiers_row, _VERIFIERS),
}
_READ = (
    "completions_*.parquet (TRL), *.jsonl of verl, NeMo Gym, verifiers or prime-rl, or JSONL with "
    "step, prompt, completion and scores; also .jsonl.gz and Parquet"
)


@dataclass(frozen=True)
class StoredTexts:
    """Texts of a step in files of a trainer, which are read again for the texts themselves.

    Attributes:
        kind: Key of `TEXT_FORMATS`.
        outer: Name of the folder.
        files: Path relative to the folder, and file.
        name: Name of the texts: their folders and file, without steps.
        step: Training step.
        scores: Name → score of each text, shape (texts,), NaN for a failed one.
        failed: 1 for a text without a score that its row should have, else 0, shape (texts,).
        prompts: Identity of each prompt, in an order that all steps share.
        counts: Number of texts of each prompt.
        order: Place of each text in the files; the texts of a prompt follow each other.
        referenced: Whether all texts of the name have a reference.
    """

    kind: str
    outer: str
    files: Sequence[tuple[str, Location]]
    name: str
    step: int
    scores: Mapping[str, Scores]
    failed: Scores
    prompts: Sequence[str]
    counts: Sequence[int]
    order: Sequence[int]
    referenced: bool

    def __str__(self) -> str:
        """Return the first file."""
        return str(self.files[0][1])

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

    def read(self) -> tuple[Samples, dict[str, Scores]]:
        """Return the texts and their scores.

        Raises:
            ValueError: A file has changed since it was found.
        """
        found = [
            each for _, name, step, each in _text_rows(self.outer, self.files, self.kind)
            if (name, step) == (self.name, self.step)
        ]  # fmt: skip
        if len(found) != len(self.order):
            raise ValueError(f"{self} has changed while it was read. Repeat the command.")
        rows = [found[place] for place in self.order]
        groups = np.repeat(np.arange(len(self.counts)), self.counts)
        samples = Samples(
            [row.text for row in rows],
            references=[row.reference for row in rows] if self.referenced else None,
            prompts=[as_prompt(row.prompt) for row in rows],
            groups=[str(group) for group in groups],
        )
        return samples, dict(self.scores)


# A file of a `GenerationScorer`, or texts of another trainer.
TextSource: TypeAlias = Path | StoredTexts


def scored_samples(source: TextSource) -> tuple[Samples, dict[str, Scores]]:
    """Return texts and scores of a step."""
    return source.read() if isinstance(source, StoredTexts) else read_scored_samples(source)


def is_even(source: TextSource) -> bool:
    """Return whether all prompts have as many texts, as in the files of a `GenerationScorer`."""
    return isinstance(source, Path) or len(set(source.counts)) == 1


@dataclass(frozen=True)
class FoundTexts:
    """Texts of a run: the name of their kind, their local files, and name → step → texts."""

    title: str
    files: Sequence[Path]
    sets: Mapping[str, Mapping[int, StoredTexts]]


def read_texts(address: str | Path, kind: str | None = None) -> FoundTexts | None:
    """Read the texts that a trainer stored; None if there are none that are known.

    Reads only complete lines, so that the last line of a running job waits until it is written.

    Args:
        address: Folder or file, by path or URL of fsspec.
        kind: Key of `TEXT_FORMATS`; None recognises it by the first row of each file.

    Raises:
        FileNotFoundError: The file or folder does not exist.
        ValueError: A file is damaged or lacks a column, a step is unknown, or there are several
            kinds of files; names file and row.
    """
    root = Location(address)
    if not root.exists():
        raise root.missing()
    names = _names(root)
    files = [
        (name, root.child(name) if root.is_folder() else root)
        for name in names
        if _ENDINGS.search(name) and not _ABOUT.search(name) and not _OTHERS.search(name)
    ]
    if kind is None:
        kinds = {name: _kind_of(file) for name, file in files}
        known = {name for name, found in kinds.items() if found}
        several = sorted({found for found in kinds.values() if found})
        if not several:
            return None
        if len(several) > 1:
            raise ValueError(
                f"{address} has texts of {', '.join(several)}. Choose one of them with --format."
            )
        (kind,) = several
        folders = {PurePosixPath(name).parent for name in known}
        # A damaged file is an error only beside texts.
        known |= {n for n, k in kinds.items() if k == "" and PurePosixPath(n).parent in folders}
        files = [each for each in files if each[0] in known]
    one_of("--format", kind, TEXT_FORMATS)
    if not files:
        raise ValueError(f"{address} has no texts of {kind}, must have {_READ}")
    parent = PurePosixPath(str(root)).parent.name  # of a file
    sets = _sets(root.name if root.is_folder() else parent, files, kind)
    about = [root.child(name) for name in names if _ABOUT.search(name)]
    local = [file.path for file in (*(each for _, each in files), *about) if file.path is not None]
    return FoundTexts(TEXT_FORMATS[kind].title, local, sets)


def unread_texts(address: str | Path) -> str:
    """Return which texts would be read, and why those that are there are not, for an error."""
    pickles = (
        f". {name} may be a pickle, as of slime's --save-debug-rollout-data, which is not loaded, "
        "since it can run code. Write its texts as JSONL"
        for name in _names(Location(address))
        # not in the folder of a checkpoint
        if Path(name).suffix in PICKLES and not any(map(_STEP.search, Path(name).parts[:-1]))
    )
    return f"; nor has it texts that are read: {_READ}{next(pickles, '')}"


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


def _names(root: Location) -> list[str]:
    return root.files(_DEPTH) if root.is_folder() else [root.name]


def _rows(file: Location) -> Iterator[tuple[str, Row]]:
    """Yield place and cells; an incomplete last line is left out."""
    name = str(file)
    with file.open() as raw:
        lines = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
        if file.suffix == ".parquet":
            for number, row in enumerate(parquet_rows(raw, name), 1):
                yield f"{name}:{number}", row
            return
        try:
            for number, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                try:
                    cells = parse_json(line.rstrip(b"\r\n"), name, number)
                except ValueError:
                    if line.endswith(b"\n"):
                        raise
                    return
                if not isinstance(cells, dict):
                    raise ValueError(f"{name}:{number} is not a JSON object, must be one per line")
                yield f"{name}:{number}", cells
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{name} is not a whole gzip file: {error}") from None


def _kind_of(file: Location) -> str | None:
    """Return the key of the format that fits the first row; "" for a damaged file."""
    try:
        cells = next(_rows(file), ("", {}))[1]
    except ValueError:
        return ""
    for kind, each in TEXT_FORMATS.items():
        if any({*columns.split()} <= cells.keys() for columns in each.known_by):
            return kind
    return None


def _text_rows(
    outer: str, files: Iterable[tuple[str, Location]], kind: str
) -> Iterator[tuple[str, str, int, TextRow]]:
    """Yield file, name of the texts, step and row; texts are plain, prompts are checked."""
    form = TEXT_FORMATS[kind]
    prompts: dict[Hashable, Any] = {}  # by attempt, and by task
    for relative, file in files:  # a file comes before its failures
        name, named = _name_and_step(outer, relative)
        first: tuple[str, int] | None = None
        for place, cells in _rows(file):
            try:
                row = form.read(cells)
                step = _step(named if row.step is None else row.step, file)
                if row.attempt is not None:
                    tried, task = (name, step, row.attempt), (name, step, row.of)
                    if row.failed and tried in prompts:  # has succeeded, or is counted
                        continue
                    row = row._replace(prompt=row.prompt or prompts.get(task))
                    prompts |= {tried: row.prompt, task: row.prompt}
                row = row._replace(text=plain_text(_words(row.text, "completion"), "assistant"))
                as_prompt(_words(row.prompt, "prompt"))
                if not isinstance(row.scores, Mapping):
                    raise TypeError(f"scores must be name → number, got {row.scores!r}")
            except KeyError as error:
                raise ValueError(
                    f"{place} has no {error.args[0]!r}, which a row of {form.title} has, only "
                    f"{', '.join(cells)}"
                ) from None
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"{place} is not a row of {form.title}: {error}") from None
            first = first or (place, step)
            if form.one_step and step != first[1]:
                raise ValueError(
                    f"{place} has step {step}, but {first[0]} has {first[1]}: a file of "
                    f"{form.title} must have one step"
                )
            yield relative, name, step, row


def _words(given: Any, what: str) -> Any:
    if not isinstance(given, str | list | tuple):
        raise TypeError(f"{what} must be a text or messages, got {given!r}")
    return given


def _step(given: Any, file: Location) -> int:
    if given is None:
        raise ValueError(
            "it has no step, nor have its file and folders. Name the folder of a checkpoint's "
            f"texts by its step, such as step_20/{file.name}"
        )
    if isinstance(given, bool) or not isinstance(given, int | float) or given != int(given):
        raise ValueError(f"step must be an integer, got {given!r}")
    return int(given)


def _name_and_step(outer: str, relative: str) -> tuple[str, int | None]:
    """Return the name of the texts in a file, and the step that file or folders are named by."""
    kept: list[str] = []
    step = None
    for place, part in enumerate([outer, *_ENDINGS.sub("", relative).split("/")]):
        match = _STEP.search(part)
        step = int(match[1]) if match else step
        rest = part[: match.start()] if match else part
        if place and rest and rest not in kept[-1:]:
            kept.append(rest)
    return "/".join(kept) or _STEP.sub("", outer) or "texts", step


# Steps


class _Scores(NamedTuple):
    """A row without its text: file, identity of the prompt, cells that are numbers, the others."""

    file: str
    prompt: str
    cells: Mapping[str, float | None]
    others: frozenset[str]
    referenced: bool


def _sets(
    outer: str, files: Sequence[tuple[str, Location]], kind: str
) -> dict[str, dict[int, StoredTexts]]:
    """Return name → step → texts of all files."""
    known = dict(files)
    read: dict[str, dict[int, list[_Scores]]] = {}
    for relative, name, step, row in _text_rows(outer, files, kind):
        identity = json.dumps([row.of, as_prompt(row.prompt), row.reference], default=str)
        prompt = hashlib.sha256(identity.encode()).hexdigest()[:16]
        numbers = {k: c for k, c in row.scores.items() if c is None or isinstance(c, int | float)}
        others = frozenset(row.scores.keys() - numbers.keys())
        referenced = isinstance(row.reference, str) and bool(row.reference)
        cells = dict.fromkeys(numbers) if row.failed else numbers
        read.setdefault(name, {}).setdefault(step, []).append(
            _Scores(relative, prompt, cells, others, referenced)
        )
    sets: dict[str, dict[int, StoredTexts]] = {}
    for name, steps in read.items():
        every = [row for _, rows in sorted(steps.items()) for row in rows]
        # The prompts are in the order of their first appearance.
        place = {row.prompt: number for number, row in reversed([*enumerate(every)])}
        texts = frozenset().union(*(row.others for row in every))
        scored = dict.fromkeys(key for row in every for key, cell in row.cells.items()
                               if cell is not None and key not in texts)  # fmt: skip
        names = sorted(scored, key=lambda key: key not in ("reward", "score"))
        referenced = all(row.referenced for row in every)
        for step, rows in sorted(steps.items()):
            order = sorted(range(len(rows)), key=lambda at: place[rows[at].prompt])
            values = [{k: _number(c) for k, c in rows[at].cells.items() if k in scored}
                      for at in order]  # fmt: skip
            counts = Counter(rows[at].prompt for at in order)
            sets.setdefault(name, {})[step] = StoredTexts(
                kind, outer, [(each, known[each]) for each in dict.fromkeys(r.file for r in rows)],
                name, step,
                {key: np.array([row.get(key, nan) for row in values]) for key in names},
                np.array([float(any(map(np.isnan, row.values()))) for row in values]),
                list(counts), list(counts.values()), order, referenced,
            )  # fmt: skip
    return sets


def _number(cell: float | None) -> float:
    return float(cell) if cell is not None and abs(cell) <= float_info.max else nan
