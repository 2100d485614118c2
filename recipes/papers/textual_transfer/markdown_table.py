"""Tables in Markdown, with numbers as the paper's tables print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

_DIGITS = {"accuracy": 3, "similarity": 3, "perplexity": 1, "gm": 1, "bleu": 1, "meteor": 1}
FIGURES = tuple(_DIGITS)
HEADINGS = ("Acc", "Sim", "PP", "GM", "BLEU", "METEOR")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns of equal width; all but the first are aligned to the right.

    Examples:
        >>> print(markdown_table(["model", "Acc"], [["M0", "0.818"]]))
        | model |   Acc |
        |:------|------:|
        | M0    | 0.818 |
    """
    header, *rows = ([cell.replace("|", r"\|") for cell in row] for row in (header, *rows))
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    first, *others = widths
    rule = "|".join([":" + "-" * (first + 1), *("-" * (width + 1) + ":" for width in others)])
    return "\n".join([line(header), f"|{rule}|", *map(line, rows)])


def cells(figures: Mapping[str, float | None], names: Sequence[str] = FIGURES) -> list[str]:
    """Return figures as the paper prints them, "" for one that is absent, null or NaN.

    Examples:
        >>> cells({"accuracy": 0.8179, "perplexity": 37.31, "gm": None})
        ['0.818', '', '37.3', '', '', '']
    """
    values = ((name, figures.get(name)) for name in names)
    return [
        "" if value is None or not isfinite(value) else f"{value:.{_DIGITS[name]}f}"
        for name, value in values
    ]
