"""CTRLEval (Ke et al., ACL 2022) as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from os import PathLike
from typing import Any, Literal, TypeAlias, Unpack

import numpy as np

from ctrlreward.arguments import checked_keywords, one_of, positive, some_of
from ctrlreward.engine.batching import windows
from ctrlreward.engine.sharing import Requests, run_requests
from ctrlreward.functional.calibration import label_bias
from ctrlreward.functional.ctrleval import (
    WEIGHTINGS,
    Weighting,
    beta_weights,
    label_probabilities,
    mean_weights,
    normalize_weights,
    relevance_evaluators,
    weighted_mean,
)
from ctrlreward.items import item_logger
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.models.infill import CausalInfiller, Infiller, load_infiller
from ctrlreward.models.tasks import Blank, TokenScores
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import SampleKeywords, Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.scorers.task import TEXT_SLOT, WORD_SLOT, Evaluator, Task, require_texts
from ctrlreward.text.neutral_texts import neutral_texts
from ctrlreward.text.sentences import find_splitter


@dataclass(frozen=True)
class Pattern:
    """A pattern evaluator: a text with a blank, and the target that fills it.

    Attributes:
        left: Text before the blank. Prompts of attribute relevance keep `<gen_result>` in place
            of the scored text.
        right: Text after the blank.
        target: Filling whose likelihood counts: a sentence, the prefix, the remainder, or the
            word of the target label.
        candidates: Fillings that the target is compared with, including itself. Only attribute
            relevance has more than one: a word of each label, in the order of the labels.
    """

    left: str
    right: str
    target: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class PatternScore(Pattern):
    """A pattern evaluator with its score and weight for one text.

    Attributes:
        score: Mean log-probability of the target's tokens, in (-inf, 0]; for attribute relevance
            the share of the target among the candidates, in [0, 1]. Higher is better.
        weight: Share in the score of the text, in [0, 1]; the weights of one text sum to 1.
    """

    score: float
    weight: float


@dataclass(frozen=True)
class Explanation:
    """One aspect of one text: its score and the pattern evaluators behind it.

    Attributes:
        aspect: `"coherence"`, `"consistency"` or `"attribute_relevance"`.
        score: Weighted mean of the evaluators' scores; NaN if there is nothing to score.
        evaluators: Pattern evaluators in the order in which they ran; empty if the score is NaN.
    """

    aspect: str
    score: float
    evaluators: tuple[PatternScore, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON; a NaN score becomes None."""
        record = asdict(self)
        return {**record, "score": None if np.isnan(self.score) else self.score}


def likelihood_patterns(blanks: Sequence[Blank]) -> list[Pattern]:
    """Return the patterns of coherence or consistency, whose blanks have one target each."""
    return [Pattern(b.left, b.right, b.targets[0], b.targets) for b in blanks]


def relevance_patterns(evaluators: Sequence[Evaluator], label: int) -> list[Pattern]:
    """Return the patterns of attribute relevance.

    Args:
        evaluators: Prompts with their verbalizers.
        label: Index of the target label.
    """
    patterns = []
    for prompt, words in evaluators:
        left, _, right = prompt.partition(WORD_SLOT)
        patterns.append(Pattern(left, right, words[label], words))
    return patterns


def explanation(
    aspect: str, patterns: Sequence[Pattern], scores: Scores, weights: Scores
) -> Explanation:
    """Explain the score of one text by its pattern evaluators.

    Args:
        aspect: Name of the aspect.
        patterns: What the evaluators are; ignored where there are no scores.
        scores: Score of each evaluator, shape (evaluators,), empty if there is nothing to score.
        weights: Weights ≥ 0 that need not sum to 1, shape (evaluators,).
    """
    if not len(scores):
        return Explanation(aspect, np.nan)
    rows = zip(patterns, scores.tolist(), normalize_weights(weights).tolist(), strict=True)
    evaluators = tuple(
        PatternScore(p.left, p.right, p.target, p.candidates, score, weight)
        for p, score, weight in rows
    )
    return Explanation(aspect, weighted_mean(scores, weights), evaluators)


