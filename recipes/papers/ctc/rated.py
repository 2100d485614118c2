"""CTC (Deng et al. 2021) on its rated files: correlations and ablations.

    python -m ctrlreward.recipes.papers.ctc.rated ctc/persona_chat.json

Tables D.1 to F.4 are the correlations, with the paper's below; Tables 1, 2, 3 and F.5 the
ablations; F.6 every rating of a dialog. https://arxiv.org/abs/2109.06379
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.files import json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.ratings.correlations import STATISTICS, correlate
from ctrlreward.ratings.rated_files import CTC_ASPECTS, Rated, read_rated
from ctrlreward.ratings.report import cell, print_table, report_correlations
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.samples import Samples
from ctrlreward.scorers.alignment import ASPECTS, Alignment
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import score_parts

METHODS = ("embedding", "discriminative", "regression")
ALIGNERS = ("CTC E", "CTC D", "CTC R")

_DIRECTIONS = {
    "y → x": ("preservation_output",),
    "x → y": ("preservation_source",),
    "both": ("preservation",),
}
# Table and rating → row → the scores that it sums.
ABLATIONS: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]] = {
    ("1", "relevance"): {
        "r → y": ("relevance_reference",),
        "y → x": ("relevance_output",),
        "r → y + y → x": ("relevance_reference", "relevance_output"),
        "r → y × y → x": ("relevance",),
    },
    ("2", "preservation"): _DIRECTIONS,
    ("2", "topic"): _DIRECTIONS,  # of Li et al. (2018)
    ("3", "engaging"): {"sum": ("engagingness",), "mean": ("engagingness_mean",)},
    # Each rating by its own formula and by the other's.
    ("F.5", "engaging"): {"eq. 5": ("engagingness",), "eq. 6": ("groundedness",)},
    ("F.5", "uses_knowledge"): {"eq. 6": ("groundedness",), "eq. 5": ("engagingness",)},
}

# The paper's ablations of dialog have the D and R that are trained on the file's own task.
_TRAINED_ON = {"persona_chat": "(?!.*TopicalChat)", "topical_chat": "(?!.*PersonaChat)"}


# The paper's Yelp transfers were rated for Mir et al. (2019), not for Li et al. (2018).
_FILES = {"yelp": "mir2019 yelp", "human_ratings_yelp": "mir2019 yelp"}

# Rating → the aspect that it judges.
_ASPECTS: Mapping[str, Any] = {**CTC_ASPECTS, "topic": "preservation"}


class Published(NamedTuple):
    """A correlation that the paper reports."""

    file: str
    score: str
    rating: str
    level: str
    model: str
    source: str
    statistic: str
    value: float


def published(file: str = "") -> Iterator[Published]:
    """Yield the paper's figures for a rated file, or for all."""
    head = ["", "", "", ""]
    path = Path(__file__).with_name("published_tables.txt")
    stem = _FILES.get(PurePath(file).stem, PurePath(file).stem)
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# "):
            head = line.removeprefix("# ").split(" | ")
        elif line[0] not in "%!" and stem in ("", PurePath(head[0]).stem):
            model, cells = line.split(": ")
            columns = product(head[1].split(", "), head[2].split(", "), STATISTICS)
            for (score, level, statistic), cell in zip(columns, cells.split(), strict=True):
                name, _, rating = score.partition(" with ")
                if cell != "-":
                    about = (head[0], name, rating or name, level, model, head[3], statistic)
                    yield Published(*about, float(cell))


def ablate(file: Rated, scores: Mapping[str, Scores], suffix: str = "") -> list[dict[str, Any]]:
    """Correlate the variants of a score with its rating.

    Args:
        file: The rated file, n rows.
        scores: Arrays of shape (n,) by name; a table needs all its scores.
        suffix: Regular expression for the end of the names of the paper's models.

    Returns:
        For each table and row: `table`, `rating`, `variant`, the statistics of `correlate`, and
        `published`, the paper's Pearson's r by aligner with the best encoder, None if not known.
    """
    figures = [f for f in published(file.file) if (f.level, f.statistic) == ("sample", "pearson")]
    rows = []
    for (table, rating), variants in ABLATIONS.items():
        needed = {name for names in variants.values() for name in names}
        if rating not in file.ratings or not needed <= scores.keys():
            continue
        for variant, names in variants.items():
            total = np.sum([scores[name] for name in names], axis=0)
            alike = [
                f for f in figures if (f.score,) == names and f.rating in (rating, "preservation")
            ]
            theirs = {}
            for aligner in ALIGNERS:
                values = [f.value for f in alike if re.match(aligner + suffix, f.model)]
                theirs[aligner] = max(values, default=None)
            row = {"table": table, "rating": rating, "variant": variant, "published": theirs}
            rows.append(row | correlate(total, file.ratings[rating]))
    return rows


