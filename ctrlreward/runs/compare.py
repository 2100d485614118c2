"""Command `ctrlreward compare`: which of two or more systems is better, score by score."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Hashable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrlreward.arguments import Mode, check_ending, counted
from ctrlreward.command_line.terminal import (
    number_table,
    plain_console,
    plain_parser,
    user_errors,
)
from ctrlreward.files import json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.sequential import (
    detectable_difference,
    holm_p_values,
    paired_difference,
    two_sided_p_value,
)
from ctrlreward.samples import JSON_KEYS, OUTPUT_NAMES
from ctrlreward.selection.metrics import direction_of_name
from ctrlreward.tables.row_streams import SUFFIXES, Row, read_placed
from ctrlreward.tables.table_columns import number_column, require_column
from ctrlreward.tables.table_writing import Scores

_DESCRIPTION = """Find out which system is better: for each score the means, the difference with a
95 % interval by item, and the p-value of a paired test (flips of signs).

Items are prompts: outputs of several systems for one prompt are a pair, and several outputs of one
system for a prompt count by their mean. --reproduction measures instead how well two runs of one
experiment agree (QRA++: CV* of each metric, correlations, findings upheld)."""

_EXAMPLES = (
    "ctrlreward compare scored.csv --by system",
    "ctrlreward compare base.csv tuned.csv --metrics log_likelihood polarity",
    "ctrlreward compare scored.csv --columns base.perplexity tuned.perplexity",
    "ctrlreward compare runs/seed0 runs/seed1",
    "ctrlreward compare paper.csv ours.csv --reproduction",
)

LEVEL = 0.05
LEAST = 6  # items with which flips of signs reach the level: 2 · 2⁻⁶ < 0.05

# Columns that may name an item, the first that two systems share; and columns that are no scores.
_ITEMS = ("prompt", "prefix", "source", "id", "item")
_NO_SCORES = {*JSON_KEYS.values(), *OUTPUT_NAMES, *_ITEMS, "index", "seed", "step", "system"}


class System(NamedTuple):
    """Scores of one system: score → item → mean of its outputs, NaN if all failed."""

    name: str
    scores: Mapping[str, Mapping[Hashable, float]]


class Pair(NamedTuple):
    """Two systems in one score.

    Attributes:
        first: Name of the first system.
        second: Name of the second system.
        difference: Mean of the first minus the second.
        low, high: Ends of its 95 % interval, infinite if there are too few items.
        p_value: Two-sided, by flips of signs, with Holm's correction for all pairs of systems; NaN
            if each system has one value for all items.
        detectable: Difference that this number of items shows with a power of 0.8.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    detectable: float


class Comparison(NamedTuple):
    """Systems in one score.

    Attributes:
        score: Name of the score.
        mode: Its better direction, None if unknown.
        items: Number of items, which all systems have and in which none failed.
        failed: Number of items in which a system failed; they are left out.
        means: System → mean.
        pairs: All pairs of systems.
    """

    score: str
    mode: Mode | None
    items: int
    failed: int
    means: Mapping[str, float]
    pairs: Sequence[Pair]


def run(arguments: list[str]) -> None:
    """Compare systems, write the JSON file if requested, and print the comparison."""
    options = _parser().parse_args(arguments)
    with user_errors():
        check_ending("--output", options.output, ".json")
        if options.reproduction:
            _reproduction(options)
            return
        console = plain_console()
        systems, modes, pairing = read_systems(
            options.runs, options.by, options.columns, options.id, options.metrics
        )
        comparisons = compare_systems(systems, modes)
        if options.output:
            content = {"pairing": pairing, "scores": comparisons}
            write_whole(Path(options.output), json_text(content))
    console.print(pairing, soft_wrap=True)
    _print(comparisons)