def to_records(explained: Sequence[Mapping[str, Explanation]]) -> list[dict[str, Any]]:
    """Convert the result of `CTRLEval.explain` to one record per sample and aspect.

    Args:
        explained: For each sample, its explanations by aspect.

    Returns:
        Records for JSON or a table with `sample` (its index), `aspect`, `score` (None for NaN)
        and `evaluators`, a list of records with the fields of `PatternScore`.
    """
    return [
        {"sample": index, **explanation.to_record()}
        for index, aspects in enumerate(explained)
        for explanation in aspects.values()
    ]


def coherence_blanks(sentences: Sequence[str]) -> list[Blank]:
    """Return one blank per sentence, to be filled given all other sentences."""
    return [
        Blank(
            " ".join(sentences[:i]) + " ",
            " " + " ".join(sentences[i + 1 :]),
            (sentence,),
            ends=True,
        )
        for i, sentence in enumerate(sentences)
    ]


def consistency_blanks(text: str, prefix: str) -> list[Blank]:
    """Return two blanks: the remainder given the prefix, and the prefix given the remainder.

    The remainder keeps its leading space, as in the published implementation.
    """
    remainder = text[len(prefix) :]
    return [
        Blank(prefix + " ", "", (remainder,), joined=True),
        Blank("", " " + remainder, (prefix,)),
    ]


def relevance_blanks(text: str, prompts: Sequence[str], words: Sequence[str]) -> list[Blank]:
    """Return one blank per prompt that contains the text; every label word is a candidate."""
    blanks = []
    for prompt in prompts:
        # Split before inserting the text, which may itself contain the names of the slots.
        left, right = prompt.split(WORD_SLOT, 1)
        blanks.append(
            Blank(
                left.replace(TEXT_SLOT, text),
                right.replace(TEXT_SLOT, text),
                tuple(words),
                closing=right.partition(TEXT_SLOT)[0].rstrip(),
            )
        )
    return blanks


def evaluator_blanks(text: str, evaluators: Sequence[Evaluator]) -> list[Blank]:
    """Return one blank per prompt, with the words of all its verbalizers in a row.

    Args:
        text: Text to be put into the prompts; none has a blank if it is empty.
        evaluators: Prompts with their verbalizers, grouped by prompt.
    """
    if not text.strip():
        return []
    blanks = []
    for prompt, group in groupby(evaluators, key=lambda e: e.prompt):
        words = [word for evaluator in group for word in evaluator.words]
        blanks += relevance_blanks(text, [prompt], words)
    return blanks


def aspect_blanks(
    aspect: str,
    text: str,
    prefix: str,
    split: Callable[[str], list[str]],
    evaluators: Sequence[Evaluator],
) -> list[Blank]:
    """Return the patterns of a text for an aspect, none if there is nothing to score.

    Args:
        aspect: `"coherence"`, `"consistency"` or `"attribute_relevance"`.
        text: Text that begins with the prefix.
        prefix: Prefix; only consistency reads it.
        split: Sentence splitter; only coherence calls it.
        evaluators: Prompts with their verbalizers; only attribute relevance reads them.
    """
    if aspect == "coherence":
        return coherence_blanks([s for s in split(text) if s.strip()])
    if aspect == "attribute_relevance":
        return evaluator_blanks(text, evaluators)
    if prefix.strip() and text[len(prefix) :].strip():
        return consistency_blanks(text, prefix)
    return []


def score_words(
    infiller: Infiller, texts: Sequence[str], evaluators: Sequence[Evaluator]
) -> Requests[Scores]:
    """Return the log-probability of each word after each text.

    Args:
        infiller: Model that is asked.
        texts: Texts, none of them empty.
        evaluators: Prompts with their verbalizers, grouped by prompt.

    Returns:
        Mean over the word's tokens, in nats, shape (texts, evaluators, labels).
    """
    labels = len(evaluators[0].words)
    rows = []
    for window in windows(texts):
        groups = [evaluator_blanks(texts[i], evaluators) for i in window]
        flat = [blank for group in groups for blank in group]
        scored = iter((yield from infiller.requests(flat)))
        rows += [word_log_probs([next(scored) for _ in group], labels) for group in groups]
    return np.array(rows).reshape(-1, len(evaluators), labels)


def word_log_probs(token_scores: Sequence[Sequence[TokenScores]], labels: int) -> Scores:
    """Return the mean log-probability of each evaluator's words, shape (evaluators, labels).

    Args:
        token_scores: Scores of the words of each of `evaluator_blanks`.
        labels: Number of labels.
    """
    means = [word.log_probs.mean() for words in token_scores for word in words]
    return np.array(means).reshape(-1, labels)


