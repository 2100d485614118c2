"""CTRLEval (Ke et al., ACL 2022) as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from os import PathLike
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, get_args

import numpy as np

from ctrlreward.arguments import one_of, positive, some_of
from ctrlreward.failures import Failures
from ctrlreward.functional.calibration import context_gain, label_bias
from ctrlreward.functional.ctrleval import (
    Weighting,
    label_probabilities,
    normalize_weights,
    relevance_evaluators,
    weighted_mean,
)
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.models.sentences import find_splitter
from ctrlreward.models.seq2seq import load_infiller
from ctrlreward.models.tasks import TEXT_SLOT, Blank, Infiller, Patterns, TokenScores
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Scored, Scores, ScoreSpec, TaskScorer, computable
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer
from ctrlreward.scorers.task import WORD_SLOT, Evaluator, Task, require_texts


@dataclass(frozen=True)
class PatternScore:
    """A pattern evaluator: a text with a blank, the target that fills it, and its score.

    The score is the mean log-probability of the target's tokens, calibrated for a decoder-only
    model; for attribute relevance the share of the target among the candidates, in [0, 1].
    """

    left: str  # `<gen_result>` stands for the scored text in attribute relevance
    right: str
    target: str
    candidates: tuple[str, ...]  # in attribute relevance a word of each label, else the target
    score: float
    weight: float  # share in the score of the text; the weights of one text sum to 1


@dataclass(frozen=True)
class Explanation:
    """One aspect of one text: its score, NaN without evaluators, else their weighted mean."""

    aspect: str
    score: float
    evaluators: tuple[PatternScore, ...] = ()


def coherence_blanks(sentences: Sequence[str]) -> tuple[Blank, ...]:
    """Return one blank per sentence, to be filled given all other sentences."""
    spaced = [f" {sentence}" for sentence in sentences]
    return tuple(
        Blank(
            (*sentences[: min(i, 1)], *spaced[1:i], " "),
            tuple(spaced[i + 1 :]) or (" ",),
            (sentence,),
            ends=True,
        )
        for i, sentence in enumerate(sentences)
    )


def consistency_blanks(text: str, prefix: str) -> tuple[Blank, ...]:
    """Return two blanks: remainder, with its leading space, given prefix, and the reverse.

    White space between the two belongs to the remainder, also where the prefix ends with it.
    """
    prefix = prefix.rstrip()
    remainder = text[len(prefix) :]
    return (
        Blank((prefix, " "), (), (remainder,), joined=True),
        Blank((), (f" {remainder}",), (prefix,)),
    )


def neutral_blank(blank: Blank, text: str) -> Blank:
    """Return the blank with a text in place of its context, if it has one."""
    if "".join(blank.left).strip():
        return blank._replace(left=(f"{text} ",), right=())
    if "".join(blank.right).strip():
        return blank._replace(left=(), right=(f" {text}",))
    return blank


def relevance_blanks(evaluators: Sequence[Evaluator]) -> tuple[Blank, ...]:
    """Return one blank per prompt about a text, with all its words as candidates."""
    blanks = []
    for prompt, group in groupby(evaluators, key=lambda e: e.prompt):
        left, right = (part.partition(TEXT_SLOT) for part in prompt.split(WORD_SLOT, 1))
        words = tuple(word for evaluator in group for word in evaluator.words)
        closing = right[0].rstrip()
        blanks.append(
            Blank((*filter(None, left),), (*filter(None, right),), words, closing=closing)
        )
    return tuple(blanks)


AspectName: TypeAlias = Literal["coherence", "consistency", "attribute_relevance"]


# Why a text has no pattern.
_NOTHING = {
    "coherence": "coherence: no sentences",
    "consistency": "consistency: no prefix, or nothing beyond it",
}


class Evaluated(NamedTuple):
    """Pattern evaluators of one text for one aspect; none if there is nothing to score."""

    sample: int
    aspect: str
    label: int | None  # index of the target label, in attribute relevance
    scores: Scores  # (evaluators,)
    weights: Scores  # (evaluators,), 0 or more; they need not sum to 1


# Aspects whose patterns gain over a neutral context (docs/ctrleval.md).
_GAINED = ("coherence", "consistency")
_RELEVANCE = "CTRLEval attribute_relevance"
_CONTEXTS = 2  # each costs a pass over all targets; a mean depends less on one of them

SPECS: dict[AspectName, ScoreSpec] = {
    "coherence": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    "consistency": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    "attribute_relevance": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)),
}


class CTRLEval(ModelScorer[Infiller], TaskScorer):
    """Coherence, consistency and attribute relevance of controlled text, by text infilling.

    - `coherence`: weighted mean over sentences of the mean token log-probability of the sentence
      given the others.
    - `consistency`: weighted mean of the mean token log-probabilities of the remainder given the
      prefix and of the prefix given the remainder. Needs `prefixes`.
    - `attribute_relevance`: probability of the target label among all labels, over all prompts
      and verbalizers of the task. Needs `labels`.

    Higher is better for all three. Where the paper and its published code differ, this follows the
    code. The defaults are for a small decoder-only model (docs/ctrleval.md);
    `configs/presets/ctrleval_as_published.yaml` is the paper's metric.

    Args:
        model: Local folder, Hugging Face id or short name; encoder-decoder or decoder-only.
        task: `"sentiment"`, `"topic"`, a YAML file, or a `Task`.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        iwf: Inverse word frequencies, weights of coherence and consistency: a file with a weight
            per token id, an `InverseFrequency`, or None for frequencies of the `wordfreq` package.
        sentence_splitter: Function from a text to its sentences, or `"nltk"`, the paper's. None
            splits by rules (`models.sentences`).
        weights: Mean of a text's pattern evaluators: `"beta"`, with the paper's weights, or
            `"mean"`, the plain one. None uses `"beta"`, except for the relevance of a decoder-only
            model, which uses `"mean"`.
        evaluators: Number of the task's evaluators (prompts × verbalizers) for attribute relevance:
            a random subset, the same for all samples. None uses all.
        max_tokens: Tokens of a text to read, None for as many as the model can; a warning names
            a longer text.
        calibration: Whether relevance is independent of how likely each label's word is anyway, as
            measured on 16 `neutral_texts` (True) or on a list of texts. None is True for a
            decoder-only model with three labels or more. Unless False, coherence and consistency
            of a decoder-only model are a gain over the first two of these texts as the context
            (`functional.calibration.context_gain`).
        attribute: Attribute whose label is the target, for samples with labels of several.
        **options: See `ModelOptions`.

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
        sentence_splitter: Callable[[str], list[str]] | str | None = None,
        weights: Weighting | None = None,
        evaluators: int | None = None,
        max_tokens: int | None = 512,
        calibration: bool | Sequence[str] | None = None,
        attribute: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.task = task if isinstance(task, Task) else Task.load(task)
        self.labels = self.task.labels
        self.optional = aspects == "all"
        self.aspects = some_of("aspects", aspects, SPECS)
        self.weights = None if weights is None else one_of("weights", weights, get_args(Weighting))
        self.max_tokens = positive("max_tokens", max_tokens)
        self.pattern_evaluators = (
            self.task.evaluators if evaluators is None else self.task.subset(evaluators, seed=0)
        )
        self._prompts = relevance_blanks(self.pattern_evaluators)
        self.split = find_splitter(sentence_splitter)
        self.attribute = attribute
        self.calibration = calibration
        if not isinstance(calibration, bool | None):
            self.calibration = tuple(require_texts("calibration", calibration))
            positive("len(calibration)", len(self.calibration))
        self._iwf = iwf

    _of_model = (*ModelScorer._of_model, "bias")

    @cached_property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {aspect: SPECS[aspect] for aspect in self.aspects}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        columns = {"consistency": "prefixes", "attribute_relevance": "labels"}
        aspects = self.aspects if names is None else names
        return [column for aspect, column in columns.items() if aspect in aspects]

    def build_model(self, name: str) -> Infiller:
        return load_infiller(name, self.device, self.dtype, self.batch_tokens)

    @cached_property
    def iwf(self) -> InverseFrequency:
        tokenizer = self.loaded_model.tokenizer
        if self._iwf is None:
            return InverseFrequency.from_wordfreq(tokenizer)
        table = self._iwf
        if not isinstance(table, InverseFrequency):
            table = InverseFrequency.from_file(table)
        return table.require(len(tokenizer))

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        super().check_samples(samples, names)
        if "attribute_relevance" in (self.aspects if names is None else names):
            samples.label_indices(self.labels, _RELEVANCE, self.attribute)

    def tasks(self, samples: Samples, names: Collection[str]) -> list[Patterns]:
        aspects = [aspect for aspect in self.aspects if aspect in names]
        prefixes: Sequence[str] = [""] * len(samples.texts)
        if "consistency" in aspects:
            prefixes = samples.require("prefixes", "CTRLEval consistency")
        if "attribute_relevance" in aspects:
            samples.label_indices(self.labels, _RELEVANCE, self.attribute)  # an unknown one raises
            _ = self.bias  # before the answers
        texts = first_tokens(self.loaded_model.tokenizer, samples.texts, self.max_tokens)
        tasks = []
        for text, prefix in zip(texts, prefixes, strict=True):
            prefix = prefix[: len(text)]
            for aspect in aspects:
                task = Patterns(())
                if aspect == "coherence":
                    task = Patterns(coherence_blanks([s for s in self.split(text) if s.strip()]))
                elif aspect == "attribute_relevance" and text.strip():
                    task = Patterns(self._prompts, text)
                elif prefix.strip() and text[len(prefix) :].strip():
                    task = Patterns(consistency_blanks(text, prefix))
                tasks.append(task)
                for context in self._contexts if aspect in _GAINED else ():
                    neutral = (neutral_blank(blank, context) for blank in task.blanks)
                    tasks.append(Patterns(tuple(neutral)))
        return tasks

    def fold(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> Scored:
        results = {aspect: np.full(len(samples), np.nan) for aspect in names}
        failures = Failures()
        for found in self.evaluated(samples, answers, names):
            results[found.aspect][found.sample] = weighted_mean(found.scores, found.weights)
            if not len(found.scores):
                failures.add(found.sample, _NOTHING[found.aspect])
        return Scored(results, failures)

    def evaluated(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> Iterator[Evaluated]:
        """Yield the evaluators behind the scores, sample by sample and aspect by aspect."""
        aspects = [aspect for aspect in self.aspects if aspect in names]
        targets: Sequence[int] = ()
        if "attribute_relevance" in aspects:
            targets = samples.label_indices(self.labels, _RELEVANCE, self.attribute)
        left = iter(answers)
        for i in range(len(samples)):
            for aspect in aspects:
                answer, label = next(left), None
                scores, weighting = answer.means, self._weighting(aspect)
                if aspect in _GAINED and self._contexts:
                    neutral = np.stack([next(left).means for _ in self._contexts], axis=1)
                    scores = context_gain(scores, neutral)
                weights = np.ones(len(scores))
                if aspect == "attribute_relevance":
                    label = targets[i]
                    if len(scores):
                        words = scores.reshape(-1, len(self.labels)) - self.bias
                        shares, beta = relevance_evaluators(words)
                        scores = shares[:, label]
                        weights = beta if weighting == "beta" else np.ones_like(beta)
                elif weighting == "beta":  # the plain mean needs no table
                    weights = np.array([self.iwf.sentence_weight(ids) for ids in answer.tokens])
                yield Evaluated(i, aspect, label, scores, weights)

    def explain(
        self, samples: SamplesLike | None = None, **columns: Any
    ) -> list[dict[str, Explanation]]:
        """Return the aspects of each sample with their evaluators (Figure 5)."""
        samples, _ = as_samples(samples, **columns).answers()
        rows: list[dict[str, Explanation]] = [{} for _ in samples.texts]
        names = computable(self, samples)
        tasks = self.tasks(samples, names)
        with self.locked_model() as model:
            answers = model.answer(tasks)
        asked = iter(tasks)
        for found in self.evaluated(samples, answers, names):
            blanks = next(asked).blanks
            for _ in self._contexts if found.aspect in _GAINED else ():
                next(asked)
            score = weighted_mean(found.scores, found.weights)
            evaluators: tuple[PatternScore, ...] = ()
            if len(found.scores):
                patterns = [
                    ("".join(b.left), "".join(b.right), b.targets[0], b.targets) for b in blanks
                ]
                if (label := found.label) is not None:
                    patterns = []
                    for prompt, words in self.pattern_evaluators:
                        left, right = prompt.split(WORD_SLOT, 1)
                        patterns.append((left, right, words[label], words))
                weights = normalize_weights(found.weights).tolist()
                values = zip(patterns, found.scores.tolist(), weights, strict=True)
                evaluators = tuple(PatternScore(*pattern, *both) for pattern, *both in values)
            rows[found.sample][found.aspect] = Explanation(found.aspect, score, evaluators)
        return rows

    def probabilities(self, texts: Sequence[str]) -> Scores:
        """Return the probability of each label, (n, labels); NaN for an empty text, else sum 1."""
        texts = first_tokens(self.loaded_model.tokenizer, texts, self.max_tokens)
        result = np.full((len(texts), len(self.labels)), np.nan)
        kept = [i for i, text in enumerate(texts) if text.strip()]
        weighting = self._weighting("attribute_relevance")
        for i, values in zip(kept, self._word_log_probs([texts[i] for i in kept]), strict=True):
            result[i] = label_probabilities(values - self.bias, weighting)
        return result

    def _word_log_probs(self, texts: Sequence[str]) -> Scores:
        with self.locked_model() as model:
            answers = model.answer([Patterns(self._prompts, text) for text in texts])
        shape = len(texts), len(self.pattern_evaluators), len(self.labels)
        return np.array([answer.means for answer in answers]).reshape(shape)

    @cached_property
    def bias(self) -> Scores:
        """Bias that calibration subtracts, shape (evaluators, labels), measured with the model."""
        calibrated = self.calibration
        if calibrated is None:
            calibrated = isinstance(self.loaded_model, CausalLM) and len(self.labels) > 2
        if calibrated:
            return label_bias(self._word_log_probs(self._neutral))
        return np.zeros((len(self.pattern_evaluators), len(self.labels)))

    @cached_property
    def _neutral(self) -> Sequence[str]:
        if not isinstance(self.calibration, tuple):
            return neutral_texts()
        return first_tokens(self.loaded_model.tokenizer, self.calibration, self.max_tokens)

    @cached_property
    def _contexts(self) -> Sequence[str]:
        """Uninformative contexts of a sentence, prefix or remainder; empty: no calibration."""
        if self.calibration is False or not isinstance(self.loaded_model, CausalLM):
            return ()
        return self._neutral[:_CONTEXTS]

    def _weighting(self, aspect: str) -> Weighting:
        if self.weights is not None:
            return self.weights
        of_decoder = isinstance(self.loaded_model, CausalLM)
        return "mean" if aspect == "attribute_relevance" and of_decoder else "beta"
