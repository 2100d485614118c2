"""What several scorers ask of one model goes to it in one call.

A scorer that shares its model is a generator: it yields what it asks and is sent the answers. So
texts that begin alike are read once, whoever asks about them, and batches are full.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from threading import Lock, RLock
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

Model = TypeVar("Model")
Result = TypeVar("Result")


class Answering(Protocol):
    """A frozen model that answers each task by itself, however many there are."""

    def log_probs(self, tasks: Sequence[Any], /) -> list[Any]:
        """One answer a task, in their order."""


class Asked(NamedTuple):
    """Tasks for a model."""

    model: Answering
    tasks: Sequence[Any]


# Yields what it asks, is sent the answers, returns what it makes of them.
Asking = Generator[Asked, list[Any], Result]

_loaded: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_loading = RLock()
_locks: WeakKeyDictionary[Answering, Lock] = WeakKeyDictionary()


def shared(build: Callable[..., Model], *arguments: Hashable) -> Model:
    """`build(*arguments)`, or what an earlier call built of them, if somebody still holds it."""
    with _loading:
        found: Model | None = _loaded.get((build, *arguments))
        if found is None:
            found = _loaded[(build, *arguments)] = build(*arguments)
        return found


def answered(askings: Sequence[Asking[Result]]) -> list[Result]:
    """Runs generators side by side; what they ask of one model at a time is one call.

    A model that another thread is asking is waited for.

    Returns:
        What each of them returned, in their order.
    """
    results: dict[int, Result] = {}
    asked: dict[int, Asked] = {}

    def go_on(i: int, answers: list[Any] | None) -> None:
        try:
            asked[i] = askings[i].send(answers)  # type: ignore[arg-type]  # None begins
        except StopIteration as end:
            results[i] = end.value

    for i in range(len(askings)):
        go_on(i, None)
    while asked:
        model = next(iter(asked.values())).model
        those = {i: asked.pop(i).tasks for i in [i for i in asked if asked[i].model is model]}
        with _lock(model):
            answers = iter(model.log_probs([task for tasks in those.values() for task in tasks]))
        for i, tasks in those.items():
            go_on(i, [next(answers) for _ in tasks])
    return [results[i] for i in range(len(askings))]


def _lock(model: Answering) -> Lock:
    # Hooks and tokenizers of a model are not for two threads at once.
    with _loading:
        return _locks.setdefault(model, Lock())
