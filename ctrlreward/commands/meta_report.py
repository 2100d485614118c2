"""Steps of `ctrlreward meta-eval` that all rated files share: score, correlate, print, write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.columns import JSON_KEYS
from ctrlreward.commands.chunked_scoring import score_in_chunks
from ctrlreward.commands.correlation_report import (
    correlate_all,
    draw_scatter,
    print_correlations,
    require_plot,
    to_json_record,
)
from ctrlreward.commands.formats.rated_files import Rated
from ctrlreward.commands.formats.tables import Row, check_suffix, encode_rows
from ctrlreward.files import write_whole
from ctrlreward.functional.preferences import (
    PairwiseAgreement,
    Thresholds,
    fit_gm,
    pairwise_agreement,
    pairwise_preferences,
)
from ctrlreward.scorers.base import Component, Scores

_CHUNK = 256

# The inputs of GM, in the order of `fit_gm`.
_GM_INPUTS = ("label_probability", "similarity", "perplexity")


@dataclass(frozen=True)
class Outputs:
    """Output files and settings of the bootstrap.

    Attributes:
        output: JSON file for the correlations.
        scores: File for the scores of each row, .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples, 1 or more.
        seed: Seed of the bootstrap, 0 or more.

    Raises:
        ValueError: A file has an unknown suffix or is a folder, or a number is out of range.
        ImportError: A package that a file needs is not installed.
    """

    output: Path | None
    scores: Path | None
    plot: Path | None
    resamples: int
    seed: int

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ValueError(f"resamples = {self.resamples}: give 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed}: give 0 or more")
        if self.scores is not None:
            check_suffix(self.scores)
        if self.plot is not None:
            require_plot(self.plot)
        for path in (self.output, self.scores, self.plot):
            if path is not None and path.is_dir():
                raise ValueError(f"{path} is a folder: give a file")


@dataclass(frozen=True)
class HeldOutFit:
    """GM thresholds fitted to preferences of half of the items, and their held-out agreement.

    Attributes:
        thresholds: The fitted thresholds t1 to t4.
        fitted_pairs: Number of preferences that they were fitted to.
        judged_pairs: Number of held-out preferences, of the other half.
        fitted: Agreement with the held-out preferences under the fitted thresholds.
        default: Agreement with the held-out preferences under the paper's thresholds.
    """

    thresholds: Thresholds
    fitted_pairs: int
    judged_pairs: int
    fitted: PairwiseAgreement
    default: PairwiseAgreement


def score_rated(
    rated: Rated, components: Mapping[str, Component], outputs: Outputs
) -> dict[str, Scores]:
    """Score a rated file, and write texts, ratings and scores if `outputs.scores` is given.

    The written file has columns `rating/<name>` and `score/<name>`.

    Returns:
        Arrays of shape (n,) by name; NaN for samples that failed.

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
        content = encode_rows(outputs.scores.suffix, _to_rows(rated), columns)
        write_whole(outputs.scores, content)
    return scores


def report_correlations(
    rated: Rated,
    scores: Mapping[str, Scores],
    components: Mapping[str, Component],
    outputs: Outputs,
) -> dict[str, Any]:
    """Correlate scores with ratings, print a table, and write the requested files.

    Args:
        rated: The rated file, n rows.
        scores: Arrays of shape (n,) by name.
        components: Components of the scores whose direction is known, by name.
        outputs: Files to write, and settings of the bootstrap.

    Returns:
        The content of the JSON file.
    """
    pairs = correlate_all(rated, scores, outputs.resamples, outputs.seed)
    record = to_json_record(pairs, rated, outputs.resamples, outputs.seed)
    _write_record(record, outputs)
    specs = {name: component.spec for name, component in components.items()}
    print_correlations(pairs, rated, specs)
    if outputs.plot is not None:
        draw_scatter(pairs, rated, scores, outputs.plot)
    return record


def fit_gm_held_out(rated: Rated, scores: Mapping[str, Scores], seed: int) -> HeldOutFit:
    """Fit GM's thresholds on every other item, and evaluate them on the rest.

    A preference is a pair of outputs for the same item with different mean ratings.

    Args:
        rated: The rated file, with the rating `mean` and items as clusters.
        scores: Scores with the three inputs of GM, arrays of shape (n,) by name.
        seed: Seed of the search for thresholds.
    """
    inputs = np.stack([scores[name] for name in _GM_INPUTS], axis=1)
    items = rated.clusters or ()
    order = {item: position for position, item in enumerate(dict.fromkeys(items))}
    first_half = np.array([order[item] % 2 == 0 for item in items])
    ratings = np.where(np.isnan(inputs).any(axis=1), np.nan, rated.ratings["mean"])
    halves = [np.where(half, ratings, np.nan) for half in (first_half, ~first_half)]
    training, held_out = (pairwise_preferences(half, items) for half in halves)
    preferred, rejected = (inputs[rows] for rows in training)
    fit = fit_gm(preferred, rejected, seed=seed)
    better, worse = (inputs[rows] for rows in held_out)
    return HeldOutFit(
        fit.thresholds,
        len(preferred),
        len(better),
        pairwise_agreement(better, worse, fit.thresholds),
        pairwise_agreement(better, worse),
    )


def report_gm_fit(fit: HeldOutFit, record: dict[str, Any], outputs: Outputs) -> None:
    """Print GM's agreement with held-out preferences, and add it to the JSON file.

    Args:
        fit: Agreement under the fitted and the paper's thresholds.
        record: Result of `report_correlations`.
        outputs: Files to write.
    """
    agreements = {"fitted": fit.fitted._asdict(), "default": fit.default._asdict()}
    _write_record({**record, "gm": {**asdict(fit), **agreements}}, outputs)
    numbers = ", ".join(f"{threshold:.1f}" for threshold in fit.thresholds)
    print(f"GM thresholds fitted to {fit.fitted_pairs} preferences: ({numbers})")
    print(f"Agreement of GM with {fit.judged_pairs} preferences of held-out items:")
    for name, agreement in (("fitted", fit.fitted), ("the paper's", fit.default)):
        shares = f"{agreement.agreed:.1%} (ties, counted as disagreement: {agreement.tied:.1%})"
        print(f"  {name} thresholds: {shares}")


def _write_record(record: dict[str, Any], outputs: Outputs) -> None:
    if outputs.output is not None:
        write_whole(outputs.output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _to_rows(rated: Rated) -> list[Row]:
    columns = {JSON_KEYS[name]: column for name, column in rated.samples.columns().items()}
    if rated.systems is not None:
        columns["system"] = rated.systems  # type: ignore[assignment]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
