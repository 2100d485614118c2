"""What another trainer hands over, as `Samples`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ctrlreward.reward import Reward
from ctrlreward.samples import JSON_KEYS, Samples, shortened

# Filled in from what the trainer always gives.
_GIVEN = ("texts", "prompts")


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The given mapping, a column of `Samples` ← the trainer's name of it.

    Raises:
        ValueError: A key is no column of `Samples`, or one that is filled in anyway.
    """
    known = [name for name in JSON_KEYS if name not in _GIVEN]
    for name, source in (columns or {}).items():
        if name not in known:
            raise ValueError(
                f"columns = {{{name!r}: {source!r}}}: {name!r} is no column that can be mapped; "
                f"give some of {', '.join(known)}"
            )
    return dict(columns or {})


def check_pointwise(reward: Reward, caller: str) -> None:
    """Refuses a reward that would see only a part of what it compares.

    Raises:
        ValueError: A component's scorer reads several samples at once.
    """
    for name, component in reward.components.items():
        if not component.scorer.pointwise:
            raise ValueError(
                f"{name} is a score of several samples at once, and {caller} is given them one by "
                "one: leave it out, or watch it in validation"
            )


def check_failed_score(reward: Reward, failed_score: float, keys: Sequence[str]) -> None:
    """For trainers that know no sample without a reward: refuses what they could not take.

    Args:
        reward: What is scored.
        failed_score: What the caller says that a failed sample is worth.
        keys: What results have beside the components.

    Raises:
        ValueError: The score is not finite, or a component has the name of a key.
    """
    if not math.isfinite(failed_score):
        raise ValueError(
            f"failed_score = {failed_score}: give a finite number; the trainer would spread it to "
            "the advantages of other samples"
        )
    for name in keys:
        if name in reward.components:
            raise ValueError(
                f"the reward has a component {name!r}, which is a key of every result: "
                "give it another name"
            )


def samples_of(
    completions: Sequence[str],
    prompts: Sequence[str] | None,
    table: Mapping[str, Sequence[Any]],
    columns: Mapping[str, str],
) -> Samples:
    """Samples whose texts are prefix and completion, or the completion where no prefix is mapped.

    Args:
        completions: What was generated, n of them.
        prompts: What was read; a table column `"prompt"`, and the samples' groups where none are
            mapped. None where the trainer doesn't say.
        table: The trainer's columns, n items each.
        columns: Column of `Samples` ← name in the table.

    Raises:
        ValueError: A name is not in the table; lists those that are.
        TypeError: An item is no string; names column and item.
    """
    known = dict(table) if prompts is None else {"prompt": prompts, **table}
    for name, source in columns.items():
        if source not in known:
            raise ValueError(
                f"columns maps {name!r} to {source!r}, and the dataset has "
                f"{', '.join(known) or 'no columns'}: give one of these"
            )
    read = {name: known[source] for name, source in columns.items()}
    if "groups" in read:
        read["groups"] = [str(group) for group in read["groups"]]  # ids are often numbers
    elif prompts is not None:
        read["groups"] = list(prompts)
    prefixes = read.pop("prefixes", [""] * len(completions))
    if "prefixes" not in columns:
        return Samples(texts=completions, prompts=prompts, **read)
    return Samples(texts=prefixes, prefixes=prefixes, prompts=prompts, **read).completed(
        completions
    )


def text_of(turns: str | list[Mapping[str, Any]], role: str | None = None) -> str:
    """A text as it is; of a chat its messages' texts, a line break between two.

    Args:
        turns: A text, or messages with `role` and `content`, which is a text, a list of parts
            whose texts are taken, or None (a bare tool call).
        role: Whose messages to take; None: everyone's.

    Raises:
        TypeError: A message is none.
    """
    if isinstance(turns, str):
        return turns
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise TypeError(
                f"a message = {shortened(turn)} is a {type(turn).__name__}: give a text, or a list "
                "of messages with role and content"
            )
    spoken = [_content(turn) for turn in turns if role is None or turn["role"] == role]
    return "\n".join(text for text in spoken if text)


def _content(turn: Mapping[str, Any]) -> str:
    content = turn.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part.get("type") == "text")
