"""Base classes of scorers: named scores of samples, each with its direction and range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ctrlreward.engine.requests import Requests, run_requests
from ctrlreward.engine.sharing import exclusive
from ctrlreward.samples import Samples

Scores: TypeAlias = npt.NDArray[np.float64]
Model = TypeVar("Model")


@dataclass(frozen=True)
class ScoreSpec:
    """Direction and range of one score.

    Attributes:
        higher_is_better: True if a higher score is better, False if a lower one is.
        range: Smallest and largest possible value; infinite where there is no bound.
    """

    higher_is_better: bool
    range: tuple[float, float]


class Scorer(ABC):
    """A formula that turns `Samples` into named scores.

    A scorer is cheap to build: models are loaded at the first `score` and kept until `release`.
    """

    # True if the score of a sample does not depend on the other samples.
    pointwise: bool = True

    # Device of the model, as in torch; "" for a scorer without a model.
    device: str = ""

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score, by name."""

    @abstractmethod
    def score(self, samples: Samples) -> dict[str, Scores]:
        """Return a float64 array of shape (n,) per score, in input order; NaN for a failed sample.

        A scorer may run on a thread beside training: do not draw random numbers here.
        """

    def requests(self, samples: Samples) -> Requests[dict[str, Scores]]:
        """Run `score` as a generator that yields its model requests (see `engine.requests`).

        Override it to merge the requests with those of other scorers of the same model.
        """
        yield from ()  # no requests by default
        return self.score(samples)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of all models that the scorer uses, as in torch."""
        return (self.device,) if self.device else ()

    def load(self) -> None:  # noqa: B027 — a scorer without a model has nothing to load
        """Load the models now instead of at the first `score`.

        Building a model may draw random numbers. Call this before scoring on a thread beside
        training, because all threads share the random generators.
        """

    def to(self, device: str) -> None:  # noqa: B027 — a scorer without a model has no device
        """Move the models to a device; they are loaded there at the next use."""

    def release(self) -> None:  # noqa: B027 — a scorer without a model has nothing to free
        """Free the models; the next `score` loads them again."""

    def __getitem__(self, name: str) -> Component:
        """Return one score as a component of a `Reward` or a callback.

        Raises:
            KeyError: The scorer has no score of that name; the message lists its scores.
        """
        if name not in self.specs:
            raise KeyError(
                f"{type(self).__name__} has no score {name!r}; it has {', '.join(self.specs)}"
            )
        return Component(self, name)


class ModelScorer(Scorer, Generic[Model]):
    """A scorer that uses one frozen model.

    Subclasses implement `build_model`, which returns a model that other scorers may share
    (`engine.sharing.shared_model`). They call the model inside `exclusive_model()`, or send it
    requests (`engine.requests`), so that only one thread at a time uses it.

    Args:
        model: Local folder, Hugging Face id or short name; or a loaded model, if the subclass
            accepts one. A model that is itself a scorer is loaded, moved and released with this
            one. Any other object stays on its device and is not released.
        device: Device of a named model, as in torch.
        dtype: `"float32"`, `"bfloat16"`, `"float16"` or `"fastest"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.
    """

    def __init__(
        self,
        model: str | Model,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens

    @abstractmethod
    def build_model(self, name: str) -> Model:
        """Load a named model with this scorer's device, dtype and token budget.

        Args:
            name: Local folder, Hugging Face id or short name.
        """

    @cached_property
    def loaded_model(self) -> Model:
        """The model, loaded at the first use."""
        return self.build_model(self.model) if isinstance(self.model, str) else self.model

    @contextmanager
    def exclusive_model(self) -> Iterator[Model]:
        """Yield the loaded model while no other thread uses it.

        A model that is itself a scorer is not locked: it locks its own model.
        """
        model = self.loaded_model
        if isinstance(model, Scorer):
            yield model
        else:
            with exclusive(model):
                yield model

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of a named model or of a scorer given as the model; unknown for other objects."""
        if isinstance(self.model, Scorer):
            return self.model.devices
        return (self.device,) if isinstance(self.model, str) else ()

    def load(self) -> None:
        """Load the model now instead of at the first `score`."""
        if isinstance(self.model, Scorer):
            self.model.load()
        _ = self.loaded_model

    def to(self, device: str) -> None:
        """Free the model and load it on another device at the next use."""
        self.release()
        self.device = device
        if isinstance(self.model, Scorer):
            self.model.to(device)

    def release(self) -> None:
        """Free the model, unless another scorer shares it; the next `score` loads it again."""
        self.__dict__.pop("loaded_model", None)
        if isinstance(self.model, Scorer):
            self.model.release()


class CompositeScorer(Scorer):
    """A scorer that combines the scores of other scorers."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Scorer]:
        """The scorers that are combined."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of all parts, each once."""
        return tuple(dict.fromkeys(device for part in self.parts for device in part.devices))

    def load(self) -> None:
        """Load the models of all parts now."""
        for part in self.parts:
            part.load()

    def to(self, device: str) -> None:
        """Move the models of all parts."""
        for part in self.parts:
            part.to(device)

    def release(self) -> None:
        """Free the models of all parts."""
        for part in self.parts:
            part.release()


@dataclass(frozen=True)
class Component:
    """One named score of a scorer: `scorer["coherence"]`."""

    scorer: Scorer
    name: str

    @property
    def spec(self) -> ScoreSpec:
        """Direction and range of this score."""
        return self.scorer.specs[self.name]


def score(components: Mapping[str, Component], samples: Samples) -> dict[str, Scores]:
    """Return the scores of n samples by name, arrays of shape (n,).

    Each scorer runs once, for all of its scores. A pointwise scorer gets each distinct sample
    once. Requests of several scorers to the same model are merged into one call. A scorer that
    another thread is running is waited for.

    Raises:
        ValueError: A scorer does not return one value per sample.
    """
    distinct, inverse = samples.distinct()
    scorers = list(dict.fromkeys(component.scorer for component in components.values()))
    with ExitStack() as locks:
        for scorer in sorted(scorers, key=id):  # the same order in all threads: no deadlock
            locks.enter_context(exclusive(scorer))
        results = run_requests([s.requests(distinct if s.pointwise else samples) for s in scorers])
    outputs = dict(zip(scorers, results, strict=True))
    scores = {}
    for name, component in components.items():
        scorer = component.scorer
        rows, places = (distinct, inverse) if scorer.pointwise else (samples, slice(None))
        values = np.asarray(outputs[scorer][component.name], dtype=np.float64)
        if values.shape != (len(rows),):
            raise ValueError(
                f"{type(scorer).__name__} returned {component.name!r} of shape {values.shape} for "
                f"{len(rows)} samples: return an array of shape ({len(rows)},)"
            )
        scores[name] = values[places]
    return scores
