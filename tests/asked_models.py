"""Questions to models in plain strings, and answers by target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ctrlreward.models.tasks import Blank, Continuation, Patterns, TokenScores


class Pair(NamedTuple):
    """A context and the target that follows it."""

    context: str
    target: str


def continued(lm: Any, pairs: Sequence[tuple[str, str]]) -> list[TokenScores]:
    """Return the scores of each target after its context."""
    tasks = [Continuation((context,) if context else (), (("", t),)) for context, t in pairs]
    return list(lm.answer(tasks))


def blank(left: str, right: str, targets: tuple[str, ...], **options: Any) -> Blank:
    """Return a blank whose pattern is not cut."""
    return Blank((left,), (right,), targets, **options)


def filled(model: Any, blanks: Sequence[Blank]) -> list[list[TokenScores]]:
    """Return the scores of each target of each blank."""
    answers = model.answer([Patterns((each,)) for each in blanks])
    return [
        answer.split([1] * len(each.targets)) for answer, each in zip(answers, blanks, strict=True)
    ]
