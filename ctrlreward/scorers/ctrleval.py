"""CTRLEval (Ke et al., ACL 2022) as a scorer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from os import PathLike

import numpy as np

from ctrlreward.engine.batching import windows
from ctrlreward.engine.requests import Requests, run_requests
from ctrlreward.functional.ctrleval import (
    WEIGHTINGS,
    Weighting,
    beta_weights,
    label_probabilities,
    mean_weights,
    relevance_evaluators,
)
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.models.infill import CausalInfiller, Infiller, load_infiller
from ctrlreward.models.tasks import Blank, TokenScores
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.explanation import Explanation, Pattern, explanation
from ctrlreward.scorers.patterns import coherence_blanks, consistency_blanks, relevance_blanks
from ctrlreward.scorers.task import WORD_SLOT, Task
from ctrlreward.text.sentences import sentence_splitter as find_splitter

log = logging.getLogger(__name__)

SPECS = {
    "coherence": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    "consistency": ScoreSpec(higher_is_better=True, range=(-np.inf, 0.0)),
    "attribute_relevance": ScoreSpec(higher_is_better=True, range=(0.0, 1.0)),
}


class CTRLEval(Scorer):
    """Coherence, consistency and attribute relevance of controlled generations, by infilling.

    - `coherence`: weighted mean of each sentence's mean token log-probability given the others.
    - `consistency`: the same of the remainder given the prefix, and of the prefix given the
      remainder. Needs `prefixes`.
    - `attribute_relevance`: the probability of the wanted label among all labels, over all
      prompts and verbalizers of the task. Needs `labels`.

    All are better when higher. Where the paper and its published code differ, this follows the
    code, which made the published numbers: the coherence target carries the end token.

    Args:
        model: Local folder, hub id or short name of an encoder-decoder or decoder-only model.
        task: `"sentiment"`, `"topic"`, a YAML file, or a `Task`.
        aspects: Which scores to compute.
        iwf: Inverse word frequencies that weight coherence and consistency: a table file (one
            weight per token id), an `InverseFrequency`, or None for the `wordfreq` package's.
        sentence_splitter: A callable, a name, or None for the default.
        device: Where the model runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass; None picks by device.
        weights: How the pattern evaluators of a text are folded into its score: `"beta"`, the
            mean with the paper's weights; or one of its ablations (Table 5), `"mean"`, the plain
            mean, `"max"`, the highest, and `"min"`, the lowest score of an evaluator. What an
            evaluator's score is, `PatternScore` says for each aspect. None takes the paper's,
            but the plain mean for the attribute relevance of a decoder-only model, where β
            measures how usual the words are behind the prompt (see docs/ctrleval.md).
        evaluators: How many of the task's evaluators (prompts × verbalizers) to draw at random
            for attribute relevance (Figure 4), the same for all samples; None takes all. The
            other aspects have as many as the text has sentences, and two.
        seed: Of that draw.

    Raises:
        ValueError: An aspect or `weights` is unknown, or the task has fewer evaluators.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        task: str | PathLike[str] | Task = "sentiment",
        aspects: Sequence[str] = ("coherence", "consistency", "attribute_relevance"),
        iwf: str | PathLike[str] | InverseFrequency | None = None,
        sentence_splitter: str | Callable[[str], list[str]] | None = None,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
        weights: str | None = None,
        evaluators: int | None = None,
        seed: int = 0,
    ) -> None:
        unknown = [aspect for aspect in aspects if aspect not in SPECS]
        if unknown or not aspects:
            raise ValueError(f"aspects = {list(aspects)}: give one or more of {', '.join(SPECS)}")
        if weights is not None and weights not in WEIGHTINGS:
            raise ValueError(f"weights = {weights!r}: give one of {', '.join(WEIGHTINGS)}")
        self.model = model
        self.task = task if isinstance(task, Task) else Task.load(task)
        self.aspects = tuple(aspects)
        self.weights = weights
        self.evaluators = (
            self.task.evaluators if evaluators is None else self.task.subset(evaluators, seed)
        )
        self.split = find_splitter(sentence_splitter)
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens
        self._iwf = iwf

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """The chosen aspects."""
        return {aspect: SPECS[aspect] for aspect in self.aspects}

    @property
    def labels(self) -> tuple[str, ...]:
        """The task's labels, in the order of `probabilities`' columns."""
        return self.task.labels

    def score(self, samples: Samples) -> dict[str, Scores]:
        """Scores of the chosen aspects, each float64 of shape (n,).

        NaN, with a warning, where an aspect has nothing to score: an empty text, or for
        consistency a text that is all prefix or has no prefix.

        Raises:
            ValueError: A column that an aspect needs is absent, or a label is not the task's.
        """
        return run_requests([self.requests(samples)])[0]

    def requests(self, samples: Samples) -> Requests[dict[str, Scores]]:
        """See `Scorer.requests`."""
        scores = {aspect: np.empty(len(samples)) for aspect in self.aspects}

        def keep(i: int, part: Explanation) -> None:
            scores[part.aspect][i] = part.score

        yield from self._explaining(samples, keep)
        return scores

    def explain(self, samples: Samples) -> list[dict[str, Explanation]]:
        """What the scores are made of: each pattern evaluator with its score and weight (Fig. 5).

        `scorers.explanation.to_records` makes plain data of it, `scorers.charts.bar_chart` a
        picture.

        Returns:
            For each sample the chosen aspects, each with the score that `score` gives.

        Raises:
            ValueError: As `score` does.
        """
        explained: list[dict[str, Explanation]] = [{} for _ in samples.texts]

        def keep(i: int, part: Explanation) -> None:
            explained[i][part.aspect] = part

        run_requests([self._explaining(samples, keep)])
        return explained

    def _explaining(
        self, samples: Samples, keep: Callable[[int, Explanation], None]
    ) -> Requests[None]:
        """Hands over each aspect of each sample with the sample's place, a window at a time."""
        self._check(samples)
        labels: Sequence[str] = samples.labels or ()
        for window in windows(samples.texts):
            blanks = {
                (i, aspect): self._blanks(aspect, samples, i)
                for i in window
                for aspect in self.aspects
            }
            flat = [blank for group in blanks.values() for blank in group]
            scored = iter((yield from self.infiller.requests(flat)))
            for (i, aspect), group in blanks.items():
                found = [next(scored) for _ in group]
                if not group:
                    keep(i, Explanation(aspect, np.nan))
                elif aspect == "attribute_relevance":
                    keep(i, self._relevance(found, labels[i]))
                else:
                    keep(i, self._likelihood(aspect, group, found))

    def probabilities(self, texts: Sequence[str]) -> Scores:
        """The evaluators as a classifier: probability of each label, shape (n, labels).

        NaN where a text is empty. Each row sums to 1, except with the weights `"max"` and
        `"min"`, which pick an evaluator for each label.
        """
        result = np.full((len(texts), len(self.labels)), np.nan)
        for window in windows(texts):
            groups = [self._relevance_blanks(texts[i]) for i in window]
            flat = [blank for group in groups for blank in group]
            scored = iter(run_requests([self.infiller.requests(flat)])[0])
            for i, group in zip(window, groups, strict=True):
                if group:
                    log_probs = self._word_log_probs([next(scored) for _ in group])
                    weighting = self._weighting("attribute_relevance")
                    result[i] = label_probabilities(log_probs, weighting)
        return result

    def load(self) -> None:
        """Loads the model now."""
        _ = self.infiller

    def to(self, device: str) -> None:
        """Loads the model on `device` at its next use."""
        self.release()
        self.device = device

    def release(self) -> None:
        """Frees the model; the next `score` loads it again."""
        self.__dict__.pop("infiller", None)

    @cached_property
    def infiller(self) -> Infiller:
        """The base model, loaded at its first use."""
        return load_infiller(self.model, self.device, self.dtype, self.batch_tokens)

    @cached_property
    def iwf(self) -> InverseFrequency:
        """The weights of coherence and consistency."""
        tokenizer = self.infiller.tokenizer
        if self._iwf is None:
            return InverseFrequency.from_wordfreq(tokenizer)
        table = self._iwf
        if not isinstance(table, InverseFrequency):
            table = InverseFrequency.from_file(table)
        return table.require(len(tokenizer))

    def _check(self, samples: Samples) -> None:
        """Refuses samples that lack what the aspects need, before anything is scored."""
        if "consistency" in self.aspects:
            samples.require("prefixes", "CTRLEval consistency")
        if "attribute_relevance" in self.aspects:
            for i, label in enumerate(samples.require("labels", "CTRLEval attribute_relevance")):
                if label not in self.labels:
                    raise ValueError(
                        f"labels[{i}] = {label!r} is no label of the task: "
                        f"it has {', '.join(self.labels)}"
                    )

    def _blanks(self, aspect: str, samples: Samples, i: int) -> list[Blank]:
        """A sample's patterns for an aspect; none where there is nothing to score."""
        text = samples.texts[i]
        prefix = samples.prefixes[i] if samples.prefixes else ""
        blanks: list[Blank] = []
        if aspect == "coherence":
            blanks = coherence_blanks([s for s in self.split(text) if s.strip()])
        elif aspect == "attribute_relevance":
            blanks = self._relevance_blanks(text)
        elif prefix.strip() and text[len(prefix) :].strip():
            blanks = consistency_blanks(text, prefix)
        if not blanks:
            log.warning("texts[%d] %s: its %s is NaN", i, _lack(aspect, text, prefix), aspect)
        return blanks

    def _relevance_blanks(self, text: str) -> list[Blank]:
        """One a prompt, with the words of its verbalizers one after the other."""
        if not text.strip():
            return []
        blanks = []
        for prompt, evaluators in groupby(self.evaluators, key=lambda e: e.prompt):
            words = [word for evaluator in evaluators for word in evaluator.words]
            blanks += relevance_blanks(text, [prompt], words)
        return blanks

    def _likelihood(
        self, aspect: str, blanks: list[Blank], found: list[list[TokenScores]]
    ) -> Explanation:
        """Coherence or consistency of one text, from each pattern's one target."""
        targets = [target for (target,) in found]
        weighting = self._weighting(aspect)
        beta = np.ones(len(targets))
        if weighting is beta_weights:  # no other reads β, and the table behind it may be large
            beta = np.array([self.iwf.sentence_weight(target.ids) for target in targets])
        return explanation(
            aspect,
            [Pattern(b.left, b.right, b.targets[0], b.targets) for b in blanks],
            np.array([target.log_probs.mean() for target in targets]),
            beta,
            weighting,
        )

    def _relevance(self, found: list[list[TokenScores]], label: str) -> Explanation:
        """Attribute relevance of one text."""
        wanted = self.labels.index(label)
        patterns = []
        for prompt, words in self.evaluators:
            left, _, right = prompt.partition(WORD_SLOT)
            patterns.append(Pattern(left, right, words[wanted], words))
        scores, beta = relevance_evaluators(self._word_log_probs(found))
        aspect = "attribute_relevance"
        return explanation(aspect, patterns, scores[:, wanted], beta, self._weighting(aspect))

    def _weighting(self, aspect: str) -> Weighting:
        if self.weights is not None:
            return WEIGHTINGS[self.weights]
        continues = isinstance(self.infiller, CausalInfiller)
        return mean_weights if continues and aspect == "attribute_relevance" else beta_weights

    def _word_log_probs(self, found: list[list[TokenScores]]) -> Scores:
        """Mean log-probability of each evaluator's words, shape (evaluators, labels)."""
        means = [word.log_probs.mean() for words in found for word in words]
        return np.array(means).reshape(len(self.evaluators), len(self.labels))


def _lack(aspect: str, text: str, prefix: str) -> str:
    """Why a sample gives no pattern."""
    if not text.strip():
        return "is empty"
    if aspect == "coherence":
        return "has no sentences"
    return "has nothing beyond its prefix" if prefix.strip() else "has no prefix"
