"""Base classes of scorers: named scores of samples, each with its direction and range."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import torch

from ctrlreward.arguments import Mode, kind_of
from ctrlreward.engine.sharing import locked
from ctrlreward.functional.means import valid_mean
from ctrlreward.items import item_logger, items_named
from ctrlreward.samples import (
    MissingColumn,
    SampleKeywords,
    Samples,
    SamplesLike,
    as_samples,
    shortened,
)

log = item_logger(__name__)

Scores: TypeAlias = npt.NDArray[np.float64]

# Share of a range's end by which a score may exceed it: the rounding of bfloat16.
_ROUNDING = 2.0**-7

# Magnitude above which a score counts as failed: trainers and loggers store scores in float32.
LARGEST = float(np.finfo(np.float32).max)

# Ends the name of the fold that is the deviation of a score.
DEVIATION = "_deviation"

# What a scorer may return for a text.
_GIVEN = float | Real | np.bool_ | np.ndarray | torch.Tensor | None

# Methods of metrics in torchmetrics and evaluate, which a scorer doesn't have.
METHODS_OF_METRICS = ("add", "add_batch", "compute", "forward", "update")


def nonempty(name: str, **columns: Sequence[str]) -> list[int]:
    """Return the indices of the samples with text in every column; a warning names the others."""
    kept = []
    for i, row in enumerate(zip(*columns.values(), strict=True)):
        empty = [column for column, text in zip(columns, row, strict=True) if not text.strip()]
        if empty:
            log.warning("%s[%d] is empty: %s is NaN", empty[0], i, name)
        else:
            kept.append(i)
    return kept


def scatter(values: Sequence[float] | Scores, kept: Sequence[int], n: int) -> Scores:
    """Return an array of shape (n,) with the values at the indices `kept` and NaN elsewhere."""
    scores = np.full(n, np.nan)
    scores[list(kept)] = values
    return scores


@dataclass(frozen=True)
class ScoreSpec:
    """Direction of one score, and its smallest and largest possible value, infinite for no bound.

    Examples:
        >>> from ctrlreward import Perplexity
        >>> Perplexity().specs["perplexity"]
        ScoreSpec(higher_is_better=False, range=(1.0, inf))
    """

    higher_is_better: bool
    range: tuple[float, float]

    @property
    def mode(self) -> Mode:
        """Better direction, "max" or "min"."""
        return "max" if self.higher_is_better else "min"

    @property
    def bounds(self) -> list[float | None]:
        """The range as plain data: None for no bound."""
        return [bound if math.isfinite(bound) else None for bound in self.range]


@dataclass(frozen=True)
class CorpusFold:
    """Fold of the values of n samples into the score of their corpus; NaN if none counts.

    `parts` names the arguments, arrays of shape (n,), NaN where a sample failed: scores, or values
    that `score_samples` returns only by name.

    Examples:
        >>> CorpusFold(("words",), len).fold(np.array([3.0, 4.0, np.nan]))
        3
    """

    parts: tuple[str, ...]
    fold: Callable[..., float]


class Scorer(ABC):
    """A formula that turns `Samples` into named scores.

    Subclasses implement `specs` and `score_samples`. Models are loaded at the first `score` only.
    Each distinct sample is scored once, in one thread at a time, by the requested scores only.

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

    # True if all samples of a group share one value: a prompt then contributes its jackknife value.
    of_groups: bool = False

    device: str = ""  # of the model, as in torch; "" for a scorer without a model

    # True if `score` leaves out the scores whose columns are absent, and the ones already named.
    _leaves_out: bool = False
    _left_out: tuple[str, ...] = ()

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score, by name."""

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """Folds of scores of a corpus that are not means, and of their `<score>_deviation`."""
        return {}

    def score(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> dict[str, Scores]:
        """Return a float64 array of shape (n,) per score, in input order; NaN for a failed sample.

        A sample fails if its text is not valid Unicode, or its score is beyond float32, with a
        warning. `samples` may have any form that `as_samples` converts; `columns` are added to them
        or replace theirs, `labels="positive"`.

        Raises:
            TypeError: The data is of another type, or a keyword is not a column of `Samples`.
            ValueError: A column that a score needs is absent, or the scorer rejects an item of it.
        """
        samples = as_samples(samples, **columns)
        return score({name: Component(self, name) for name in self.computable(samples)}, samples)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.specs)}>"

    def __call__(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> dict[str, Scores]:
        """See `score`."""
        return self.score(samples, **columns)

    def corpus(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> dict[str, float]:
        """Return the scores of n samples as one corpus, such as all outputs of a system.

        By `corpus_folds`, or else the mean over the samples that did not fail; NaN if all failed.
        Takes the arguments of `score`.
        """
        samples = as_samples(samples, **columns)
        names, folds = self.computable(samples), self.corpus_folds
        names += tuple(name for score in names if (name := score + DEVIATION) in folds)
        parts = [part for name in names if name in folds for part in folds[name].parts]
        wanted = (*(name for name in names if name in self.specs), *parts)
        scores = score({name: Component(self, name) for name in wanted}, samples)
        return {
            name: folds[name].fold(*(scores[part] for part in folds[name].parts))
            if name in folds
            else valid_mean(scores[name])
            for name in names
        }

    def computable(self, samples: Samples) -> tuple[str, ...]:
        """Return the names of the scores that `score` computes for some samples.

        With `aspects="all"` those whose columns are present, if any; a warning names the others.
        """
        if not self._leaves_out:
            return tuple(self.specs)
        present = samples.columns()
        lacking = {
            name: [column for column in self.required_columns([name]) if column not in present]
            for name in self.specs
        }
        names = tuple(name for name in lacking if not lacking[name])
        left_out = tuple(name for name in lacking if lacking[name])
        if names and left_out and left_out != self._left_out:
            self._left_out = left_out
            absent = dict.fromkeys(column for name in left_out for column in lacking[name])
            log.warning(
                "%s leaves out %s, because the samples lack the columns %s and have only %s",
                *(type(self).__name__, ", ".join(left_out), ", ".join(absent), ", ".join(present)),
            )
        return names or tuple(self.specs)

    @abstractmethod
    def score_samples(self, samples: Samples) -> Mapping[str, Any]:
        """Return an array of shape (n,) per score, NaN for a failed sample.

        It draws no random numbers, as it may run on a thread. A second parameter, `names=None`,
        gets the requested scores, None for all. A pointwise scorer gets no sample twice.
        """

    def reasons(self, samples: Samples, names: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Return why n samples that were just scored have their scores, by score; "" if unknown."""
        return {}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Return the columns that scores need, each with the name of the one that reads it."""
        return {}

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise the errors that scoring would, such as for an unknown label; loads no weights."""
        wanted = self.specs if names is None else names
        check_columns({name: Component(self, name) for name in wanted}, samples)

    @property
    def _inner(self) -> Sequence[Scorer]:
        """Other scorers that this one runs."""
        return ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of all models that the scorer uses, as in torch, each once."""
        own = (self.device,) if self.device else ()
        return tuple(dict.fromkeys((*own, *(d for part in self._inner for d in part.devices))))

    def load(self) -> None:
        """Load the models now: before scoring on a thread, since this may draw random numbers."""
        for part in self._inner:
            part.load()

    def to(self, device: str) -> None:
        """Move the models to a device; they are loaded there at the next use."""
        for part in self._inner:
            part.to(device)

    def release(self) -> None:
        """Free the models; the next `score` loads them again."""
        for part in self._inner:
            part.release()

    if not TYPE_CHECKING:  # a type checker would assume that the class has every attribute

        def __getattr__(self, name: str) -> Any:
            if name in METHODS_OF_METRICS:
                raise AttributeError(
                    f"{type(self).__name__} has no method {name!r}. Call score(texts, labels=..., "
                    "references=..., ...), or wrap one score for torchmetrics: "
                    "ctrlreward.adapters.torchmetrics.ScoreMean(scorer['name'])."
                )
            return object.__getattribute__(self, name)  # raises the error again

    def __getitem__(self, name: str) -> Component:
        """Return one score as a component; a KeyError lists the scores that exist."""
        if name not in self.specs:
            raise KeyError(
                f"{type(self).__name__} has no score {name!r}; it has {', '.join(self.specs)}"
            )
        return Component(self, name)


@dataclass(frozen=True)
class Component:
    """One named score of a scorer: `scorer["coherence"]`.

    With `given` and `at_least`, which `Reward` alone reads, the component counts only for samples
    where another component reaches a threshold.

    Args:
        scorer: The scorer.
        name: Name of the score.
        given: Name of another component of the reward, which is better when higher.
        at_least: Threshold that it has to reach.

    Raises:
        ValueError: `given` without `at_least`, or the reverse.

    Examples:
        >>> from ctrlreward import LexiconSentiment
        >>> polarity = Component(LexiconSentiment(), "polarity", given="content", at_least=0.5)
    """

    scorer: Scorer
    name: str
    given: str | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        if (self.given is None) != (self.at_least is None):
            raise ValueError(
                f"given = {self.given!r}, at_least = {self.at_least}: a condition needs both, the "
                "name of a component and the threshold that it has to reach"
            )
        if self.at_least is not None and not math.isfinite(self.at_least):
            raise ValueError(f"at_least must be finite, got {self.at_least}")

    def __call__(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> Scores:
        """Return this score of n samples, float64 of shape (n,); see `Scorer.score`."""
        return score({self.name: self}, as_samples(samples, **columns))[self.name]

    @property
    def spec(self) -> ScoreSpec:
        """Direction and range of this score."""
        return self.scorer.specs[self.name]

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """Folds into the score of a corpus, "", and into its deviation; none if it is the mean."""
        folds = self.scorer.corpus_folds
        return {end: folds[self.name + end] for end in ("", DEVIATION) if self.name + end in folds}


class TaskModel(Protocol):
    """A frozen model that answers each task independently of the others in the call."""

    def answer(self, tasks: Sequence[Any], /) -> list[Any]:
        """Return one answer per task, in the given order."""


class TaskScorer(Scorer):
    """A scorer in two steps around one model: tasks, and the fold of their answers into scores.

    The tasks of several scorers for one model are answered in one call.
    """

    @property
    @abstractmethod
    def loaded_model(self) -> TaskModel:
        """The model, loaded at the first use."""

    @abstractmethod
    def tasks(self, samples: Samples, names: Collection[str]) -> list[Any]:
        """Return the tasks for the model."""

    @abstractmethod
    def fold(
        self, samples: Samples, answers: Sequence[Any], names: Collection[str]
    ) -> Mapping[str, Any]:
        """Return an array of shape (n,) for each score in `names`, from the answers of `tasks`."""

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """See `Scorer.score_samples`."""
        wanted = self.specs if names is None else names
        tasks = self.tasks(samples, wanted)
        with locked(self.loaded_model):
            answers = self.loaded_model.answer(tasks)
        return self.fold(samples, answers, wanted)


class CompositeScorer(Scorer):
    """A scorer that combines the scores of others, which it loads, moves and releases.

    Examples:
        >>> from ctrlreward import LexiconSentiment
        >>> class Strength(CompositeScorer):
        ...     specs = {"strength": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}
        ...     parts = [LexiconSentiment("polarity")]
        ...
        ...     def score_samples(self, samples):
        ...         return {"strength": abs(self.parts[0].score(samples)["polarity"])}
        >>> Strength().score(["The soup was lovely."])
        {'strength': array([0.5859])}
    """

    @property
    @abstractmethod
    def parts(self) -> Sequence[Scorer]:
        """The scorers that are combined."""

    @property
    def _inner(self) -> Sequence[Scorer]:
        return self.parts

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that any part needs."""
        return {c: reader for part in self.parts for c, reader in part.required_columns().items()}

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise the errors that a part would raise."""
        for part in self.parts:
            part.check_samples(samples)


def scores_of(
    wanted: Mapping[Scorer, Collection[str]], samples: Samples
) -> dict[Scorer, dict[str, Scores]]:
    """Return the named scores of each scorer; one call of a model answers the tasks of all.

    Text that is not valid Unicode, at which a tokenizer would fail, is scored as empty.
    """
    invalid = samples.invalid_unicode()
    for i, column in invalid.items():
        log.warning("%s[%d] is not valid Unicode: the scores of the sample are NaN", column, i)
    if invalid:
        samples = samples.blanked(invalid)
    asked: dict[int, tuple[TaskModel, list[Any]]] = {}
    spans: dict[Scorer, tuple[int, slice]] = {}
    for scorer, names in wanted.items():
        if isinstance(scorer, TaskScorer):
            with named_error({scorer: names}, samples):
                tasks, model = scorer.tasks(samples, names), scorer.loaded_model
            of_model = asked.setdefault(id(model), (model, []))[1]
            spans[scorer] = id(model), slice(len(of_model), len(of_model) + len(tasks))
            of_model += tasks
    answered = {}
    for key, (model, tasks) in asked.items():
        together = {scorer: wanted[scorer] for scorer in spans if spans[scorer][0] == key}
        with named_error(together, samples), locked(model):
            answered[key] = model.answer(tasks)
    found = {}
    for scorer, names in wanted.items():
        with named_error({scorer: names}, samples):
            returned: Any
            if isinstance(scorer, TaskScorer):
                key, span = spans[scorer]
                returned = scorer.fold(samples, answered[key][span], names)
            else:
                method: Callable[..., Any] = scorer.score_samples
                takes_names = len(signature(method).parameters) > 1
                returned = method(samples, names) if takes_names else method(samples)
        found[scorer] = checked_scores(scorer, samples, returned, names)
        for values in found[scorer].values() if invalid else ():
            values[list(invalid)] = np.nan
    return found


@contextmanager
def named_error(wanted: Mapping[Scorer, Collection[str]], samples: Samples) -> Iterator[None]:
    """Add the scorers to an error, unless it names an item of the samples."""
    try:
        yield
    except (ValueError, TypeError):
        raise
    except BaseException as error:
        shown = " and ".join(
            f"{type(scorer).__name__} ({', '.join(sorted(names))})"
            for scorer, names in wanted.items()
        )
        if type(error).__name__ == "PanicException":  # of a library in Rust; not an Exception
            raise RuntimeError(
                f"a tokenizer or another library failed while scoring {shown}: {error}"
            ) from error
        error.add_note(f"raised by {shown} for {len(samples)} sample{'s' * (len(samples) != 1)}")
        raise


def checked_scores(
    scorer: Scorer, samples: Samples, returned: object, names: Collection[str]
) -> dict[str, Scores]:
    """Return a scorer's scores as float64, (n,); NaN for None, infinity and beyond float32."""
    owner, texts, specs = type(scorer).__name__, samples.texts, scorer.specs
    if not isinstance(returned, Mapping):
        raise TypeError(
            f"{owner} returned {kind_of(returned)}, must be a mapping from the name of "
            "each score to an array of one number per sample"
        )
    scores = {}
    for name in names:
        subject = f"{owner} returned {name!r}"
        if name not in returned:
            raise ValueError(
                f"{owner} returned no score {name!r}, only {', '.join(returned) or 'none'}. Return "
                "every score of specs."
            )
        given: Any = returned[name]
        if isinstance(given, torch.Tensor):
            given = given.detach().double().cpu().numpy()
        if not isinstance(given, np.ndarray) or given.dtype.kind not in "biuf":
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise TypeError(
                    f"{subject} = {shortened(given)}, {kind_of(given)}, must be one number "
                    "per sample"
                )
            given = list(given)
            for i, (item, text) in enumerate(zip(given, texts, strict=False)):
                if not isinstance(item, _GIVEN) or getattr(item, "ndim", False):
                    raise TypeError(
                        f"{subject} = {shortened(item)} for texts[{i}] = {shortened(text)}, "
                        f"{kind_of(item)}, must be a number, or None for a failed sample"
                    )
        values = np.array(given, dtype=np.float64)
        if values.shape != (len(texts),):
            raise ValueError(
                f"{subject} of shape {values.shape} for {len(texts)} samples. Return an array of "
                f"shape ({len(texts)},)."
            )
        too_large = np.abs(values) > LARGEST
        if too_large.any():
            what = "infinite" if np.isinf(values[too_large]).all() else "beyond float32"
            count, first = np.count_nonzero(too_large), int(too_large.argmax())
            log.warning(
                "%s: %r is %s for %d of %d texts, and becomes NaN (the first is texts[%d])",
                *(owner, name, what, count, len(texts), first),
            )
            values[too_large] = np.nan
        low, high = specs[name].range if name in specs else (-np.inf, np.inf)
        above = values > high + _ROUNDING * max(1.0, abs(high))
        outside = above | (values < low - _ROUNDING * max(1.0, abs(low)))
        if outside.any():
            i = int(outside.argmax())
            raise ValueError(
                f"{subject} = {values[i]} for texts[{i}] = {shortened(texts[i])}, outside its "
                f"range [{low}, {high}]. Correct the score, or the range."
            )
        scores[name] = values
    return scores


