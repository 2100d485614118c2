"""What an example prints against what it shows: numbers within a tolerance, all other text exactly.

A number with a point or an exponent is compared by its value: processors differ in the last digit,
and an array is printed with as many digits as its longest element needs. Whole numbers, nan and inf
are text. `...` stands for any text; after digits, for the further digits of that number.
"""

from __future__ import annotations

import doctest
import math
import re

# Relative and absolute. float32 has 7 digits; an example rounds what has fewer.
TOLERANCE = 1e-6

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_TRUE_FOR_1

# Parts of names, versions and addresses are no numbers.
_NUMBER = r"(?<![\w.])[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)(?!\.?\w)"
_SHOWN = re.compile(rf"(?P<cut>(?<![\w.])[-+]?\d+\.\d+)\.\.\.|(?P<number>{_NUMBER})|\.\.\.")


class PrintedNumbers(doctest.OutputChecker):
    """Checker of all examples; `FLAGS` go with it."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Return True if the printed text is the shown one."""
        return super().check_output(want, got, optionflags) or _alike(want, got)


def _alike(shown: str, printed: str) -> bool:
    shown, printed = _one_line(shown), _one_line(printed)
    pattern, limits, end = "", [], 0
    for match in _SHOWN.finditer(shown):
        pattern += re.escape(shown[end : match.start()])
        end = match.end()
        if match[0] == "...":
            pattern += ".*?"
        else:
            pattern += f"({_NUMBER})"
            limits.append(_limits(match["cut"] or match["number"], match["cut"] is not None))
    found = re.fullmatch(pattern + re.escape(shown[end:]), printed)
    return found is not None and all(
        low <= float(number) <= high
        for number, (low, high) in zip(found.groups(), limits, strict=True)
    )


def _one_line(text: str) -> str:
    """Drop line breaks and the blanks by which an array is justified."""
    text = " ".join(text.split())
    text = re.sub(r"(?<=\[) (?=[-+]?(?:\.?\d|nan|inf))", "", text)
    return re.sub(r"(?<=[\d.]) (?=[\],])", "", text)


def _limits(shown: str, cut: bool) -> tuple[float, float]:
    """Return the least and the largest number that a shown one stands for."""
    value = float(shown)
    further = 10.0 ** -len(shown.partition(".")[2]) if cut else 0.0
    ends = sorted((value, value + math.copysign(further, value)))
    tolerance = TOLERANCE * max(1.0, abs(value))
    return ends[0] - tolerance, ends[1] + tolerance
