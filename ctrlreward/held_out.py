"""Scores of held-out prompts while a model trains: logged metrics, and values by prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from ctrlreward.arguments import inner_path, positive
from ctrlreward.completion import Generator, generate_across_ranks
from ctrlreward.functional.agreement import cv_star
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.functional.sequential import Resolution, jackknife_values, resolution
from ctrlreward.placement import TimeLimit
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import (
    Component,
    Scorer,
    Scores,
    ScoreSpec,
    describe_batch,
    score,
)
from ctrlreward.scorers.components import ComponentLike, as_component
from ctrlreward.scorers.records import write_scored_samples

FAIL_RATE = "fail_rate"
TABLE = "samples"
SCORED_STEP = "scored_step"
CORPUS = "corpus"
CV = "cv"
WITHOUT = "without"

# Names in other libraries of the arguments of callbacks that generate, and our names.
SAMPLING_NAMES = {
    "metrics": "scores",
    "scorers": "scores",
    "components": "scores",
    "prompts": "samples",
    "dataset": "samples",
    "eval_dataset": "samples",
    "num_generations": "generations_per_prompt",
}


class HeldOutScorer:
    """Scores completions of held-out prompts, for rules of `ctrlreward.selection` that decide.

    For any training loop; `GenerationScorer` is this class as a callback. Every call of
    `evaluate` completes the same prompts with the same seed, so that two validations are compared
    prompt by prompt.

    Args:
        scores: Name → score: `{"attribute_relevance": ctrleval["attribute_relevance"]}`, or a
            scorer with a single score.
        samples: The held-out prompts, as for `ctrlreward.callbacks.generate`; anything that
            `as_samples` converts.
        generations_per_prompt: Completions per prompt.
        name: Prefix of each key.
        seed: Seed of the generation.
        decoding_cv: Return `<name>/cv/<score>` as well: CV*, in percent, of the mean scores of the
            first, second, … completions of all prompts, so that it takes two or more of each.
        timeout: Time limit for scoring, in seconds; a scorer that hangs then raises a
            `ScoringTimeout` with its line. None for no limit.

    Attributes:
        by_prompt: Key → last scores of each prompt's completions, shape (prompts,
            generations_per_prompt), or its jackknife value for a score of the corpus, shape
            (prompts, 1).
        resolutions: Key → difference that these prompts can show, from the second validation on
            (`ctrlreward.functional.sequential.Resolution`).

    Raises:
        TypeError: A value of `scores` is not a component or a scorer.
        ValueError: `scores` or `samples` is empty, a count is not positive, or a name is
            reserved.

    Examples:
        >>> from ctrlreward import Samples, Similarity, WordVectors
        >>> from ctrlreward.selection import BestRule
        >>> content = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> prompts = Samples(["A hot", "Some cold"], sources=["soup", "broth"])
        >>> held_out, rule = HeldOutScorer({"content": content}, prompts), BestRule("score/content")
        >>> state = rule.start()
        >>> for step, word in [(100, " soup"), (200, " broth")]:  # a loop that trains
        ...     metrics = held_out.evaluate(lambda prompts: [word for prompt in prompts])
        ...     state, decision = rule.update(state, step, metrics, evidence=held_out.evidence)
        >>> metrics, held_out.evidence["score/content"]
        ({'score/content': 0.8..., 'score/fail_rate': 0.0}, array([0.6, 1. ]))
    """

    def __init__(
        self,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int = 1,
        name: str = "score",
        seed: int = 0,
        decoding_cv: bool = False,
        timeout: float | None = None,
    ) -> None:
        super().__init__()  # a callback also inherits from another class
        self.components = components_by_name(scores)
        self.samples = as_samples(samples)
        self.prompts = self.samples.as_prompts()
        if len(self.samples) == 0:
            raise ValueError("samples is empty, must have at least one held-out prompt")
        self.generations_per_prompt = positive("generations_per_prompt", generations_per_prompt)
        self.name = inner_path("name", name)
        self.seed = seed
        self.decoding_cv = decoding_cv
        if decoding_cv and generations_per_prompt < 2:
            raise ValueError(
                "generations_per_prompt must be 2 or more for decoding_cv, which compares the "
                f"completions of a prompt, got {generations_per_prompt}"
            )
        self._limit = TimeLimit(timeout)
        self.by_prompt: dict[str, Scores] = {}
        self.resolutions: dict[str, Resolution] = {}

    @property
    def evidence(self) -> dict[str, Scores]:
        """Key → last score of each prompt, shape (prompts,): the mean of its completions."""
        return {key: valid_row_means(table) for key, table in self.by_prompt.items()}

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each key."""
        return {f"{self.name}/{key}": spec for key, spec in logged_specs(self.components).items()}

    @property
    def scorers(self) -> list[Scorer]:
        """The scorers of the scores, each once."""
        return list(dict.fromkeys(component.scorer for component in self.components.values()))

    def evaluate(self, generator: Generator) -> dict[str, float]:
        """Complete the prompts, score the texts and return the metrics, by `<name>/<score>`.

        A collective with several ranks of `torch.distributed`: every rank calls it, completes its
        share of the prompts, and gets the same values; rank 0 scores.

        Args:
            generator: A function from prompts to completions without the prompt, or a
                `TextGenerator` or `SampleGenerator`. Put the model in eval mode first.
        """
        samples = generate_across_ranks(
            generator, self.prompts, self.generations_per_prompt, self.seed
        )
        return self.metrics(on_rank_zero(lambda: self.score_samples(samples)))

    def score_samples(
        self,
        samples: Samples,
        path: Path | None = None,
        scores: Mapping[str, Scores] | None = None,
    ) -> dict[str, Scores]:
        """Return the scores of completions, and values for the metrics of a corpus.

        Args:
            samples: Completions of the prompts; the completions of a prompt follow each other.
            path: JSONL file for texts and scores, written before anything else is computed, and
                again with the values of the prompts that do not follow from these scores.
            scores: Values of `with_corpus_parts(components)`, if they are known.
        """
        wanted = with_corpus_parts(self.components)
        if scores is None:
            what = partial(describe_batch, self.components, samples)
            scores = self._limit.run(what, partial(score, wanted, samples))
        scores = dict(scores)
        shown = without_corpus_parts(scores)
        if path is not None:
            write_scored_samples(path, samples, shown)
        scores |= without_each_prompt(self.components, samples, scores, self._repeats)
        if path is not None:
            tables = scores_by_prompt(self.components, scores, self._repeats)
            jackknifed = {
                key: table[:, 0]
                for key, table in tables.items()
                if key.startswith(f"{CORPUS}/") or _part_key(key, WITHOUT) in scores
            }
            if jackknifed:
                write_scored_samples(path, samples, shown, jackknifed)
        return scores

    def metrics(self, scores: Mapping[str, Scores]) -> dict[str, float]:
        """Return the metrics of `score_samples`, and keep the scores by prompt."""
        tables = scores_by_prompt(self.components, scores, self._repeats)
        values = logged_scores(self.components, scores)
        if self.decoding_cv:
            values |= cv_of_decodings(tables)
        before = self.by_prompt
        self.by_prompt = {f"{self.name}/{key}": table for key, table in tables.items()}
        if all(key in before and before[key].shape == t.shape for key, t in self.by_prompt.items()):
            self.resolutions = {
                f"{self.name}/{key}": resolution(before[f"{self.name}/{key}"], tables[key])
                for key in self.components
            }
        return {f"{self.name}/{key}": value for key, value in values.items()}

    def describe_resolutions(self) -> str:
        """Return `resolutions` in words, one line per score."""
        several = self.generations_per_prompt > 1
        lines = [
            f"  {key}: {r.detectable:.3g}, half of it with {r.prompts_for_half} prompts (standard "
            f"deviation {r.between_prompts:.3g} between prompts"
            + (f", {r.between_decodings:.3g} between completions of a prompt)" if several else ")")
            for key, r in self.resolutions.items()
        ]
        what = (
            f"With {len(self.samples)} prompts, two validations that differ by this are found "
            "different in four of five cases:"
        )
        return "\n".join([what, *lines])

    @property
    def _repeats(self) -> int:
        return self.generations_per_prompt


