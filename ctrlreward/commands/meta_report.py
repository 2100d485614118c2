"""From a rated file and scorers to what `ctrlreward meta-eval` prints and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.commands.correlation_report import (
    draw_scatter,
    judge,
    print_judgements,
    require_plot,
    to_record,
)
from ctrlreward.commands.formats.rated_files import Rated
from ctrlreward.commands.chunked_scoring import score_in_chunks
from ctrlreward.commands.formats.tables import Record, check_suffix, encode
from ctrlreward.files import write_whole
from ctrlreward.functional.preferences import (
    Agreement,
    Thresholds,
    fit_gm,
    pairwise_agreement,
    pairwise_preferences,
)
from ctrlreward.samples import JSON_KEYS
from ctrlreward.scorers.base import Component, Scores

_CHUNK = 256

# What GM is made of, as `fit_gm` takes it.
_SIDES = ("label_probability", "similarity", "perplexity")


@dataclass(frozen=True)
class Outputs:
    """What is left behind, and how intervals are drawn.

    Attributes:
        output: File for the correlations, JSON.
        scores: File for the scores of each row.
        plot: File for scatter plots, PNG.
        resamples: Draws of the bootstrap.
        seed: Of the draws.

    Raises:
        ValueError: A file has an unknown suffix or is a folder, or a number is out of range.
        ImportError: What a file takes is not installed.
    """

    output: Path | None
    scores: Path | None
    plot: Path | None
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if self.resamples < 1 or self.seed < 0:
            raise ValueError(
                f"resamples = {self.resamples} and seed = {self.seed}: give one resample or more, "
                "and a seed of 0 or more"
            )
        if self.scores is not None:
            check_suffix(self.scores)
        if self.plot is not None:
            require_plot(self.plot)
        for path in (self.output, self.scores, self.plot):
            if path is not None and path.is_dir():
                raise ValueError(f"{path} is a folder: name a file")


@dataclass(frozen=True)
class Halves:
    """GM under thresholds that were fitted to preferences of one half of the items.

    Attributes:
        thresholds: The fitted ones.
        fitted_pairs: Preferences that they were fitted to.
        judged_pairs: Preferences of the other half.
        fitted: Agreement with the other half under the fitted thresholds.
        default: Agreement with the other half under the paper's.
    """

    thresholds: Thresholds
    fitted_pairs: int
    judged_pairs: int
    fitted: Agreement
    default: Agreement


def score_rated(
    rated: Rated, components: Mapping[str, Component], outputs: Outputs
) -> dict[str, Scores]:
    """The scores of a rated file, each of shape (n,), written to a file where one is given.

    That file has `rating/<name>` and `score/<name>` beside the texts.

    Raises:
        ValueError: A rating is infinite.
    """
    for name, ratings in rated.ratings.items():
        if np.isinf(ratings).any():
            row = int(np.flatnonzero(np.isinf(ratings))[0])
            raise ValueError(f"{rated.file}: {name}[{row}] is infinite: give finite ratings")
    scores = score_in_chunks(components, rated.samples, _CHUNK)
    if outputs.scores is not None:
        columns = {f"rating/{name}": values for name, values in rated.ratings.items()}
        columns |= {f"score/{name}": values for name, values in scores.items()}
        content = encode(outputs.scores.suffix, _records(rated), columns)
        write_whole(outputs.scores, content)
    return scores


def report(
    rated: Rated,
    scores: Mapping[str, Scores],
    components: Mapping[str, Component],
    outputs: Outputs,
) -> dict[str, Any]:
    """Prints how the scores agree with the ratings, and writes the files that were asked for.

    Args:
        rated: The file.
        scores: By name, each of shape (n,).
        components: Where the directions of the scores are known from.
        outputs: What to write.

    Returns:
        What the file for the correlations holds.
    """
    judgements = judge(rated, scores, outputs.resamples, outputs.seed)
    record = to_record(judgements, rated, outputs.resamples, outputs.seed)
    _write_record(record, outputs)
    specs = {name: component.spec for name, component in components.items()}
    print_judgements(judgements, rated, specs)
    if outputs.plot is not None:
        draw_scatter(judgements, rated, scores, outputs.plot)
    return record


def fit_halves(rated: Rated, scores: Mapping[str, Scores], seed: int) -> Halves:
    """Fits the thresholds of GM to the mean rating of every other item and judges them on the rest.

    Args:
        rated: The file, with items as clusters.
        scores: With GM's three sides.
        seed: Of the search for thresholds.
    """
    sides = np.stack([scores[name] for name in _SIDES], axis=1)
    items = rated.clusters or ()
    order = {item: place for place, item in enumerate(dict.fromkeys(items))}
    first = np.array([order[item] % 2 == 0 for item in items])
    ratings = np.where(np.isnan(sides).any(axis=1), np.nan, rated.ratings["mean"])
    halves = [np.where(half, ratings, np.nan) for half in (first, ~first)]
    learned, judged = (pairwise_preferences(half, items) for half in halves)
    preferred, rejected = (sides[places] for places in learned)
    fit = fit_gm(preferred, rejected, seed=seed)
    better, worse = (sides[places] for places in judged)
    return Halves(
        fit.thresholds,
        len(preferred),
        len(better),
        pairwise_agreement(better, worse, fit.thresholds),
        pairwise_agreement(better, worse),
    )


def report_halves(halves: Halves, record: dict[str, Any], outputs: Outputs) -> None:
    """Prints the agreement of GM with held-out preferences, and adds it to what is written.

    Args:
        halves: Under fitted thresholds and by default.
        record: What `report` gave.
        outputs: What to write.
    """
    agreements = {"fitted": halves.fitted._asdict(), "default": halves.default._asdict()}
    _write_record({**record, "gm": {**asdict(halves), **agreements}}, outputs)
    numbers = ", ".join(f"{threshold:.1f}" for threshold in halves.thresholds)
    print(f"GM, thresholds fitted to {halves.fitted_pairs} preferences: ({numbers})")
    print(f"On {halves.judged_pairs} preferences between outputs for other items it agrees with")
    for name, agreement in (("fitted", halves.fitted), ("the paper's", halves.default)):
        shares = f"{agreement.agreed:.1%} (ties, counted as not agreed: {agreement.tied:.1%})"
        print(f"  {name} thresholds: {shares}")


def _write_record(record: dict[str, Any], outputs: Outputs) -> None:
    if outputs.output is not None:
        write_whole(outputs.output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _records(rated: Rated) -> list[Record]:
    columns = {JSON_KEYS[name]: column for name, column in rated.samples.columns().items()}
    if rated.systems is not None:
        columns["system"] = rated.systems  # type: ignore[assignment]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
