"""Failed samples and wrong data, by row."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

log = logging.getLogger(__name__)

_SHOWN = 3  # failures that a warning names


class ItemError(ValueError):
    """An item of a column of `Samples` is wrong: `labels[2] = 'pos' is not a label`.

    Attributes:
        column: Name of the column.
        row: Index of the sample, in what the caller passed.
        problem: What is wrong with the item: what follows its name in the message.

    Examples:
        >>> from ctrlreward import Samples
        >>> try:
        ...     Samples(["The soup"], prefixes=["The tea"])
        ... except ItemError as error:
        ...     error.column, error.row
        ('prefixes', 0)
    """

    def __init__(self, column: str, row: int, problem: str) -> None:
        super().__init__(column, row, problem)
        self.column, self.row, self.problem = column, row, problem

    def __str__(self) -> str:
        """Return the message."""
        return f"{self.column}[{self.row}] {self.problem}"


class UnreadableText(ValueError):
    """A text of a sample that no model may read as it stands; `score` makes it a failure."""


@contextmanager
def rows_named(places: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[None]:
    """Name the place of an `ItemError` raised inside: `reviews.csv:417: mood = 'pos' is not …`.

    `places` has one per row, `columns` the caller's names of columns of `Samples`.
    """
    try:
        yield
    except ItemError as error:
        column = (columns or {}).get(error.column, error.column)
        raise ValueError(f"{places[error.row]}: {column} {error.problem}") from None


class Failures(dict[int, str]):
    """Why scores of samples are NaN: row → reason, such as `"the text is empty"`.

    Examples:
        >>> failures = Failures({2: "the text is empty"})
        >>> failures.add(2, "it has no prefix")
        >>> failures
        {2: 'the text is empty, it has no prefix'}
    """

    def add(self, row: int, reason: str) -> None:
        """Add a reason to the others of a row."""
        known = self.get(row)
        self[row] = reason if known is None or known == reason else f"{known}, {reason}"

    def warn(self, samples: int, places: Sequence[str] | None = None) -> None:
        """Log one warning that counts the failures and names the first ones, if there are any.

        `places` are the caller's names of the rows, such as lines of a file.
        """
        if not self:
            return
        rows = sorted(self)
        shown = [f"{places[i] if places else f'texts[{i}]'}: {self[i]}" for i in rows[:_SHOWN]]
        more = f"; and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        log.warning(
            "%d of %d samples have a score that is NaN: %s%s",
            *(len(self), samples, "; ".join(shown), more),
        )
