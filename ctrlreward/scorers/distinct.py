"""Diversity of the texts generated for one prompt."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from ctrlreward.arguments import checked_keywords
from ctrlreward.functional.diversity import distinct_by_group
from ctrlreward.models.control_tokens import text_reader
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec, nonempty, scatter
from ctrlreward.scorers.model_scorer import NEIGHBOURS
from ctrlreward.weights.loading import load_tokenizer


@checked_keywords(**NEIGHBOURS)
class Distinct(Scorer):
    """Distinct-n over all texts of a sample's group, prefix included (see `distinct_n`).

    - `distinct_1`, `distinct_2`, `distinct_3`: number of unique n-grams over number of tokens, 0
      to 1; higher is more diverse. All texts of a group get the value of the group.
    - `distinct`: mean of the three, as studies of multi-aspect control report it.

    Groups are the column `groups` or, if it is absent, `prefixes`; without either, all texts of a
    call are one group. The value depends on all texts of the group and decreases with its size:
    score whole groups, repeated texts included, and only compare groups of the same size.

    Args:
        model: Local folder, Hugging Face id or short name of the model whose tokens are counted,
            or a loaded tokenizer. Published figures of multi-aspect control use GPT-2 tokens.

    Examples:
        >>> texts = ["The soup was good.", "The soup was cold.", "The view"]
        >>> scores = Distinct("smollm2-135m").score(texts, groups=["soup", "soup", "view"])
        >>> first, second, _ = scores["distinct_2"]
        >>> bool(first == second)  # of one group
        True
    """

    pointwise = False
    of_groups = True
    specs = dict.fromkeys(
        ("distinct_1", "distinct_2", "distinct_3", "distinct"), ScoreSpec(True, (0.0, 1.0))
    )

    def __init__(self, model: str | PreTrainedTokenizerBase = "smollm2-135m") -> None:
        self.model = model

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, loaded at the first use."""
        return load_tokenizer(self.model) if isinstance(self.model, str) else self.model

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        """Return the values of each sample's group; NaN, with a warning, for an empty text."""
        column = samples.prefixes if samples.groups is None else samples.groups
        if column is None:
            column = [""] * len(samples)
        kept = nonempty("distinct_n", texts=samples.texts)
        texts = [samples.texts[i] for i in kept]
        ids: list[list[int]] = []
        if texts:  # a transformers tokenizer fails on an empty list
            reader = text_reader(self.tokenizer, texts)
            ids = reader(texts, add_special_tokens=False, verbose=False).input_ids
        groups = [column[i] for i in kept]
        scores = {}
        for n in (1, 2, 3):
            values = distinct_by_group(ids, n, groups)
            scores[f"distinct_{n}"] = scatter([values[g] for g in groups], kept, len(samples))
        scores["distinct"] = np.mean(list(scores.values()), axis=0)
        return scores
