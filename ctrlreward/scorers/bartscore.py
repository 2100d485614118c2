"""BARTScore (Yuan et al., NeurIPS 2021) under a frozen encoder-decoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias, Unpack

import numpy as np

from ctrlreward.arguments import some_of
from ctrlreward.failures import Failures
from ctrlreward.models.batching import in_windows
from ctrlreward.models.loading import load_config
from ctrlreward.models.seq2seq import Seq2SeqInfiller, conditional_log_probs
from ctrlreward.models.sharing import shared_model
from ctrlreward.samples import Samples, empty_items
from ctrlreward.scorers.base import Scored, Scores, ScoreSpec
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer
from ctrlreward.scorers.perplexity import mean_log_probs

AspectName: TypeAlias = Literal["faithfulness", "precision", "recall", "f_score"]

# Columns of the source and of the target; the F score combines two of these.
_COLUMNS: Mapping[str, tuple[str, str]] = {
    "faithfulness": ("sources", "texts"),
    "precision": ("references", "texts"),
    "recall": ("texts", "references"),
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    "faithfulness": ("faithfulness",),
    "precision": ("precision",),
    "recall": ("recall",),
    "f_score": ("precision", "recall"),
}


class BARTScore(ModelScorer[Seq2SeqInfiller]):
    """Mean token log-probability of one text given another under an encoder-decoder.

    BARTScore(x → y) = Σ_t log p(y_t | y_<t, x) / |y| (Yuan et al., NeurIPS 2021,
    https://arxiv.org/abs/2106.11520); the tokens that the tokenizer adds to y count.

    - `faithfulness`: of the text given the source. Needs `sources`.
    - `precision`, `recall`: of the text given the reference, and the reverse. Need `references`.
    - `f_score`: mean of precision and recall. Needs `references`.

    All are 0 or less; higher is better. Values of different models can't be compared.

    Args:
        model: Local folder or Hugging Face id of an encoder-decoder: BART, PEGASUS, T5 and related
            families. Published scores use BART fine-tuned on CNN/DailyMail.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        **options: See `ModelOptions`.

    Raises:
        ValueError: An aspect is unknown.
    """

    def __init__(
        self,
        model: str = "facebook/bart-large-cnn",
        aspects: AspectName | Literal["all"] | Sequence[AspectName] = "faithfulness",
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.optional = aspects == "all"
        self.aspects = some_of("aspects", aspects, _PARTS)

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of the chosen scores."""
        return {name: ScoreSpec(True, (-np.inf, 0.0)) for name in self.aspects}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """`sources` for faithfulness, `references` for the others."""
        aspects = self.aspects if names is None else names
        return {
            "sources" if name == "faithfulness" else "references": f"BARTScore {name}"
            for name in self.aspects
            if name in aspects
        }

    def build_model(self, name: str) -> Seq2SeqInfiller:
        """Load the encoder-decoder, or share it with other scorers."""
        if not load_config(name).is_encoder_decoder:
            raise ValueError(f"model = {name!r} has no encoder, must be an encoder-decoder")
        return shared_model(Seq2SeqInfiller, name, self.device, self.dtype, self.batch_tokens)

    def score_samples(self, samples: Samples, names: Collection[str] = ()) -> Scored:
        """Return the chosen scores; NaN for an empty source or reference."""
        wanted = dict.fromkeys(part for name in names for part in _PARTS[name])
        parts = {part: self._score(part, samples) for part in wanted}
        scores = {name: np.mean([parts[p][0] for p in _PARTS[name]], axis=0) for name in names}
        failures = Failures()
        for _, failed in parts.values():
            failures |= failed
        return Scored(scores, failures)

    def _score(self, part: str, samples: Samples) -> tuple[Scores, Failures]:
        """Return the log-probability of one column given another, shape (n,)."""
        read, scored = _COLUMNS[part]
        sources, targets = (samples.require(c, f"BARTScore {part}") for c in (read, scored))
        failures = empty_items(read, sources) | empty_items(scored, targets)
        kept = [i for i in range(len(samples)) if i not in failures]
        scores = np.full(len(samples), np.nan)

        def means(rows: Sequence[int]) -> list[float]:
            with self.locked_model() as model:
                results = conditional_log_probs(
                    model, [sources[i] for i in rows], [targets[i] for i in rows]
                )
            found: list[float] = mean_log_probs(results)[0].tolist()
            return found

        scores[kept] = in_windows(kept, [len(sources[i]) + len(targets[i]) for i in kept], means)
        return scores, Failures(failures)
