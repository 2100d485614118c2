"""Base class of scorers with one frozen model, and their common options."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from inspect import getattr_static
from os import PathLike, fspath
from typing import Any, Generic, TypedDict, TypeVar

from ctrlreward.arguments import kind_of, one_of, positive
from ctrlreward.models.accelerators import free_unused, require_device, scoring_device
from ctrlreward.models.dtypes import DTYPES, Dtype
from ctrlreward.models.sharing import locked
from ctrlreward.scorers.base import Scorer

Model = TypeVar("Model")


class ModelOptions(TypedDict, total=False):
    """Keyword arguments of every scorer that loads a model.

    Attributes:
        device: Device of the model, as in torch: `"cpu"`, `"cuda:1"`. None picks the last
            accelerator that no rank trains on, the only one, or the CPU.
        dtype: Data type of the weights; None picks by device, `"fastest"` by processor.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.
    """

    device: str | None
    dtype: Dtype | None
    batch_tokens: int | None


class ModelScorer(Scorer, Generic[Model]):
    """A scorer that uses one frozen model.

    Subclasses implement `build_model`, which returns a model that other scorers may share
    (`models.sharing.shared_model`), and use it inside `locked_model()`, one thread at a time, or
    are a `TaskScorer` as well.

    Args:
        model: Local folder, Hugging Face id or short name; or a loaded model, which stays on its
            device. One that is itself a scorer is loaded, moved and released with this one. For
            the others see `ModelOptions`.
    """

    def __init__(
        self,
        model: str | PathLike[str] | Model,
        device: str | None = None,
        dtype: Dtype | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        if isinstance(model, Sequence | Mapping) and not isinstance(model, str):
            raise TypeError(f"model must be a name, folder or loaded model, got {kind_of(model)}")
        self.model = fspath(model) if isinstance(model, PathLike) else model
        self._device = device
        self.dtype = None if dtype is None else one_of("dtype", dtype, DTYPES)
        self.batch_tokens = positive("batch_tokens", batch_tokens)

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; a copy in another process loads the model again."""
        return {k: value for k, value in vars(self).items() if k not in self._of_model}

    # Cached properties that go with the model.
    _of_model: tuple[str, ...] = ("loaded_model", "_loaded_on")

    @abstractmethod
    def build_model(self, name: str) -> Model:
        """Load a named model with this scorer's device, dtype and token budget."""

    @cached_property
    def loaded_model(self) -> Model:
        """The model, loaded at the first use."""
        if not isinstance(self.model, str):
            return self.model
        require_device(self.device)
        model = self.build_model(self.model)
        self._loaded_on = self.device
        return model

    @property
    def device(self) -> str:  # type: ignore[override]
        """Device of the model, as in torch; of one that is not loaded, the one that it will get."""
        return vars(self).get("_loaded_on") or scoring_device(self._device)

    def __repr__(self) -> str:
        scores = f"{type(self).__name__}: {', '.join(self.specs)}"
        if not isinstance(self.model, str) or not self.devices:
            return f"<{scores}>"
        return f"<{scores}; {self.model} on {self.device}>"

    @contextmanager
    def locked_model(self) -> Iterator[Model]:
        """Yield the loaded model while no other thread uses it; a scorer locks its model."""
        model = self.loaded_model
        if isinstance(model, Scorer):
            yield model
        else:
            with locked(model):
                yield model

    @property
    def parts(self) -> Sequence[Scorer]:
        return (self.model,) if isinstance(self.model, Scorer) else ()

    @property
    def devices(self) -> tuple[str, ...]:
        if isinstance(self.model, Scorer):
            return self.model.devices
        return super().devices if isinstance(self.model, str) else ()

    def load(self) -> None:
        super().load()
        _ = self.loaded_model

    def to(self, device: str) -> None:
        self.release()
        self._device = device
        super().to(device)

    def release(self) -> None:
        if [vars(self).pop(name) for name in self._of_model if name in vars(self)]:
            free_unused()  # some models are cycles of objects, such as Mamba
        super().release()


def check_loaded(model: object, *members: str) -> None:
    """Raise unless a model is a name, or an object with these members, which are not read."""
    has_all = all(getattr_static(model, name, None) is not None for name in members)
    if not (isinstance(model, str | PathLike) or has_all):
        raise TypeError(
            f"model must be a name, a folder or an object with {' and '.join(members)}, got "
            f"{kind_of(model)}"
        )
