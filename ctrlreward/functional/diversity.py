"""Diversity of generated texts: Distinct-n of groups, and repetition within a text."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from ctrlreward.functional.means import valid_mean

Gram = TypeVar("Gram", bound=Hashable)


def distinct_n(
    token_sequences: Sequence[Sequence[int]], n: int, groups: Sequence[Hashable] | None = None
) -> float:
    """Return Distinct-n, the unique n-grams per token of each group, averaged over groups.

    Li et al. (2016), https://arxiv.org/abs/1510.03055. `token_sequences` are token ids of each
    text, including its prefix; `groups` the group of each, for example its prefix, None for one
    group. The denominator is the number of tokens for every n, not the number of n-grams. It falls
    with the number of texts and with their length.

    0 to 1; higher is more diverse. Groups without tokens are left out; NaN if no group has any. A
    ValueError if n is less than 1, or the lengths differ.

    Examples:
        >>> distinct_n([[7, 8], [7, 7]], n=1, groups=["the food", "a dog"])  # (1 + 0.5) / 2
        0.75
    """
    values = distinct_by_group(token_sequences, n, groups).values()
    return valid_mean(np.array(list(values), dtype=np.float64))


def distinct_by_group(
    token_sequences: Sequence[Sequence[int]], n: int, groups: Sequence[Hashable] | None = None
) -> dict[Hashable, float]:
    """Return `distinct_n` of each group, 0 to 1; NaN for a group without tokens."""
    check_length(n)
    groups = [None] * len(token_sequences) if groups is None else groups
    if len(groups) != len(token_sequences):
        raise ValueError(
            f"groups must have an item per sequence, got {len(groups)} for {len(token_sequences)}"
        )
    members: dict[Hashable, list[Sequence[int]]] = {}
    for group, sequence in zip(groups, token_sequences, strict=True):
        members.setdefault(group, []).append(sequence)
    values = {}
    for group, sequences in members.items():
        # One set per group is small enough for the processor's cache.
        grams: set[tuple[int, ...]] = set()
        for sequence in sequences:
            grams.update(_grams(sequence, n))
        tokens = sum(map(len, sequences))
        values[group] = len(grams) / tokens if tokens else float("nan")
    return values


def repetition(ids: Sequence[Hashable], n: int) -> float:
    """Return the share of a text's n-grams that repeat an earlier one, 1 - distinct / total.

    seq-rep-n of Welleck et al. (2020), https://arxiv.org/abs/1908.04319. 0 to below 1; lower is
    better. NaN for fewer than n tokens; a ValueError for n below 1.

    Examples:
        >>> repetition([7, 8, 7, 8, 7], n=2)  # 78 87 78 87
        0.5
    """
    check_length(n)
    grams = list(_grams(ids, n))
    return 1 - len(set(grams)) / len(grams) if grams else float("nan")


def check_length(n: int) -> None:
    """Raise a ValueError unless n-grams can have n tokens."""
    if n < 1:
        raise ValueError(f"n, the length of the n-grams, must be 1 or more, got {n}")


def _grams(ids: Sequence[Gram], n: int) -> Iterator[tuple[Gram, ...]]:
    return zip(*(ids[start:] for start in range(n)), strict=False)
