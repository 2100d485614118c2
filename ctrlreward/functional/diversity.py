"""Diversity of generated texts: Distinct-n over all generations for one prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ctrlreward.functional.means import valid_mean


def distinct_n(
    token_sequences: Sequence[Sequence[int]], n: int, groups: Sequence[Hashable] | None = None
) -> float:
    """Return Distinct-n, the unique n-grams per token of each group, averaged over groups.

    Li et al. (2016), https://arxiv.org/abs/1510.03055. The denominator is their number of tokens
    for every n, not the number of n-grams. With one group per prefix this gives the figures that
    studies of multi-aspect control report. N-grams do not cross sequence boundaries.

    Args:
        token_sequences: Token ids of each text, including those of its prefix.
        n: Length of the n-grams.
        groups: Group of each sequence, for example its prefix; None puts all into one group.

    Returns:
        0 to 1; higher is more diverse. Groups without tokens are left out of the mean; NaN if no
        group has any.

    Raises:
        ValueError: n is less than 1, or the lengths of `groups` and `token_sequences` differ.

    Examples:
        >>> distinct_n([[7, 8, 7, 8]], n=1), distinct_n([[7, 8, 7, 8]], n=2)
        (0.5, 0.5)
        >>> distinct_n([[7, 8], [7, 7]], n=1, groups=["the food", "a dog"])  # (1 + 0.5) / 2
        0.75
    """
    values = distinct_by_group(token_sequences, n, groups).values()
    return valid_mean(np.array(list(values), dtype=np.float64))


def distinct_by_group(
    token_sequences: Sequence[Sequence[int]], n: int, groups: Sequence[Hashable] | None = None
) -> dict[Hashable, float]:
    """Return Distinct-n of each group, 0 to 1; NaN for a group without tokens.

    Takes the arguments of `distinct_n`, which averages these values, and raises its errors.

    Examples:
        >>> distinct_by_group([[7, 8], [7, 7]], n=1, groups=["the food", "a dog"])
        {'the food': 1.0, 'a dog': 0.5}
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
    members: dict[Hashable, list[Sequence[int]]] = {}
    for group, sequence in zip(groups, token_sequences, strict=True):
        members.setdefault(group, []).append(sequence)
    values = {}
    for group, sequences in members.items():
        # One set per group is small enough for the processor's cache.
        seen: set[tuple[int, ...]] = set()
        for sequence in sequences:
            seen.update(zip(*(sequence[start:] for start in range(n)), strict=False))
        tokens = sum(map(len, sequences))
        values[group] = len(seen) / tokens if tokens else float("nan")
    return values
