"""Perplexity under a frozen language model, and under an infilling one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, TypeVar, Unpack

import numpy as np

from ctrlreward.arguments import checked_keywords, positive
from ctrlreward.engine.sharing import shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import mark
from ctrlreward.models.seq2seq import load_infiller
from ctrlreward.models.tasks import Continuation, Infiller, Patterns, TokenScores
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import CorpusFold, Scores, ScoreSpec, TaskScorer, nonempty
from ctrlreward.scorers.ctrleval import coherence_blanks
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.text.sentences import find_splitter

Model = TypeVar("Model", bound=Infiller)

# Number of scored tokens of each text: the weight of its log-likelihood in a corpus.
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


class _Likelihoods(ModelScorer[Model], TaskScorer):
    """Perplexity and log-likelihood of texts, whose names have a prefix."""

    _prefix: ClassVar[str]

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of both scores."""
        return {
            f"{self._prefix}perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf)),
            f"{self._prefix}log_likelihood": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
        }

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """The perplexity over the tokens of all texts."""
        fold = CorpusFold((f"{self._prefix}log_likelihood", TOKENS), pooled_perplexity)
        return {f"{self._prefix}perplexity": fold}

    def fold(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> dict[str, Scores]:
        """Return both scores, and `"tokens"` by name; NaN for an empty text."""
        mean, tokens = mean_log_probs(answers)
        return dict(zip((*self.specs, TOKENS), (np.exp(-mean), mean, tokens), strict=True))


@checked_keywords(**NEIGHBOURS, model_id="model", max_length="max_tokens")
class Perplexity(_Likelihoods[CausalLM]):
    """Perplexity of each text, prefix included.

    - `perplexity`: exp of the negative mean token log-probability, 1 or more; lower is better.
      The perplexity of a corpus is over the tokens of all texts (`pooled_perplexity`), not a mean.
    - `log_likelihood`: the mean token log-probability, 0 or less; higher is better. The more
      stable reward of the two.

    Args:
        model: Local folder, Hugging Face id or short name of a decoder-only model.
        max_tokens: Tokens of a text to read, with a warning for a longer one; None for as many as
            the model can.
        score_end: Score the end token after a text as well, unless the text is truncated.
        **options: See `ModelOptions`.

    Raises:
        ValueError: `max_tokens` is not positive.

    Examples:
        >>> list(Perplexity("smollm2-135m").score(["The soup was good."]))
        ['perplexity', 'log_likelihood']
    """

    _prefix = ""

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

    def build_model(self, name: str) -> CausalLM:
        """Load the language model, or share it with other scorers."""
        return shared_model(CausalLM, name, self.device, self.dtype, self.batch_tokens)

    def tasks(self, samples: Samples, names: Collection[str]) -> list[Continuation]:
        """Return each text as the beginning of a document; a warning names an empty one."""
        nonempty("perplexity", texts=samples.texts)
        texts = first_tokens(self.loaded_model.tokenizer, samples.texts, self.max_tokens)
        if self.score_end:
            end_token = self.loaded_model.tokenizer.eos_token_id
            if end_token is None:
                raise ValueError(
                    f"score_end = True, but the tokenizer of {self.model!r} has no end token. "
                    "Set score_end = False."
                )
            end = mark(end_token)
            pairs = zip(texts, samples.texts, strict=True)
            texts = [text + end if text == whole else text for text, whole in pairs]
        return [
            Continuation((), (("", text),) if whole.strip() else ())
            for text, whole in zip(texts, samples.texts, strict=True)
        ]


@checked_keywords(**NEIGHBOURS, model_id="model", max_length="max_tokens")
class InfillingPerplexity(_Likelihoods[Infiller]):
    """Perplexity of each text under an infilling model, prefix included.

    Each sentence is masked in turn and predicted from all others, a single one from the mask alone.
    The mean is over the tokens of all sentences, as in the pseudo-perplexity of masked language
    models (Salazar et al., ACL 2020, https://aclanthology.org/2020.acl-main.240, eq. 3). It is our
    interpretation of the baseline "PPL" in CTRLEval (Ke et al., ACL 2022, Tables 3 and 4).

    - `infilling_perplexity`: exp of the negative mean token log-probability, 1 or more; lower is
      better.
    - `infilling_log_likelihood`: the mean token log-probability, 0 or less; higher is better.

    Args:
        model: Local folder, Hugging Face id or short name; encoder-decoder or decoder-only.
        sentence_splitter: A callable, a name, or None for the default.
        max_tokens: Tokens of a text to read, with a warning for a longer one; None for as many as
            the model can. The cost grows with the square of a text's length.
        **options: See `ModelOptions`.

    Raises:
        ValueError: The splitter is unknown, or `max_tokens` is not positive.

    Examples:
        >>> list(InfillingPerplexity("smollm2-135m").score(["The soup was good. I ate it."]))
        ['infilling_perplexity', 'infilling_log_likelihood']
    """

    _prefix = "infilling_"

    def __init__(
        self,
        model: str = "smollm2-135m",
        sentence_splitter: str | Callable[[str], list[str]] | None = None,
        max_tokens: int | None = 512,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.split = find_splitter(sentence_splitter)
        self.max_tokens = positive("max_tokens", max_tokens)

    def build_model(self, name: str) -> Infiller:
        """Load the model, or share it with other scorers."""
        return load_infiller(name, self.device, self.dtype, self.batch_tokens)

    def tasks(self, samples: Samples, names: Collection[str]) -> list[Patterns]:
        """Return the sentences of each text as blanks; a warning names an empty text."""
        nonempty("infilling_perplexity", texts=samples.texts)
        texts = first_tokens(self.loaded_model.tokenizer, samples.texts, self.max_tokens)
        # A text without sentences counts as one sentence.
        sentences = [[s for s in self.split(text) if s.strip()] or [text] for text in texts]
        return [
            Patterns(coherence_blanks(found) if text.strip() else ())
            for text, found in zip(texts, sentences, strict=True)
        ]
