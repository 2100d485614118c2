"""Perplexity under a frozen language model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ctrlreward.models.asking import Asked, Asking, answered, shared
from ctrlreward.models.batching import windows
from ctrlreward.models.causal import CausalLM, Continuation
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Metric, Scorer, Scores
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
        compiled: As `CTRLEval` takes it; scorers share a model where all that they load it with is
            equal.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
        compiled: bool = False,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens
        self.compiled = compiled

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Perplexity and mean log-probability."""
        return {
            "perplexity": Metric(higher_is_better=False, range=(1.0, np.inf)),
            "log_likelihood": Metric(higher_is_better=True, range=(-np.inf, 0.0)),
        }

    @cached_property
    def language_model(self) -> CausalLM:
        """The model, loaded at its first use."""
        return shared(
            CausalLM, self.model, self.device, self.dtype, self.batch_tokens, self.compiled
        )

    def score(self, samples: Samples) -> dict[str, Scores]:
        """Both scores, float64 of shape (n,); NaN, with a warning, where a text is empty."""
        return answered([self.asking(samples)])[0]

    def asking(self, samples: Samples) -> Asking[dict[str, Scores]]:
        """See `Scorer.asking`."""
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
        total, tokens = answered([self._totals(samples)])[0]
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

    def _totals(self, samples: Samples) -> Asking[tuple[Scores, Scores]]:
        """Sum of the log-probabilities of each text's tokens, and their number, 0 for none."""
        total, tokens = np.zeros((2, len(samples)))
        kept = set(present("perplexity", texts=samples.texts))
        for window in windows(samples.texts):
            some = [i for i in window if i in kept]
            texts = [Continuation("", samples.texts[i]) for i in some]
            scored = yield Asked(self.language_model, texts)
            for i, (_, log_probs) in zip(some, scored, strict=True):
                # Rounding can leave a certain token's log-probability above 0 by a last digit.
                total[i], tokens[i] = np.minimum(log_probs, 0.0).sum(), len(log_probs)
        return total, tokens
