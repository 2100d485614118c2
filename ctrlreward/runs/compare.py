"""Command `ctrlreward compare`: which of two systems is better, score by score."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from ctrlreward.arguments import Mode, counted
from ctrlreward.command_line.terminal import (
    ARROWS,
    number_table,
    plain_console,
    plain_parser,
    user_errors,
)
from ctrlreward.files import json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.sequential import (
    detectable_difference,
    paired_difference,
    two_sided_p_value,
)
from ctrlreward.samples import JSON_KEYS, OUTPUT_NAMES
from ctrlreward.selection.metrics import direction_of_name
from ctrlreward.tables.columns import number_column, require_column
from ctrlreward.tables.rows import SUFFIXES, Row, Scores, read_placed

_DESCRIPTION = """Find out which of two systems is better: for each score the means, the difference
with a 95 % interval by item, and the p-value of a paired test (flips of signs).

Items are prompts: outputs of both systems for one prompt are a pair, and several outputs of one
system for a prompt count by their mean. A system that is shown to fail more often does not win."""

_EXAMPLES = (
    "ctrlreward compare scored.csv --by system",
    "ctrlreward compare base.csv tuned.csv --metrics log_likelihood polarity",
    "ctrlreward compare runs/seed0 runs/seed1",
    "ctrlreward compare runs/seed0 runs/seed1 --reproduction",
)

LEVEL = 0.05
LEAST = 6  # items with which flips of signs reach the level: 2 · 2⁻⁶ < 0.05

# Columns that may name an item, the first that two systems share; and columns that are no scores.
_ITEMS = ("prompt", "question", "instruction", "prefix", "source", "id", "item")
_NO_SCORES = {*JSON_KEYS.values(), *OUTPUT_NAMES, *_ITEMS, "index", "seed", "step", "system"}

# Columns of `ctrlreward score`, as their scorers declare them.
_DECLARED: dict[str, Mode] = {
    **dict.fromkeys(("perplexity", "repetition"), "min"),
    **dict.fromkeys(("coherence", "consistency", "attribute_relevance", "log_likelihood"), "max"),
    **dict.fromkeys(("accuracy", "label_probability", "polarity", "similarity", "gm"), "max"),
    **dict.fromkeys(("distinct", "distinct_1", "distinct_2", "distinct_3"), "max"),
}

# System → score → item → scores of its outputs, NaN for a failed one.
Systems: TypeAlias = dict[str, dict[str, dict[Hashable, list[float]]]]


class Comparison(NamedTuple):
    """Two systems in one score, over the items that both have and in which none failed."""

    score: str
    mode: Mode | None
    items: int
    failed: int  # items in which a system failed
    fail_rates: Mapping[str, float]  # system → share of failed outputs, also of failed items
    fail_p_value: float  # of the difference of the rates, two-sided, by flips of signs
    means: Mapping[str, float]
    difference: float  # first system minus second
    low: float  # of the 95 % interval, infinite if there are too few items
    high: float
    p_value: float  # two-sided; NaN if each system has one value for all items
    detectable: float  # difference that this number of items shows with a power of 0.8


def run(arguments: list[str]) -> None:
    """Compare two systems, write the JSON file if requested, and print the comparison."""
    parser = plain_parser("ctrlreward compare", _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("runs", metavar="FILE", nargs="+", help="scored files (.jsonl, .csv, .parquet), or folders "
        "of runs with stored samples, whose last ones count")  # fmt: skip
    add("--by", help="column that names the system of each row")
    add("--systems", nargs=2, metavar="NAME", help="two systems of the column, if it has more")
    add("--id", help="column that pairs the items (default: the first of "
        f"{', '.join(_ITEMS)} that the systems share, else the position)")  # fmt: skip
    add("--metrics", nargs="+", action="extend", help="scores to compare, such as 'distinct_*'")
    add("--reproduction", action="store_true", help="how well two or more runs of one experiment "
        "agree (QRA++): folders of runs, or files with a row per value or system")  # fmt: skip
    add("--output", help="JSON file for all numbers")
    options = parser.parse_args(arguments)
    options.metrics = options.metrics or ["*"]
    with user_errors():
        if options.output and not options.output.endswith(".json"):
            raise ValueError(f"--output must be a .json file, got {options.output}")
        if options.reproduction:
            return _reproduction(options)
        systems, modes, pairing = read_systems(options)
        comparisons = [
            compared(score, systems, modes.get(score) or direction_of_name(score))
            for score in _shared_scores(systems, options.metrics)
        ]
        if options.output:
            content = {"pairing": pairing, "scores": comparisons}
            write_whole(Path(options.output), json_text(content))
    table = number_table(["score"], [*systems, "items", "failed"], show_edge=False)
    for each in comparisons:
        means = map(_number, each.means.values())
        table.add_row(each.score + ARROWS[each.mode], *means, str(each.items), str(each.failed))
    console = plain_console()
    console.print(pairing, soft_wrap=True)
    console.print(table)
    if any(each.mode is None for each in comparisons):
        console.print("↑ higher, ↓ lower is better; of others it is not known")
    for each in comparisons:
        console.print(sentence(each), soft_wrap=True)


def _reproduction(options: Namespace) -> None:
    """Print how well runs agree, and write it to the JSON file if requested."""
    from ctrlreward.runs.reproduction import agreement, print_agreement

    found = agreement(options.runs, options.by, options.systems, options.metrics)
    if options.output:
        content = {
            name: {**each._asdict(), "study": asdict(each.study)} for name, each in found.items()
        }
        write_whole(Path(options.output), json_text(content))
    for name, each in found.items():
        print_agreement(plain_console(), name, each)


def read_systems(options: Namespace) -> tuple[Systems, Mapping[str, Mode], str]:
    """Return two systems, the better directions that a run declares, and how items are paired.

    Raises:
        ValueError: There are not two systems, or they have no item in common.
    """
    paths = options.runs
    if len(paths) > 2:
        raise ValueError(f"compare needs two files or runs, got {len(paths)}")
    short = [Path(path).stem if path.endswith(SUFFIXES) else Path(path).name for path in paths]
    names = short if len({*short}) == len(paths) else paths
    if any(Path(path).is_dir() for path in paths):
        return _systems_of_runs(dict(zip(names, paths, strict=True)))
    if len({*paths}) < len(paths):
        raise ValueError(f"{paths[0]} is named twice")
    tables = dict(zip(names, map(read_placed, paths), strict=True))
    if options.by or len(paths) == 1:
        rows = [row for own, _ in tables.values() for row in own]
        places = [place for _, own in tables.values() for place in own]
        tables = _by_column(paths[0], rows, places, options.by, options.systems)
    keys_of, pairing = _pairing([rows for rows, _ in tables.values()], options.id)
    systems = {
        name: {
            score: _by_item(keys, number_column(rows, score, places))
            for score in _numeric(rows, options.metrics)
            if score != options.by
        }
        for keys, (name, (rows, places)) in zip(keys_of, tables.items(), strict=True)
    }
    return systems, _DECLARED, pairing


def _systems_of_runs(paths: Mapping[str, str]) -> tuple[Systems, dict[str, Mode], str]:
    """Return the scores by prompt of the last texts of each run that stored them."""
    from ctrlreward.runs.folder import PREFIX, read_stored_run  # imports PyTorch

    if len(paths) < 2:
        raise ValueError(f"compare needs two runs, got only {', '.join(paths.values())}")
    systems: Systems = {}
    steps, modes = [], dict[str, Mode]()
    for name, path in paths.items():
        stored = read_stored_run(path)
        if not stored.samples:
            raise ValueError(f"{path} has no scores by prompt, as a GenerationScorer stores them")
        modes |= {key.removeprefix(PREFIX): mode for key, mode in stored.modes.items()}
        step = max(step for by_step in stored.samples.values() for step in by_step)
        steps.append(f"{step} of {name}")
        systems[name] = {
            f"{texts}/{key}": {(row.prompts, i): [value] for i, value in enumerate(row.tolist())}
            for texts, by_step in stored.samples.items()
            if step in by_step
            for key, row in by_step[step].by_prompt.items()
        }
    return systems, modes, f"items are the held-out prompts, at step {', '.join(steps)}"


def _by_column(
    path: str,
    rows: Sequence[Row],
    places: Sequence[str],
    by: str | None,
    names: Sequence[str] | None,
) -> dict[str, tuple[list[Row], list[str]]]:
    """Return the rows of two systems, and their places, by the column of their names."""
    if by is None:
        raise ValueError(
            f"{path} is one file: name the column of the systems with --by COLUMN (of "
            f"{', '.join(rows[0])}), or a second file"
        )
    groups = groups_of(rows, places, by)
    chosen = {name: groups[name] for name in names or groups if name in groups}
    if len(chosen) != 2:
        known = ", ".join(map(repr, [*groups][:5])) + (", …" if len(groups) > 5 else "")
        advice = "name two with --systems A B" if len(groups) > 2 else "two are needed"
        if names:
            advice = f"--systems must be two of them, got {names[0]!r} and {names[1]!r}"
        raise ValueError(f"{by} names {counted(len(groups), 'system')}, {known}: {advice}")
    return chosen


def groups_of(
    rows: Sequence[Row], places: Sequence[str], by: str
) -> dict[str, tuple[list[Row], list[str]]]:
    """Return the rows of each value of a column, and their places."""
    require_column(rows, by)
    groups: dict[str, tuple[list[Row], list[str]]] = {}
    for row, place in zip(rows, places, strict=True):
        own = groups.setdefault(str(row.get(by)), ([], []))
        own[0].append(row)
        own[1].append(place)
    return groups


def _pairing(
    tables: Sequence[Sequence[Row]], item: str | None
) -> tuple[Sequence[Sequence[Hashable]], str]:
    """Return the item of each row of both systems, and how the items are paired, in words."""
    for rows in tables if item else ():
        require_column(rows, str(item))
    for name in [item] if item else _ITEMS:
        keys = [[json.dumps(row.get(name), default=str) for row in rows] for rows in tables]
        shared = set(keys[0]).intersection(*keys[1:]) - {"null"}
        if len(shared) >= (1 if item else 2):
            alone = sum(len({*own} - shared) for own in keys)
            several = any(len({*own}) < len(own) for own in keys)
            means = ", several outputs of an item by their mean" * several
            others = f"; {counted(alone, 'item')} of one system alone left out" * (alone > 0)
            return keys, f"{counted(len(shared), 'item')}, paired by {name!r}{means}{others}"
    n = len(tables[0])
    if item or any(len(rows) != n for rows in tables):
        raise ValueError(
            f"the systems share no value of {item or ', '.join(_ITEMS)}: name the column that "
            "pairs their items with --id COLUMN"
        )
    return [range(n)] * len(tables), f"{counted(n, 'item')}, paired by position: no --id is given"


def _numeric(rows: Sequence[Row], named: Sequence[str]) -> list[str]:
    """Return the columns that are scores: `named`, or of numbers."""
    scores = []
    for name in rows[0]:
        if name in named:
            scores.append(name)
        elif name not in _NO_SCORES:
            try:
                scores += [name] * bool(np.isfinite(number_column(rows, name)).any())
            except ValueError:  # a text
                continue
    return scores


def _by_item(keys: Sequence[Hashable], values: Scores) -> dict[Hashable, list[float]]:
    rows: dict[Hashable, list[float]] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        rows.setdefault(key, []).append(value)
    return rows


def _shared_scores(systems: Systems, patterns: Sequence[str]) -> list[str]:
    """Return the scores that match, and that both systems have for some item."""
    first, second = systems.values()
    shared = [
        score
        for score, items in first.items()
        if items.keys() & second.get(score, {}).keys()
        and any(fnmatchcase(score, pattern) for pattern in patterns)
    ]
    wrong = [p for p in patterns if p != "*" and not any(fnmatchcase(s, p) for s in shared)]
    if not shared or wrong:
        known = ", ".join(dict.fromkeys([*first, *second]))
        wanted = f" {' or '.join(wrong)}" if wrong else ""
        have = f"only {known}" if known else "no columns of numbers"
        raise ValueError(
            f"the systems share no score{wanted} of the same items, they have {have}. 'ctrlreward "
            "score IN OUT --scorers NAME' adds scores to a file of texts."
        )
    return shared


def compared(score: str, systems: Systems, mode: Mode | None) -> Comparison:
    """Compare two systems in one score."""
    first, second = (scores[score] for scores in systems.values())
    items = [item for item in first if item in second]
    outputs = [[np.array(table[item]) for item in items] for table in (first, second)]
    values = np.array([[valid_mean(own) for own in side] for side in outputs])
    rates = np.array([[np.isnan(own).mean() for own in side] for side in outputs])
    finite = np.isfinite(values).all(axis=0)
    a, b = values[:, finite]
    # One value for all items, such as Distinct of all texts: there is nothing to test.
    alike = len(a) > 1 and np.ptp(a) == 0 == np.ptp(b)
    untested = alike and (a[0] % 1 or b[0] % 1)
    value, low, high, *_ = paired_difference(a, minus=b, level=LEVEL)
    return Comparison(
        score,
        mode,
        len(a),
        int((~finite).sum()),
        dict(zip(systems, rates.mean(axis=1).tolist(), strict=True)),
        two_sided_p_value(rates[0] - rates[1]),
        {name: valid_mean(side) for name, side in zip(systems, (a, b), strict=True)},
        value,
        low,
        high,
        math.nan if untested else two_sided_p_value(a - b),
        detectable_difference(b, a, LEVEL),
    )


def sentence(comparison: Comparison) -> str:
    """Return what the comparison of two systems shows, in words."""
    better, words = _verdict(comparison)
    rates, p_value = comparison.fail_rates, comparison.fail_p_value
    more, less = sorted(rates, key=lambda name: -rates[name])
    if not rates[more]:
        return words
    failed = f"{more} failed on {100 * rates[more]:.0f} %, {less} on {100 * rates[less]:.0f} %"
    if p_value > LEVEL:
        return f"{words}; {failed}"
    no_winner = ", so neither is better" if better == more else ""
    return f"{words}; but {failed} (p = {p_value:.2g}){no_winner}"


def _verdict(comparison: Comparison) -> tuple[str | None, str]:
    """Return the better system by the items that both have, None if not shown, and the words."""
    score, mode, items, _, _, _, means, difference, low, high, p_value, detectable = comparison
    first, second = means
    of = f" in {score}"
    if math.isnan(p_value):
        return None, f"{first} and {second} have one value each{of}, for all items: no test"
    if p_value > LEVEL or not math.isfinite(low):
        apart = f"{first} and {second} can't be told apart{of} with"
        if items < LEAST:
            return None, f"{apart} {counted(items, 'item')}, at least {LEAST} are needed"
        if not detectable:
            return None, f"{apart} {items} items"
        return None, (
            f"{apart} {items} items, which show {_number(detectable)} or more; about {4 * items} "
            f"would show half of it (p = {p_value:.2g})"
        )
    better, worse = (second, first) if (difference < 0) != (mode == "min") else (first, second)
    ends = [difference, low, high] if difference > 0 else [-difference, -high, -low]
    value, lower, upper = (_number(end, ends[0]) for end in ends)
    word = "better" if mode else "higher"
    both = " where both have a score" if comparison.failed else ""
    amount = f"{value} ({lower} to {upper}){both}"
    return better, f"{better} is {word} than {worse}{of} by {amount}, p = {p_value:.2g}"


def _number(value: float, like: float | None = None) -> str:
    """Return a number with three digits, or as many decimals as another one."""
    size = abs(value if like is None else like)
    decimals = 2 - math.floor(math.log10(size)) if size else 2
    return f"{value:z.{min(max(decimals, 0), 6)}f}" if math.isfinite(value) else "–"
