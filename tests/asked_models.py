"""Questions to models in plain strings, and answers by target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ctrlreward.models.tasks import Blank, Continuation, Patterns, TokenScores
from ctrlreward.samples import Samples

FOOD = Samples(
    texts=[
        "The food was good. We will come back.",
        "The food was cold and the waiter was rude. Never again! I want my money back.",
        "My dog sleeps.",
    ],
    prefixes=["The food", "The food", "My dog"],
    labels=["positive", "positive", "negative"],
)


class Pair(NamedTuple):
    """A context and the target that follows it."""

    context: str
    target: str


def continued(lm: Any, pairs: Sequence[tuple[str, str]]) -> list[TokenScores]:
    """Return the scores of each target after its context."""
    tasks = [Continuation((context,) if context else (), (((), (t,)),)) for context, t in pairs]
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


@contextmanager
def inputs_seen(module: torch.nn.Module) -> Iterator[list[dict[str, torch.Tensor]]]:
    """Inputs that a model gets inside the context."""
    seen: list[dict[str, torch.Tensor]] = []
    hook = module.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True
    )
    yield seen
    hook.remove()