def reason_for_nan(aspect: str, text: str, prefix: str) -> str:
    """Return why a sample has no pattern, for the warning."""
    if not text.strip():
        return "is empty"
    if aspect == "coherence":
        return "has no sentences"
    return "has nothing beyond its prefix" if prefix.strip() else "has no prefix"


log = item_logger(__name__)

AspectName: TypeAlias = Literal["coherence", "consistency", "attribute_relevance"]

# Score and weight ≥ 0 of each evaluator of one text, shape (evaluators,), empty where an aspect has
# nothing to score. The weights need not sum to 1.
Evaluated: TypeAlias = tuple[Scores, Scores]

SPECS: dict[AspectName, ScoreSpec] = {
    "coherence": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    "consistency": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    "attribute_relevance": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)),
}


@checked_keywords(**NEIGHBOURS, max_length="max_tokens")
class CTRLEval(ModelScorer[Infiller]):
    """Coherence, consistency and attribute relevance of controlled text, by text infilling.

    - `coherence`: weighted mean over sentences of the mean token log-probability of the sentence
      given the others.
    - `consistency`: weighted mean of the mean token log-probabilities of the remainder given the
      prefix and of the prefix given the remainder. Needs `prefixes`.
    - `attribute_relevance`: probability of the target label among all labels, over all prompts
      and verbalizers of the task. Needs `labels`.

    Higher is better for all three. Where the paper and its published code differ, this follows
    the code, which produced the published numbers: the coherence target includes the end token.

    Args:
        model: Local folder, Hugging Face id or short name; encoder-decoder or decoder-only.
        task: `"sentiment"`, `"topic"`, a YAML file, or a `Task`.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        iwf: Inverse word frequencies, weights of coherence and consistency: a file with a weight
            per token id, an `InverseFrequency`, or None for frequencies of the `wordfreq` package.
        sentence_splitter: A callable, a name, or None for the default.
        weights: Aggregation of a text's pattern evaluators (`PatternScore`): `"beta"`, the mean
            with the paper's weights, or an ablation of its Table 5: `"mean"`, the plain mean,
            `"max"`, the highest, `"min"`, the lowest score. None uses `"beta"`, except for the
            relevance of a decoder-only model, which uses `"mean"` (see docs/ctrleval.md).
        evaluators: Number of the task's evaluators (prompts × verbalizers) to draw at random for
            attribute relevance (Figure 4), the same for all samples; None uses all. It does not
            affect the other aspects: coherence has one evaluator per sentence, consistency two.
        seed: Seed of that draw.
        max_tokens: Tokens of a text to read, None for as many as the model can; a warning names
            a longer text. The cost of coherence grows with the square of a text's length.
        calibration: For attribute relevance, subtract how likely each label's word is whatever the
            text says (`functional.calibration.label_bias`): True measures it once, after 16
            `neutral_texts`, a list after the texts in it, False leaves it in. None is True for a
            decoder-only model with three labels or more (see docs/label_calibration.md).
        **options: See `ModelOptions`.

    Attributes:
        labels: Labels of the task, in the column order of `probabilities`.

    Raises:
        ValueError: A name is unknown, a number out of range, or a reference text empty.

    Examples:
        >>> scorer = CTRLEval("smollm2-135m", task="sentiment")
        >>> list(scorer.score(["Hot soup. I ate it."], prefixes="Hot", labels="positive"))
        ['coherence', 'consistency', 'attribute_relevance']
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        task: str | PathLike[str] | Task = "sentiment",
        aspects: AspectName | Literal["all"] | Sequence[AspectName] = "all",
        iwf: str | PathLike[str] | InverseFrequency | None = None,
        sentence_splitter: str | Callable[[str], list[str]] | None = None,
        weights: Literal["beta", "mean", "max", "min"] | None = None,
        evaluators: int | None = None,
        seed: int = 0,
        max_tokens: int | None = 512,
        calibration: bool | Sequence[str] | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.task = task if isinstance(task, Task) else Task.load(task)
        self.labels = self.task.labels
        self._leaves_out = aspects == "all"
        self.aspects = some_of("aspects", aspects, SPECS)
        self.weights = None if weights is None else one_of("weights", weights, WEIGHTINGS)
        self.max_tokens = positive("max_tokens", max_tokens)
        self.evaluators = (
            self.task.evaluators if evaluators is None else self.task.subset(evaluators, seed)
        )
        self.split = find_splitter(sentence_splitter)
        self.calibration = calibration
        if not isinstance(calibration, bool | None):
            self.calibration = tuple(require_texts("calibration", calibration))
            positive("len(calibration)", len(self.calibration))
        self._iwf = iwf
        self._bias: Scores | None = None

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of the chosen aspects."""
        return {aspect: SPECS[aspect] for aspect in self.aspects}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """`prefixes` for consistency, `labels` for attribute relevance."""
        readers: dict[str, str] = {"prefixes": "consistency", "labels": "attribute_relevance"}
        aspects = self.aspects if names is None else names
        return {c: f"CTRLEval {aspect}" for c, aspect in readers.items() if aspect in aspects}

    def build_model(self, name: str) -> Infiller:
        """Load the model, or share it with the scorers that have loaded it."""
        return load_infiller(name, self.device, self.dtype, self.batch_tokens)

    @cached_property
    def iwf(self) -> InverseFrequency:
        """Weights of coherence and consistency.

        Raises:
            ValueError: The table does not fit the model's vocabulary.
        """
        tokenizer = self.loaded_model.tokenizer
        if self._iwf is None:
            return InverseFrequency.from_wordfreq(tokenizer)
        table = self._iwf
        if not isinstance(table, InverseFrequency):
            table = InverseFrequency.from_file(table)
        return table.require(len(tokenizer))

    def release(self) -> None:
        """Free the model and what the calibration measured with it; see `ModelScorer.release`."""
        super().release()
        self._bias = None

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise if the samples lack what the aspects need, or have an unknown label."""
        super().check_samples(samples, names)
        if "attribute_relevance" in (self.aspects if names is None else names):
            samples.require_labels(self.labels, "CTRLEval attribute_relevance", "the task")

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> Requests[dict[str, Scores]]:
        """Compute the chosen aspects, or those of them in `names`, each float64 of shape (n,).

        NaN, with a warning, where an aspect has nothing to score: an empty text; for consistency
        also a text without a prefix, or with nothing after it.

        Raises:
            ValueError: A column that an aspect needs is absent, or a label is not in the task.
        """
        aspects = [a for a in self.aspects if names is None or a in names]
        self.check_samples(samples, aspects)
        evaluated = yield from self._evaluate(self._bounded(samples), aspects)
        return {
            aspect: np.array([weighted_mean(*text) for text in texts])
            for aspect, texts in evaluated.items()
        }

    def explain(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> list[dict[str, Explanation]]:
        """Return the score and weight of each pattern evaluator behind the scores (Figure 5).

        `scorers.ctrleval.to_records` converts the result to plain data;
        `plots.evaluators.bar_chart` draws one explanation.

        Args:
            samples: As in `score`.
            columns: As in `score`.

        Returns:
            For each sample, the chosen aspects by name, with the same scores as `score`.

        Raises:
            ValueError: See `score`.
        """
        samples = as_samples(samples, **columns)
        computable = self.computable(samples)
        aspects = [aspect for aspect in self.aspects if aspect in computable]
        self.check_samples(samples, aspects)
        samples = self._bounded(samples)
        (evaluated,) = run_requests([self._evaluate(samples, aspects)])
        return [
            {
                aspect: explanation(aspect, self._patterns(aspect, samples, i), *texts[i])
                for aspect, texts in evaluated.items()
            }
            for i in range(len(samples))
        ]

    def probabilities(self, texts: Sequence[str]) -> Scores:
        """Return the probability of each label, shape (n, labels): the task as a classifier.

        NaN for an empty text. Each row sums to 1, except with the weights `"max"` and `"min"`,
        which pick an evaluator for each label.
        """
        texts = first_tokens(self.loaded_model.tokenizer, texts, self.max_tokens)
        result = np.full((len(texts), len(self.labels)), np.nan)
        weighting = self._weighting("attribute_relevance")
        kept = [i for i, text in enumerate(texts) if text.strip()]
        words = score_words(self.loaded_model, [texts[i] for i in kept], self.evaluators)
        log_probs, bias = run_requests([words, self._label_bias()])
        for i, values in zip(kept, log_probs, strict=True):
            result[i] = label_probabilities(values - bias, weighting)
        return result

    def _evaluate(
        self, samples: Samples, aspects: Sequence[AspectName]
    ) -> Requests[dict[AspectName, list[Evaluated]]]:
        """Evaluate samples that are `_bounded`, by aspect, window by window."""
        evaluated: dict[AspectName, list[Evaluated]] = {a: [] for a in aspects}
        for window in windows(samples.texts):
            bias = (yield from self._label_bias()) if "attribute_relevance" in aspects else 0.0
            groups = {(i, a): self._blanks(a, samples, i) for i in window for a in aspects}
            blanks = [blank for group in groups.values() for blank in group]
            scored = iter((yield from self.loaded_model.requests(blanks)))
            for (i, aspect), group in groups.items():
                token_scores = [next(scored) for _ in group]
                if not group:
                    scores = beta = np.zeros(0)
                elif aspect == "attribute_relevance":
                    log_probs = word_log_probs(token_scores, len(self.labels)) - bias
                    scores, beta = relevance_evaluators(log_probs)
                    scores = scores[:, self._label(samples, i)]
                else:
                    scores, beta = self._likelihoods(aspect, token_scores)
                weights = self._weighting(aspect)(scores, beta) if group else beta
                evaluated[aspect].append((scores, weights))
        return evaluated

    def _bounded(self, samples: Samples) -> Samples:
        """Return the samples with at most `max_tokens` of each text; their prefixes fit."""
        texts = first_tokens(self.loaded_model.tokenizer, samples.texts, self.max_tokens)
        prefixes = samples.prefixes
        if prefixes is not None:
            prefixes = [p[: len(text)] for p, text in zip(prefixes, texts, strict=True)]
        return samples.replace(texts=texts, prefixes=prefixes)

    def _blanks(self, aspect: str, samples: Samples, i: int, warn: bool = True) -> list[Blank]:
        """Return the patterns of a sample for an aspect, with a warning if there are none."""
        text = samples.texts[i]
        prefix = samples.prefixes[i] if samples.prefixes else ""
        blanks = aspect_blanks(aspect, text, prefix, self.split, self.evaluators)
        if warn and not blanks:
            reason = reason_for_nan(aspect, text, prefix)
            log.warning("texts[%d] %s: its %s is NaN", i, reason, aspect)
        return blanks

    def _likelihoods(
        self, aspect: AspectName, token_scores: list[list[TokenScores]]
    ) -> tuple[Scores, Scores]:
        """Return scores and β of the patterns of one text, each of which has one target."""
        targets = [target for (target,) in token_scores]
        beta = np.ones(len(targets))
        if self._weighting(aspect) is beta_weights:  # the others ignore β; its table may be large
            beta = np.array([self.iwf.sentence_weight(target.ids) for target in targets])
        return np.array([target.log_probs.mean() for target in targets]), beta

    def _patterns(self, aspect: AspectName, samples: Samples, i: int) -> list[Pattern]:
        """Return what the evaluators of a text are, in the order in which they ran."""
        if aspect == "attribute_relevance":
            return relevance_patterns(self.evaluators, self._label(samples, i))
        return likelihood_patterns(self._blanks(aspect, samples, i, warn=False))

    def _label(self, samples: Samples, i: int) -> int:
        return self.labels.index((samples.labels or ())[i])

    def _label_bias(self) -> Requests[Scores]:
        """Return the bias that calibration takes off, shape (evaluators, labels); computed once."""
        if self._bias is None:
            texts = self._reference_texts()
            if not texts:
                return np.zeros((len(self.evaluators), len(self.labels)))
            words = score_words(self.loaded_model, texts, self.evaluators)
            self._bias = label_bias((yield from words))
        return self._bias

    def _reference_texts(self) -> Sequence[str]:
        """Return the texts of the calibration, none without it."""
        chosen = self.calibration
        if chosen is None:
            chosen = isinstance(self.loaded_model, CausalInfiller) and len(self.labels) > 2
        if isinstance(chosen, bool):
            return neutral_texts() if chosen else ()
        return first_tokens(self.loaded_model.tokenizer, chosen, self.max_tokens)

    def _weighting(self, aspect: str) -> Weighting:
        if self.weights is not None:
            return WEIGHTINGS[self.weights]
        is_causal = isinstance(self.loaded_model, CausalInfiller)
        return mean_weights if is_causal and aspect == "attribute_relevance" else beta_weights
