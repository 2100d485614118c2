"""Perplexity under a frozen language model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Unpack

import numpy as np

from ctrlreward.arguments import positive
from ctrlreward.engine.batching import windows
from ctrlreward.engine.requests import Request, Requests, run_requests
from ctrlreward.engine.sharing import shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import Continuation
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.empty_texts import nonempty
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer


class Perplexity(ModelScorer[CausalLM]):
    """Perplexity of each text, prefix included.

    - `perplexity`: exp of the negative mean token log-probability, 1 or more; lower is better.
    - `log_likelihood`: the mean token log-probability, 0 or less; higher is better. It is the
      more stable reward of the two, because perplexity has no upper bound.

    Args:
        model: Local folder, Hugging Face id or short name of a decoder-only model.
        max_tokens: Tokens of a text to read; the rest of a longer one is ignored, with a warning.
            None reads as many as the model can.
        **options: See `ModelOptions`.

    Raises:
        ValueError: `max_tokens` is not positive.

    Examples:
        >>> scorer = Perplexity("smollm2-135m")
        >>> scores = scorer.score(["The soup was good.", "Soup the good was."])
        >>> {name: values.shape for name, values in scores.items()}
        {'perplexity': (2,), 'log_likelihood': (2,)}
        >>> scorer["perplexity"].spec
        ScoreSpec(higher_is_better=False, range=(1.0, inf))
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        max_tokens: int | None = 1024,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.max_tokens = positive("max_tokens", max_tokens)

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of perplexity and log-likelihood."""
        return {
            "perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf)),
            "log_likelihood": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
        }

    def build_model(self, name: str) -> CausalLM:
        """Load the language model, or share it with the scorers that have loaded it."""
        return shared_model(CausalLM, name, self.device, self.dtype, self.batch_tokens)

    def requests(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> Requests[dict[str, Scores]]:
        """Compute both scores, float64 of shape (n,); NaN, with a warning, for an empty text."""
        total, tokens = yield from self._totals(samples)
        log_likelihood = np.divide(total, tokens, where=tokens > 0, out=np.full_like(total, np.nan))
        return {"perplexity": np.exp(-log_likelihood), "log_likelihood": log_likelihood}

    def corpus_perplexity(self, samples: SamplesLike) -> float:
        """Return the perplexity of all texts as one corpus.

        This is exp of the negative mean log-probability over the tokens of all texts, so longer
        texts weigh more. Empty texts are left out, with a warning.

        Returns:
            1 or more, lower is better; NaN if no text has a token.
        """
        total, tokens = run_requests([self._totals(as_samples(samples))])[0]
        return float(np.exp(-total.sum() / tokens.sum())) if tokens.any() else float("nan")

    def _totals(self, samples: Samples) -> Requests[tuple[Scores, Scores]]:
        """Return the summed log-probability and the number of tokens of each text, shape (n,)."""
        total, tokens = np.zeros((2, len(samples)))
        kept = set(nonempty("perplexity", texts=samples.texts))
        texts = first_tokens(self.loaded_model.tokenizer, samples.texts, self.max_tokens)
        for window in windows(texts):
            indices = [i for i in window if i in kept]
            targets = [Continuation("", texts[i]) for i in indices]
            scored = yield Request(self.loaded_model, targets)
            for i, (_, log_probs) in zip(indices, scored, strict=True):
                # Rounding can push the log-probability of a certain token just above 0.
                total[i], tokens[i] = np.minimum(log_probs, 0.0).sum(), len(log_probs)
        return total, tokens
