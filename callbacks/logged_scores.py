"""Scores that a callback logs: reserved keys, checks, means and scores of the corpus."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ctrlreward.functional.agreement import cv_star
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.functional.sequential import jackknife_values
from ctrlreward.lightning_package import Trainer, misconfigured
from ctrlreward.placement import shared_device
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, ScoreSpec, score
from ctrlreward.scorers.components import ComponentLike, as_component

FAIL_RATE = "fail_rate"
TABLE = "samples"
SCORED_STEP = "scored_step"
CORPUS = "corpus"
CV = "cv"
WITHOUT = "without"

# What other libraries call the arguments of callbacks that generate, and our names.
SAMPLING_NAMES = {
    "metrics": "scores",
    "scorers": "scores",
    "components": "scores",
    "prompts": "samples",
    "dataset": "samples",
    "eval_dataset": "samples",
    "num_generations": "generations_per_prompt",
}


def components_by_name(scores: Mapping[str, ComponentLike]) -> dict[str, Component]:
    """Return the `scores` of a callback as components.

    Raises:
        TypeError: `scores` is not a mapping, or a value is not a component or a scorer.
        ValueError: There are no scores, a scorer has several, or a name is reserved.
    """
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"scores is a {type(scores).__name__}: give a mapping, "
            '{"coherence": ctrleval["coherence"]}'
        )
    if not scores:
        raise ValueError('scores is empty: give at least one, {"coherence": ctrleval["coherence"]}')
    for key in scores:
        if key in (FAIL_RATE, TABLE, SCORED_STEP) or key.startswith((f"{CORPUS}/", f"{CV}/")):
            raise ValueError(
                f"scores has the key {key!r}, which the callback logs itself: give another name"
            )
    return {key: as_component(f"scores[{key!r}]", given) for key, given in scores.items()}


def check_devices(scores: Mapping[str, Component], trainer: Trainer) -> None:
    """Raise if a scorer runs on one of several training devices.

    Raises:
        MisconfigurationException: Names scorer, score and device.
    """
    devices = {
        f"{type(component.scorer).__name__} of scores[{key!r}]": component.scorer.devices
        for key, component in scores.items()
    }
    kind = trainer.strategy.root_device.type
    error = shared_device(devices, kind, trainer.device_ids, trainer.world_size)
    if error is not None:
        raise misconfigured(trainer, error)


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
        **{f"{CORPUS}/{key}": c.spec for key, c in components.items() if c.corpus_fold},
    }


def with_corpus_parts(components: Mapping[str, Component]) -> dict[str, Component]:
    """Return the components, and under keys of their own those that corpus folds read."""
    parts = {
        _part_key(key, name): Component(component.scorer, name)
        for key, component in components.items()
        for name in (component.corpus_fold.parts if component.corpus_fold else ())
    }
    return {**components, **parts}


def without_corpus_parts(scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """Return the scores that a user asked for."""
    return {key: values for key, values in scores.items() if not key.startswith(f"{CORPUS}/")}


def logged_scores(
    components: Mapping[str, Component], scores: Mapping[str, Scores]
) -> dict[str, float]:
    """Return mean scores and fail rate, and `corpus/<name>` of the components with a corpus fold.

    Args:
        components: n scores by name.
        scores: Values of `with_corpus_parts(components)` of all samples, arrays of shape (n,).
    """
    means = mean_scores({key: scores[key] for key in components})
    folds = {key: c.corpus_fold for key, c in components.items() if c.corpus_fold}
    corpus = {
        f"{CORPUS}/{key}": fold.fold(*(scores[_part_key(key, name)] for name in fold.parts))
        for key, fold in folds.items()
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
        fold = component.corpus_fold
        if fold is not None:
            parts = [scores[_part_key(key, name)] for name in fold.parts]
            left_out = [
                fold.fold(*(np.delete(part, slice(start, start + repeats)) for part in parts))
                for start in range(0, len(parts[0]), repeats)
            ]
            values = jackknife_values(fold.fold(*parts), left_out)
            tables[f"{CORPUS}/{key}"] = values[:, None]
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
    # Failed samples count in no value, and are not to be warned of again.
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
