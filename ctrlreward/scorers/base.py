"""Base classes of scorers: named scores of samples, each with its direction and range."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.engine.requests import Requests, run_requests
from ctrlreward.engine.sharing import exclusive
from ctrlreward.samples import Column, Samples, SamplesLike, as_samples

log = logging.getLogger(__name__)

Scores: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoreSpec:
    """Direction and range of one score.

    Attributes:
        higher_is_better: True if a higher score is better, False if a lower one is.
        range: Smallest and largest possible value; infinite where there is no bound.

    Examples:
        >>> from ctrlreward import Perplexity
        >>> Perplexity().specs["perplexity"]
        ScoreSpec(higher_is_better=False, range=(1.0, inf))
    """

    higher_is_better: bool
    range: tuple[float, float]


@dataclass(frozen=True)
class CorpusFold:
    """Fold of the values of n samples into the score of the corpus that they make up.

    Attributes:
        parts: Names of its arguments: scores, or values that `requests` returns only by name.
        fold: Maps arrays of shape (n,), NaN where a sample failed, to a number in the score's
            range; NaN if no sample counts.

    Examples:
        >>> CorpusFold(("words",), len).fold(np.array([3.0, 4.0, np.nan]))
        3
    """

    parts: tuple[str, ...]
    fold: Callable[..., float]


class Scorer(ABC):
    """A formula that turns `Samples` into named scores.

    Subclasses implement `specs` and `score_samples`. Models are loaded at the first `score` only.

    Examples:
        >>> class Words(Scorer):
        ...     specs = {"words": ScoreSpec(higher_is_better=False, range=(0.0, np.inf))}
        ...
        ...     def score_samples(self, samples):
        ...         return {"words": np.array([float(len(text.split())) for text in samples.texts])}
        >>> Words().score(["Good soup.", "The soup was good."])
        {'words': array([2., 4.])}
    """

    # True if the score of a sample does not depend on the other samples.
    pointwise: bool = True

    # Device of the model, as in torch; "" for a scorer without a model.
    device: str = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        computes = cls.score_samples, cls.requests
        if "score" in vars(cls) and computes != (Scorer.score_samples, Scorer.requests):
            raise TypeError(
                f"{cls.__name__} overrides score, which a Reward does not call: override "
                "score_samples(samples)"
            )

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score, by name."""

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """Folds of the scores whose value for a corpus is not the mean over its samples."""
        return {}

    def score(self, samples: SamplesLike, **columns: Column) -> dict[str, Scores]:
        """Return a float64 array of shape (n,) per score, in input order; NaN for a failed sample.

        A sample with text that is not valid Unicode fails, with a warning.

        Args:
            samples: n samples, in any form that `as_samples` converts: a list of texts, records,
                a DataFrame, …
            columns: Columns of the samples to add or replace: `labels="positive"`.

        Raises:
            TypeError: The data is of another type, or a keyword is not a column of `Samples`.
            ValueError: A column that a score needs is absent, or the scorer rejects an item of it.
        """
        return run_requests([checked_requests(self, as_samples(samples, **columns))])[0]

    def __call__(self, samples: SamplesLike, **columns: Column) -> dict[str, Scores]:
        """See `score`."""
        return self.score(samples, **columns)

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        """Return an array of shape (n,) per score, NaN for a failed sample.

        Subclasses implement this, or `requests`; without random draws, as it may run on a thread.
        """
        if type(self).score is Scorer.score:
            raise NotImplementedError(
                f"{type(self).__name__} computes no scores: implement score_samples(samples)"
            )
        return self.score(samples)  # a subclass may override `score` itself

    def requests(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> Requests[dict[str, Scores]]:
        """Run `score_samples` as a generator of its model requests (see `engine.requests`).

        Override it to merge the requests with those of other scorers of the same model, or to
        compute no more scores than are wanted.

        Args:
            samples: n samples.
            names: The scores that are wanted, None for all. Others may be returned, too.
        """
        yield from ()  # no requests by default
        return self.score_samples(samples)

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Return the columns that samples must have, each with the name of what needs it.

        Override it so that a run fails before it has loaded a model or generated a text.

        Args:
            names: The scores that are wanted, None for all.
        """
        return {}

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


@dataclass(frozen=True)
class Component:
    """One named score of a scorer: `scorer["coherence"]`.

    Examples:
        >>> from ctrlreward import Perplexity
        >>> component = Perplexity()["log_likelihood"]
        >>> component.name, component.spec.higher_is_better
        ('log_likelihood', True)
    """

    scorer: Scorer
    name: str

    def __call__(self, samples: SamplesLike, **columns: Column) -> Scores:
        """Return this score of n samples, float64 of shape (n,); see `Scorer.score`."""
        return score({self.name: self}, as_samples(samples, **columns))[self.name]

    @property
    def spec(self) -> ScoreSpec:
        """Direction and range of this score."""
        return self.scorer.specs[self.name]

    @property
    def corpus_fold(self) -> CorpusFold | None:
        """Fold into the score of a corpus; None where that is the mean over the samples."""
        return self.scorer.corpus_folds.get(self.name)


def as_component(name: str, given: object) -> Component:
    """Return a component as it is, or the score of a scorer that has a single one.

    Args:
        name: Name of the argument, for errors (`"components['fluency']"`).
        given: `scorer["coherence"]`, or a scorer.

    Raises:
        ValueError: The scorer has several scores; lists them.
        TypeError: It is neither a component nor a scorer.
    """
    if isinstance(given, Component):
        return given
    if not isinstance(given, Scorer):
        kind = f"a {type(given).__name__}"
        kind = f"the class {given.__name__}" if isinstance(given, type) else kind
        raise TypeError(
            f"{name} is {kind}: give one score of a scorer, such as Perplexity()['perplexity']"
        )
    scores = list(given.specs)
    if len(scores) > 1:
        scorer = type(given).__name__
        options = ", ".join(f"{scorer}(...)[{score!r}]" for score in scores)
        raise ValueError(f"{name} is a {scorer} with {len(scores)} scores: give one of {options}")
    return given[scores[0]]


def checked_requests(
    scorer: Scorer, samples: Samples, names: Collection[str] | None = None
) -> Requests[dict[str, Scores]]:
    """Run `scorer.requests`, with NaN for samples whose text is not valid Unicode.

    A tokenizer would fail on the whole batch. Such samples are scored as empty texts, so that the
    others keep their places in warnings and errors.
    """
    invalid = samples.invalid_unicode()
    if not invalid:
        return (yield from scorer.requests(samples, names))
    for i, column in invalid.items():
        log.warning("%s[%d] is not valid Unicode: the scores of the sample are NaN", column, i)
    scores = yield from scorer.requests(samples.blanked(invalid), names)
    rows = list(invalid)
    return {name: _with_nan(values, rows) for name, values in scores.items()}


def score(components: Mapping[str, Component], samples: Samples) -> dict[str, Scores]:
    """Return the scores of n samples by name, arrays of shape (n,).

    Each scorer runs once, for all of its components. A pointwise scorer gets each distinct sample
    once. Requests of several scorers to the same model are merged into one call. A scorer that
    another thread is running is waited for.

    Raises:
        MissingColumn: The samples lack a column that a component needs.
        ValueError: A scorer does not return one value per sample.
    """
    check_columns(components, samples)
    distinct, inverse = samples.distinct()
    wanted = _names_by_scorer(components)
    with ExitStack() as locks:
        for scorer in sorted(wanted, key=id):  # the same order in all threads: no deadlock
            locks.enter_context(exclusive(scorer))
        results = run_requests(
            [
                checked_requests(s, distinct if s.pointwise else samples, names)
                for s, names in wanted.items()
            ]
        )
    outputs = dict(zip(wanted, results, strict=True))
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


def check_columns(components: Mapping[str, Component], samples: Samples) -> None:
    """Raise if samples lack a column that a component needs.

    Raises:
        MissingColumn: Names the scorer and the column.
    """
    for scorer, names in _names_by_scorer(components).items():
        for column, reader in scorer.required_columns(names).items():
            samples.require(column, reader)


def _names_by_scorer(components: Mapping[str, Component]) -> dict[Scorer, set[str]]:
    wanted: dict[Scorer, set[str]] = {}
    for component in components.values():
        wanted.setdefault(component.scorer, set()).add(component.name)
    return wanted


def _with_nan(values: Scores, rows: Sequence[int]) -> Scores:
    copy = np.array(values, dtype=np.float64)
    copy[rows] = np.nan
    return copy
