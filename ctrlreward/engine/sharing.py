"""Models shared by all scorers that name them alike, each used by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Model = TypeVar("Model")

_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_loading = RLock()

# Lock of each object in use, by its id. A lock lives while a thread holds it or waits for it.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_locks_lock = Lock()


def shared_model(build: Callable[..., Model], *arguments: Hashable) -> Model:
    """Return `build(*arguments)`, built once for as long as a caller holds the result."""
    with _loading:
        model: Model | None = _models.get((build, *arguments))
        if model is None:
            model = _models[(build, *arguments)] = build(*arguments)
        return model


@contextmanager
def exclusive(model: object) -> Iterator[None]:
    """Keep other threads from using a model, whose hooks and tokenizer serve one thread at a time.

    The thread that holds the model may enter again.
    """
    with _locks_lock:
        lock = _locks.setdefault(id(model), RLock())
    with lock:
        yield
