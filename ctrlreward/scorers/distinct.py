"""Diversity of the texts that answer one prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from ctrlreward.functional.diversity import distinct_by_group
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.present import present, spread
from ctrlreward.weights.loading import load_tokenizer


class Distinct(Scorer):
    """Distinct-n of all texts of a sample's group, prefix included (see `distinct_n`).

    - `distinct_1`, `distinct_2`, `distinct_3`: unique n-grams over tokens, 0 to 1; higher is
      more diverse. Texts of one group all get the group's value.

    Groups are the column `groups`, or where it is absent `prefixes`. The value depends on all
    texts of the group at once and falls with the group's size: score a group whole, repeated
    texts included, and compare groups of one size.

    Args:
        tokenizer: Local folder, hub id or short name, or a tokenizer. The published figures of
            multi-aspect control are over GPT-2 tokens.
    """

    pointwise = False

    def __init__(self, tokenizer: str | PreTrainedTokenizerBase = "smollm2-135m") -> None:
        self.given = tokenizer

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """One score for each n."""
        return {
            f"distinct_{n}": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)) for n in (1, 2, 3)
        }

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, loaded at its first use where it was named."""
        return load_tokenizer(self.given) if isinstance(self.given, str) else self.given

    def score(self, samples: Samples) -> dict[str, Scores]:
        """The values of each sample's group, float64 of shape (n,).

        NaN, with a warning, where the sample's own text is empty.

        Raises:
            ValueError: The samples have neither `groups` nor `prefixes`.
        """
        column = samples.prefixes if samples.groups is None else samples.groups
        if column is None:
            column = samples.require("groups", "Distinct")
        kept = present("distinct_n", texts=samples.texts)
        texts = [samples.texts[i] for i in kept]
        ids: list[list[int]] = []
        if texts:  # transformers fails on an empty list
            ids = self.tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
        groups = [column[i] for i in kept]
        scores = {}
        for n in (1, 2, 3):
            values = distinct_by_group(ids, n, groups)
            scores[f"distinct_{n}"] = spread([values[g] for g in groups], kept, len(samples))
        return scores
