"""Blinded sheets on which people compare outputs of style transfer systems in pairs.

Table 4 of Pang & Gimpel (2019). `python -m …preference_sheet --system m0=FILE
--system m2=FILE --output FOLDER` writes `sheet.csv` for the judges and `key.csv`, which they don't
see; `win_rates` reads filled sheets.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser

from ctrlreward.files import write_whole
from ctrlreward.recipes.papers.li2018.system_outputs import named_files, output_rows
from ctrlreward.recipes.text_files import matching_key
from ctrlreward.tables.rows import encode_rows

QUESTIONS = {
    "transfer": "which output has the target style",
    "semantics": "which output keeps the meaning of the source",
    "fluency": "which output is the more fluent sentence",
}
"""Column of a sheet → question that it answers with A, B or tie."""

# Source and target style of a sentence, as they are compared, → source, output, target style.
_Outputs = dict[tuple[str, str | None], tuple[str, str, str | None]]


class _Item(NamedTuple):
    """One row: a source, the systems of sides A and B, and the pair in its order.

    Attributes:
        pair: The two systems in the given order.
        sides: The same in the order of A and B.
        source: The sentence that was rewritten.
        target: Its target style; "" where a file has none.
        texts: Outputs of A and of B.
    """

    pair: tuple[str, str]
    sides: tuple[str, str]
    source: str
    target: str
    texts: tuple[str, str]

    def code(self, seed: int) -> str:
        """Return a name of the row that does not reveal the systems and is unique to this sheet."""
        return hashlib.sha256(json.dumps([seed, *self]).encode()).hexdigest()[:12]


def write_preference_sheet(
    systems: Sequence[tuple[str, Path]],
    folder: Path,
    pairs: Sequence[tuple[str, str]] = (),
    count: int = 120,
    seed: int = 0,
) -> None:
    """Write `sheet.csv` and `key.csv`.

    Rows of all pairs are mixed, and each system of a pair is A in half of its rows. The sheet has
    `item`, `source`, `target`, the outputs `A` and `B`, and an empty column for each of
    `QUESTIONS`. The key has `item`, the systems `A` and `B`, and `first` and `second`, the pair.

    Args:
        systems: Name and file of each system; see `read_outputs` for the files.
        folder: Where to write; it is created.
        pairs: Names of the systems to compare; all pairs if empty.
        count: Sentences of each pair, drawn from those that both systems have rewritten in the same
            style. Table 4 has 120 or more.
        seed: Seed of the draws, sides and order; the same seed gives the same sheet.

    Raises:
        ValueError: A system is given twice or not at all, a file has a sentence twice, or a pair
            does not name two of the systems or has fewer than `count` sentences in common.
    """
    if count < 1:
        raise ValueError(f"count must be 1 or more, got {count}")
    outputs: dict[str, _Outputs] = {}
    for name, file in systems:
        if name in outputs:
            raise ValueError(f"system {name!r} must be given once, got it twice")
        outputs[name] = _read(file)
    pairs = list(dict.fromkeys(pairs)) or list(combinations(outputs, 2))
    if not pairs:
        raise ValueError(f"there must be two systems or more, got {len(outputs)}")
    draws = random.Random(seed)
    rows = [item for pair in pairs for item in _items(outputs, pair, count, draws)]
    draws.shuffle(rows)
    sheet, key = [], []
    for row in rows:
        code, (a, b) = row.code(seed), row.texts
        shown = {"item": code, "source": row.source, "target": row.target, "A": a, "B": b}
        sheet.append({**shown, **dict.fromkeys(QUESTIONS, "")})
        (first, second), (a, b) = row.pair, row.sides
        key.append({"item": code, "A": a, "B": b, "first": first, "second": second})
    write_whole(folder / "sheet.csv", encode_rows(".csv", sheet, {}))
    write_whole(folder / "key.csv", encode_rows(".csv", key, {}))


def main(arguments: Sequence[str]) -> None:
    """Write a sheet and its key, and print their paths and the questions."""
    parser = ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    outputs = "JSONL of outputs, such as transfers.jsonl of a run; two or more"
    parser.add_argument("--system", metavar="NAME=FILE", help=outputs, **several)
    compared = "two systems to compare; may be repeated, and is every pair by default"
    parser.add_argument("--pair", metavar="NAME", nargs=2, help=compared, **several)
    parser.add_argument("--count", type=int, default=120, help="sentences of each pair")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", metavar="FOLDER", required=True)
    options = parser.parse_args(arguments)
    folder = Path(options.output)
    pairs = [(first, second) for first, second in options.pair]
    try:
        systems = named_files(options.system)
        write_preference_sheet(systems, folder, pairs, options.count, options.seed)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{folder}/sheet.csv: answer each question with A, B or tie")
    for column, question in QUESTIONS.items():
        print(f"  {column:<10}{question}")
    print(f"{folder}/key.csv is for win_rates. Do not show it to the judges.")


def _read(file: Path) -> _Outputs:
    outputs: _Outputs = {}
    for row in output_rows(file):
        source, _, label = row
        if outputs.setdefault((matching_key(source), label), row) is not row:
            raise ValueError(f"{file} must have each sentence once, got {source!r} twice")
    return outputs


def _items(
    outputs: dict[str, _Outputs], pair: tuple[str, str], count: int, draws: random.Random
) -> list[_Item]:
    """Draw the rows of one pair of systems."""
    for name in pair:
        if name not in outputs:
            raise ValueError(f"a pair must be of {', '.join(outputs)}, got {name!r}")
    if pair[0] == pair[1]:
        raise ValueError(f"a pair must be of two systems, got {pair[0]!r} twice")
    first, second = (outputs[name] for name in pair)
    common = [key for key in first if key in second]
    if len(common) < count:
        raise ValueError(
            f"{pair[0]} and {pair[1]} must have {count} sentences in common, got {len(common)}. "
            "Lower the count."
        )
    swapped = draws.sample([i % 2 for i in range(count)], count)
    rows = []
    for key, swap in zip(draws.sample(common, count), swapped, strict=True):
        step = -1 if swap else 1
        source, _, label = first[key]
        names, texts = pair[::step], (first[key][1], second[key][1])[::step]
        rows.append(_Item(pair, (names[0], names[1]), source, label or "", (texts[0], texts[1])))
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
