"""Conversion of another trainer's batch to `Samples`, and the checks that all adapters share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from ctrlreward.arguments import one_of
from ctrlreward.reward import AnyReward, Reward, RewardBatch
from ctrlreward.samples import COLUMN_OF, JSON_KEYS, Samples

# Filled in from the trainer's completions and prompts, so they can't be mapped.
_FILLED_IN = ("texts", "prompts")


def check_columns(
    columns: Mapping[str, str] | None, reward: AnyReward | None = None
) -> dict[str, str]:
    """Return the mapping from columns of `Samples` to the trainer's column names.

    Raises a ValueError if it has an unknown column, or lacks one that the reward needs. What else a
    function reads, `Samples.extra`, is known when it is called.
    """
    if not isinstance(columns, Mapping | None):
        raise TypeError(f"columns must map columns of Samples to the trainer's, got {columns!r}")
    known = [name for name, column in COLUMN_OF.items() if column not in _FILLED_IN]
    mapping: dict[str, str] = {}
    for name, source in (columns or {}).items():
        column = COLUMN_OF[one_of("a column", name, known)]
        if column in mapping:
            raise ValueError(f"columns maps {column!r} twice")
        mapping[column] = source
    # A RemoteReward is not asked: its server may start later.
    for component in reward.components.values() if isinstance(reward, Reward) else ():
        for name in component.scorer.required_columns([component.name]):
            if name in JSON_KEYS and name not in (*mapping, *_FILLED_IN, "groups"):
                reader = type(component.scorer).__name__
                raise ValueError(f"{reader} needs the column {name!r}: columns={{{name!r}: ...}}")
    return mapping


def check_single_samples(reward: AnyReward, failed_score: Any, keys: Sequence[str]) -> None:
    """Raise a ValueError unless a reward suits trainers that ask for one sample, and one number.

    No component depends on several samples or has the name of one of the `keys` of a result, and
    `failed_score` is finite: a trainer would spread NaN to other samples.
    """
    if not (isinstance(failed_score, Real) and math.isfinite(failed_score)):
        raise ValueError(f"failed_score must be a finite number, got {failed_score}")
    for name, component in reward.components.items():
        if name in keys:
            raise ValueError(f"a component must not be named {name!r}, a key of every result")
        if not component.scorer.pointwise:
            raise ValueError(
                f"{name} is computed over several samples at once, but this trainer asks for one "
                "at a time. Monitor it in validation, or, for a function that reads each text "
                "alone, use FunctionScorer(function, pointwise=True)."
            )


def build_samples(
    completions: Sequence[str],
    prompts: Sequence[str] | None,
    table: Mapping[str, Sequence[Any]],
    columns: Mapping[str, str],
) -> Samples:
    """Build `Samples` from completions and the trainer's columns.

    Each text is prefix + completion if `prefixes` is mapped, else the completion alone. `groups`
    are the prompts unless they are mapped. `prompts` are the column `"prompt"`; None if the trainer
    doesn't pass them. `columns` maps columns of `Samples` to names in the table.
    """
    known = dict(table) if prompts is None else {"prompt": prompts, **table}
    mapped: dict[str, Any] = {
        name: known[one_of(f"columns[{name!r}]", source, known)] for name, source in columns.items()
    }
    if "groups" in mapped:
        mapped["groups"] = [str(group) for group in mapped["groups"]]  # ids are often numbers
    elif prompts is not None:
        mapped["groups"] = list(prompts)
    if "prefixes" not in mapped:
        return Samples(texts=completions, prompts=prompts, **mapped)
    return Samples(texts=mapped["prefixes"], prompts=prompts, **mapped).completed(completions)


def completions_of(
    queries: Sequence[str], prompts: Sequence[str], end_tokens: Sequence[str] = ()
) -> list[str]:
    """Return the text after the prompt in each query, up to its first end token.

    Raises a ValueError if a query does not start with its prompt, or has none.
    """
    if len(prompts) != len(queries):
        raise ValueError(f"prompts must be as many as queries, {len(queries)}, got {len(prompts)}")
    completions = []
    for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
        if not query.startswith(prompt):
            raise ValueError(f"queries[{i}] does not start with prompts[{i}], it may be truncated")
        completion = query[len(prompt) :]
        for token in end_tokens:
            completion = completion.partition(token)[0]
        completions.append(completion)
    return completions


def finite_values(batch: RewardBatch, failed_score: float, total: str) -> dict[str, list[float]]:
    """Return finite numbers for n samples: the total, by a name, each component, and `failed`.

    All values of a failed sample are `failed_score`; so is a component that is not finite.
    """
    values = {
        name: np.where(~batch.failed & np.isfinite(scores), scores, failed_score).tolist()
        for name, scores in {total: batch.total, **batch.components}.items()
    }
    return {**values, "failed": batch.failed.astype(float).tolist()}
