"""Win rates of style transfer systems from filled preference sheets.

Table 4 of Pang & Gimpel (2019). `python -m …win_rates SHEET... --key FILE --output FOLDER`
reads sheets of `preference_sheet` and writes `win_rates.md` and `win_rates.json`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jsonargparse import ArgumentParser

from ctrlreward.files import finite_or_none, write_whole
from ctrlreward.functional.bootstrap import (
    Estimate,
    Floats,
    bootstrap,
    cluster_numbers,
)
from ctrlreward.recipes.papers.li2018.preference_sheet import QUESTIONS
from ctrlreward.recipes.papers.textual_transfer.markdown_table import markdown_table
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED
from ctrlreward.tables.rows import CsvRow, decode_utf8, parse_csv, read_bytes

_METRICS = {"semantics": "ΔSim", "fluency": "ΔPP"}
_MODEL = re.compile(r"m[0-7](?![0-9])", re.IGNORECASE)


class WinRates(NamedTuple):
    """Judgements of one question about two systems.

    Attributes:
        first: Name of a system.
        second: Name of the other one.
        question: One of `QUESTIONS`.
        judgements: Number of answers; several people may have judged the same row.
        first_better: Share of answers for the first system, 0 to 1, with its 95 % interval.
        second_better: The same for the second system.
        tie: The same for neither.
        difference: `first_better` - `second_better`, -1 to 1.
    """

    first: str
    second: str
    question: str
    judgements: int
    first_better: Estimate
    second_better: Estimate
    tie: Estimate
    difference: Estimate


def win_rates(
    key: Path, sheets: Sequence[Path], resamples: int = 10_000, seed: int = 0
) -> list[WinRates]:
    """Read filled sheets, and return the rates of each pair and question, in the key's order.

    An empty cell is not an answer. Intervals are percentile intervals over rows of the sheet: the
    answers of several people to one row are drawn together. If all rows agree, it is wider.

    Args:
        key: `key.csv` of the sheet.
        sheets: A filled copy of `sheet.csv` for each person.
        resamples: Number of draws of each interval, 1 or more.
        seed: Seed of the draws.

    Raises:
        ValueError: A file is not such a table, an answer is not A, B or tie, or a row is not in the
            key or is twice in one sheet; names file and line.
    """
    rows = {row["item"]: row for _, row in _rows(key, ("item", "A", "B", "first", "second"))}
    pairs = dict.fromkeys((row["first"], row["second"]) for row in rows.values())
    # Item and gain of each answer, by pair and question.
    judged: dict[tuple[str, str, str], list[tuple[str, int]]] = {
        (*pair, question): [] for pair in pairs for question in QUESTIONS
    }
    for sheet in sheets:
        for line, row in _rows(sheet, ("item", *QUESTIONS)):
            item = row["item"]
            if item not in rows:
                raise ValueError(f"{sheet}:{line}: the item must be one of {key}, got {item!r}")
            sides = rows[item]
            for question in QUESTIONS:
                answer = _answer(f"{sheet}:{line}: {question}", row[question])
                if answer:
                    gain = _gain(sides, answer)
                    judged[sides["first"], sides["second"], question].append((item, gain))
    return [
        WinRates(*which, len(answers), *_rates(answers, resamples, seed))
        for which, answers in judged.items()
    ]


def main(arguments: Sequence[str]) -> None:
    """Read the sheets, write both files, and print the table."""
    parser = ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("sheets", metavar="SHEET", nargs="+", help="filled sheet, one per person")
    parser.add_argument("--key", metavar="FILE", required=True, help="key.csv of the sheet")
    parser.add_argument("--output", metavar="FOLDER", required=True)
    options = parser.parse_args(arguments)
    try:
        found = win_rates(Path(options.key), [Path(sheet) for sheet in options.sheets])
    except (ValueError, OSError) as error:
        parser.error(str(error))
    text = _table(found)
    folder = Path(options.output)
    content = json.dumps([_plain(each) for each in found], indent=2, ensure_ascii=False)
    write_whole(folder / "win_rates.md", text + "\n")
    write_whole(folder / "win_rates.json", content + "\n")
    print(text)


def _rows(file: Path, columns: Sequence[str]) -> list[CsvRow]:
    """Return the rows of a table that has these columns and each item once."""
    header, rows = parse_csv(decode_utf8(read_bytes(file), file), file)
    missing = [column for column in columns if column not in header]
    if missing:
        raise ValueError(f"{file} must have the columns {', '.join(columns)}, got no {missing[0]}")
    lines: dict[str, int] = {}
    for line, row in rows:
        before = lines.setdefault(row["item"], line)
        if before != line:
            raise ValueError(
                f"{file}:{line}: an item must be there once, got {row['item']!r} in line {before} "
                "as well"
            )
    return rows


def _answer(place: str, cell: str) -> str:
    answer = cell.strip().upper()
    if answer not in ("A", "B", "TIE", ""):
        raise ValueError(f"{place} must be A, B or tie, got {cell!r}")
    return answer


def _gain(sides: Mapping[str, str], answer: str) -> int:
    """Return 1 where the answer prefers the first system, -1 the second, 0 neither."""
    if answer == "TIE":
        return 0
    return 1 if sides[answer] == sides["first"] else -1


def _rates(answers: Sequence[tuple[str, int]], resamples: int, seed: int) -> list[Estimate]:
    """Return first better, second better, tie, and the difference of the first two."""
    if not answers:
        return [Estimate(np.nan, np.nan, np.nan)] * 4
    items, gains = zip(*answers, strict=True)
    values = np.array(gains)

    def shares(weights: Floats) -> dict[str, Floats]:
        total = weights.sum(axis=1)
        parts = {str(sign): weights @ (values == sign) / total for sign in (1, -1, 0)}
        return {**parts, "difference": parts["1"] - parts["-1"]}

    members = cluster_numbers(items)
    rates = bootstrap(shares, members, 0.95, resamples, seed)
    lowest = {name: -1.0 if name == "difference" else 0.0 for name in rates}
    return [_unless_alike(r, int(members.max()) + 1, lowest[name]) for name, r in rates.items()]


def _unless_alike(rate: Estimate, rows: int, lowest: float) -> Estimate:
    """Return a wider interval if all rows of the sheet agree, which says nothing of other rows.

    With this confidence, a share of at least s = 0.025^(1 / rows) of all rows is like the drawn
    ones (Clopper and Pearson 1934). The others may have any value from `lowest` to 1.
    """
    if rate.low < rate.high:
        return rate
    share = 0.025 ** (1 / rows)
    low, high = (share * rate.value + (1 - share) * bound for bound in (lowest, 1.0))
    return Estimate(rate.value, low, high)


def _table(found: Sequence[WinRates]) -> str:
    shares = ["first better", "second better", "tie"]
    header = ["first, second", "question", "n", *shares, "difference", "in the paper"]
    body = [
        [
            f"{each.first}, {each.second}",
            each.question,
            str(each.judgements),
            *(_percent(rate) for rate in each[4:]),
            _published(each),
        ]
        for each in found
    ]
    return f"{markdown_table(header, body)}\n\nIn %, with 95 % intervals over rows of the sheet."


def _published(rates: WinRates) -> str:
    models = [_MODEL.search(name) for name in (rates.first, rates.second)]
    names = [model.group().upper() for model in models if model]
    found = []
    for row in PUBLISHED["table_4"]:
        corpus, *pair = row["pair"]
        if pair == names:
            shares, last = row[rates.question][:3], row[rates.question][3:]
            difference = "".join(f", {_METRICS[rates.question]} {x}" for x in last)
            found.append(f"{corpus} {' / '.join(map(str, shares))}{difference}")
    return "; ".join(found)


def _percent(rate: Estimate) -> str:
    if np.isnan(rate.value):
        return ""
    value, low, high = (f"{100 * part:.1f}" for part in rate)
    return f"{value} ({low} to {high})"


def _plain(rates: WinRates) -> dict[str, object]:
    """Return the rates as JSON values, null if undefined."""
    return {
        name: {end: finite_or_none(x) for end, x in value._asdict().items()}
        if isinstance(value, Estimate)
        else value
        for name, value in rates._asdict().items()
    }


if __name__ == "__main__":
    main(sys.argv[1:])
