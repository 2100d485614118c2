"""Perplexity under a frozen language model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

import numpy as np

from ctrlreward.arguments import positive
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, ScoreSpec, TaskScorer
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer

# Number of scored tokens of each text, the weight of its log-likelihood in a corpus.
TOKENS = "tokens"


def mean_log_probs(answers: Sequence[TokenScores]) -> tuple[Scores, Scores]:
    """Return the mean log-probability of each answer's tokens, and their number; NaN for 0."""
    tokens = np.array([len(answer.ids) for answer in answers], np.float64)
    totals = np.array([np.minimum(answer.log_probs, 0.0).sum() for answer in answers])
    return np.divide(totals, tokens, where=tokens > 0, out=np.full_like(totals, np.nan)), tokens


def pooled_perplexity(log_likelihood: Scores, tokens: Scores) -> float:
    """Return the perplexity over the tokens of n texts, 1 or more or NaN; lower is better.

    `log_likelihood` is the mean over a text's `tokens`, whose number is 0 or NaN for one left out.
    """
    read = tokens > 0
    if not read.any():
        return float("nan")
    weights = tokens[read]
    return float(np.exp(-(log_likelihood[read] * weights).sum() / weights.sum()))


class Perplexity(ModelScorer[CausalLM], TaskScorer):
    """Perplexity of each text, prefix included.

    - `perplexity`: exp of the negative mean token log-probability, 1 or more; lower is better.
      The perplexity of a corpus is over the tokens of all texts (`pooled_perplexity`), not a mean.
    - `log_likelihood`: the mean token log-probability, 0 or less; higher is better. The more
      stable reward of the two.

    The first token is conditioned on what begins a document (`start_token`). Without such a token
    it has no probability.

    Args:
        model: Local folder, Hugging Face id or short name of a decoder-only model.
        max_tokens: Tokens of a text to read, with a warning for a longer one; None for as many as
            the model can.
        score_end: Score the end token after a text as well, unless the text is truncated.
        **options: See `ModelOptions`.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        max_tokens: int | None = 1024,
        score_end: bool = False,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.max_tokens = positive("max_tokens", max_tokens)
        self.score_end = score_end

    specs: Mapping[str, ScoreSpec] = {
        "perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf)),
        "log_likelihood": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    }
    corpus_columns = ("log_likelihood", TOKENS)

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        return {"perplexity": pooled_perplexity(columns["log_likelihood"], columns[TOKENS])}

    def build_model(self, name: str) -> CausalLM:
        return shared_model(CausalLM, name, self.device, self.dtype, self.batch_tokens)

    def tasks(self, samples: Samples, names: Collection[str]) -> list[Continuation]:
        tokenizer = self.loaded_model.tokenizer
        texts = first_tokens(tokenizer, samples.texts, self.max_tokens)
        if self.score_end and tokenizer.eos_token_id is None:
            raise ValueError(f"score_end must be False for {self.model!r}, without an end token")
        end = (tokenizer.eos_token_id,) if self.score_end else ()
        return [
            Continuation((), (((), (text, *end) if text == whole else (text,)),))
            for text, whole in zip(texts, samples.texts, strict=True)
        ]

    def fold(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> dict[str, Scores]:
        mean, tokens = mean_log_probs(answers)
        return {"perplexity": np.exp(-mean), "log_likelihood": mean, TOKENS: tokens}
