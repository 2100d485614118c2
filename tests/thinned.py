"""Rows of a product that `make test` runs, and the ones that `make soak` runs alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def thinned(
    names: Iterable[str], variants: Sequence[Any], whole: Collection[str] = ()
) -> list[Any]:
    """Return each name with one of the variants, in turn, and as `soak` with the others.

    The names in `whole` have all variants.
    """
    return [
        pytest.param(name, variant, marks=[] if kept else pytest.mark.soak)
        for i, name in enumerate(names)
        for j, variant in enumerate(variants)
        if (kept := name in whole or j == i % len(variants)) or True
    ]


def every(step: int, rows: Iterable[Any]) -> list[Any]:
    """Return rows, all but every `step`th one as `soak`."""
    return [
        pytest.param(row, marks=[] if i % step == 0 else pytest.mark.soak)
        for i, row in enumerate(rows)
    ]
