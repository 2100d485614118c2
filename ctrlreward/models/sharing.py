"""Models shared by all scorers with the same name, each used by one thread at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

Model = TypeVar("Model")

_models: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_loading = RLock()

# Lock of each object in use, by its id. A lock exists while a thread holds it or waits for it.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_locks_lock = Lock()


def shared_model(build: Callable[..., Model], *arguments: Hashable) -> Model:
    """Return `build(*arguments)`, built once for as long as a caller holds the result."""
    with _loading:
        key = (build, *arguments)
        model: Model | None = _models.get(key)
        if model is None:
            model = _models[key] = build(*arguments)
        return model


@contextmanager
def locked(model: object) -> Iterator[None]:
    """Keep other threads from using a model, and compute in the types of its weights.

    The thread that holds it may enter again. Lightning computes rewards under training's autocast.
    """
    torch = sys.modules.get("torch")  # without it, nothing computes under autocast
    with _locks_lock:
        lock = _locks.setdefault(id(model), RLock())
    with lock, ExitStack() as contexts:
        if torch is not None:
            device = torch.accelerator.current_accelerator(check_available=True)
            for kind in {"cpu", "cpu" if device is None else device.type}:
                if torch.is_autocast_enabled(kind):
                    contexts.enter_context(torch.autocast(kind, enabled=False))
        yield
