"""Base classes of scorers: named scores of samples, each with its direction and range."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import Mode, kind_of
from ctrlreward.failures import Failures, ItemError, UnreadableText
from ctrlreward.functional.means import valid_mean
from ctrlreward.models.sharing import locked
from ctrlreward.samples import (
    MissingColumn,
    Samples,
    SamplesLike,
    as_samples,
    shortened,
)

Scores: TypeAlias = npt.NDArray[np.float64]

# Share of a range's end by which a score may exceed it: the rounding of bfloat16.
_ROUNDING = 2.0**-7

# Magnitude above which a score counts as failed: trainers and loggers store scores in float32.
LARGEST = float(np.finfo(np.float32).max)


def scatter(values: Sequence[float] | Scores, kept: Sequence[int], n: int) -> Scores:
    """Return an array of shape (n,) with the values at the indices `kept` and NaN elsewhere."""
    scores = np.full(n, np.nan)
    scores[list(kept)] = values
    return scores


@dataclass(frozen=True)
class ScoreSpec:
    """Better direction of a score, and its smallest and largest value, infinite for no bound."""

    higher_is_better: bool
    range: tuple[float, float]

    def __post_init__(self) -> None:
        if not isinstance(self.higher_is_better, bool | np.bool_):
            raise TypeError(f"higher_is_better must be a bool, got {self.higher_is_better!r}")
        match self.range:
            case [low, high] if low < high:
                pass
            case _:
                raise ValueError(f"range must be (lowest, highest), got {self.range!r}")

    @property
    def mode(self) -> Mode:
        """Better direction, "max" or "min"."""
        return "max" if self.higher_is_better else "min"

    @property
    def bounds(self) -> list[float | None]:
        """The range as plain data: None for no bound."""
        return [bound if math.isfinite(bound) else None for bound in self.range]


@dataclass(frozen=True)
class Scored:
    """Scores of n samples by name, float64 of shape (n,), NaN for a failed sample.

    `failures` say why scores of a sample are NaN, `reasons` a judge's reason for each score, by
    name n texts, "" for none.
    """

    scores: Mapping[str, Any]
    failures: Failures = field(default_factory=Failures)
    reasons: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def warned(self, places: Sequence[str] | None = None) -> dict[str, Scores]:
        """Return the scores, after one warning of the failures; `places` as in `Failures.warn`."""
        self.failures.warn(len(next(iter(self.scores.values()), ())), places)
        return dict(self.scores)


class Scorer(ABC):
    """A formula that turns `Samples` into named scores.

    Subclasses implement `specs` and `score_samples`, and have no state but their models, which are
    loaded at the first `score`. Each distinct sample is scored once, in one thread at a time, by
    the requested scores only.

    Examples:
        >>> class Words(Scorer):
        ...     specs = {"words": ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}
        ...
        ...     def score_samples(self, samples):
        ...         return {"words": [len(text.split()) for text in samples.texts]}
        >>> Words().score(["Good soup.", "The soup was good."])
        {'words': array([2., 4.])}
    """

    # True if the score of a sample does not depend on the other samples.
    pointwise: bool = True

    # True if all samples of a group share one value: a prompt then contributes its jackknife value.
    of_groups: bool = False

    # True if an empty text has a score; else `score` leaves it out, and its scores are NaN.
    scores_empty: bool = False

    # True if `score` leaves out the scores whose columns are absent.
    optional: bool = False

    # True if it reads `Samples.extra`: then also a pointwise one gets equal samples apart.
    reads_extra: bool = False

    device: str = ""  # of the model, as in torch; "" for a scorer without a model

    # Values of each sample that `corpus_of` reads beside the scores.
    corpus_columns: tuple[str, ...] = ()

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score, by name."""

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        """Return the columns that scores need beside the texts; of all scores for None."""
        return ()

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        """Raise the errors that scoring would, such as for an unknown label; loads no weights."""
        wanted = self.specs if names is None else names
        check_columns({name: Component(self, name) for name in wanted}, samples)

    @abstractmethod
    def score_samples(self, samples: Samples) -> Scored | Mapping[str, Any]:
        """Return one number per sample for each score, NaN or None for a failed sample.

        It draws no random numbers, as it may run on a thread. A second parameter, `names=()`, gets
        the requested scores. Texts are valid Unicode and not empty; a pointwise scorer gets no
        sample twice. Wrong data is an `ItemError`.
        """

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        """Return the scores of n samples as one corpus that are not means, by name.

        `columns` are scores and `corpus_columns` of the samples, each of shape (n,), NaN where one
        failed. Names ending in `_deviation` are deviations of a score.
        """
        return {}

    def explain(self, samples: SamplesLike | None = None, **columns: Any) -> list[dict[str, Any]]:
        """Return for each sample what its scores consist of, by name; nothing by default."""
        return [{} for _ in as_samples(samples, **columns).texts]

    @property
    def parts(self) -> Sequence[Scorer]:
        """Other scorers that this one runs."""
        return ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of all models that the scorer uses, as in torch, each once."""
        own = (self.device,) if self.device else ()
        return tuple(dict.fromkeys((*own, *(d for part in self.parts for d in part.devices))))

    def load(self) -> None:
        """Load the models now: before scoring on a thread, since this may draw random numbers."""
        for part in self.parts:
            part.load()

    def to(self, device: str) -> None:
        """Move the models to a device; they are loaded there at the next use."""
        for part in self.parts:
            part.to(device)

    def release(self) -> None:
        """Free the models; the next `score` loads them again."""
        for part in self.parts:
            part.release()

    def score(self, samples: SamplesLike | None = None, **columns: Any) -> dict[str, Scores]:
        """Return a float64 array of shape (n,) per score, in input order; NaN for a failed sample.

        A sample fails if its text is empty or not valid Unicode, or its score is beyond float32,
        with a warning. `samples` may have any form that `as_samples` converts; `columns` are added
        to them or replace theirs, `labels="positive"`.
        """
        given = as_samples(samples, **columns)
        wanted = {name: Component(self, name) for name in computable(self, given)}
        return score(wanted, given).warned()

    __call__ = score

    def corpus(self, samples: SamplesLike | None = None, **columns: Any) -> dict[str, float]:
        """Return the scores of n samples as one corpus, such as all outputs of a system.

        By `corpus_of`, or else the mean over the samples that did not fail; NaN if all failed.
        Takes the arguments of `score`.
        """
        given = as_samples(samples, **columns)
        names = computable(self, given)
        wanted = dict.fromkeys((*names, *self.corpus_columns))
        found = score({name: Component(self, name) for name in wanted}, given).warned()
        return {name: valid_mean(found[name]) for name in names} | self.corpus_of(found)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self.specs)}>"

    def __getitem__(self, name: str) -> Component:
        """Return one score as a component; a KeyError lists the scores that exist."""
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

    def __call__(self, samples: SamplesLike | None = None, **columns: Any) -> Scores:
        """Return this score of n samples, float64 of shape (n,); see `Scorer.score`."""
        return score({self.name: self}, as_samples(samples, **columns)).warned()[self.name]

    @property
    def spec(self) -> ScoreSpec:
        return self.scorer.specs[self.name]


class TaskScorer(Scorer):
    """A scorer in two steps around one model: tasks, and the fold of their answers into scores.

    The tasks of several scorers for one `loaded_model` are answered in one call of its `answer`.
    """

    loaded_model: Any

    @abstractmethod
    def tasks(self, samples: Samples, names: Collection[str]) -> list[Any]:
        """Return the tasks for the model."""

    @abstractmethod
    def fold(
        self, samples: Samples, answers: Sequence[Any], names: Collection[str]
    ) -> Scored | Mapping[str, Any]:
        """Return an array of shape (n,) for each score in `names`, from the answers of `tasks`."""

    def score_samples(self, samples: Samples, names: Collection[str] | None = None) -> Scored:
        return scores_of({self: self.specs if names is None else names}, samples)[self]


class CompositeScorer(Scorer):
    """A scorer that combines the scores of others, which it loads, moves and releases."""

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return [*dict.fromkeys(c for part in self.parts for c in part.required_columns())]

    def check_samples(self, samples: Samples, names: Collection[str] | None = None) -> None:
        for part in self.parts:
            part.check_samples(samples)


def score(components: Mapping[str, Component], samples: Samples) -> Scored:
    """Return the scores of n samples by name, and why some are NaN, for the caller to log.

    Each scorer runs once for all of its components, on the samples that it can read, a pointwise
    one on each distinct sample. A scorer or model in use by another thread is waited for. Samples
    with `answer_after` are scored by their answers.
    """
    check_columns(components, samples)
    samples, unfinished = samples.answers()
    wanted: dict[Scorer, set[str]] = {}
    for component in components.values():
        wanted.setdefault(component.scorer, set()).add(component.name)
    alike: dict[tuple[bool, bool], list[Scorer]] = {}
    for scorer in wanted:
        merges = scorer.pointwise and not (samples.extra and scorer.reads_extra)
        alike.setdefault((merges, scorer.scores_empty), []).append(scorer)
    columns: dict[Component, Scores] = {}
    failures, reasons = Failures(), dict[Component, list[str]]()
    together = [
        (merges, scorers, Failures(unfinished | samples.unreadable(not scores_empty)))
        for (merges, scores_empty), scorers in alike.items()
    ]
    while together:
        merges, scorers, unreadable = together.pop(0)
        rows = [i for i in range(len(samples)) if i not in unreadable]
        readable = samples[rows] if unreadable else samples
        chosen, places = readable.distinct() if merges else (readable, [*range(len(rows))])
        asked = {scorer: wanted[scorer] for scorer in scorers}
        try:
            found = scores_of(asked, chosen)
        except ItemError as error:
            row = rows[places.index(error.row)]
            raise ItemError(error.column, row, error.problem) from error
        except UnreadableText:
            if len(scorers) > 1:  # of one of their models
                together += [(merges, [scorer], unreadable) for scorer in scorers]
            else:
                more = unreadable_rows(asked, samples, rows)
                together.append((merges, scorers, Failures(unreadable | more)))
            continue
        failures |= unreadable
        place_of = dict(zip(rows, places, strict=True))
        for scorer, own in found.items():
            for name, values in own.scores.items():
                columns[Component(scorer, name)] = scatter(values[places], rows, len(samples))
            for row, place in place_of.items() if own.failures else ():
                if place in own.failures:
                    failures.add(row, own.failures[place])
            for name, texts in own.reasons.items():
                reasons[Component(scorer, name)] = [
                    texts[place_of[i]] if i in place_of else "" for i in range(len(samples))
                ]
    return Scored(
        {name: columns[component] for name, component in components.items()},
        failures,
        {name: reasons[c] for name, c in components.items() if any(reasons.get(c, ()))},
    )


def unreadable_rows(
    wanted: Mapping[Scorer, Collection[str]], samples: Samples, rows: Sequence[int]
) -> Failures:
    """Return which rows have a text that is an `UnreadableText` for a scorer, found by halves."""
    try:
        scores_of(wanted, samples[rows])
    except ItemError:  # not of these texts
        return Failures()
    except UnreadableText as error:
        half = len(rows) // 2
        if not half:
            return Failures({rows[0]: str(error)})
        return Failures(
            unreadable_rows(wanted, samples, rows[:half])
            | unreadable_rows(wanted, samples, rows[half:])
        )
    return Failures()


def scores_of(wanted: Mapping[Scorer, Collection[str]], samples: Samples) -> dict[Scorer, Scored]:
    """Return the named scores of each scorer; one call of a model answers the tasks of all."""
    of_model: dict[int, list[TaskScorer]] = {}
    found: dict[Scorer, Any] = {}
    for scorer, names in wanted.items():
        with named_error({scorer: names}, samples):
            if not len(samples):
                found[scorer] = {name: [] for name in names}
            elif isinstance(scorer, TaskScorer):
                of_model.setdefault(id(scorer.loaded_model), []).append(scorer)
            else:
                method: Any = scorer.score_samples
                takes_names = len(signature(method).parameters) > 1
                with locked(scorer):
                    found[scorer] = method(samples, names) if takes_names else method(samples)
    for scorers in of_model.values():
        model = scorers[0].loaded_model
        with named_error({each: wanted[each] for each in scorers}, samples), locked(model):
            tasks = [each.tasks(samples, wanted[each]) for each in scorers]
            answers = iter(model.answer([task for own in tasks for task in own]))
            for each, own in zip(scorers, tasks, strict=True):
                answered = list(islice(answers, len(own)))
                found[each] = each.fold(samples, answered, wanted[each])
    return {
        scorer: checked_scores(scorer, samples, found[scorer], names)
        for scorer, names in wanted.items()
    }


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
) -> Scored:
    """Return a scorer's scores as float64, (n,); NaN for None, infinity and beyond float32."""
    owner, n, specs = type(scorer).__name__, len(samples), scorer.specs
    found = returned if isinstance(returned, Scored) else Scored(returned)  # type: ignore[arg-type]
    if not isinstance(found.scores, Mapping):
        raise TypeError(f"{owner} must return a mapping, name → scores, got {kind_of(returned)}")
    scores, failures = {}, Failures(found.failures)
    unexplained = not isinstance(returned, Scored) and not scorer.scores_empty
    for name in names:
        if name not in found.scores:
            raise ValueError(f"{owner} returned no score {name!r}, only {', '.join(found.scores)}")
        column: Any = found.scores[name]
        subject = f"{name!r} of {owner} must be one number for each of the {n} samples, got"
        if isinstance(column, Iterator):
            column = list(column)
        torch = sys.modules.get("torch")  # without it, nothing is a tensor
        if torch is not None and isinstance(column, torch.Tensor):
            column = column.detach().double().cpu().numpy()
        try:
            array = np.asarray(column)
            values = array.astype(np.float64)  # a copy; None is NaN
        except (TypeError, ValueError) as error:
            raise TypeError(f"{subject} {kind_of(column)}: {error}") from error
        if array.dtype.kind not in "biufO":
            raise TypeError(f"{subject} the type {array.dtype}")
        if values.shape != (n,):
            shape = f"the shape {values.shape}" if values.ndim else shortened(column)
            raise ValueError(f"{subject} {shape}")
        for i in np.flatnonzero(~(np.abs(values) <= LARGEST)).tolist():
            if not math.isnan(values[i]):
                what = "infinite" if math.isinf(values[i]) else "beyond float32"
                failures.add(i, f"{name} is {what}")
                values[i] = np.nan
            elif unexplained:
                failures.add(i, f"{owner} returned no {name}")
        low, high = specs[name].range if name in specs else (-np.inf, np.inf)
        above = values > high + _ROUNDING * max(1.0, abs(high))
        outside = above | (values < low - _ROUNDING * max(1.0, abs(low)))
        if outside.any():
            i = int(outside.argmax())
            problem = f"= {shortened(samples.texts[i])}: {name!r} of {owner} must be in"
            raise ItemError("texts", i, f"{problem} [{low}, {high}], got {values[i]}")
        scores[name] = values
    return Scored(scores, failures, found.reasons)


def computable(scorer: Scorer, samples: Samples) -> tuple[str, ...]:
    """Return the names of the scores that `score` computes for some samples.

    Of an `optional` scorer those whose columns are present, if any.
    """
    names = tuple(scorer.specs)
    if not scorer.optional:
        return names
    present = samples.columns().keys()
    return tuple(n for n in names if present >= {*scorer.required_columns([n])}) or names


def check_columns(components: Mapping[str, Component], samples: Samples) -> None:
    """Raise if samples lack a column that a component needs."""
    present = {**samples.columns(), **samples.extra}
    for component in components.values():
        for column in component.scorer.required_columns([component.name]):
            if column not in present:
                reader = f"{type(component.scorer).__name__} {component.name}"
                raise MissingColumn(column, reader, present)


def check_samples(components: Mapping[str, Component], samples: Samples) -> None:
    """Raise the errors that scoring would raise; loads no weights."""
    for scorer in dict.fromkeys(component.scorer for component in components.values()):
        names = [c.name for c in components.values() if c.scorer is scorer]
        scorer.check_samples(samples, names)
