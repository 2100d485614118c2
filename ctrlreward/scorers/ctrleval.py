"""CTRLEval (Ke et al., ACL 2022) as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from os import PathLike
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, get_args

import numpy as np

from ctrlreward.arguments import checked_keywords, one_of, positive, some_of
from ctrlreward.engine.batching import windows
from ctrlreward.engine.sharing import Requests, run_requests
from ctrlreward.files import finite_or_none
from ctrlreward.functional.calibration import context_gain, label_bias
from ctrlreward.functional.ctrleval import (
    Weighting,
    evaluator_weights,
    label_probabilities,
    normalize_weights,
    relevance_evaluators,
    weighted_mean,
)
from ctrlreward.items import item_logger
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.models.infill import CausalInfiller, Infiller, load_infiller
from ctrlreward.models.tasks import Blank
from ctrlreward.models.tokenization import first_tokens
from ctrlreward.samples import SampleKeywords, Samples, SamplesLike, as_samples, shortened
from ctrlreward.scorers.base import NO_CREDIT, Credit, Scores, ScoreSpec
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.scorers.task import TEXT_SLOT, WORD_SLOT, Evaluator, Task, require_texts
from ctrlreward.text.neutral_texts import neutral_texts
from ctrlreward.text.sentences import find_splitter

log = item_logger(__name__)


@dataclass(frozen=True)
class PatternScore:
    """A pattern evaluator, a text with a blank and the target that fills it, and its score.

    Attributes:
        left: Text before the blank. Prompts of attribute relevance keep `<gen_result>` in place
            of the scored text.
        right: Text after the blank.
        target: Filling whose likelihood counts: a sentence, the prefix, the remainder, or the
            word of the target label.
        candidates: Fillings to compare with the target, including itself; in attribute
            relevance a word of each label, in their order, elsewhere only the target.
        score: Mean log-probability of the target's tokens, of a sentence or prefix calibrated for
            a decoder-only model (`functional.calibration.context_gain`), in (-inf, 0]; for
            attribute relevance the share of the target among the candidates, in [0, 1]. Higher is
            better.
        weight: Share in the score of the text, in [0, 1]; the weights of one text sum to 1.
    """

    left: str
    right: str
    target: str
    candidates: tuple[str, ...]
    score: float
    weight: float


@dataclass(frozen=True)
class Explanation:
    """One aspect of one text: its score, and the pattern evaluators behind it in their order.

    The score is their weighted mean; NaN, without evaluators, if there is nothing to score.
    """

    aspect: str
    score: float
    evaluators: tuple[PatternScore, ...] = ()


def to_records(explained: Sequence[Mapping[str, Explanation]]) -> list[dict[str, Any]]:
    """Convert the result of `CTRLEval.explain` to one record per sample and aspect.

    A record has `sample` (its index), `aspect`, `score` (None for NaN) and `evaluators`, a list of
    records with the fields of `PatternScore`.
    """
    return [
        {"sample": index, **asdict(found), "score": finite_or_none(found.score)}
        for index, aspects in enumerate(explained)
        for found in aspects.values()
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
    """Return two blanks: remainder, with its leading space, given prefix, and the reverse."""
    remainder = text[len(prefix) :]
    return [
        Blank(prefix + " ", "", (remainder,), joined=True),
        Blank("", " " + remainder, (prefix,)),
    ]


def neutral_blanks(blank: Blank, texts: Sequence[str]) -> list[Blank]:
    """Return the blank once per text, with the text in place of its context.

    A text follows the blank if nothing precedes it. A blank without context is not changed.
    """
    if blank.left.strip():
        return [blank._replace(left=f"{text} ", right="") for text in texts]
    if blank.right.strip():
        return [blank._replace(left="", right=f" {text}") for text in texts]
    return [blank] * len(texts)


def relevance_blanks(text: str, evaluators: Sequence[Evaluator]) -> list[Blank]:
    """Return one blank per prompt that contains the text, with all its words as candidates."""
    blanks = []
    for prompt, group in groupby(evaluators, key=lambda e: e.prompt):
        # Split before inserting the text, which may itself contain the names of the slots.
        left, right = prompt.split(WORD_SLOT, 1)
        blanks.append(
            Blank(
                left.replace(TEXT_SLOT, text),
                right.replace(TEXT_SLOT, text),
                tuple(word for evaluator in group for word in evaluator.words),
                closing=right.partition(TEXT_SLOT)[0].rstrip(),
            )
        )
    return blanks


def reason_for_nan(aspect: str, text: str, prefix: str) -> str:
    """Return the reason why a sample has no pattern, for the warning."""
    if not text.strip():
        return "is empty"
    if aspect == "coherence":
        return "has no sentences"
    return "has nothing beyond its prefix" if prefix.strip() else "has no prefix"


AspectName: TypeAlias = Literal["coherence", "consistency", "attribute_relevance"]


class Evaluated(NamedTuple):
    """Pattern evaluators of one text for one aspect; none if there is nothing to score.

    `blanks` are the blanks that the model filled: one per evaluator, in attribute relevance one per
    prompt. `scores` and `weights` have shape (evaluators,); the weights, ≥ 0, need not sum to 1.
    `label` is the index of the target label in attribute relevance, None in the other aspects.
    """

    sample: int
    aspect: str
    label: int | None
    blanks: Sequence[Blank]
    scores: Scores
    weights: Scores


# Patterns whose neutral likelihood is taken off. The neutral likelihood of a remainder is its
# fluency, which people rate as well, and the gain loses it (docs/ctrleval.md, choice 7).
_GAINED: dict[AspectName, slice] = {
    "coherence": slice(None),
    "consistency": slice(1, None),  # the prefix given the remainder
    "attribute_relevance": slice(0),
}
_CONTEXTS = 2  # each costs a pass over all targets; a mean depends less on one of them

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

    Higher is better for all three. Where the paper and its published code differ, this follows the
    code, which produced the published numbers: the coherence target includes the end token.

    Args:
        model: Local folder, Hugging Face id or short name; encoder-decoder or decoder-only.
        task: `"sentiment"`, `"topic"`, a YAML file, or a `Task`.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        iwf: Inverse word frequencies, weights of coherence and consistency: a file with a weight
            per token id, an `InverseFrequency`, or None for frequencies of the `wordfreq` package.
        sentence_splitter: A callable, a name, or None for the default.
        weights: Aggregation of a text's pattern evaluators: `"beta"`, the mean with the paper's
            weights, or an ablation of its Table 5: `"mean"`, the plain mean, `"max"`, the highest,
            `"min"`, the lowest score. None uses `"beta"`, except for the relevance of a
            decoder-only model, which uses `"mean"` (see docs/ctrleval.md).
        evaluators: Number of the task's evaluators (prompts × verbalizers) to draw at random for
            attribute relevance (Figure 4), the same for all samples; None uses all.
        seed: Seed of that draw.
        max_tokens: Tokens of a text to read, None for as many as the model can; a warning names
            a longer text. The cost of coherence grows with the square of a text's length.
        calibration: For attribute relevance, subtract how likely each label's word is independent
            of the text (`functional.calibration.label_bias`): True measures it once, after 16
            `neutral_texts`, a list after its texts, False turns it off. None is True for a
            decoder-only model with three labels or more (see docs/label_calibration.md).
            For a decoder-only model, subtract half of how likely a sentence (coherence) or a
            prefix (consistency) is after the first two of these texts
            (`functional.calibration.context_gain`); False turns it off.
        attribute: Attribute whose label is the target, for samples with labels of several
            (`Samples`); None takes the whole label.
        **options: See `ModelOptions`.

    Attributes:
        labels: Labels of the task, in the column order of `probabilities`.
        pattern_evaluators: Prompts with their verbalizers, drawn by `evaluators`.

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
        weights: Weighting | None = None,
        evaluators: int | None = None,
        seed: int = 0,
        max_tokens: int | None = 512,
        calibration: bool | Sequence[str] | None = None,
        attribute: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self.task = task if isinstance(task, Task) else Task.load(task)
        self.labels = self.task.labels
        self._leaves_out = aspects == "all"
        self.aspects = some_of("aspects", aspects, SPECS)
        self.weights = None if weights is None else one_of("weights", weights, get_args(Weighting))
        self.max_tokens = positive("max_tokens", max_tokens)
        self.pattern_evaluators = (
            self.task.evaluators if evaluators is None else self.task.subset(evaluators, seed)
        )
        self.split = find_splitter(sentence_splitter)
        self.attribute = attribute
        self.calibration = calibration
        if not isinstance(calibration, bool | None):
            self.calibration = tuple(require_texts("calibration", calibration))
            positive("len(calibration)", len(self.calibration))
        self._iwf = iwf
        self._bias: Scores | None = None

    @cached_property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of the chosen aspects."""
        return {aspect: SPECS[aspect] for aspect in self.aspects}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """`prefixes` for consistency, `labels` for attribute relevance."""
        readers: dict[str, str] = {"prefixes": "consistency", "labels": "attribute_relevance"}
        aspects = self.aspects if names is None else names
        return {c: f"CTRLEval {aspect}" for c, aspect in readers.items() if aspect in aspects}

    def build_model(self, name: str) -> Infiller:
        """Load the model, or share it with other scorers."""
        return load_infiller(name, self.device, self.dtype, self.batch_tokens)

    @cached_property
    def iwf(self) -> InverseFrequency:
        """Weights of coherence and consistency."""
        tokenizer = self.loaded_model.tokenizer
        if self._iwf is None:
            return InverseFrequency.from_wordfreq(tokenizer)
        table = self._iwf
        if not isinstance(table, InverseFrequency):
            table = InverseFrequency.from_file(table)
        return table.require(len(tokenizer))

    def release(self) -> None:
        """Free the model and its calibration; see `ModelScorer.release`."""
        super().release()
        self._bias = None

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise if the samples lack a column that the aspects need, or have an unknown label."""
        super().check_samples(samples, names)
        if "attribute_relevance" in (self.aspects if names is None else names):
            reader = "CTRLEval attribute_relevance"
            samples.label_indices(self.labels, reader, "the task", self.attribute)

    def score_samples(
        self,
        samples: Samples,
        names: Collection[str] | None = None,
        evaluated: list[Evaluated] | None = None,
    ) -> Requests[dict[str, Scores]]:
        """Compute the chosen aspects, with `names` only these, each float64 of shape (n,).

        NaN, with a warning, if an aspect has nothing to score: an empty text; for consistency
        also a text without a prefix, or with nothing after it. The values behind the scores are
        appended to `evaluated`, sample by sample.
        """
        aspects = [a for a in self.aspects if names is None or a in names]
        prefixes: Sequence[str] = [""] * len(samples.texts)
        targets: list[int] = []
        if "consistency" in aspects:
            prefixes = samples.require("prefixes", "CTRLEval consistency")
        if "attribute_relevance" in aspects:
            reader = "CTRLEval attribute_relevance"
            targets = samples.label_indices(self.labels, reader, "the task", self.attribute)
            if self._bias is None:
                yield from self._label_bias()
        contexts = self._contexts
        results: dict[str, Scores] = {a: np.full(len(samples.texts), np.nan) for a in aspects}
        texts = first_tokens(self.loaded_model.tokenizer, samples.texts, self.max_tokens)
        for window in windows(texts):
            groups: list[tuple[int, AspectName, list[Blank]]] = []
            for i in window:
                text, prefix = texts[i], prefixes[i][: len(texts[i])]
                for aspect in aspects:
                    blanks: list[Blank] = []
                    if aspect == "coherence":
                        blanks = coherence_blanks([s for s in self.split(text) if s.strip()])
                    elif aspect == "attribute_relevance" and text.strip():
                        blanks = relevance_blanks(text, self.pattern_evaluators)
                    elif prefix.strip() and text[len(prefix) :].strip():
                        blanks = consistency_blanks(text, prefix)
                    if not blanks:
                        reason = reason_for_nan(aspect, text, prefix)
                        log.warning("texts[%d] %s: its %s is NaN", i, reason, aspect)
                    groups.append((i, aspect, blanks))
            flat: list[Blank] = []
            for _, aspect, blanks in groups:
                flat += blanks
                for blank in blanks[_GAINED[aspect]]:
                    flat += neutral_blanks(blank, contexts)
            scored = iter((yield from self.loaded_model.requests(flat)))
            for i, aspect, blanks in groups:
                targets_scored = [target for _ in blanks for target in next(scored)]
                scores = np.array([target.log_probs.mean() for target in targets_scored])
                if contexts and (gained := blanks[_GAINED[aspect]]):
                    neutral = [next(scored)[0].log_probs.mean() for _ in gained for _ in contexts]
                    gains = context_gain(
                        scores[_GAINED[aspect]], np.reshape(neutral, (len(gained), -1))
                    )
                    scores[_GAINED[aspect]] = gains
                weighting = self._weightings[aspect]
                beta = np.ones(len(scores))
                if aspect == "attribute_relevance" and blanks:
                    log_probs = scores.reshape(-1, len(self.labels)) - self._bias
                    shares, beta = relevance_evaluators(log_probs)
                    scores = shares[:, targets[i]]
                elif weighting == "beta":  # the others ignore β; its table may be large
                    beta = np.array([self.iwf.sentence_weight(t.ids) for t in targets_scored])
                weights = evaluator_weights(weighting, scores, beta) if blanks else beta
                results[aspect][i] = weighted_mean(scores, weights)
                if evaluated is not None:
                    label = targets[i] if aspect == "attribute_relevance" else None
                    evaluated.append(Evaluated(i, aspect, label, blanks, scores, weights))
        return results

    @property
    def credited(self) -> Collection[str]:
        """Coherence, by sentence."""
        return [aspect for aspect in self.aspects if aspect == "coherence"]

    def credit_samples(
        self, samples: Samples, names: Collection[str]
    ) -> Requests[dict[str, list[Credit]]]:
        """Split coherence over the sentences: the weighted score of each, at its end.

        Raises:
            ValueError: The sentence splitter has changed a sentence.
        """

        def split(found: Evaluated) -> Credit:
            if not len(found.scores):
                return NO_CREDIT
            ends, text = [0], samples.texts[found.sample]
            for blank in found.blanks:
                start = text.find(blank.targets[0], ends[-1])
                if start < 0:
                    raise ValueError(
                        f"the sentence {shortened(blank.targets[0])} is not in "
                        f"texts[{found.sample}] = {shortened(text)}: the sentence_splitter must "
                        "leave sentences as they are"
                    )
                ends.append(start + len(blank.targets[0]))
            weights = normalize_weights(found.weights)
            values = weights * np.where(weights > 0, found.scores, 0.0)  # 0 · -inf would be NaN
            return Credit(np.array(ends[1:]), values)

        evaluated: list[Evaluated] = []
        yield from self.score_samples(samples, ["coherence"], evaluated)
        credits = [split(found) for found in evaluated]
        return dict.fromkeys(names, credits)

    def explain(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> list[dict[str, Explanation]]:
        """Return the chosen aspects of each sample by name, with their evaluators (Figure 5).

        Takes the arguments of `score`. `scorers.ctrleval.to_records` converts the result to plain
        data.
        """
        samples = as_samples(samples, **columns)
        computable = self.computable(samples)
        aspects = [aspect for aspect in self.aspects if aspect in computable]

        def explained(found: Evaluated) -> Explanation:
            if not len(found.scores):
                return Explanation(found.aspect, np.nan)
            patterns = [(b.left, b.right, b.targets[0], b.targets) for b in found.blanks]
            if (label := found.label) is not None:
                parts = [(e.prompt.split(WORD_SLOT, 1), e.words) for e in self.pattern_evaluators]
                patterns = [(left, right, w[label], w) for (left, right), w in parts]
            scores, weights = found.scores.tolist(), normalize_weights(found.weights).tolist()
            rows = zip(patterns, scores, weights, strict=True)
            evaluators = tuple(PatternScore(*pattern, *values) for pattern, *values in rows)
            return Explanation(found.aspect, weighted_mean(found.scores, found.weights), evaluators)

        evaluated: list[Evaluated] = []
        run_requests([self.score_samples(samples, aspects, evaluated)])
        rows: list[dict[str, Explanation]] = [{} for _ in samples.texts]
        for found in evaluated:
            rows[found.sample][found.aspect] = explained(found)
        return rows

    def probabilities(self, texts: Sequence[str]) -> Scores:
        """Return the probability of each label, shape (n, labels): the task as a classifier.

        NaN for an empty text. Each row sums to 1, except with the weights `"max"` and `"min"`,
        which pick an evaluator for each label.
        """
        texts = first_tokens(self.loaded_model.tokenizer, texts, self.max_tokens)
        result = np.full((len(texts), len(self.labels)), np.nan)
        kept = [i for i, text in enumerate(texts) if text.strip()]
        words = self._word_log_probs([texts[i] for i in kept])
        log_probs, bias = run_requests([words, self._label_bias()])
        for i, values in zip(kept, log_probs, strict=True):
            result[i] = label_probabilities(values - bias, self._weightings["attribute_relevance"])
        return result

    def _word_log_probs(self, texts: Sequence[str]) -> Requests[Scores]:
        """Return the log-probability of each word after each text, (texts, evaluators, labels)."""
        means: list[float] = []
        for window in windows(texts):
            blanks = [
                b for i in window for b in relevance_blanks(texts[i], self.pattern_evaluators)
            ]
            scored = yield from self.loaded_model.requests(blanks)
            means += [word.log_probs.mean() for words in scored for word in words]
        shape = len(texts), len(self.pattern_evaluators), len(self.labels)
        return np.array(means).reshape(shape)

    def _label_bias(self) -> Requests[Scores]:
        """Return the bias that calibration subtracts, shape (evaluators, labels); computed once."""
        if self._bias is None:
            texts = self.calibration
            if texts is None:
                texts = isinstance(self.loaded_model, CausalInfiller) and len(self.labels) > 2
            if texts is True:
                texts = neutral_texts()
            elif texts:
                texts = first_tokens(self.loaded_model.tokenizer, texts, self.max_tokens)
            if texts:
                self._bias = label_bias((yield from self._word_log_probs(texts)))
            else:
                self._bias = np.zeros((len(self.pattern_evaluators), len(self.labels)))
        return self._bias

    @cached_property
    def _contexts(self) -> Sequence[str]:
        """Uninformative contexts of a sentence, prefix or remainder; empty: no calibration."""
        if self.calibration is False or not isinstance(self.loaded_model, CausalInfiller):
            return ()
        if isinstance(self.calibration, tuple):
            texts = self.calibration[:_CONTEXTS]
            return first_tokens(self.loaded_model.tokenizer, texts, self.max_tokens)
        return neutral_texts()[:_CONTEXTS]

    @cached_property
    def _weightings(self) -> dict[str, Weighting]:
        """Weighting of the evaluators of each aspect."""
        default: dict[str, Weighting] = dict.fromkeys(SPECS, "beta")
        if isinstance(self.loaded_model, CausalInfiller):
            default["attribute_relevance"] = "mean"
        return default if self.weights is None else dict.fromkeys(SPECS, self.weights)
