"""What every scorer is: named scores of samples, each with its direction and range."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ctrlreward.engine.requests import Requests, run_requests
from ctrlreward.samples import Samples

Scores: TypeAlias = npt.NDArray[np.float64]

# A model holds what it computes in hooks and tokenizers that two threads must not use at once.
_locks: WeakKeyDictionary[Scorer, Lock] = WeakKeyDictionary()
_locks_lock = Lock()


@dataclass(frozen=True)
class ScoreSpec:
    """What a scorer declares of one of its scores.

    Attributes:
        higher_is_better: The direction.
        range: The smallest and the largest possible value.
    """

    higher_is_better: bool
    range: tuple[float, float]


class Scorer(ABC):
    """A frozen model and a formula: named scores of `Samples`.

    A scorer is cheap to build: it loads its model at the first `score` and keeps it until
    `release`.
    """

    # Whether a sample's score depends on that sample alone.
    pointwise: bool = True

    # Where the model runs, as torch names it; "" for a scorer without a model.
    device: str = ""

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Each score's name, with its direction and range."""

    @abstractmethod
    def score(self, samples: Samples) -> dict[str, Scores]:
        """One float64 array of shape (n,) per name, in input order; NaN where a sample fails."""

    def requests(self, samples: Samples) -> Requests[dict[str, Scores]]:
        """`score` as a generator, for scorers that share a model (`engine.requests`)."""
        yield from ()  # asks nothing
        return self.score(samples)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where its models run, as torch names it: its own, or those of its parts."""
        return (self.device,) if self.device else ()

    def load(self) -> None:  # noqa: B027 — a scorer without a model has nothing to load
        """Loads the model now; without this call the first `score` does.

        Building a model may draw random numbers. What scores on a thread beside training calls
        this before, since the threads share the generators; `score` itself must draw none.
        """

    def to(self, device: str) -> None:  # noqa: B027 — a scorer without a model stays where it is
        """Moves the model to a device, or has it loaded there."""

    def release(self) -> None:  # noqa: B027 — a scorer without a model has nothing to free
        """Frees the model's memory; the next `score` loads it again."""

    def __getitem__(self, name: str) -> Component:
        """One of the scores, to be put into a `Reward` or a callback.

        Raises:
            KeyError: The scorer has no score of that name; lists those it has.
        """
        if name not in self.specs:
            raise KeyError(
                f"{type(self).__name__} has no score {name!r}; it has {', '.join(self.specs)}"
            )
        return Component(self, name)


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
    """The named scores of n samples, arrays of shape (n,).

    Each scorer is called once, however many of its scores are asked for, and with each distinct
    sample once where a sample's score depends on that sample alone; what scorers ask of one and
    the same model is one call. Scorers that another thread is calling are waited for.

    Raises:
        ValueError: A scorer does not return one value per sample.
    """
    distinct, inverse = samples.distinct()
    scorers = list(dict.fromkeys(component.scorer for component in components.values()))
    with ExitStack() as held:
        for lock in sorted(map(_lock, scorers), key=id):  # two threads take them in one order
            held.enter_context(lock)
        found = run_requests([s.requests(distinct if s.pointwise else samples) for s in scorers])
    outputs = dict(zip(scorers, found, strict=True))
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


def _lock(scorer: Scorer) -> Lock:
    with _locks_lock:
        return _locks.setdefault(scorer, Lock())