def _parser() -> ArgumentParser:
    parser = plain_parser("ctrlreward compare", _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("runs", metavar="FILE", nargs="+", help="scored files (.jsonl, .csv, .parquet), or folders "
        "of runs with stored samples, whose last ones count")  # fmt: skip
    add("--by", help="column that names the system of each row")
    add("--columns", nargs=2, metavar="COLUMN", help="two score columns of one file")
    add("--id", help="column that pairs the items (default: the first of "
        f"{', '.join(_ITEMS)} or others that the systems share, else the position)")  # fmt: skip
    add("--metrics", nargs="+", default=["*"], help="scores to compare, such as 'distinct_*'")
    add("--output", help="JSON file for all numbers")
    add(
        "--reproduction",
        action="store_true",
        help="how well runs of one experiment agree: files with columns system, metric and value, "
        "or one system per row, JSON ({system: {metric: value}}), or a logger's folder; "
        "FILE.csv:column=value selects rows",
    )
    for name in ("system", "metric"):
        text = f"with --reproduction, columns that together name a {name}"
        add(f"--{name}_columns", nargs="+", default=[name], help=text)
    return parser


def read_systems(
    paths: Sequence[str],
    by: str | None = None,
    columns: Sequence[str] | None = None,
    item: str | None = None,
    patterns: Sequence[str] = ("*",),
) -> tuple[list[System], dict[str, Mode], str]:
    """Return the systems, the better directions that a run declares, and how items are paired.

    Raises:
        ValueError: There are fewer than two systems, or they have no score or item in common.
    """
    modes: dict[str, Mode] = {}
    if any(Path(path).is_dir() for path in paths):
        systems, modes, pairing = _of_runs(paths)
        return _with_scores(systems, patterns), modes, pairing
    for path in paths:
        if Path(path).suffix not in SUFFIXES:
            raise ValueError(
                f"{path} must be a run's folder or end in one of {', '.join(SUFFIXES)}; tables of "
                "results are compared with --reproduction"
            )
    if len({*paths}) < len(paths):
        raise ValueError(f"{', '.join(paths)}: a file is named twice")
    tables = dict(zip(_short_names(paths), map(read_placed, paths), strict=True))
    rows = [row for own, _ in tables.values() for row in own]
    places = [place for _, own in tables.values() for place in own]
    if columns:
        if len(paths) > 1 or by:
            raise ValueError("--columns compares two columns of one file, without --by")
        tables = {
            name: ([{**row, "score": row.get(name)} for row in rows], places) for name in columns
        }
        for name in columns:
            number_column(rows, name, places)  # names the column in its errors
        patterns = ["score"]
        modes = {"score": m} if (m := direction_of_name(columns[0])) else {}
    elif by or len(paths) == 1:
        tables = _by_column(paths[0], rows, places, by)
    keys, pairing = _pairing([rows for rows, _ in tables.values()], item)
    systems = []
    for own, (name, (rows, places)) in zip(keys, tables.items(), strict=True):
        scores = {
            score: number_column(rows, score, places) for score in _numeric(rows, patterns, by)
        }
        systems.append(System(name, {k: _by_item(own, values) for k, values in scores.items()}))
    return _with_scores(systems, patterns), modes, pairing


def _of_runs(paths: Sequence[str]) -> tuple[list[System], dict[str, Mode], str]:
    """Return the scores by prompt of the last validation of each run that stored them."""
    from ctrlreward.runs.folder import read_stored_run  # imports PyTorch

    systems, steps, modes = [], [], dict[str, Mode]()
    for path, name in zip(paths, _short_names(paths), strict=True):
        stored = read_stored_run(path)
        last = next((each for each in reversed(stored.steps) if each.evidence), None)
        if last is None:
            raise ValueError(
                f"{path} has no scores by prompt, as a GenerationScorer stores them; its logged "
                "numbers are compared with --reproduction"
            )
        modes |= stored.modes
        steps.append(f"{last.step} of {name}")
        scores: dict[str, Mapping[Hashable, float]] = {
            key: {(getattr(values, "prompts", ""), i): v for i, v in enumerate(values.tolist())}
            for key, values in last.evidence.items()
        }
        systems.append(System(name, scores))
    return systems, modes, f"items are the held-out prompts, at step {', '.join(steps)}"


def _by_column(
    path: str, rows: Sequence[Row], places: Sequence[str], by: str | None
) -> dict[str, tuple[list[Row], list[str]]]:
    if by is None:
        others = {*rows[0]} - {*_numeric(rows, ["*"], None), *_NO_SCORES} | (
            {"system"} & {*rows[0]}
        )
        texts = {name: {str(row.get(name)) for row in rows} for name in others}
        few = [name for name, cells in texts.items() if 1 < len(cells) <= len(rows) ** 0.5]
        raise ValueError(
            f"{path} is one file: name the column of the systems with --by COLUMN"
            f"{' (perhaps ' + ' or '.join(few[:3]) + ')' if few else ''}, two columns of scores "
            "with --columns, or a second file"
        )
    require_column(rows, by)
    groups: dict[str, tuple[list[Row], list[str]]] = {}
    for row, place in zip(rows, places, strict=True):
        own = groups.setdefault(str(row.get(by)), ([], []))
        own[0].append(row)
        own[1].append(place)
    if len(groups) < 2:
        raise ValueError(
            f"{by} must name two systems or more, but all rows have {next(iter(groups))!r}"
        )
    return groups


def _short_names(paths: Sequence[str]) -> list[str]:
    """Return the names of files without folder and suffix, if these differ."""
    short = [Path(path).stem if path.endswith(SUFFIXES) else Path(path).name for path in paths]
    return short if len({*short}) == len(paths) else list(paths)


def _pairing(
    tables: Sequence[Sequence[Row]], item: str | None
) -> tuple[Sequence[Sequence[Hashable]], str]:
    """Return the item of each row of each system, and how the items are paired, in words."""
    present = [name for name in tables[0][0] if all(name in rows[0] for rows in tables)]
    known = [name for name in _ITEMS if name in present]
    if item:
        for rows in tables:
            require_column(rows, item)
    # Also a column of any name that has the same texts in half of the rows.
    for name in [item] if item else [*known, *(name for name in present if name not in known)]:
        keys = [[_key(row.get(name)) for row in rows] for rows in tables]
        shared = set(keys[0]).intersection(*keys[1:])
        least = 1 if item else 2 if name in known else max(2, min(map(len, tables)) / 2)
        if len(shared) >= least:
            counts = [len({*own} - shared) for own in keys]
            others = f"; {counted(sum(counts), 'item')} of one system alone left out" * any(counts)
            several = any(len({*own}) < len(own) for own in keys)
            means = ", several outputs of an item by their mean" * several
            return keys, f"{counted(len(shared), 'item')}, paired by {name!r}{means}{others}"
    if item or len({len(rows) for rows in tables}) > 1:
        raise ValueError(
            f"the systems share no value of {item or 'any column'}: name the column that pairs "
            "their items with --id COLUMN"
        )
    n = len(tables[0])
    return [[*range(n)] for _ in tables], f"{counted(n, 'item')}, paired by position"


def _key(cell: object) -> str:
    return cell if isinstance(cell, str) else json.dumps(cell, default=str)


def _numeric(rows: Sequence[Row], patterns: Sequence[str], by: str | None) -> list[str]:
    """Return the columns that are scores: named without a wildcard, or of numbers."""
    scores = []
    for name in rows[0]:
        if name in patterns:
            scores.append(name)
        elif name not in _NO_SCORES and name != by and any(fnmatchcase(name, p) for p in patterns):
            try:
                values = number_column(rows, name)
            except ValueError:
                continue
            scores += [name] * bool(np.isfinite(values).any())
    return scores


def _by_item(keys: Sequence[Hashable], values: Scores) -> dict[Hashable, float]:
    rows: dict[Hashable, list[float]] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        rows.setdefault(key, []).append(value)
    return {key: valid_mean(np.array(own)) for key, own in rows.items()}


def _with_scores(systems: Sequence[System], patterns: Sequence[str]) -> list[System]:
    """Return the systems with the scores that match and that all have for some item."""
    if len(systems) < 2:
        raise ValueError("compare needs two systems or more, got one")
    shared = [
        score
        for score in systems[0].scores
        if set[Hashable].intersection(*({*system.scores.get(score, ())} for system in systems))
        and any(fnmatchcase(score, pattern) for pattern in patterns)
    ]
    if not shared:
        known = ", ".join(dict.fromkeys(s for system in systems for s in system.scores))
        wanted = "" if "*" in patterns else f" {' or '.join(patterns)}"
        have = f"only {known}" if known else "no columns of numbers"
        raise ValueError(
            f"the systems share no score{wanted} of the same items, they have {have}. 'ctrlreward "
            "score IN OUT --scorers NAME' adds scores to a file of texts."
        )
    return [System(name, {score: own[score] for score in shared}) for name, own in systems]


def compare_systems(
    systems: Sequence[System], modes: Mapping[str, Mode] | None = None
) -> list[Comparison]:
    """Compare the systems score by score; `modes` are better directions that names don't tell."""
    comparisons = []
    for score in systems[0].scores:
        tables = [system.scores[score] for system in systems]
        items = [item for item in tables[0] if all(item in table for table in tables)]
        values = np.array([[table[item] for item in items] for table in tables])
        kept = np.isfinite(values).all(axis=0)
        sides = {system.name: row[kept] for system, row in zip(systems, values, strict=True)}
        # One value for all items, such as Distinct of all texts: there is nothing to test.
        alike = kept.sum() > 1 and all(np.ptp(v) == 0 for v in sides.values())
        untested = alike and any(v[0] % 1 for v in sides.values())
        pairs = []
        for (first, a), (second, b) in combinations(sides.items(), 2):
            value, low, high, _ = paired_difference(a, minus=b, level=LEVEL)
            p_value = math.nan if untested else two_sided_p_value(a - b)
            detectable = detectable_difference(b, a, LEVEL)
            pairs.append(Pair(first, second, value, low, high, p_value, detectable))
        corrected = holm_p_values([pair.p_value for pair in pairs])
        pairs = [pair._replace(p_value=p) for pair, p in zip(pairs, corrected, strict=True)]
        means = {name: valid_mean(own) for name, own in sides.items()}
        mode = (modes or {}).get(score) or direction_of_name(score)
        failed = int((~kept).sum())
        comparisons.append(Comparison(score, mode, int(kept.sum()), failed, means, pairs))
    return comparisons


def sentence(comparison: Comparison, pair: Pair) -> str:
    """Return what the comparison of two systems shows, in words."""
    score, mode, items, *_ = comparison
    of = f" in {score}" if score != "score" else ""
    if math.isnan(pair.p_value):
        return f"{pair.first} and {pair.second} have one value each{of}, for all items: no test"
    if pair.p_value > LEVEL or not math.isfinite(pair.low):
        apart = f"{pair.first} and {pair.second} can't be told apart{of} with"
        if items < LEAST:
            return f"{apart} {counted(items, 'item')}, at least {LEAST} are needed"
        shown = (
            f", which show {_number(pair.detectable)} or more; about {4 * items} would show half"
        )
        known = f" of it (p = {pair.p_value:.2g})"
        return f"{apart} {items} items" + (shown + known if pair.detectable else "")
    better, worse = pair.first, pair.second
    ends = [pair.difference, pair.low, pair.high]
    if (pair.difference < 0) != (mode == "min"):
        better, worse = worse, better
    if pair.difference < 0:
        ends = [-pair.difference, -pair.high, -pair.low]
    value, low, high = (_number(end, ends[0]) for end in ends)
    word = "better" if mode else "higher"
    return (
        f"{better} is {word} than {worse}{of} by {value} ({low} to {high}), p = {pair.p_value:.2g}"
    )


def _print(comparisons: Sequence[Comparison]) -> None:
    systems = list(comparisons[0].means)
    table = number_table(["score"], [*systems, "items", "failed"], show_edge=False)
    for score, mode, items, failed, means, _ in comparisons:
        arrow = {"max": " ↑", "min": " ↓", None: ""}[mode]
        table.add_row(score + arrow, *map(_number, means.values()), str(items), str(failed))
    console = plain_console()
    console.print(table)
    if any(comparison.mode is None for comparison in comparisons):
        console.print("↑ higher, ↓ lower is better; of others it is not known")
    if len(systems) > 2:
        count = len(comparisons[0].pairs)
        console.print(f"p with Holm's correction for {count} pairs; each interval is of one pair")
    for comparison in comparisons:
        for pair in comparison.pairs:
            console.print(sentence(comparison, pair), soft_wrap=True)


def _number(value: float, like: float | None = None) -> str:
    """Return a number with three digits, or as many decimals as another one."""
    size = abs(value if like is None else like)
    decimals = 2 - math.floor(math.log10(size)) if size else 2
    return f"{value:z.{min(max(decimals, 0), 6)}f}" if math.isfinite(value) else "–"


def _reproduction(options: Namespace) -> None:
    from ctrlreward.runs.reproduction import compare_runs, print_comparison, to_json
    from ctrlreward.runs.results import read_run

    runs = [read_run(name, options.system_columns, options.metric_columns) for name in options.runs]
    comparison = compare_runs(runs, options.metrics)
    if options.output:
        write_whole(Path(options.output), to_json(comparison))
    print_comparison(plain_console(), comparison)
