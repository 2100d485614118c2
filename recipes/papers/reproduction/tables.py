"""Tables 3 and 4 of the reproduction study, recomputed from the scores of its Tables 1 and 2.

`python -m ctrlreward.recipes.papers.reproduction.tables` prints them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ctrlreward.functional.reproducibility import StudyAgreement, Table, compare_tables
from ctrlreward.ratings.report import markdown_table

# Scores of the `original` outputs and of their `reproduction` (Tables 1 and 2) with the deviations
# that the paper prints, its `cv_star` (Tables 3 and 4), and the figures that the original `authors`
# report (section 5). Accuracies, Distinct and CV* are in per cent.
SCORES = Path(__file__).with_name("tables.csv")
_MEAN = "mean"

_DIFFERENCES = """The paper's mean for Topic W, 1.27, is of rounded cells: (2.22 + 0.31) / 2.
38.9 and 38.3, PPL of PriorCTG, give 1.55; it prints 1.52, from which 1.23 and 1.402 follow."""


@cache
def printed(run: str) -> Mapping[str, Table]:
    """Return study → metric → system → value of a `run` of the file, such as `"original"`."""
    studies: dict[str, dict[str, dict[str, float]]] = {}
    with open(SCORES, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["run"] == run:
                metrics = studies.setdefault(row["study"], {})
                metrics.setdefault(row["metric"], {})[row["system"]] = float(row["value"])
    return studies


def agreements() -> dict[str, StudyAgreement]:
    """Return the agreement of original and reproduction in each of the paper's two studies."""
    runs = [printed("original"), printed("reproduction")]
    return {study: compare_tables([run[study] for run in runs]) for study in runs[0]}


def report() -> str:
    """Return CV*, its means, correlations and findings of both studies, and where they differ."""
    studies = (part for i, item in enumerate(agreements().items(), 3) for part in _study(i, *item))
    rows = [
        [f"{system}, {study}", metric, *(f"{number:g}" for number in (column[system], value))]
        for study, metrics in printed("authors").items()
        for metric, values in metrics.items()
        for system, value in values.items()
        for column in [printed("original")[study][metric]]
    ]
    authors = markdown_table(["system", "metric", "Tables 1, 2", "the original authors"], rows)
    return "\n\n".join([*studies, _DIFFERENCES, authors])


def _study(number: int, study: str, agreement: StudyAgreement) -> Iterator[str]:
    yield f"Table {number}, {study}: CV* in per cent; in brackets the paper's, where it differs"
    theirs = printed("cv_star")[study]
    rows = {m: {**a.cv_star, _MEAN: a.mean_cv_star} for m, a in agreement.metrics.items()}
    yield markdown_table(
        ["metric", *agreement.systems, _MEAN],
        [
            [metric, *(_beside(value, theirs[metric][name], 2) for name, value in row.items())]
            for metric, row in rows.items()
        ],
    )
    upheld, total = agreement.findings
    mean = _beside(agreement.mean_cv_star, theirs[_MEAN][_MEAN], 3)
    of_metrics = {metric: a.correlation.pearson for metric, a in agreement.metrics.items()}
    of_systems = {name: c.pearson for name, c in agreement.systems.items()}
    lines = [f"study mean (type I): {mean} %"]
    if len(of_systems) > 2:  # two systems that keep their order have 1
        overall = f"{agreement.correlation.pearson:.3f}"
        lines.append(f"Pearson by metric (type II): {_listed(of_metrics)}; mean {overall}")
    lines.append(f"Pearson by system (type II): {_listed(of_systems)}")
    lines.append(f"findings upheld (type IV): {upheld} of {total}")
    yield "\n".join(lines)


def _beside(value: float, published: float, digits: int) -> str:
    """Return a value, followed by the published one in brackets if that is not its rounding."""
    rounded = f"{value:.{digits}f}"
    # The paper prints one mean, 1.725, with a third digit.
    differs = abs(value - published) > 0.501 * 10**-digits
    return f"{rounded} ({published:.{digits}f})" if differs else rounded


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


if __name__ == "__main__":
    print(report())
