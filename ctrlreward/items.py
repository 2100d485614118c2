"""Names of items in messages: `labels[2]` of a scorer becomes the user's row; counts of items."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from ctrlreward.samples import JSON_KEYS

# Column of `Samples` and an index of it → name for messages.
ItemName: TypeAlias = Callable[[str, int], str]

_ITEM = re.compile(rf"\b({'|'.join(JSON_KEYS)})\[(\d+)\]")

_RENAMED = "_ctrlreward_items_renamed"  # attribute of a record

# From the innermost to the outermost.
_NAMES: ContextVar[tuple[ItemName, ...]] = ContextVar("names", default=())


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: `"1 pair"`, `"2 pairs"`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def items_named(name: ItemName) -> Iterator[None]:
    """Rename the items of samples in errors that are raised inside, and in warnings.

    Warnings are renamed if their logger is an `item_logger`, or their handler has an `ItemFilter`.
    """
    token = _NAMES.set((name, *_NAMES.get()))
    try:
        yield
    except Exception as error:
        error.args = tuple(_renamed(a, name) if isinstance(a, str) else a for a in error.args)
        raise
    finally:
        _NAMES.reset(token)


@dataclass(frozen=True)
class ItemPlaces:
    """Names items of samples by the places of their rows: `reviews.jsonl:417: sentiment`.

    `columns` maps columns of `Samples` to their names in the file.
    """

    places: Sequence[str]
    columns: Mapping[str, str]

    def __call__(self, column: str, i: int) -> str:
        """Return the name of one item."""
        name = self.columns.get(column, JSON_KEYS[column])
        return f"{self.places[i]}: {name}" if i < len(self.places) else f"{name}[{i}]"


def names_item(message: str) -> bool:
    """Return True if a message names an item of samples by its index."""
    return bool(_ITEM.search(message))


class ItemFilter(logging.Filter):
    """Filter of a logger or a handler that renames items as `items_named` says; passes all."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rename the items in the message of a record, once."""
        names = _NAMES.get()
        if names and _RENAMED not in vars(record):
            message = record.getMessage()
            for name in names:
                message = _renamed(message, name)
            record.msg, record.args = message, ()
            vars(record)[_RENAMED] = True
        return True


def item_logger(module: str) -> logging.Logger:
    """Return the logger of a module whose warnings name items of samples."""
    logger = logging.getLogger(module)
    logger.addFilter(ItemFilter())
    return logger


def _renamed(message: str, name: ItemName) -> str:
    return _ITEM.sub(lambda item: name(item[1], int(item[2])), message)
