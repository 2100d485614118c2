"""Rated transfers of Li et al. (2018), one row per sentence, from the published ratings."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

FILE = "human_ratings_yelp.csv"
# Names of the systems as in their files; the references are "human".
SYSTEMS = ("fader", "label", "mit", "multi_decoder", "orgin", "retrieval", "rule_base")
_RATINGS = ("grammaticality", "sentiment", "topic")


def make(path_of: Callable[[str], Path]) -> bytes:
    """Return `human_ratings_yelp.csv`: each of the eight outputs of an assignment as a row.

    The published file does not say which system wrote an output. A row has the names of all systems
    whose published output for its source is that text, joined by `|`; empty if there is none.
    `path_of` returns the path of a published file by its name.
    """
    systems: dict[tuple[str, str], set[str]] = defaultdict(set)
    for style in "01":
        outputs = f"evaluation/outputs/yelp/sentiment.test.{style}"
        files = {"human": f"reference.{style}", **{name: f"{outputs}.{name}" for name in SYSTEMS}}
        for system, name in files.items():
            for line in path_of(name).open(encoding="utf-8", newline="\n"):
                source, output, *_ = line.split("\t")
                systems[source.strip(), output.strip()].add(system)
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    rows.writerow(("item", "target", "system", "source", "output", *_RATINGS))
    with path_of("ratings-yelp.csv").open(encoding="utf-8", newline="") as published:
        for assignment in csv.DictReader(published):
            columns = ("Input.origs", "Input.mods", "Answer.responses")
            for source, output, rated in zip(
                *(assignment[column].split("\t") for column in columns), strict=True
            ):
                values = dict(rating.split("=") for rating in rated.split())
                names = "|".join(sorted(systems[source, output]))
                item = (assignment["Input.id"], assignment["Input.target"], names, source, output)
                rows.writerow((*item, *(values[rating] for rating in _RATINGS)))
    return text.getvalue().encode()
