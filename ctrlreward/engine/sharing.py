"""Models shared by all scorers with the same name, each used by one thread at a time.

A scorer may be a generator that yields a `Request` and is sent the responses. Requests of several
scorers to one model become one call: the model then reads a common prefix once for all
scorers, and its batches are full.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

import torch

Result = TypeVar("Result")


class TaskModel(Protocol):
    """A frozen model that scores each task independently of the others in the call."""

    def log_probs(self, tasks: Sequence[Any], /) -> list[Any]:
        """Return one response per task, in the given order."""


class Request(NamedTuple):
    """Tasks for a model."""

    model: TaskModel
    tasks: Sequence[Any]


# A generator that yields requests, is sent the responses of each, and returns its result.
Requests = Generator[Request, list[Any], Result]


# Number of requests that models have answered in all threads, a sign of progress.
answered = 0


def run_requests(generators: Sequence[Requests[Result]]) -> list[Result]:
    """Run generators concurrently and merge their requests to one model into one call.

    Waits for a model that another thread is using.
    """
    merged = joined(generators)
    responses = None
    while True:
        try:
            request = merged.send(responses)  # type: ignore[arg-type]  # None starts it
        except StopIteration as end:
            results: list[Result] = end.value
            return results
        with exclusive(request.model):
            responses = request.model.log_probs(request.tasks)
        global answered
        answered += 1


def joined(generators: Sequence[Requests[Result]]) -> Requests[list[Result]]:
    """Join concurrent generators into one, with the requests to one model merged."""
    results: dict[int, Result] = {}
    pending: dict[int, Request] = {}
    responses: dict[int, Any] = dict.fromkeys(range(len(generators)))  # None starts a generator
    while responses:
        for i, response in responses.items():
            try:
                pending[i] = generators[i].send(response)
            except StopIteration as end:
                results[i] = end.value
        responses = {}
        if pending:
            model = next(iter(pending.values())).model
            same_model = [i for i in pending if pending[i].model is model]
            merged = {i: pending.pop(i).tasks for i in same_model}
            all_tasks = [task for tasks in merged.values() for task in tasks]
            answers = iter((yield Request(model, all_tasks)))
            responses = {i: [next(answers) for _ in tasks] for i, tasks in merged.items()}
    return [results[i] for i in range(len(generators))]


Model = TypeVar("Model")

_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_loading = RLock()

# What builds models in `built_by`, from their constructor and its arguments.
_builder: Callable[..., Any] | None = None

# Lock of each object in use, by its id. A lock exists while a thread holds it or waits for it.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_locks_lock = Lock()


def shared_model(build: Callable[..., Model], *arguments: Hashable) -> Model:
    """Return `build(*arguments)`, built once for as long as a caller holds the result."""
    with _loading:
        key = (build, _builder, *arguments)
        model: Model | None = _models.get(key)
        if model is None:
            made = build(*arguments) if _builder is None else _builder(build, *arguments)
            model = _models[key] = made
        return model


@contextmanager
def built_by(builder: Callable[..., Any]) -> Iterator[None]:
    """Let `shared_model(build, *arguments)` return `builder(build, *arguments)` in the context.

    `ctrlreward plan` builds models without weights.
    """
    global _builder
    _builder, before = builder, _builder
    try:
        yield
    finally:
        _builder = before


@contextmanager
def exclusive(model: object) -> Iterator[None]:
    """Keep other threads from using a model, and compute in the types of its weights.

    The thread that holds it may enter again. Lightning runs a whole training step under autocast,
    including the rewards of that step, which must not depend on the precision of training.
    """
    with _locks_lock:
        lock = _locks.setdefault(id(model), RLock())
    device = torch.accelerator.current_accelerator(check_available=True)
    with lock, ExitStack() as contexts:
        for kind in {"cpu", "cpu" if device is None else device.type}:
            if torch.is_autocast_enabled(kind):
                contexts.enter_context(torch.autocast(kind, enabled=False))
        yield
