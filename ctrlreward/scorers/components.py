"""Components: scores of scorers, and scorers and plain functions with a single score."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.arguments import kind_of
from ctrlreward.models.chats import prompt_messages, prompt_text
from ctrlreward.samples import COLUMN_OF, MissingColumn, Samples, shortened
from ctrlreward.scorers.base import Component, Scorer, ScoreSpec, computable

# Types that a `Reward`, a callback or an adapter accepts as a component.
ComponentLike: TypeAlias = Component | Scorer | Callable[..., Any]

# Column of `Samples` that a parameter of a function gets, with the names of TRL and verl.
_COLUMN_OF = {**COLUMN_OF, "solution": "references", "ground_truth": "references"}

# First parameters that do not mean texts.
_NOT_TEXTS = [name for name, column in _COLUMN_OF.items() if column != "texts"]

# A function with one of these parameters has TRL's signature.
_OF_TRL = {"completions", "completion_ids", "environments"}

# Annotation of completions that are lists of messages, such as TRL's own functions have.
_MESSAGES = re.compile(r"(list|Sequence)\[\s*(\w+\.)*(list|Sequence)\[", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class FunctionScorer(Scorer):
    """A plain function as a scorer with one score, named like the function.

    `Reward`, callbacks and adapters convert functions to it. The names of its parameters decide how
    it is called:

    - `completions`, `completion_ids` or `environments` is one of them, or `**kwargs` alone: as TRL,
      `f(prompts=..., completions=...)`. Prompts are the column `prompts`, or else `prefixes`;
      completions are the text after the prefix. Both are strings, or messages if `completions` is
      annotated as lists of lists, as in `trl.rewards`.
    - `samples` is the first one: `f(samples)`, with the `Samples`, as a `Reward` is called.
    - Otherwise `f(texts)`, with a list of strings.

    In the first and the third case, further parameters get the columns that they name (`labels`,
    `label`), and `**kwargs` all of them; `solution` and `ground_truth` get `references`. Other
    names are of `Samples.extra`: under TRL `completion_ids`, `environments` and the columns of the
    dataset. The function returns one number per sample, None or NaN for a sample that failed.

    Args:
        function: The function. It has to pickle if the reward does.
        higher_is_better: Direction of the score.
        pointwise: True if the score of a text does not depend on the other texts.
        range: Smallest and largest possible score, infinite for no bound.
    """

    function: Callable[..., Any]
    higher_is_better: bool = True
    pointwise: bool = False
    range: tuple[float, float] = (-np.inf, np.inf)

    scores_empty = True
    reads_extra = True

    def __post_init__(self) -> None:
        is_plain = callable(self.function) and not isinstance(self.function, type)
        if not is_plain or iscoroutinefunction(self.function):
            kind = "coroutine function, " if iscoroutinefunction(self.function) else ""
            given = f"{kind}{shortened(self.function)}"
            raise TypeError(f"function must be a plain function, got {given}")
        _ = self.specs  # checks the direction and the range
        first = next(iter(self._parameters()), "")
        if not self._of_trl() and first in _NOT_TEXTS:
            raise TypeError(
                f"{self.name} must have texts or completions as its first parameter, got {first!r}"
            )

    @property
    def name(self) -> str:
        """Name of the score: the function's, or its class's, or `"reward"` for a lambda."""
        function = self.function.func if isinstance(self.function, partial) else self.function
        name: str = getattr(function, "__name__", type(function).__name__)
        return "reward" if name == "<lambda>" else name

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {self.name: ScoreSpec(self.higher_is_better, (self.range[0], self.range[1]))}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        """Columns that the function names without a default; prompts may also be prefixes."""
        parameters = self._column_parameters()
        required = [_column_of(name) for name, p in parameters.items() if _is_required(p)]
        made = ("texts", "prompts", "completions")
        return [column for column in required if column not in made]

    def score_samples(self, samples: Samples) -> dict[str, Any]:
        parameters = self._parameters()
        if next(iter(parameters), None) == "samples":
            result = self.function(samples)
            return {self.name: getattr(result, "total", result)}  # of a `Reward`
        table = {**samples.extra, **samples.columns(), "completions": samples.completions}
        columns: dict[str, list[Any]] = {name: [*column] for name, column in table.items()}
        if samples.prefixes is not None:
            columns.setdefault("prompts", columns["prefixes"])
        messages = _MESSAGES.search(str(getattr(parameters.get("completions"), "annotation", "")))
        if "prompts" in columns:
            read = prompt_messages if messages else prompt_text
            columns["prompts"] = [read(prompt) for prompt in columns["prompts"]]
        if messages:
            said = [[{"role": "assistant", "content": text}] for text in samples.completions]
            columns["completions"] = said
        keywords: dict[str, Any] = {}
        of_trl = self._of_trl()
        for name, parameter in self._column_parameters().items():
            column = _column_of(name)
            if parameter.kind is Parameter.VAR_KEYWORD:
                taken = {"texts", *map(_column_of, keywords)}
                taken |= set() if of_trl else {"completions"}
                keywords |= {n: values for n, values in columns.items() if n not in taken}
            elif column in columns:
                keywords[name] = columns[column]
            elif _is_required(parameter):
                raise MissingColumn(column, self.name, {**samples.columns(), **samples.extra})
        if of_trl:
            return {self.name: self.function(**keywords)}
        return {self.name: self.function(columns["texts"], **keywords)}

    def _parameters(self) -> dict[str, Parameter]:
        try:
            return dict(signature(self.function).parameters)
        except ValueError:  # some built-in functions
            return {}

    def _of_trl(self) -> bool:
        parameters = self._parameters()
        alone = [p.kind for p in parameters.values()] == [Parameter.VAR_KEYWORD]
        return alone or bool(_OF_TRL & parameters.keys())

    def _column_parameters(self) -> dict[str, Parameter]:
        """Return the parameters that get columns by name: all but the first samples or texts."""
        parameters = self._parameters()
        if self._of_trl():
            return parameters
        first = next(iter(parameters), None)
        return {} if first == "samples" else {n: p for n, p in parameters.items() if n != first}


def _column_of(name: str) -> str:
    return _COLUMN_OF.get(name, name)


def _is_required(parameter: Parameter) -> bool:
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and parameter.kind not in variable


def as_component(name: str, given: object) -> Component:
    """Return a component unchanged, or the only score of a scorer or function.

    `name` is the name of the argument in errors: a ValueError if the scorer has several scores, a
    TypeError for another type, or a function that `FunctionScorer` rejects.
    """
    if isinstance(given, Component):
        return given
    if callable(given) and not isinstance(given, Scorer | type):
        given = FunctionScorer(given)
    if not isinstance(given, Scorer):
        kind = f"the class {given.__name__}" if isinstance(given, type) else kind_of(given)
        raise TypeError(
            f"{name} must be one score of a scorer, such as Perplexity()['perplexity'], or a "
            f"function of texts, got {kind}"
        )
    scores = list(given.specs)
    if len(scores) > 1:
        raise ValueError(f"{name} must be one of the scores {', '.join(scores)}, got {given!r}")
    return given[scores[0]]


def check_named(argument: str, given: object) -> None:
    """Raise a TypeError unless an argument is a mapping of names to scores."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{argument} must be a mapping of names to scores, such as "
            f"{{'distinct_2': Distinct()['distinct_2']}}, got {kind_of(given)}"
        )


def name_components(
    scorers: Sequence[Scorer], names: Sequence[str] | None, samples: Samples | None = None
) -> dict[str, Component]:
    """Return the scores of scorers that the columns allow, prefixed by `names`, one per scorer."""
    if not scorers:
        raise ValueError("scorers is empty, must be one or more")
    if names is not None and (len(names) != len(scorers) or len(set(names)) != len(names)):
        raise ValueError(
            f"names must be one distinct name per scorer, got {list(names)} for {len(scorers)}"
        )
    components: dict[str, Component] = {}
    for position, scorer in enumerate(scorers):
        for score in scorer.specs if samples is None else computable(scorer, samples):
            name = f"{names[position]}.{score}" if names else score
            if name in components:
                raise ValueError(f"names must tell two scorers with a score {name!r} apart")
            components[name] = scorer[score]
    return components
