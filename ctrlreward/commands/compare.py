"""Command `ctrlreward compare`: agreement of two or more runs (QRA++)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ctrlreward.commands.command_parser import CommandParser, command_parser
from ctrlreward.commands.compare_report import Comparison, print_comparison
from ctrlreward.commands.terminal import plain_console, user_errors
from ctrlreward.files import write_whole
from ctrlreward.functional.agreement import Correlation, Findings
from ctrlreward.functional.reproducibility import (
    Gap,
    Table,
    compare_curves,
    compare_tables,
)
from ctrlreward.tables.runs import Run, read_run

_DESCRIPTION = """Measure how reproducible a result is. Compares runs of the same experiment by
QRA++: CV* of each metric and its means, correlations, and the share of pairwise
findings that are upheld."""

_EXAMPLES = (
    "ctrlreward compare runs/seed0 runs/seed1",
    "ctrlreward compare paper.csv ours.csv --metrics accuracy 'score/*' --output agreement.json",
)


def run(arguments: list[str]) -> None:
    """Read the runs, write the JSON file if requested, and print the comparison."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = [options.run_a, options.run_b, *options.runs]
    with user_errors(parser):
        runs = [read_run(name, options.system_columns, options.metric_columns) for name in names]
        comparison = compare_runs(runs, options.metrics)
        if options.output:
            write_whole(Path(options.output), to_json(comparison))
    print_comparison(plain_console(), comparison)


def compare_runs(runs: Sequence[Run], patterns: Sequence[str] = ("*",)) -> Comparison:
    """Compare runs study by study and curve by curve.

    Args:
        runs: Two or more.
        patterns: Metrics to compare, as patterns of file names: `score/*`.

    Raises:
        ValueError: The runs have no study in common, or a study has no metric in common.
    """
    all_studies = list(dict.fromkeys(study for run in runs for study in run.studies))
    shared = [study for study in all_studies if all(study in run.studies for run in runs)]
    if not shared:
        raise ValueError(f"the runs have no study in common: there are {', '.join(all_studies)}")
    studies = {
        study: compare_tables([_matching(run.studies[study], patterns) for run in runs])
        for study in shared
    }
    metrics = dict.fromkeys(metric for study in shared for metric in studies[study].metrics)
    curves = {
        metric: compare_curves([run.curves[metric] for run in runs])
        for metric in metrics
        if all(metric in run.curves for run in runs)
    }
    missing = [study for study in all_studies if study not in shared]
    return Comparison(runs, studies, curves, missing)


def to_json(comparison: Comparison) -> str:
    """Encode a comparison as JSON; NaN is null."""
    content = {
        "runs": [run.name for run in comparison.runs],
        "studies": {study: asdict(agreement) for study, agreement in comparison.studies.items()},
        "curves": comparison.curves,
        "missing_studies": list(comparison.missing),
    }
    return json.dumps(_json_value(content), indent=2, ensure_ascii=False) + "\n"


def _parser() -> CommandParser:
    usage = "RUN_A RUN_B [options]"
    parser = command_parser("ctrlreward compare", usage, _DESCRIPTION, _EXAMPLES)
    run_help = (
        "a CSV file (columns system, metric and value, or one system per row), a JSON file "
        "({system: {metric: value}}) or the folder of a logger (HistoryLogger, CSVLogger, W&B); "
        "FILE.csv:column=value selects rows of a file"
    )
    parser.add_argument("run_a", metavar="RUN_A", type=str, help=run_help)
    parser.add_argument("run_b", metavar="RUN_B", type=str, help="a run of the same experiment")
    parser.add_argument("--runs", nargs="+", type=str, default=[], help="more runs to compare")
    parser.add_argument(
        "--metrics",
        nargs="+",
        type=str,
        default=["*"],
        help="metrics to compare, by name or pattern: 'score/*' 'after/*'",
    )
    parser.add_argument(
        "--system_columns",
        nargs="+",
        type=str,
        default=["system"],
        help="columns of a CSV file that together name a system",
    )
    parser.add_argument(
        "--metric_columns",
        nargs="+",
        type=str,
        default=["metric"],
        help="columns of a long CSV file that together name a metric",
    )
    parser.add_argument("--output", type=str | None, default=None, help="JSON file for all numbers")
    return parser


def _matching(table: Table, patterns: Sequence[str]) -> Table:
    kept = {m: c for m, c in table.items() if any(fnmatchcase(m, p) for p in patterns)}
    if not kept:
        raise ValueError(f"no metric matches {' or '.join(patterns)}: there are {', '.join(table)}")
    return kept


def _json_value(value: Any) -> Any:
    """Convert named tuples to objects, and NaN and infinity to null."""
    if isinstance(value, Findings):
        value = {**value._asdict(), "share": value.share}
    elif isinstance(value, Correlation | Gap):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
