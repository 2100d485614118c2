"""Diversity of generated texts: of a group, and within a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from ctrlreward.failures import Failures
from ctrlreward.functional.diversity import check_length, distinct_by_group, repetition
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.sharing import locked
from ctrlreward.models.tokenization import read_strings
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scored, Scorer, ScoreSpec


class _TokenCounts(Scorer):
    """Base of scorers that count n-grams of a model's tokens; `model` may be a loaded tokenizer."""

    n = 1

    def __init__(self, model: str | PreTrainedTokenizerBase = "smollm2-135m") -> None:
        self.model = model

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.model) if isinstance(self.model, str) else self.model

    def load(self) -> None:
        _ = self.tokenizer

    def _ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        with locked(self.tokenizer):
            return read_strings(self.tokenizer, [*texts])["input_ids"]

    def _scored(self, scores: Mapping[str, Sequence[float]]) -> Scored:
        short = np.flatnonzero(np.isnan(next(iter(scores.values())))).tolist()
        few = f"the text has fewer than {self.n} tokens"
        return Scored(scores, Failures(dict.fromkeys(short, few)))


class Distinct(_TokenCounts):
    """Distinct-n over all texts of a sample's group, prefix included (see `distinct_n`).

    - `distinct_1`, `distinct_2`, `distinct_3`: unique n-grams over tokens, 0 to 1; higher is more
      diverse. All texts of a group get the value of the group.
    - `distinct`: mean of the three, as in studies of multi-aspect control.

    Groups are the column `groups` or, if it is absent, `prefixes`, then `prompts`; without any, all
    texts of a call are one group. It falls with the number of texts in a group and with their
    length, so compare groups of one size and of texts of one length. A text of k tokens has only
    k - n + 1 n-grams: short texts have less than 1 without any repetition.

    Args:
        model: Local folder, Hugging Face id or short name of the model whose tokens are counted,
            or a loaded tokenizer. Published figures of multi-aspect control use GPT-2 tokens.
    """

    pointwise = False
    of_groups = True
    specs = dict.fromkeys(
        ("distinct_1", "distinct_2", "distinct_3", "distinct"), ScoreSpec(True, (0.0, 1.0))
    )

    def score_samples(self, samples: Samples) -> Scored:
        ids = self._ids(samples.texts)
        groups = samples.groups or samples.prefixes or samples.prompts or [""] * len(ids)
        by_n = {f"distinct_{n}": distinct_by_group(ids, n, groups) for n in (1, 2, 3)}
        scores: dict[str, Sequence[float]] = {k: [v[g] for g in groups] for k, v in by_n.items()}
        return self._scored({**scores, "distinct": np.mean([*scores.values()], axis=0)})


class Repetition(_TokenCounts):
    """Share of a text's n-grams that repeat an earlier one, without the prefix (`repetition`).

    - `repetition`: 1 - number of distinct n-grams / number of n-grams, 0 to below 1; lower is
      better. seq-rep-n of Welleck et al. 2020, of what the model wrote: the text after its prefix.
      NaN for fewer than n tokens.

    Args:
        model: As in `Distinct`.
        n: Length of the n-grams, in tokens. The paper's is 4; short sentences need 2.
    """

    specs = dict.fromkeys(["repetition"], ScoreSpec(False, (0.0, 1.0)))

    def __init__(self, model: str | PreTrainedTokenizerBase = "smollm2-135m", n: int = 4) -> None:
        super().__init__(model)
        check_length(n)
        self.n = n

    def score_samples(self, samples: Samples) -> Scored:
        ids = self._ids(samples.completions)
        return self._scored({"repetition": [repetition(each, self.n) for each in ids]})
