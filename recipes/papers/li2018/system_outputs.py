"""Outputs of style transfer systems, one for each test sentence that a system has rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctrlreward.files import parse_json
from ctrlreward.recipes.papers.meta_eval.rated_files import read_li2018
from ctrlreward.recipes.text_files import matching_key
from ctrlreward.samples import Samples
from ctrlreward.text.words import separate_words

REFERENCES, COPIES, CONSTANT = "references", "copying", "constant"
_CHECKPOINT = "best_gm"


@dataclass(frozen=True)
class SystemOutputs:
    """Outputs of one system in the order of the test sentences.

    Attributes:
        name: Name of the system.
        rows: Index of the test sentence of each output, shape (n,), ascending.
        samples: n texts as the system wrote them, with sources, references and target styles.
    """

    name: str
    rows: tuple[int, ...]
    samples: Samples


def of_all(name: str, test: Samples, texts: Sequence[str]) -> SystemOutputs:
    """Return a system that has one text per test sentence, in their order."""
    return SystemOutputs(name, tuple(range(len(test))), test.replace(texts=texts))


def named_files(systems: Sequence[str], option: str = "--system") -> list[tuple[str, Path]]:
    """Return name and file of each `NAME=FILE` of a command line.

    Raises:
        ValueError: One is not of this form.
    """
    found = []
    for given in systems:
        name, has_file, file = given.partition("=")
        if not (name and has_file and file):
            raise ValueError(f"{option} must be NAME=FILE, got {given!r}")
        found.append((name, Path(file)))
    return found


def read_outputs(name: str, file: Path, test: Samples) -> SystemOutputs:
    """Read the outputs of one system for all test sentences, in any order.

    Args:
        name: Name of the system.
        file: JSONL with `source` and `text`, as `after.jsonl` of a `BeforeAfter`, or instead of
            `text` the `outputs` of several checkpoints, as `translations.jsonl` of a
            `TransferReport`, of which `best_gm` is taken. A `label` is the target style.
        test: Test sentences; see `read_references`.

    Raises:
        ValueError: A line does not have these keys, or `aligned` raises for a sentence.
    """
    return aligned(name, output_rows(file), test)


def output_rows(file: Path) -> list[tuple[str, str, str | None]]:
    """Read source, text, and target style or None of each line; see `read_outputs`.

    Raises:
        ValueError: A line does not have these keys.
    """
    rows = []
    with open(file, encoding="utf-8") as lines:  # str.splitlines would also split at U+2028
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_output(parse_json(line, file, number), f"{file}:{number}"))
    return rows


def rated_outputs(file: str, test: Samples) -> list[SystemOutputs]:
    """Read the systems of Li et al.'s rated transfers, which may lack test sentences.

    Texts without a system are left out.

    Args:
        file: File like their human_ratings_yelp.csv; see `read_li2018`.
        test: Test sentences; see `read_references`.

    Raises:
        ValueError: The file is malformed, or `aligned` raises for a sentence.
    """
    rated = read_li2018(Path(file))
    samples = rated.samples
    sources, labels = samples.require("sources", "ratings"), samples.require("labels", "ratings")
    rows: dict[str, list[tuple[str, str, str | None]]] = {}
    for i, name in enumerate(rated.systems or ()):
        if name is not None:
            rows.setdefault(name, []).append((sources[i], samples.texts[i], labels[i]))
    return [aligned(name, each, test, complete=False) for name, each in rows.items()]


def aligned(
    name: str,
    outputs: Iterable[tuple[str, str, str | None]],
    test: Samples,
    complete: bool = True,
) -> SystemOutputs:
    """Put the outputs of a system into the order of the test sentences.

    Sentences are the same whatever their case and spacing; see `matching_key`.

    Args:
        name: Name of the system.
        outputs: Source, text, and target style or None.
        test: Test sentences; see `read_references`.
        complete: Whether each test sentence must have an output.

    Raises:
        ValueError: A sentence is missing, doubled, not a test sentence, or has another target
            style; it is named.
    """
    sources, labels = test.require("sources", "systems"), test.require("labels", "systems")
    places: dict[str, int] = {}
    for i, source in enumerate(sources):
        if places.setdefault(matching_key(source), i) != i:
            raise ValueError(f"references has the sentence {source!r} twice, must be distinct")
    texts: dict[int, str] = {}
    for source, text, label in outputs:
        place = places.get(matching_key(source))
        if place is None:
            raise ValueError(f"{name} has {source!r}, which is not a test sentence. Leave it out.")
        if place in texts:
            raise ValueError(f"{name} has {source!r} twice, must have one output per sentence")
        if label not in (None, labels[place]):
            raise ValueError(
                f"{name} rewrites {source!r} as {label}, but the references as {labels[place]}. "
                "All outputs must have the same target style."
            )
        texts[place] = text
    missing = [source for i, source in enumerate(sources) if i not in texts]
    if missing and complete:
        raise ValueError(
            f"{name} has no output for {missing[0]!r}; {len(missing)} of {len(test)} sentences "
            "are missing. Add an output for each."
        )
    rows = tuple(sorted(texts))
    return SystemOutputs(name, rows, test[rows].replace(texts=[texts[i] for i in rows]))


def tokenized(samples: Samples) -> Samples:
    """Write texts and sources as tokenized corpora do, which the judges were trained on."""
    sources = samples.require("sources", "systems")
    return samples.replace(
        texts=[separate_words(text) for text in samples.texts],
        sources=[separate_words(source) for source in sources],
    )


def _output(row: Any, place: str) -> tuple[str, str, str | None]:
    record = row if isinstance(row, dict) else {}
    outputs = record.get("outputs")
    text = record.get("text", outputs.get(_CHECKPOINT) if isinstance(outputs, dict) else None)
    source, label = record.get("source"), record.get("label")
    if not (isinstance(text, str) and isinstance(source, str)):
        raise ValueError(
            f"{place} must have `source` and `text`, or `outputs` with `{_CHECKPOINT}`"
        )
    return source, text, label
