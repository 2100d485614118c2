"""Scores of held-out prompts while a model trains: logged metrics, and values by prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ctrlreward.arguments import inner_path, positive
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.functional.sequential import PromptScores, jackknife_values
from ctrlreward.ranks import on_rank_zero
from ctrlreward.samples import Samples, SamplesLike, Unfinished, as_samples
from ctrlreward.scorers.base import Component, Scorer, Scores, ScoreSpec, score
from ctrlreward.scorers.components import ComponentLike, as_component, check_named
from ctrlreward.scorers.records import write_scored_samples

if TYPE_CHECKING:
    from ctrlreward.completion import Generator

FAIL_RATE = "fail_rate"
TABLE = "samples"
SCORED_STEP = "scored_step"
CORPUS = "corpus"


class HeldOutScores(NamedTuple):
    """Scores of the completions of all prompts.

    `scores` maps a name to the score of each of n samples, shape (n,), `reasons` to the reasons of
    those that have some; `metrics` maps a key to the value to log, `by_prompt` to the values of
    each prompt, see `HeldOutScorer`.
    """

    scores: dict[str, Scores]
    reasons: dict[str, Sequence[str]]
    metrics: dict[str, float]
    by_prompt: dict[str, Scores]


class HeldOutScorer:
    """Scores completions of held-out prompts, for rules of `ctrlreward.selection` that decide.

    For any training loop; `GenerationScorer` is this class as a callback. Every `evaluate`
    completes the same prompts with the same seed.

    Args:
        scores: Name → score: `{"attribute_relevance": ctrleval["attribute_relevance"]}`, or a
            scorer with a single score.
        samples: The held-out prompts, as for `ctrlreward.callbacks.generate`; anything that
            `as_samples` converts.
        generations_per_prompt: Completions per prompt.
        name: Prefix of each key.
        seed: Seed of the generation.
        answer_after: End of the reasoning in each completion: scores read what follows, the answer.
            None: `"</think>"` if the chat template of the generator's `tokenizer` has it. "" for
            the whole completion. Whole texts are stored.
        unfinished: Whether a completion without an answer counts as a whole (`"score"`, also None)
            or fails (`"fail"`).

    Attributes:
        by_prompt: Key → last scores of each prompt's completions, shape (prompts,
            generations_per_prompt), or its jackknife value for a score of the corpus, shape
            (prompts, 1).
        settings: What else the completions depend on, such as `{"max_new_tokens": 64}`.

    Examples:
        >>> from ctrlreward import Samples, Similarity, WordVectors
        >>> content = Similarity(WordVectors({"soup": [1, 0], "broth": [3, 4]}))
        >>> prompts = Samples(["A hot", "Some cold"], sources=["soup", "broth"])
        >>> held_out = HeldOutScorer({"content": content}, prompts)
        >>> metrics = held_out.evaluate(lambda prompts: [" broth" for prompt in prompts])
        >>> metrics, held_out.evidence["score/content"].round(2).tolist()
        ({'score/content': 0.8..., 'score/fail_rate': 0.0}, [0.6, 1.0])
    """

    def __init__(
        self,
        scores: Mapping[str, ComponentLike],
        samples: SamplesLike,
        generations_per_prompt: int = 1,
        name: str = "score",
        seed: int = 0,
        answer_after: str | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        super().__init__()  # a callback also inherits from another class
        self.components = components_by_name(scores)
        self.samples = as_samples(samples).read_after(answer_after, unfinished)
        if len(self.samples) == 0:
            raise ValueError("samples is empty, must have at least one held-out prompt")
        self.prompts = self.samples.as_prompts()
        self._digest = prompts_digest(self.prompts)
        self.generations_per_prompt = positive("generations_per_prompt", generations_per_prompt)
        self.name = inner_path("name", name)
        self.seed = seed
        self.settings: dict[str, Any] = {}
        self._repeats = generations_per_prompt  # 1 in a trial run of a callback
        self.by_prompt: dict[str, Scores] = {}

    @property
    def measured(self) -> dict[str, Any]:
        """What is measured: a digest of the prompts, their completions, and the settings."""
        return {"prompts": self._digest, "generations_per_prompt": self._repeats, **self.settings}

    @property
    def measure(self) -> str:
        """Digest of `measured`; values of different measures are not compared."""
        return hashlib.sha256(json.dumps(self.measured).encode()).hexdigest()[:16]

    def changed_since(self, measured: Mapping[str, Any]) -> str:
        """Return what differs from the `measured` of the run that this one resumes, "" if nothing.

        Rules then start a new reference (`ctrlreward.selection.decider`).
        """
        now = self.measured
        changed = [key for key in {**measured, **now} if measured.get(key) != now.get(key)]
        if not measured or not changed:
            return ""
        return (
            f"{self.name} is measured with other {', '.join(changed)} than before the resume: "
            "later validations are compared with each other, not with earlier ones"
        )

    @property
    def evidence(self) -> dict[str, Scores]:
        """Key → last score of each prompt, shape (prompts,): the mean of its completions."""
        of, means = self.measure, valid_row_means
        return {key: PromptScores(means(table), of) for key, table in self.by_prompt.items()}

    @cached_property
    def specs(self) -> Mapping[str, ScoreSpec]:
        specs = {key: component.spec for key, component in self.components.items()}
        specs[FAIL_RATE] = ScoreSpec(False, (0.0, 1.0))
        for name in self._of_corpus(dict.fromkeys(self.scored, np.full(1, np.nan)), [0]):
            key = name.removeprefix(f"{CORPUS}/")  # of a deviation if it is not one of a score
            specs[name] = specs.get(key, ScoreSpec(False, (0.0, np.inf)))
        return {f"{self.name}/{key}": spec for key, spec in specs.items()}

    @cached_property
    def scored(self) -> dict[str, Component]:
        """The components, and under separate keys what the scores of the corpus read."""
        return self.components | {
            f"{CORPUS}/{key}/{name}": Component(component.scorer, name)
            for key, component in self.components.items()
            for name in component.scorer.corpus_columns
        }

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
        from ctrlreward.completion import generate_across_ranks, mismatch

        if error := mismatch(generator, self.samples):
            raise ValueError(error)
        samples = generate_across_ranks(
            generator, self.prompts, self.generations_per_prompt, self.seed
        )
        return self.score_on_rank_zero(samples).metrics

    def score_on_rank_zero(self, samples: Samples, path: Path | None = None) -> HeldOutScores:
        """Return what `score_samples` returns, and keep the scores by prompt; a collective.

        The random state stays, since a scorer may load its model.
        """
        from ctrlreward.completion import fixed_randomness

        with fixed_randomness(self.seed):
            result = on_rank_zero(lambda: self.score_samples(samples, path))
        self.by_prompt = result.by_prompt
        return result

    def score_samples(
        self,
        samples: Samples,
        path: Path | None = None,
        scores: Mapping[str, Scores] | None = None,
    ) -> HeldOutScores:
        """Return the scores of completions, their metrics and the values of each prompt.

        Args:
            samples: Completions of the prompts; the completions of a prompt follow each other.
            path: JSONL file for texts and scores, written before anything else is computed, and
                again with the values of the prompts that do not follow from these scores.
            scores: Values of `scored`, if they are known.
        """
        reasons: dict[str, Sequence[str]] = {}
        if scores is None:
            result = score(self.scored, samples)
            result.failures.warn(len(samples))
            scores = result.scores
            reasons = {key: result.reasons[key] for key in self.components if key in result.reasons}
        shown = {key: scores[key] for key in self.components}
        if path is not None:
            write_scored_samples(path, samples, shown, reasons=reasons, measure=self.measure)
        corpus, jackknifed = self._figures(samples, scores) if self._has_figures else ({}, {})
        if path is not None and jackknifed:
            write_scored_samples(path, samples, shown, jackknifed, None, reasons, self.measure)
        tables = {key: row.reshape(-1, self._repeats) for key, row in shown.items()}
        failed = np.isnan([*tables.values()]).any(axis=0)
        tables[FAIL_RATE] = failed.mean(axis=1, keepdims=True)
        tables |= {key: row[:, None] for key, row in jackknifed.items()}
        values = mean_scores(shown) | corpus
        named = {f"{self.name}/{key}": value for key, value in values.items()}
        by_prompt = {f"{self.name}/{key}": table for key, table in tables.items()}
        return HeldOutScores(shown, reasons, named, by_prompt)

    def release(self) -> None:
        for scorer in self.scorers:
            scorer.release()

    @cached_property
    def _has_figures(self) -> bool:
        of_corpus = f"{self.name}/{CORPUS}/"
        of_groups = any(scorer.of_groups for scorer in self.scorers)
        return of_groups or any(key.startswith(of_corpus) for key in self.specs)

    def _figures(
        self, samples: Samples, scores: Mapping[str, Scores]
    ) -> tuple[dict[str, float], dict[str, Scores]]:
        """Return the scores of the corpus, and jackknife values, each of shape (prompts,).

        The latter are of scores of the corpus, and of scores that a group of texts shares: without
        a prompt, only groups that it shares with others are scored again.
        """
        grouped = {key: c for key, c in self.components.items() if c.scorer.of_groups}
        prompts = np.arange(len(samples)) // self._repeats
        _, groups = np.unique(samples.groups or [""] * len(samples), return_inverse=True)
        corpus = self._of_corpus(scores, np.arange(len(samples)))
        without: dict[str, list[float]] = {key: [] for key in (*grouped, *corpus)}
        for prompt in range(prompts[-1] + 1):
            others = prompts != prompt
            for key, value in (self._of_corpus(scores, others) if corpus else {}).items():
                without[key].append(value)
            changed = np.flatnonzero(others & np.isin(groups, groups[~others])).tolist()
            again = score(grouped, samples[changed]).scores if changed else {}
            for key in grouped:
                values = scores[key].copy()
                values[changed] = again.get(key, ())
                without[key].append(valid_mean(values[others]))
        means = {key: valid_mean(scores[key]) for key in grouped if prompts[-1] > 0}
        whole = means | corpus
        return corpus, {key: jackknife_values(whole[key], without[key]) for key in whole}

    def _of_corpus(self, scores: Mapping[str, Scores], rows: Any) -> dict[str, float]:
        """Return the scores of the corpus of some rows and their deviations, by key."""
        figures = dict[str, float]()
        for key, component in self.components.items():
            read = {n: scores[f"{CORPUS}/{key}/{n}"][rows] for n in component.scorer.corpus_columns}
            columns = {**read, component.name: scores[key][rows]}
            for name, value in component.scorer.corpus_of(columns).items():
                if name in (component.name, f"{component.name}_deviation"):
                    figures[f"{CORPUS}/{key}{name.removeprefix(component.name)}"] = value
        return figures


def components_by_name(scores: Mapping[str, ComponentLike]) -> dict[str, Component]:
    """Return the `scores` of a callback as components; see `HeldOutScorer` for the errors."""
    check_named("scores", scores)
    if not scores:
        raise ValueError("scores is empty, must be {'coherence': ctrleval['coherence']} or more")
    for key in scores:
        if key in (FAIL_RATE, TABLE, SCORED_STEP) or key.startswith(f"{CORPUS}/"):
            raise ValueError(f"scores has the key {key!r}, which is logged anyway. Rename it.")
    return {key: as_component(f"scores[{key!r}]", value) for key, value in scores.items()}


def prompts_digest(samples: Samples, repeats: int = 1) -> str:
    """Return a digest of the prompts in their order, of which each has `repeats` samples.

    A prompt is all columns of its samples but the texts.
    """
    columns = [column for name, column in samples.columns().items() if name != "texts"]
    rows = list(zip(*columns, strict=True))[::repeats]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] if columns else ""


def mean_scores(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the mean of each score, shape (n,), over its valid samples, NaN if there are none.

    `fail_rate` is the share of samples with at least one NaN score, in [0, 1]; lower is better.
    """
    means = {key: valid_mean(values) for key, values in scores.items()}
    failed = np.isnan(np.stack(list(scores.values()))).any(axis=0)
    return {**means, FAIL_RATE: float(failed.mean())}
