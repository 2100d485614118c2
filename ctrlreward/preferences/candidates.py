"""Completions of one prompt compared by a reward: the best one, and preference pairs."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ctrlreward.arguments import not_negative, positive
from ctrlreward.files import json_line, whole_file
from ctrlreward.reward import RewardLike, as_reward
from ctrlreward.samples import MissingColumn, Samples, SamplesLike, as_samples, shortened
from ctrlreward.scorers.base import Scores

if TYPE_CHECKING:
    from ctrlreward.completion import Generator

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The best completion of each prompt, in the order in which the prompts come first.

    `totals` are their rewards, shape (prompts,), NaN if no completion of the prompt has one; `rows`
    their rows among the completions.
    """

    samples: Samples
    totals: Scores
    rows: list[int]


def best_of_n(
    reward: RewardLike,
    samples: SamplesLike,
    model: Generator | None = None,
    n: int = 8,
    seed: int = 0,
    **columns: Any,
) -> Best:
    """Return the completion of each prompt with the highest reward.

    Args:
        reward: A reward, or the arguments of `Reward`.
        samples: Completions, or with a `model` the prompts, as `as_samples` converts them with
            `columns`. Completions of one prompt have the same group, else the same prompt, else
            the same prefix; without these columns, all are of one prompt.
        model: Completes each prompt `n` times, with `seed`: a function from prompts to completions,
            or an object with `complete` or `complete_samples`.
        n: Completions of each prompt by the model.
        seed: Seed of the model's random numbers.
        columns: Further columns.

    Examples:
        >>> def brevity(texts):
        ...     return [-float(len(text)) for text in texts]
        >>> best_of_n(brevity, ["The soup was good.", "Good soup."]).samples.texts
        ('Good soup.',)
        >>> def model(prompts):
        ...     return [" was good"[: 4 + i] for i in range(len(prompts))]
        >>> best_of_n(brevity, ["The soup", "The view"], model, n=2).samples.texts
        ('The soup was', 'The view was g')
    """
    from ctrlreward.completion import generate  # with torch

    positive("n", n)
    given = as_samples(samples, **columns)
    candidates = given if model is None else generate(model, given, n, seed)
    totals = as_reward(reward)(candidates).total
    clusters = candidates.groups or candidates.prompts or candidates.prefixes
    rows_of = rows_by_prompt(clusters or [""] * len(candidates))
    # A failed completion loses to any other.
    rows = [max(rows, key=lambda i: np.nan_to_num(totals[i], nan=-np.inf)) for rows in rows_of]
    failed = int(np.isnan(totals[rows]).sum())
    if failed:
        log.warning("%d of %d prompts have no completion with a reward", failed, len(rows))
    return Best(candidates[rows], totals[rows], rows)


class PreferencePairs(NamedTuple):
    """Rows of the chosen and of the rejected completions; `failed` had no reward."""

    chosen: list[int]
    rejected: list[int]
    failed: int


def write_pairs(
    path: Path,
    samples: Samples,
    totals: Scores,
    per_prompt: int = 1,
    margin: float = 0.0,
    chat: bool = False,
) -> PreferencePairs:
    """Write pairs as TRL's `DPOTrainer` and `RewardTrainer` read them, and return them.

    The best completion of a prompt is paired with its worst, the second best with the second worst,
    …: none is both chosen and rejected. A JSON object per line: `prompt`, `chosen`, `rejected`, and
    the rewards of both. A ValueError names a number out of range, and labels of a prompt that
    differ: the text chosen for one would be rejected for the other.

    Args:
        path: The file, which appears whole or not at all.
        samples: n completions with `prompts` or `prefixes`. Of equal ones of a prompt, the first
            counts.
        totals: Reward of each, shape (n,), higher is better; NaN if it failed. An empty completion
            has none.
        per_prompt: Most pairs of a prompt, 1 or more.
        margin: A pair whose rewards differ by no more than this is left out; 0 or more.
        chat: Whether to write messages of user and assistant, not strings.
    """
    positive("per_prompt", per_prompt)
    not_negative("margin", margin)
    prompts = samples.prompts or samples.prefixes
    if prompts is None:
        raise MissingColumn("prompts", "write_pairs", samples.columns())
    first: dict[str, str] = {}
    for prompt, label in zip(prompts, samples.labels or (), strict=samples.labels is not None):
        if first.setdefault(prompt, label) != label:
            raise ValueError(
                f"labels of the prompt {shortened(prompt)} must be equal, got {first[prompt]!r} "
                f"and {label!r}: state the label in the prompt"
            )
    texts = samples.completions
    totals = np.where([bool(text.strip()) for text in texts], totals, np.nan)
    pairs, failed = list[tuple[int, int]](), 0
    for rows in rows_by_prompt(prompts):
        different = {texts[i]: i for i in reversed(rows)}  # the first row of each text
        scored = [i for i in different.values() if np.isfinite(totals[i])]
        failed += len(different) - len(scored)
        ranked = sorted(scored, key=lambda i: (-totals[i], i))
        ends = [(ranked[k], ranked[-1 - k]) for k in range(min(per_prompt, len(ranked) // 2))]
        pairs += [(i, j) for i, j in ends if totals[i] - totals[j] > margin]

    def said(role: str, text: str) -> Any:
        return [{"role": role, "content": text.strip()}] if chat else text

    with whole_file(path) as file:
        for best, worst in pairs:
            row = {
                "prompt": said("user", prompts[best]),
                "chosen": said("assistant", texts[best]),
                "rejected": said("assistant", texts[worst]),
                "chosen_reward": totals[best],
                "rejected_reward": totals[worst],
            }
            file.write(json_line(row).encode())
    return PreferencePairs([i for i, _ in pairs], [j for _, j in pairs], failed)


def rows_by_prompt(prompts: Sequence[Hashable]) -> list[list[int]]:
    """Return the rows of each prompt, in the order of the first ones."""
    rows: dict[Hashable, list[int]] = {}
    for i, prompt in enumerate(prompts):
        rows.setdefault(prompt, []).append(i)
    return list(rows.values())
