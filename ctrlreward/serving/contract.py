"""JSON protocol of the service: bodies, replies and rejections, shared by server and client."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from ctrlreward.arguments import did_you_mean
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import COLUMN_OF, JSON_KEYS, Samples, attribute_label, shortened
from ctrlreward.scorers.base import Scores

PROTOCOL = 1
FINGERPRINT_HEADER = "X-Ctrlreward-Fingerprint"

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


class SamplesBody(Message):
    """Body with samples."""

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


class ScoreBody(SamplesBody):
    """Body of `POST /score`."""

    strict: bool = Field(
        default=False,
        description="A sample that makes a scorer raise fails the whole request (422).",
    )


class ScorerBody(SamplesBody):
    """Body of `POST /scorers/{id}/score`: samples, and the requested scores."""

    names: list[str]


class FoldBody(Message):
    """Body of `POST /scorers/{id}/fold`: a score of a corpus, and the values of its samples."""

    name: str
    parts: list[list[Number]]

    @field_validator("parts")
    @classmethod
    def _have_one_length(cls, parts: list[list[float]]) -> list[list[float]]:
        if len({len(part) for part in parts}) > 1:
            lengths = ", ".join(str(len(part)) for part in parts)
            raise ValueError(f"the parts must have the same number of items, got {lengths}")
        return parts


class Result(Message):
    """Rewards of one sample.

    The total is null if the sample failed. A component is null if it is NaN; an infinite one
    is sent as a string, failed or not, so that the client gets the exact batch.
    """

    total: Number
    components: dict[str, Number]
    failed: bool
    error: str | None = None


class ScoreReply(Message):
    """Reply to `POST /score`; `score_reply` makes it."""

    results: list[Result]
    seconds: Number

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


class ScoresReply(Message):
    """Reply to `POST /scorers/{id}/score`: the scores by name, one number per sample."""

    scores: dict[str, list[Number]]

    def to_scores(self, names: Sequence[str], n: int) -> dict[str, Scores]:
        """Return the scores, float64 arrays of shape (n,) by name."""
        found = {name: len(values) for name, values in self.scores.items()}
        if found != dict.fromkeys(names, n):
            raise ValueError(f"scores = {found}: {n} of each of {', '.join(names)} are expected")
        return {name: np.array(values, np.float64) for name, values in self.scores.items()}


class FoldReply(Message):
    """Reply to `POST /scorers/{id}/fold`."""

    value: Number


class ErrorReply(BaseModel):
    """Reply to a request that is refused or fails: why, and where in the body."""

    detail: str | list[dict[str, Any]]


# Errors of all routes, with their meaning; 401 if the server has a token.
ERRORS = {
    400: "The body is not JSON",
    401: "The token is missing or wrong",
    408: "The body does not arrive in time",
    413: "The body is too long",
    415: "The body is compressed",
    422: "The body has another schema, or a scorer rejects its samples",
    429: "The queue is full",
    500: "A scorer fails, or its model can't be loaded",
    503: "The models are being loaded, or the server is ending",
}


@dataclass(frozen=True)
class ScoredRequest:
    """The rewards of one request, NaN for a sample with an error, and the errors by index."""

    batch: RewardBatch
    errors: Mapping[int, str]


def score_reply(scored: ScoredRequest) -> dict[str, Any]:
    """Return the reply to `POST /score`; see `Result`."""
    batch = scored.batch
    results = []
    for i, total in enumerate(batch.total):
        result = {
            "total": to_number(total),
            "components": {name: to_number(v[i]) for name, v in batch.components.items()},
            "failed": bool(batch.failed[i]),
        }
        if i in scored.errors:
            result["error"] = scored.errors[i]
        results.append(result)
    return {"results": results, "seconds": batch.seconds}


def to_number(value: float) -> float | str | None:
    """Return a float for JSON, exactly: null for NaN, `"Infinity"`, `"-Infinity"`."""
    if math.isfinite(value):
        return float(value)
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_numbers(values: Scores) -> list[float | str | None]:
    """Return an array as a list of results of `to_number`."""
    return [to_number(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def dumps(value: Any) -> bytes:
    """Return compact JSON in ASCII, which preserves any text, even an unpaired surrogate."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def explained(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the first errors of pydantic without the input, which has texts, and with a hint."""
    models = (Sample, ScoreBody, ScorerBody, FoldBody)
    known = [key for model in models for key in model.model_fields]
    details = []
    for error in errors[:100]:  # each sample may have the same
        message = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            key, keys = str(error["loc"][-1]), ", ".join(dict.fromkeys(known))
            hint = did_you_mean(key, known, str) or f", must be one of {keys}"
            message = f"{shortened(key)} is not a key{hint}"
        details.append({"loc": list(error["loc"]), "msg": message, "type": error["type"]})
    return details


# A scorer's message about an item begins with its column: "labels[3] = 'x' is …".
_COLUMN = re.compile(rf"\b({'|'.join(JSON_KEYS)})\[\d+\]")


class Refusal(Exception):
    """A rejected request: HTTP status, message, and seconds to retry after.

    `place` is the path in the body of what is wrong, such as `("samples", 3, "label")`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        retry_after: int | None = None,
        place: Sequence[str | int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.place = place

    def detail(self) -> Any:
        """Return the `detail` of the reply: a message, or with a place, a list as of FastAPI."""
        if self.place is None:
            return str(self)
        return [{"loc": ["body", *self.place], "msg": str(self), "type": "value_error"}]


def rejection(error: Exception, row: int | None) -> Refusal:
    """Return the refusal of a sample that a scorer rejects, with the column that it names."""
    column = _COLUMN.search(str(error))
    place: list[str | int] = ["samples"]
    if row is not None:
        place += [row, *([JSON_KEYS[column[1]]] if column else [])]
    return Refusal(422, str(error), place=place)


def failure(error: Exception) -> Refusal:
    """Return the refusal for an error that is not about the samples, such as out of memory."""
    return Refusal(500, f"{type(error).__name__}: {error}")
