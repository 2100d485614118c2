"""Diversity of generated texts: Distinct-n over the outputs to one prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np


def distinct_n(
    token_sequences: Sequence[Sequence[int]], n: int, groups: Sequence[Hashable] | None = None
) -> float:
    """Distinct-n: unique n-grams over total tokens in each group, then the groups' mean.

    Li et al. (2016), https://arxiv.org/abs/1510.03055, with the denominator of theirs:
    tokens, whatever n is. So taken, over the outputs to one prefix, it gives the figures that
    studies of multi-aspect control report. N-grams don't reach from one sequence into the next.

    Args:
        token_sequences: Token ids of each text, the prefix's included.
        n: Length of the n-grams.
        groups: What each sequence answers (its prefix, say); None puts all into one group.

    Returns:
        0 to 1, higher is more diverse. Groups without tokens are left out of the mean; NaN where
        no group has any.

    Raises:
        ValueError: n is not positive, or groups and sequences are not equally many.
    """
    values = distinct_by_group(token_sequences, n, groups).values()
    present = [value for value in values if not np.isnan(value)]
    return float(np.mean(present)) if present else float("nan")


def distinct_by_group(
    token_sequences: Sequence[Sequence[int]], n: int, groups: Sequence[Hashable] | None = None
) -> dict[Hashable, float]:
    """Each group's own Distinct-n, which `distinct_n` averages; NaN for a group without tokens.

    Args, range and errors are those of `distinct_n`.
    """
    if n < 1:
        raise ValueError(f"n = {n}: give the length of the n-grams, 1 or more")
    if groups is None:
        groups = [None] * len(token_sequences)
    if len(groups) != len(token_sequences):
        raise ValueError(
            f"groups has {len(groups)} items and token_sequences has {len(token_sequences)}: "
            "give one group per sequence"
        )
    own: dict[Hashable, list[Sequence[int]]] = {}
    for group, sequence in zip(groups, token_sequences, strict=True):
        own.setdefault(group, []).append(sequence)
    return {group: _distinct(sequences, n) for group, sequences in own.items()}


def _distinct(sequences: Sequence[Sequence[int]], n: int) -> float:
    """Distinct-n of one group: the set of one group at a time stays in the processor's cache."""
    seen: set[tuple[int, ...]] = set()
    for sequence in sequences:
        seen.update(zip(*(sequence[start:] for start in range(n)), strict=False))
    tokens = sum(map(len, sequences))
    return len(seen) / tokens if tokens else float("nan")
