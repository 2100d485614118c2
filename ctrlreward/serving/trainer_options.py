"""Options of the routes with which other trainers query a served reward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ctrlreward.adapters._conversion import (
    build_samples,
    check_columns,
    check_failed_score,
    check_pointwise,
    without,
)
from ctrlreward.arguments import one_of
from ctrlreward.reward import Reward
from ctrlreward.samples import MissingColumn, Samples
from ctrlreward.scorers.base import check_columns as check_present

# Fields of the trainers' requests in addition to the completion.
_SOURCES = ("prompt", "label")


@dataclass(frozen=True)
class TemplateMarkers:
    r"""Markers that separate a text of a chat template into prompt and response.

    Args:
        response_start: Text between prompt and response.
        response_end: Text that the template puts after the response.
        prompt_start: Text before the prompt; the text before its last occurrence (a system message)
            is left out. Empty: the prompt is all text before the response.
        response_at: Occurrence of `response_start` after which the response begins; `"last"` for
            prompts of several turns.

    Examples:
        >>> markers = TemplateMarkers("\nassistant: ", response_end="\n", prompt_start="user: ")
        >>> markers.split("user: How was it?\nassistant: Good.\n")
        ('How was it?', 'Good.')
    """

    response_start: str
    response_end: str = ""
    prompt_start: str = ""
    response_at: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        if not self.response_start:
            raise ValueError(
                "response_start is empty, must be the text between prompt and response"
            )
        one_of("response_at", self.response_at, ("first", "last"))

    def split(self, text: str) -> tuple[str, str]:
        """Return prompt and response."""
        if self.response_start not in text:
            raise ValueError(
                f"the text does not contain {self.response_start!r}. Set "
                "template.response_start to the text between prompt and response in your chat "
                "template."
            )
        split = str.partition if self.response_at == "first" else str.rpartition
        prompt, _, response = split(text, self.response_start)
        if self.prompt_start not in prompt:
            raise ValueError(
                f"the text does not contain {self.prompt_start!r} before the response. "
                "Set template.prompt_start to the text before the prompt in your chat template."
            )
        if not response.endswith(self.response_end):
            raise ValueError(
                f"the text does not end with {self.response_end!r}. Set "
                "template.response_end to the text after the response in your chat template."
            )
        if self.prompt_start:
            prompt = prompt.rpartition(self.prompt_start)[2]
        return prompt, response.removesuffix(self.response_end)


@dataclass(frozen=True)
class TrainerRoutes:
    """Options of the routes of trainers: OpenRLHF, slime, NeMo Gym, and verl by `/classify`.

    The rate of failures is sent as well: the mean of a component over the samples that did not fail
    is (mean - rate * failed_score) / (1 - rate).

    Args:
        failed_score: Total and components of a failed sample, a finite number. NeMo Gym masks the
            sample instead.
        columns: Column of `Samples` → `"label"` or `"prompt"`. Texts are prefix + completion if
            `prefixes` is mapped, else the completion alone. `/classify` does not have labels.
        constants: Column of `Samples` → one text for all samples: `{"labels": "positive"}`.
        special_tokens: Tokens to remove from completions: the tokenizer's `all_special_tokens`.
        template: Markers that separate the text of `/classify`, which is a prompt and a response
            in one; None rejects its requests.
        strict: A sample that a scorer rejects (an unknown label) is an error, as in-process;
            otherwise it fails like any other.
        patience: Seconds to hold a request while the queue is full, before a reply of 503.
            OpenRLHF sends five requests, one per second, and then gives up.

    Examples:
        >>> TrainerRoutes(-1.0, columns={"labels": "tone"})
        Traceback (most recent call last):
        ValueError: columns.labels must be 'prompt' or 'label', got 'tone'...
    """

    failed_score: float
    columns: dict[str, str] | None = None
    constants: dict[str, str] | None = None
    special_tokens: tuple[str, ...] = ()
    template: TemplateMarkers | None = None
    strict: bool = True
    patience: float = 60.0

    def __post_init__(self) -> None:
        columns, constants = check_columns(self.columns), check_columns(self.constants)
        for name, source in columns.items():
            if source not in _SOURCES:
                raise ValueError(
                    f"columns.{name} must be 'prompt' or 'label', got {source!r}. Use constants "
                    "for one text of all samples."
                )
            if name in constants:
                raise ValueError(f"{name} is in columns and in constants. Leave one out.")
        if not 0 <= self.patience < math.inf:
            raise ValueError(f"patience must be 0 seconds or more, got {self.patience}")
        tokens: Any = self.special_tokens  # a string is one token
        tokens = (tokens,) if isinstance(tokens, str) else tuple(tokens)
        object.__setattr__(self, "special_tokens", tokens)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "constants", constants)

    def check(self, reward: Reward) -> None:
        """Raise if the routes can't serve a reward; loads no model."""
        check_pointwise(reward, "a route of a trainer")
        check_failed_score(reward, self.failed_score, ["failed", "total"])
        try:
            check_present(reward.components, self.samples([""], [""], [""]))
        except MissingColumn as missing:
            name = missing.column
            raise ValueError(
                f"{missing.reader} needs {name}. Set columns.{name} to 'label' or 'prompt', or "
                f"constants.{name} to one text for all samples."
            ) from None
        if self.template is not None and self.labelled:
            raise ValueError(
                "template is for /classify, whose requests have no labels, but columns maps "
                f"{', '.join(self.labelled)} to 'label'. Use constants, or no template."
            )

    @property
    def labelled(self) -> list[str]:
        """Columns that are mapped to the labels."""
        return [name for name, source in (self.columns or {}).items() if source == "label"]

    def samples(
        self, completions: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None
    ) -> Samples:
        """Return the samples of n completions, without special tokens in the completions."""
        if self.labelled and labels is None:
            raise ValueError(
                f"columns maps {', '.join(self.labelled)} to 'label', but the request "
                "has no labels. Add a label to each sample of the trainer's dataset."
            )
        plain = [without(self.special_tokens, completion) for completion in completions]
        table: Mapping[str, Sequence[Any]] = {} if labels is None else {"label": labels}
        samples = build_samples(plain, prompts, table, self.columns or {})
        constants = {name: [text] * len(samples) for name, text in (self.constants or {}).items()}
        return samples.replace(**constants)
