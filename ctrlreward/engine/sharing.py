"""Models that all scorers share which name them alike, each used by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

Model = TypeVar("Model")

_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_loading = RLock()
_locks: WeakKeyDictionary[Any, Lock] = WeakKeyDictionary()


def shared_model(build: Callable[..., Model], *arguments: Hashable) -> Model:
    """Return `build(*arguments)`, built once for as long as a caller holds the result."""
    with _loading:
        model: Model | None = _models.get((build, *arguments))
        if model is None:
            model = _models[(build, *arguments)] = build(*arguments)
        return model


@contextmanager
def exclusive(model: object) -> Iterator[None]:
    """Hold the lock of a model, whose hooks and tokenizer serve one thread at a time."""
    with _loading:
        lock = _locks.setdefault(model, Lock())
    with lock:
        yield