def components_by_name(scores: Mapping[str, ComponentLike]) -> dict[str, Component]:
    """Return the `scores` of a callback as components.

    Raises:
        TypeError: `scores` is not a mapping, or a value is not a component or a scorer.
        ValueError: `scores` is empty, a scorer has several scores, or a name is reserved.
    """
    if not isinstance(scores, Mapping):
        raise TypeError(
            "scores must be a mapping, {'coherence': ctrleval['coherence']}, got a "
            f"{type(scores).__name__}"
        )
    if not scores:
        raise ValueError(
            "scores is empty, must have at least one, {'coherence': ctrleval['coherence']}"
        )
    for key in scores:
        if key in (FAIL_RATE, TABLE, SCORED_STEP) or key.startswith((f"{CORPUS}/", f"{CV}/")):
            raise ValueError(
                f"scores has the key {key!r}, which the callback logs itself. Rename it."
            )
    return {key: as_component(f"scores[{key!r}]", given) for key, given in scores.items()}


def mean_scores(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the mean of each score over its valid samples, and the fail rate.

    Args:
        scores: Name → array of shape (n,), NaN where scoring failed.

    Returns:
        Name → mean, NaN without a valid sample. `fail_rate` is the share of samples with at least
        one NaN score, in [0, 1]; lower is better.
    """
    means = {key: valid_mean(values) for key, values in scores.items()}
    failed = np.isnan(np.stack(list(scores.values()))).any(axis=0)
    return {**means, FAIL_RATE: float(failed.mean())}


def logged_specs(components: Mapping[str, Component]) -> dict[str, ScoreSpec]:
    """Return direction and range of each key of `logged_scores`."""
    return {
        **{key: component.spec for key, component in components.items()},
        FAIL_RATE: ScoreSpec(False, (0.0, 1.0)),
        **{
            f"{CORPUS}/{key}{end}": ScoreSpec(False, (0.0, np.inf)) if end else component.spec
            for key, component in components.items()
            for end in component.corpus_folds
        },
    }


def with_corpus_parts(components: Mapping[str, Component]) -> dict[str, Component]:
    """Return the components, and under separate keys the components that corpus folds read."""
    parts = {
        _part_key(key, name): Component(component.scorer, name)
        for key, component in components.items()
        for fold in component.corpus_folds.values()
        for name in fold.parts
    }
    return {**components, **parts}


def without_corpus_parts(scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """Return the scores that a user asked for."""
    return {key: values for key, values in scores.items() if not key.startswith(f"{CORPUS}/")}


def logged_scores(
    components: Mapping[str, Component], scores: Mapping[str, Scores]
) -> dict[str, float]:
    """Return mean scores and fail rate, and `corpus/<name>` of the components with corpus folds.

    Args:
        components: n scores by name.
        scores: Values of `with_corpus_parts(components)` of all samples, arrays of shape (n,).
    """
    means = mean_scores({key: scores[key] for key in components})
    corpus = {
        f"{CORPUS}/{key}{end}": fold.fold(*(scores[_part_key(key, name)] for name in fold.parts))
        for key, component in components.items()
        for end, fold in component.corpus_folds.items()
    }
    return {**means, **corpus}


def scores_by_prompt(
    components: Mapping[str, Component], scores: Mapping[str, Scores], repeats: int
) -> dict[str, Scores]:
    """Return the values of each prompt for each key of `logged_scores`.

    Args:
        components: n scores by name.
        scores: Values of `with_corpus_parts(components)` of all samples, arrays of shape (n,); the
            completions of a prompt follow each other.
        repeats: Completions per prompt.

    Returns:
        Key → array of shape (n / repeats, repeats); of shape (n / repeats, 1) for the fail rate,
        and for `corpus/<name>` and scores of groups, whose values are jackknife values.
    """
    tables = {key: scores[key].reshape(-1, repeats) for key in components}
    failed = np.isnan(np.stack(list(tables.values()))).any(axis=0)
    for key in components:
        if _part_key(key, WITHOUT) in scores:
            without = scores[_part_key(key, WITHOUT)]
            tables[key] = jackknife_values(valid_mean(scores[key]), without)[:, None]
    tables[FAIL_RATE] = failed.mean(axis=1, keepdims=True)
    for key, component in components.items():
        for end, fold in component.corpus_folds.items():
            parts = [scores[_part_key(key, name)] for name in fold.parts]
            left_out = [
                fold.fold(*(np.delete(part, slice(start, start + repeats)) for part in parts))
                for start in range(0, len(parts[0]), repeats)
            ]
            values = jackknife_values(fold.fold(*parts), left_out)
            tables[f"{CORPUS}/{key}{end}"] = values[:, None]
    return tables


def without_each_prompt(
    components: Mapping[str, Component],
    samples: Samples,
    scores: Mapping[str, Scores],
    repeats: int,
) -> dict[str, Scores]:
    """Return the mean of each score of groups without each prompt, for its jackknife values.

    Args:
        components: Scores by name.
        samples: n samples; the completions of a prompt follow each other.
        scores: Their scores, arrays of shape (n,).
        repeats: Completions per prompt.

    Returns:
        Reserved key → array of shape (n / repeats,).
    """
    grouped = {key: c for key, c in components.items() if c.scorer.of_groups}
    if not grouped or len(samples) == repeats:
        return {}
    # Failed samples are not counted, and not warned about again.
    failed = np.any([np.isnan(scores[key]) for key in grouped], axis=0)
    rows = [
        [row for row in range(len(samples)) if row // repeats != prompt and not failed[row]]
        for prompt in range(len(samples) // repeats)
    ]
    parts = [score(grouped, samples[kept]) for kept in rows]
    return {
        _part_key(key, WITHOUT): np.array([valid_mean(part[key]) for part in parts])
        for key in grouped
    }


def cv_of_decodings(tables: Mapping[str, Scores]) -> dict[str, float]:
    """Return CV* of the mean scores of repeated decodings, in percent, as `cv/<name>`.

    The j-th completions of all prompts are one decoding (Belz et al. 2022). NaN where CV* is
    undefined: for one decoding, means of both signs or means of 0.

    Args:
        tables: Values of `scores_by_prompt`.
    """
    means = {
        key: valid_row_means(table.T).tolist()
        for key, table in tables.items()
        if table.shape[1] > 1
    }
    return {
        f"{CV}/{key}": cv_star(row) if min(row) > 0 or max(row) < 0 else math.nan
        for key, row in means.items()
    }


def _part_key(key: str, part: str) -> str:
    return f"{CORPUS}/{key}/{part}"