@contextmanager
def in_use(components: Iterable[Component]) -> Iterator[list[Scorer]]:
    """Lock the scorers of components inside the context; a thread may do so again."""
    scorers = sorted({c.scorer for c in components}, key=id)  # in one order: no deadlock
    with ExitStack() as locks:
        for scorer in scorers:
            locks.enter_context(locked(scorer))
        yield scorers


def score(components: Mapping[str, Component], samples: Samples) -> dict[str, Scores]:
    """Return the scores of n samples by name, arrays of shape (n,).

    Each scorer runs once for all of its components, a pointwise one on each distinct sample. A
    scorer in use by another thread is waited for.
    """
    check_columns(components, samples)
    distinct, inverse = samples.distinct()
    with in_use(components.values()) as scorers, ExitStack() as names:
        wanted = {s: {c.name for c in components.values() if c.scorer is s} for s in scorers}
        pointwise = {s: wanted[s] for s in scorers if s.pointwise}
        others = {s: wanted[s] for s in scorers if not s.pointwise}
        outputs = scores_of(others, samples) if others else {}
        if distinct is not samples:
            first = np.unique(inverse, return_index=True)[1].tolist()  # row of each distinct sample
            names.enter_context(items_named(lambda column, i: f"{column}[{first[i]}]"))
        outputs |= scores_of(pointwise, distinct) if pointwise else {}
    return {
        name: outputs[c.scorer][c.name][inverse if c.scorer.pointwise else slice(None)]
        for name, c in components.items()
    }


def reasons_of(components: Mapping[str, Component], samples: Samples) -> dict[str, list[str]]:
    """Return the reasons of n samples that were just scored, by component; only those with any."""
    found = {}
    for name, component in components.items():
        told = component.scorer.reasons(samples, [component.name]).get(component.name, ())
        if any(told):
            found[name] = list(told)
    return found


def check_columns(components: Mapping[str, Component], samples: Samples) -> None:
    """Raise if samples lack a column that a component needs."""
    for component in components.values():
        for column, reader in component.scorer.required_columns([component.name]).items():
            if getattr(samples, column) is None:
                raise MissingColumn(column, reader, samples.columns())


def check_samples(components: Mapping[str, Component], samples: Samples) -> None:
    """Raise the errors that scoring would raise; loads no weights."""
    for scorer in dict.fromkeys(component.scorer for component in components.values()):
        names = [c.name for c in components.values() if c.scorer is scorer]
        scorer.check_samples(samples, names)
