"""Conversion of another trainer's batch to `Samples`, and the checks that all adapters share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ctrlreward.reward import AnyReward, Reward
from ctrlreward.samples import COLUMN_OF, JSON_KEYS, Samples

# Filled in from the trainer's completions and prompts, so they can't be mapped.
_FILLED_IN = ("texts", "prompts")


def check_columns(
    columns: Mapping[str, str] | None, reward: AnyReward | None = None
) -> dict[str, str]:
    """Return the mapping from columns of `Samples` to the trainer's column names.

    Raises a ValueError if it has an unknown column, or lacks one that the reward needs.
    """
    mapping: dict[str, str] = {}
    for name, source in (columns or {}).items():
        column = COLUMN_OF.get(name)
        if column is None or column in _FILLED_IN:
            known = ", ".join(each for each in JSON_KEYS if each not in _FILLED_IN)
            raise ValueError(f"columns must map columns of Samples ({known}), got {name!r}")
        if column in mapping:
            raise ValueError(f"columns maps {column!r} twice")
        mapping[column] = source
    # A RemoteReward is not asked: its server may start later.
    components = reward.components if isinstance(reward, Reward) else {}
    for component in components.values():
        for name, reader in component.scorer.required_columns([component.name]).items():
            if name not in (*mapping, *_FILLED_IN, "groups"):
                raise ValueError(
                    f"{reader} needs the column {name!r} of Samples. Map it to a column of the "
                    f"trainer: columns={{{name!r}: ...}}."
                )
    return mapping


def check_pointwise(reward: AnyReward, caller: str) -> None:
    """Raise a ValueError if a component depends on several samples, for trainers that pass one."""
    for name, component in reward.components.items():
        if not component.scorer.pointwise:
            raise ValueError(
                f"{name} is computed over several samples at once, but {caller} gets one sample at "
                "a time. Leave it out, or monitor it in validation. For a function that reads each "
                "text alone, use FunctionScorer(function, pointwise=True)."
            )


def check_failed_score(reward: AnyReward, failed_score: float, keys: Sequence[str]) -> None:
    """Raise unless `failed_score` is finite, and no component has the name of a result's key."""
    if not math.isfinite(failed_score):  # the trainer would spread it to other samples
        raise ValueError(f"failed_score must be finite, got {failed_score}")
    for name in keys:
        if name in reward.components:
            raise ValueError(f"a component must not be named {name!r}, a key of every result")


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
    for name, source in columns.items():
        if source not in known:
            raise ValueError(
                f"columns maps {name!r} to {source!r}, but the dataset has "
                f"{', '.join(known) or 'no columns'}"
            )
    mapped = {name: known[source] for name, source in columns.items()}
    if "groups" in mapped:
        mapped["groups"] = [str(group) for group in mapped["groups"]]  # ids are often numbers
    elif prompts is not None:
        mapped["groups"] = list(prompts)
    if "prefixes" not in mapped:
        return Samples(texts=completions, prompts=prompts, **mapped)
    return Samples(texts=mapped["prefixes"], prompts=prompts, **mapped).completed(completions)


def completions_of(queries: Sequence[str], prompts: Sequence[str]) -> list[str]:
    """Return the text after the prompt in each query; raise a ValueError if it lacks one."""
    for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
        if not query.startswith(prompt):
            raise ValueError(f"queries[{i}] does not start with prompts[{i}], it may be truncated")
    return [query[len(prompt) :] for query, prompt in zip(queries, prompts, strict=True)]


def without(tokens: Sequence[str], text: str) -> str:
    """Return a text without special tokens."""
    for token in tokens:
        text = text.replace(token, "")
    return text
