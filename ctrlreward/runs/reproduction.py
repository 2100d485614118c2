"""How well runs of one experiment agree: `ctrlreward compare --reproduction`, by QRA++.

Belz (2025), https://arxiv.org/abs/2505.17043; the measures are in `functional/reproducibility.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rich.console import Console

from ctrlreward.arguments import counted
from ctrlreward.command_line.terminal import number_table
from ctrlreward.functional.reproducibility import (
    Correlation,
    StudyAgreement,
    compare_curves,
    compare_tables,
)
from ctrlreward.runs.compare import groups_of
from ctrlreward.tables.columns import number_column, number_of
from ctrlreward.tables.rows import Row, read_placed

_RUN = "run"  # the system of results that name none
# How fast a run is says nothing about its result.
_SPEED = ("*_runtime", "*_per_second", "watch/seconds", "*step_time", "*_preparation_time")

# Metric → step → value, and study → metric → system → value.
Curves: TypeAlias = dict[str, dict[int, float]]
Studies: TypeAlias = dict[str, dict[str, dict[str, float]]]


class Results(NamedTuple):
    """What one run found: values of systems by study, and its curves if it logged steps."""

    studies: Studies
    curves: Curves


class Agreement(NamedTuple):
    """Agreement of n ≥ 2 runs in a study."""

    values: Mapping[str, Mapping[str, Sequence[float]]]  # metric → system → value of each run
    study: StudyAgreement
    curves: Mapping[str, Correlation]  # metric → over the steps that all runs have


def agreement(
    paths: Sequence[str],
    by: str | None = None,
    names: Sequence[str] | None = None,
    patterns: Sequence[str] = ("*",),
) -> dict[str, Agreement]:
    """Return the agreement of runs in each study that all of them have.

    Args:
        paths: A folder or file a run, or one file with the column `by`, which names the run of a
            row. A file has a row per value, with the columns `metric` and `value`, or a row per
            system, with a column of numbers per metric; `system` and `study` may name these.
        by: Column of the runs.
        names: The runs of the column that are compared, by default all.
        patterns: A metric counts if it matches one.

    Raises:
        ValueError: Fewer than two runs, or they have no study, metric or system in common.
    """
    runs: list[Results] = []
    for path in paths:
        if Path(path).is_dir():
            runs.append(_of_folder(path))
        else:
            rows, places = read_placed(path)
            groups = groups_of(rows, places, by) if by else {"": (rows, places)}
            for name in names or groups:
                if name not in groups:
                    raise ValueError(f"{by} names no {name!r}, only {', '.join(groups)}")
                runs.append(_of_rows(*groups[name], by))
    if len(runs) < 2:
        raise ValueError(f"--reproduction needs two or more runs, got {len(runs)}: {paths[0]}")
    studies = [name for name in runs[0].studies if all(name in run.studies for run in runs)]
    if not studies:
        raise ValueError(f"the runs share no study, the first has {', '.join(runs[0].studies)}")
    return {study: _agreement(runs, study, patterns) for study in studies}


def _agreement(runs: Sequence[Results], study: str, patterns: Sequence[str]) -> Agreement:
    names = list(dict.fromkeys(metric for run in runs for metric in run.studies[study]))
    counts = [m for m in names if any(fnmatchcase(m, pattern) for pattern in patterns)]
    if "*" in patterns:
        counts = [m for m in counts if not any(fnmatchcase(m, p) for p in _SPEED)] or counts
    if not counts:
        raise ValueError(f"no metric is {' or '.join(patterns)}, the runs have {', '.join(names)}")
    tables = [{m: run.studies[study].get(m, {}) for m in counts} for run in runs]
    values = {
        metric: {
            system: [table[metric].get(system, math.nan) for table in tables]
            for system in dict.fromkeys(name for table in tables for name in table[metric])
        }
        for metric in counts
    }
    curves = {
        metric: compare_curves([run.curves[metric] for run in runs])
        for metric in counts
        if all(metric in run.curves for run in runs)
    }
    return Agreement(values, compare_tables(tables), curves)


def _of_folder(path: str) -> Results:
    """Return the curves of a logged run; its values are the last ones and its report's."""
    from ctrlreward.runs.folder import read_stored_run  # imports PyTorch

    stored = read_stored_run(path)
    curves: Curves = {}
    for step in stored.steps:
        for metric, value in step.metrics.items():
            curves.setdefault(metric, {})[step.step] = value
    last = {metric: {_RUN: [*curve.values()][-1]} for metric, curve in curves.items()}
    for key, value in stored.summary.get("after", {}).items():
        last[f"after/{key}"] = {_RUN: number_of(value, f"{path}: after/{key}")}
    return Results({"": last}, curves)


def _of_rows(rows: Sequence[Row], places: Sequence[str], by: str | None) -> Results:
    studies: Studies = {}
    long = {"metric", "value"} <= rows[0].keys()
    names = {"system", "study", by}
    columns = ["value"] if long else [name for name in rows[0] if name not in names]
    numbers = {name: number_column(rows, name, places).tolist() for name in columns}
    for i, row in enumerate(rows):
        system = str(row.get("system") or _RUN)
        for name in columns:
            metric = str(row["metric"]) if long else name
            values = studies.setdefault(str(row.get("study") or ""), {}).setdefault(metric, {})
            if system in values:
                raise ValueError(f"{places[i]} repeats {metric!r} of {system!r}")
            values[system] = numbers[name][i]
    return Results(studies, {})


def print_agreement(console: Console, name: str, found: Agreement) -> None:
    """Print a table of the metrics of a study, and its sums."""
    runs = max(len(values) for systems in found.values.values() for values in systems.values())
    study, several = found.study, len(found.study.systems) > 1
    headings = ["systems"] if several else [f"run {i + 1}" for i in range(runs)]
    headings += ["CV* %", "Pearson", "Spearman"] if several or found.curves else ["CV* %"]
    headings += ["findings upheld"] * several + ["common steps"] * bool(found.curves)
    table = number_table(["metric"], headings, show_edge=False, title=name or None)
    for metric, part in study.metrics.items():
        curve = found.curves.get(metric)
        related = curve or (part.correlation if several else None)
        values = found.values[metric].get(next(iter(study.systems), _RUN), [math.nan] * runs)
        cells = [str(len(part.cv_star))] if several else [f"{value:.4g}" for value in values]
        cells.append(_number(part.mean_cv_star))
        if several or found.curves:
            cells += map(_number, related[:2]) if related else ["–", "–"]
        cells += [f"{part.findings.upheld} of {part.findings.total}"] * several
        cells += [str(curve.n) if curve else "–"] * bool(found.curves)
        table.add_row(metric, *cells)
    console.print(table)
    about = "difference" if runs == 2 else "deviation"
    console.print(
        f"CV* (type I): {_number(study.mean_cv_star)} %, mean of "
        f"{counted(len(study.metrics), 'metric')}; about the {about} in percent of the mean",
        soft_wrap=True,
    )
    if several:
        pearson, spearman, n = study.correlation
        upheld, total = study.findings
        console.print(
            f"correlation (type II): Pearson {_number(pearson)}, Spearman {_number(spearman)}, "
            f"mean of {counted(n, 'metric')}\nfindings (type IV): {upheld} of "
            f"{counted(total, 'pair')} of systems in the same order",
            soft_wrap=True,
        )
    for gap in study.gaps:
        console.print(f"left out: {gap.metric} of {gap.system}: {gap.reason}", soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"
