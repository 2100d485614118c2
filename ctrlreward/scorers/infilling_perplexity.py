"""Perplexity under a frozen infilling model: each sentence given all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Unpack

import numpy as np

from ctrlreward.arguments import checked_keywords, positive
from ctrlreward.models.infill import Infiller, load_infiller
from ctrlreward.models.tasks import Patterns, TokenScores
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import CorpusFold, Scores, ScoreSpec, TaskScorer, nonempty
from ctrlreward.scorers.ctrleval import coherence_blanks
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.scorers.perplexity import TOKENS, mean_log_probs, pooled_perplexity
from ctrlreward.text.sentences import find_splitter


@checked_keywords(**NEIGHBOURS, model_id="model", max_length="max_tokens")
class InfillingPerplexity(ModelScorer[Infiller], TaskScorer):
    """Perplexity of each text under an infilling model, prefix included.

    Each sentence is masked in turn and predicted from all others. The mean is over the tokens of
    all sentences, as in the pseudo-perplexity of masked language models (Salazar et al., ACL 2020,
    https://aclanthology.org/2020.acl-main.240, eq. 3), with sentences in place of tokens. A single
    sentence is predicted from the mask alone.

    - `infilling_perplexity`: exp of the negative mean token log-probability, 1 or more; lower is
      better.
    - `infilling_log_likelihood`: the mean token log-probability, 0 or less; higher is better.

    It is our interpretation of the baseline "PPL" under PEGASUS in CTRLEval (Ke et al., ACL 2022,
    Tables 3 and 4). Coherence in CTRLEval has the same patterns, but takes a mean over sentences,
    in which the sentence with the rarest token counts most.

    Args:
        model: Local folder, Hugging Face id or short name; encoder-decoder or decoder-only.
        sentence_splitter: A callable, a name, or None for the default.
        max_tokens: Tokens of a text to read, with a warning for a longer one; None for as many as
            the model can. The cost grows with the square of a text's length.
        **options: See `ModelOptions`.

    Raises:
        ValueError: The splitter is unknown, or `max_tokens` is not positive.

    Examples:
        >>> scorer = InfillingPerplexity("smollm2-135m")
        >>> scores = scorer.score(["The soup was good. I ate it.", "I it ate. Soup good."])
        >>> {name: values.shape for name, values in scores.items()}
        {'infilling_perplexity': (2,), 'infilling_log_likelihood': (2,)}
    """

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

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of perplexity and log-likelihood."""
        return {
            "infilling_perplexity": ScoreSpec(higher_is_better=False, range=(1.0, np.inf)),
            "infilling_log_likelihood": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
        }

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """Perplexity of all texts as one corpus."""
        fold = CorpusFold(("infilling_log_likelihood", TOKENS), pooled_perplexity)
        return {"infilling_perplexity": fold}

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

    def fold(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> dict[str, Scores]:
        """See `Perplexity.fold`."""
        log_likelihood, tokens = mean_log_probs(answers)
        scores = {
            "infilling_perplexity": np.exp(-log_likelihood),
            "infilling_log_likelihood": log_likelihood,
        }
        return {**scores, TOKENS: tokens} if TOKENS in names else scores