def correlate_ratings(file: Rated, scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Correlate every score with every rating; `published` is the paper's of word length."""
    figures = [f for f in published(file.file) if (f.level, f.statistic) == ("sample", "pearson")]
    theirs = {f.rating: f.value for f in figures if "word length" in f.model}
    return [
        {"rating": rating, "score": score, **correlate(values, ratings)}
        | {"published": theirs.get(rating) if score == "word_length" else None}
        for rating, ratings in file.ratings.items()
        for score, values in scores.items()
    ]


def word_length(samples: Samples) -> Scores:
    """Return the number of words between white space of each text, shape (n,)."""
    return np.array([float(len(text.split())) for text in samples.texts])


def token_means(scorer: Alignment, samples: Samples) -> dict[str, Scores]:
    """Return each aspect of a dialog as a mean over tokens in place of the sum, for Table 3."""
    rows = scorer.explain(samples)
    means: dict[str, Scores] = {}
    for name in rows[0]:
        counted = [[token.value for token in row[name].tokens if token.counted] for row in rows]
        means[f"{name}_mean"] = np.array([valid_mean(np.array(values)) for values in counted])
    return means


def print_published(file: Rated) -> None:
    """Print the paper's figures for a file, Tables D.1 to F.4."""
    theirs: dict[tuple[str, ...], dict[str, str]] = {}
    for f in published(file.file):
        key = (f"{f.score} with {f.rating}, {f.level}s", f"{f.model}, {f.source}")
        theirs.setdefault(key, {})[f.statistic] = f"{f.value:.4f}"
    lines = [[*key, *(cells.get(name, "") for name in STATISTICS)] for key, cells in theirs.items()]
    print_table("The paper's figures", ["score", "model", *STATISTICS.values()], lines)


def print_ablations(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print Tables 1, 2, 3 and F.5, from the rows of `ablate`."""
    tables: dict[str, list[list[str]]] = {}
    for row in rows:
        line = [row["variant"], *map(cell, (row["pearson"], *row["published"].values()))]
        tables.setdefault(f"Table {row['table']}: Pearson r, {row['rating']}", []).append(line)
    for title, lines in tables.items():
        print_table(title, ["", "ours", *ALIGNERS], lines)


def print_ratings(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print Table F.6, from the rows of `correlate_ratings`."""
    lines: dict[str, list[str]] = {}
    for row in rows:
        beside = "" if row["published"] is None else f" ({cell(row['published'])})"
        lines.setdefault(row["score"], [row["score"]]).append(cell(row["pearson"]) + beside)
    ratings = dict.fromkeys(row["rating"] for row in rows)
    print_table("Table F.6: Pearson r (in the paper)", ["score", *ratings], [*lines.values()])


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Score a file, and print the tables beside the paper's."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="persona_chat.json, topical_chat.json, yelp.json, …")
    model = "encoder, aligner, or JSON of one for each direction"
    parser.add_argument("--model", default="minilm-l6", help=model)
    parser.add_argument("--method", choices=METHODS, default="embedding")
    parser.add_argument("--stop-words", help="file of words that dialog aspects leave out")
    parser.add_argument("--references", type=int, help="1 or 11 in the paper; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    file = read_rated(local_file(given.data))
    models = json.loads(given.model) if given.model.startswith("{") else given.model
    aspects = [_ASPECTS[name] for name in file.ratings if name in _ASPECTS]
    if isinstance(models, dict):
        aspects = [a for a in aspects if {*ASPECTS[a].directions} <= {*models}]
    suffix = _TRAINED_ON.get(PurePath(file.file).stem, "")
    if "relevance" in aspects:
        references = [[*each][: given.references] for each in file.samples.references or ()]
        file = replace(file, samples=file.samples.replace(references=references))
        suffix = f".*, {len(references[0])} reference"
    scorer = Alignment(models, aspects, given.method, given.stop_words, calibration=False)
    components = name_components([scorer], None)
    scores = score_parts(components, file.samples)
    dialog = "engagingness" in aspects
    if dialog:
        scores |= token_means(scorer, file.samples)
    scores["word_length"] = word_length(file.samples)
    judged = {name: file.ratings[name] for name in file.ratings if _ASPECTS.get(name) in aspects}
    specs = {name: component.spec for name, component in components.items()}
    specs |= {f"{name}_mean": specs[name] for name in aspects if f"{name}_mean" in scores}
    record = report_correlations(replace(file, ratings=judged), scores, specs, seed=given.seed)
    print_published(file)
    record["ablations"] = ablate(file, scores, suffix)
    print_ablations(record["ablations"])
    if dialog:
        record["ratings"] = correlate_ratings(file, scores)
        print_ratings(record["ratings"])
    if given.json:
        write_whole(given.json, json_text(record))


if __name__ == "__main__":
    main(sys.argv[1:])
