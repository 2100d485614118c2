"""Named scores, folded into one reward per sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.placement import Worker
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scorer, Scores, score

Aggregate = Callable[[Mapping[str, Scores]], Scores]


@dataclass(frozen=True)
class RewardBatch:
    """The rewards of one batch of n samples.

    Attributes:
        total: One reward a sample, float64, shape (n,); NaN where it failed.
        components: Each named score as its scorer gave it, float64, shape (n,).
        failed: Where any component is NaN, or the total no finite number, shape (n,).
        seconds: Wall time of scoring.
    """

    total: Scores
    components: Mapping[str, Scores]
    failed: npt.NDArray[np.bool_]
    seconds: float

    @staticmethod
    def concat(parts: Sequence[RewardBatch]) -> RewardBatch:
        """One batch of all parts, in order, which were scored at the same time."""
        return RewardBatch(
            np.concatenate([part.total for part in parts]),
            {
                name: np.concatenate([part.components[name] for part in parts])
                for name in parts[0].components
            },
            np.concatenate([part.failed for part in parts]),
            max(part.seconds for part in parts),
        )

    def statistics(self) -> dict[str, float]:
        """`total` and each component: mean and standard deviation over the samples that did not
        fail (`<name>`, `<name>_std`; NaN if all failed); and `fail_rate`, in [0, 1]."""
        valid = ~self.failed
        found = {"fail_rate": float(self.failed.mean()) if len(self.failed) else 0.0}
        for name, values in {"total": self.total, **self.components}.items():
            found[name] = float(values[valid].mean()) if valid.any() else np.nan
            found[f"{name}_std"] = float(values[valid].std()) if valid.any() else np.nan
        return found


class Reward:
    """Combines components into one reward per sample; higher is better.

    A call scores in the caller's thread, `submit` on one worker thread of its own, both on a CUDA
    stream of their own where the device is one. A sample that occurs several times is scored once,
    and what several scorers ask of one model is one call of it.

    Args:
        components: Name → component (`scorer["coherence"]`), or a pair of component and weight.
        aggregate: `"weighted"`: the sum of weight × score, so a score that is better when lower
            takes a negative weight. `"gm"`: the adjusted geometric mean of an accuracy, a
            similarity and a perplexity (Pang & Gimpel 2019, eq. 1). Or a callable from the
            scores by name, each of shape (n,), to totals of shape (n,).
        device: Moves all scorers there; None leaves each where it is.

    Attributes:
        components: Each component by its name.
        weights: What `"weighted"` multiplies each score with; None for other aggregates.

    Raises:
        ValueError: No components, a weight that rewards the worse direction, weights where they
            mean nothing, or components that `"gm"` does not know.
    """

    def __init__(
        self,
        components: Mapping[str, Component | tuple[Component, float]],
        aggregate: str | Aggregate = "weighted",
        device: str | None = None,
    ) -> None:
        if not components:
            raise ValueError("components is empty: give at least one scorer['name']")
        pairs = {n: c if isinstance(c, tuple) else (c, None) for n, c in components.items()}
        self.components = {name: component for name, (component, _) in pairs.items()}
        self.weights = _weights(pairs) if aggregate == "weighted" else None
        self._aggregate = _aggregator(aggregate, pairs, self.weights)
        self.device = device
        if device is not None:
            for scorer in self._scorers():
                scorer.to(device)
        self._worker = Worker()

    def __call__(self, samples: Samples) -> RewardBatch:
        """Scores samples.

        Raises:
            Exception: Whatever a scorer raised; a scorer that fails as a whole is never a score.
        """
        return self._score(samples)

    def submit(self, samples: Samples) -> Future[RewardBatch]:
        """Starts scoring on the worker; the future holds what a call would return or raise."""
        return self._worker.submit(self._score, samples)

    def yield_cpu(self) -> None:
        """Let the worker of a later `submit` yield the CPU to training (`Worker.yield_cpu`)."""
        self._worker.yield_cpu()

    def load(self) -> None:
        """Loads all models now, on this thread; otherwise the first samples have the worker do it.

        Building a model may draw random numbers, which the caller can put back only here.
        """
        for scorer in self._scorers():
            scorer.load()

    def release(self) -> None:
        """Ends the worker and frees all models; a later call starts anew."""
        self._worker.close(cancel=True)
        for scorer in self._scorers():
            scorer.release()

    def _score(self, samples: Samples) -> RewardBatch:
        started = time.perf_counter()
        with _own_stream(self.device):
            components = score(self.components, samples)
        total = np.asarray(self._aggregate(components), dtype=np.float64)
        if total.shape != (len(samples),):
            raise ValueError(
                f"aggregate returned shape {total.shape} for {len(samples)} samples: "
                "return one number per sample"
            )
        failed: npt.NDArray[np.bool_] = ~np.isfinite(total)
        for values in components.values():
            failed |= np.isnan(values)
        total = np.where(failed, np.nan, total)
        return RewardBatch(total, components, failed, time.perf_counter() - started)

    def _scorers(self) -> list[Scorer]:
        return list(dict.fromkeys(component.scorer for component in self.components.values()))


def weighted_sum(weights: Mapping[str, float], scores: Mapping[str, Scores]) -> Scores:
    """The sum of weight × score over the weights' names, shape (n,)."""
    return np.sum([weight * scores[name] for name, weight in weights.items()], axis=0)


def check_direction(name: str, component: Component, weight: float) -> None:
    """Refuses a weight that rewards the worse direction of a score; 0 rewards neither.

    Raises:
        ValueError: Names the score, its direction and the weight to give.
    """
    better, sign = ("higher", 1.0) if component.spec.higher_is_better else ("lower", -1.0)
    if weight * sign < 0:
        raise ValueError(
            f"{name} is better when {better}, and its weight {weight} rewards the opposite: "
            f"give {-weight}"
        )


def _aggregator(
    aggregate: str | Aggregate,
    pairs: Mapping[str, tuple[Component, float | None]],
    weights: Mapping[str, float] | None,
) -> Aggregate:
    if weights is not None:
        return partial(weighted_sum, weights)
    given_weights = [name for name, (_, weight) in pairs.items() if weight is not None]
    if given_weights:
        raise ValueError(
            f"weights of {', '.join(given_weights)} mean nothing to aggregate={aggregate!r}: "
            "give the components alone"
        )
    if callable(aggregate):
        return aggregate
    if aggregate != "gm":
        raise ValueError(f"aggregate = {aggregate!r}: give 'weighted', 'gm' or a callable")
    given = [component.name for component, _ in pairs.values()]
    if sorted(given) != ["accuracy", "perplexity", "similarity"]:
        raise ValueError(
            "aggregate='gm' takes one accuracy, one similarity and one perplexity; "
            f"these are {', '.join(given)}"
        )
    names = dict(zip(given, pairs, strict=True))
    acc, sim, pp = (names[score] for score in ("accuracy", "similarity", "perplexity"))
    return lambda scores: adjusted_gm(scores[acc], scores[sim], scores[pp])


def _weights(pairs: Mapping[str, tuple[Component, float | None]]) -> dict[str, float]:
    """The given weights; 1 in the better direction where none is."""
    weights: dict[str, float] = {}
    for name, (component, given) in pairs.items():
        usual = 1.0 if component.spec.higher_is_better else -1.0
        weights[name] = usual if given is None else float(given)
        check_direction(name, component, weights[name])
    return weights


def _own_stream(device: str | None) -> torch.cuda.StreamContext | nullcontext[None]:
    if device is None or not device.startswith("cuda"):
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))
