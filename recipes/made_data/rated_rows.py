"""Rated transfers of Li et al. (2018), one row per sentence, from the published ratings."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

# Names of the systems as in their files; the references are "human".
SYSTEMS = ("fader", "label", "mit", "multi_decoder", "orgin", "retrieval", "rule_base")
_RATINGS = ("grammaticality", "sentiment", "topic")
_COLUMNS = ("item", "target", "system", "source", "output", *_RATINGS)


def make(name: str, path_of: Callable[[str], Path]) -> bytes:
    """Return `human_ratings_yelp.csv`: each of the eight outputs of an assignment as a row.

    The published file does not say which system wrote an output. A row has the names of all systems
    whose published output for its source is that text, joined by `|`; empty if there is none.

    Args:
        name: Name of the file.
        path_of: Returns the path of a file of the data set, or of one below its address.
    """
    systems: dict[tuple[str, str], set[str]] = defaultdict(set)
    for style in "01":
        written_by = {"human": path_of(f"reference.{style}")}
        for system in SYSTEMS:
            written_by[system] = path_of(f"evaluation/outputs/yelp/sentiment.test.{style}.{system}")
        for system, file in written_by.items():
            for source, output in _pairs(file):
                systems[source, output].add(system)
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(_COLUMNS)
    with open(path_of("ratings-yelp.csv"), encoding="utf-8", newline="") as published:
        for assignment in csv.DictReader(published):
            sources, outputs, ratings = (
                assignment[column].split("\t")
                for column in ("Input.origs", "Input.mods", "Answer.responses")
            )
            for source, output, rated in zip(sources, outputs, ratings, strict=True):
                values = dict(rating.split("=") for rating in rated.split())
                rows.writerow(
                    [
                        assignment["Input.id"],
                        assignment["Input.target"],
                        "|".join(sorted(systems[source, output])),
                        source,
                        output,
                        *(values[rating] for rating in _RATINGS),
                    ]
                )
    return text.getvalue().encode()


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    """Yield source and output of each line, without white space around them."""
    with open(file, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            source, output, *_ = line.split("\t")
            yield source.strip(), output.strip()
