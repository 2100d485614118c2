"""JSON protocol of the service: bodies and replies, shared by server and client."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from ctrlreward.reward import RewardBatch
from ctrlreward.samples import COLUMN_OF, Samples, attribute_label, shortened

PROTOCOL = 2

_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def _read_number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value in _INFINITIES:
        return _INFINITIES[value]
    # An integer may be too large for a float; some JSON libraries write NaN, and ours reads it.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:
        raise ValueError(
            f"{shortened(value)} is not a score, must be a number, null, 'Infinity' or '-Infinity'"
        )
    return float(value)


# A score in JSON, which lacks NaN (null here) and infinity (a string here).
Number: TypeAlias = Annotated[
    float,
    BeforeValidator(_read_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["Infinity", "-Infinity", None]}]}),
]


def _one_label(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for label in value.values():
        if isinstance(label, bool) or not isinstance(label, str | int | None):
            raise ValueError(
                f"the label of an attribute must be a text, an integer or null, got "
                f"{shortened(label)}"
            )
    return attribute_label(value)


_ATTRIBUTES = {"type": "object", "additionalProperties": {"type": ["string", "integer", "null"]}}

# A label, or an object with a label of each attribute.
Label: TypeAlias = Annotated[
    str,
    BeforeValidator(_one_label),
    WithJsonSchema({"anyOf": [{"type": "string"}, _ATTRIBUTES]}),
]


class Message(BaseModel):
    """Body or reply: an object with exactly these keys."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Sample(Message):
    """One sample; all samples of a request have the same keys."""

    text: str
    prefix: str = ""
    label: Label = ""
    source: str = ""
    reference: str | Annotated[list[str], Field(min_length=1)] = ""
    context: str = ""
    history: str = ""
    prompt: str = ""
    group: str = ""

    @field_validator("prefix")
    @classmethod
    def _starts_text(cls, prefix: str, info: ValidationInfo) -> str:
        text = info.data.get("text", prefix)  # absent if it is invalid
        if not text.startswith(prefix):
            # A reply does not repeat a text: proxies and clients log errors.
            raise ValueError("prefix is not the beginning of text. A text includes its prefix.")
        return prefix


class ScoreBody(Message):
    """Body of `POST /score`."""

    samples: list[Sample]

    @field_validator("samples")
    @classmethod
    def _have_the_same_keys(cls, samples: list[Sample]) -> list[Sample]:
        for i, sample in enumerate(samples):
            if sample.model_fields_set != samples[0].model_fields_set:
                key = min(sample.model_fields_set ^ samples[0].model_fields_set)
                has, lacks = (i, 0) if key in sample.model_fields_set else (0, i)
                raise ValueError(
                    f"samples[{has}] has {key!r}, but samples[{lacks}] does not. All samples must "
                    "have the same keys."
                )
        return samples

    def to_samples(self) -> Samples:
        """Return the samples."""
        keys = self.samples[0].model_fields_set if self.samples else {"text"}
        return Samples(**{COLUMN_OF[k]: [getattr(s, k) for s in self.samples] for k in keys})


class Result(Message):
    """Rewards of one sample.

    The total is null if the sample failed. A component is null if it is NaN; an infinite one
    is sent as a string, failed or not, so that the client gets the exact batch.
    """

    total: Number
    components: dict[str, Number]
    failed: bool


class ScoreReply(Message):
    """Reply to `POST /score`; `score_reply` makes it. `fingerprint` is that of the reward."""

    results: list[Result]
    seconds: Number
    fingerprint: str

    def to_batch(self, names: Sequence[str], n: int) -> RewardBatch:
        """Return the rewards of n samples, with these components in this order."""
        if len(self.results) != n:
            raise ValueError(f"{len(self.results)} results for {n} samples")
        for i, result in enumerate(self.results):
            if result.components.keys() != set(names):
                raise ValueError(f"results[{i}] has the components {', '.join(result.components)}")
        rows = self.results
        return RewardBatch(
            np.array([row.total for row in rows], np.float64),
            {name: np.array([row.components[name] for row in rows], np.float64) for name in names},
            np.array([row.failed for row in rows], np.bool_),
            self.seconds,
        )


class ErrorReply(BaseModel):
    """Reply to a request that is refused or fails: why, and where in the body."""

    detail: str | list[dict[str, Any]]


def score_reply(batch: RewardBatch, fingerprint: str) -> dict[str, Any]:
    """Return the reply to `POST /score`; see `Result`."""
    results = [
        {
            "total": to_number(total),
            "components": {name: to_number(v[i]) for name, v in batch.components.items()},
            "failed": bool(batch.failed[i]),
        }
        for i, total in enumerate(batch.total)
    ]
    return {"results": results, "seconds": batch.seconds, "fingerprint": fingerprint}


def to_number(value: float) -> float | str | None:
    """Return a float for JSON, exactly: null for NaN, `"Infinity"`, `"-Infinity"`."""
    if math.isfinite(value):
        return float(value)
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def dumps(value: Any) -> bytes:
    """Return compact JSON in ASCII, which preserves any text, even an unpaired surrogate."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
