"""BARTScore (Yuan et al., NeurIPS 2021) under a frozen language model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias, Unpack

import numpy as np

from ctrlreward.arguments import some_of
from ctrlreward.failures import Failures
from ctrlreward.functional.calibration import context_gain
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.neutral_texts import NEUTRAL_CONTEXTS
from ctrlreward.models.seq2seq import Seq2SeqInfiller, conditional_log_probs, load_infiller
from ctrlreward.models.tasks import Continuation
from ctrlreward.samples import Samples, empty_items
from ctrlreward.scorers.base import Scored, Scores, ScoreSpec, scatter
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


def after_contexts(
    model: CausalLM, sources: Sequence[str], targets: Sequence[str]
) -> tuple[Scores, Scores]:
    """Return the mean log-probability of each target after its source, and after neutral texts.

    An empty line separates the two. In nats, of shape (n,) and (n, 2 neutral texts).
    """
    columns = [sources, *([text] * len(targets) for text in NEUTRAL_CONTEXTS)]
    tasks = [
        Continuation((f"{context}\n\n",), (((), (target,)),))
        for column in columns
        for context, target in zip(column, targets, strict=True)
    ]
    means = np.array([answer.means[0] for answer in model.answer(tasks)])
    own, *neutral = means.reshape(len(columns), len(targets))
    return own, np.stack(neutral, axis=1)


class BARTScore(ModelScorer[Seq2SeqInfiller | CausalLM]):
    """Mean token log-probability of one text given another under a language model.

    BARTScore(x → y) = Σ_t log p(y_t | y_<t, x) / |y| (Yuan et al., NeurIPS 2021,
    https://arxiv.org/abs/2106.11520); the tokens that the tokenizer adds to y count.

    - `faithfulness`: of the text given the source. Needs `sources`.
    - `precision`, `recall`: of the text given the reference, and the reverse. Need `references`.
    - `f_score`: mean of precision and recall. Needs `references`.

    All are 0 or less; higher is better. Values of different models can't be compared. A
    decoder-only model reads the first text, an empty line and the second. Half of the second text's
    likelihood after neutral texts is subtracted, as it depends on its own words alone.

    Args:
        model: Local folder, Hugging Face id or short name: an encoder-decoder (BART, PEGASUS, T5
            and related families) or a decoder-only model, such as `"smollm2-135m"`. Published
            scores use BART fine-tuned on CNN/DailyMail.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        **options: See `ModelOptions`.
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
        return {name: ScoreSpec(True, (-np.inf, 0.0)) for name in self.aspects}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        aspects = self.aspects if names is None else names
        parts = {part for name in self.aspects if name in aspects for part in _PARTS[name]}
        return sorted({"sources" if part == "faithfulness" else "references" for part in parts})

    def build_model(self, name: str) -> Seq2SeqInfiller | CausalLM:
        return load_infiller(name, self.device, self.dtype, self.batch_tokens)

    def score_samples(self, samples: Samples, names: Collection[str] = ()) -> Scored:
        wanted = dict.fromkeys(part for name in names for part in _PARTS[name])
        parts = {part: self._score(part, samples) for part in wanted}
        scores = {name: np.mean([parts[p][0] for p in _PARTS[name]], axis=0) for name in names}
        failures = Failures()
        for _, failed in parts.values():
            failures |= failed
        return Scored(scores, failures)

    def _score(self, part: str, samples: Samples) -> tuple[Scores, Failures]:
        read, scored = _COLUMNS[part]
        sources, targets = (samples.require(c, f"BARTScore {part}") for c in (read, scored))
        failures = empty_items(read, sources) | empty_items(scored, targets)
        rows = [i for i in range(len(samples)) if i not in failures]
        pairs = [sources[i] for i in rows], [targets[i] for i in rows]
        with self.locked_model() as model:
            if isinstance(model, CausalLM):
                found = context_gain(*after_contexts(model, *pairs))
            else:
                found, _ = mean_log_probs(conditional_log_probs(model, *pairs))
        return scatter(found, rows, len(samples)), Failures(failures)
