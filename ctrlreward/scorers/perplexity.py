"""Perplexity under a frozen language model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ctrlreward.engine.batching import windows
from ctrlreward.engine.requests import Request, Requests, run_requests
from ctrlreward.engine.sharing import shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import Continuation
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.present import present


class Perplexity(Scorer):
    """How well a language model predicts each text, prefix included, from its start.

    - `perplexity`: exp of the negative mean token log-probability, 1 or more; lower is better.
    - `log_likelihood`: the mean token log-probability itself, 0 or less; higher is better. As a
      reward it is the steadier of the two, since perplexity has no upper end.

    Args:
        model: Local folder, hub id or short name of a decoder-only model.
        device: Where the model runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass; None picks by device.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Perplexity and mean log-probability."""
        return {
            "perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf)),
            "log_likelihood": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
        }

    @cached_property
    def language_model(self) -> CausalLM:
        """The model, loaded at its first use."""
        return shared_model(CausalLM, self.model, self.device, self.dtype, self.batch_tokens)

    def score(self, samples: Samples) -> dict[str, Scores]:
        """Both scores, float64 of shape (n,); NaN, with a warning, where a text is empty."""
        return run_requests([self.requests(samples)])[0]

    def requests(self, samples: Samples) -> Requests[dict[str, Scores]]:
        """See `Scorer.requests`."""
        total, tokens = yield from self._totals(samples)
        log_likelihood = np.divide(total, tokens, where=tokens > 0, out=np.full_like(total, np.nan))
        return {"perplexity": np.exp(-log_likelihood), "log_likelihood": log_likelihood}

    def corpus_perplexity(self, samples: Samples) -> float:
        """Perplexity of all texts as one corpus.

        It is exp of the negative mean over all their tokens, so that long texts weigh more. Empty
        texts are left out, with a warning.

        Returns:
            1 or more, lower is better; NaN where no text has a token.
        """
        total, tokens = run_requests([self._totals(samples)])[0]
        return float(np.exp(-total.sum() / tokens.sum())) if tokens.any() else float("nan")

    def load(self) -> None:
        """Loads the model now."""
        _ = self.language_model

    def to(self, device: str) -> None:
        """Has the model loaded on the device at the next use."""
        self.release()
        self.device = device

    def release(self) -> None:
        """Frees the model; the next `score` loads it again."""
        self.__dict__.pop("language_model", None)

    def _totals(self, samples: Samples) -> Requests[tuple[Scores, Scores]]:
        """Sum of the log-probabilities of each text's tokens, and their number, 0 for none."""
        total, tokens = np.zeros((2, len(samples)))
        kept = set(present("perplexity", texts=samples.texts))
        for window in windows(samples.texts):
            some = [i for i in window if i in kept]
            texts = [Continuation("", samples.texts[i]) for i in some]
            scored = yield Request(self.language_model, texts)
            for i, (_, log_probs) in zip(some, scored, strict=True):
                # Rounding can leave a certain token's log-probability above 0 by a last digit.
                total[i], tokens[i] = np.minimum(log_probs, 0.0).sum(), len(log_probs)
        return total, tokens
