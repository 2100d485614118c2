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
    """The best completion of each prompt.

    Attributes:
        samples: One sample per prompt, in the order in which the prompts come first.
        totals: Reward of each, shape (prompts,); NaN if no completion of the prompt has one.
        rows: Row of each among the completions.
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
        model: Completes each prompt n times: a function from prompts to completions, or an object
            with `complete` or `complete_samples`.
        n: Completions of each prompt by the model.
        seed: Seed of the model's random numbers.
        columns: Further columns.

    Raises:
        ValueError: n is less than 1, or the model can't complete the prompts.

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
    """Rows of the chosen and of the rejected completion of each pair.

    `failed` is the number of different completions without a reward.
    """

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
    the rewards of both completions.

    Args:
        path: The file, which appears whole or not at all.
        samples: n completions with `prompts` or `prefixes`. Of equal ones of a prompt, the first
            counts.
        totals: Reward of each, shape (n,), higher is better; NaN if it failed. An empty completion
            has none.
        per_prompt: Most pairs of a prompt, 1 or more.
        margin: A pair whose rewards differ by no more than this is left out; 0 or more.
        chat: Whether to write messages of user and assistant, not strings.

    Raises:
        ValueError: There are no prompts, a number is out of range, or completions of one prompt
            have different labels: the text chosen for one would be rejected for the other.
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
    pairs = PreferencePairs([], [], 0)
    for rows in rows_by_prompt(prompts):
        different = {texts[i]: i for i in reversed(rows)}  # the first row of each text
        scored = [i for i in different.values() if np.isfinite(totals[i])]
        pairs = pairs._replace(failed=pairs.failed + len(different) - len(scored))
        ranked = sorted(scored, key=lambda i: (-totals[i], i))
        for k in range(min(per_prompt, len(ranked) // 2)):
            best, worst = ranked[k], ranked[-1 - k]
            if totals[best] - totals[worst] > margin:
                pairs.chosen.append(best)
                pairs.rejected.append(worst)
    with whole_file(path) as file:
        for best, worst in zip(pairs.chosen, pairs.rejected, strict=True):
            row: dict[str, Any] = {
                "prompt": prompts[best],
                "chosen": texts[best],
                "rejected": texts[worst],
            }
            if chat:
                for name, text in row.items():
                    role = "user" if name == "prompt" else "assistant"
                    row[name] = [{"role": role, "content": text.strip()}]
            row |= {"chosen_reward": totals[best], "rejected_reward": totals[worst]}
            file.write(json_line(row).encode())
    return pairs


def rows_by_prompt(prompts: Sequence[Hashable]) -> list[list[int]]:
    """Return the rows of each prompt, in the order of the first ones."""
    rows: dict[Hashable, list[int]] = {}
    for i, prompt in enumerate(prompts):
        rows.setdefault(prompt, []).append(i)
    return list(rows.values())
