"""JSON protocol of the service: bodies and replies, shared by server and client."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ctrlreward.reward import RewardBatch
from ctrlreward.samples import COLUMN_OF, Samples, Unfinished

PROTOCOL = 2

MOST_BYTES = 64 * 2**20  # of the body of a request
# A score in JSON, which lacks NaN (null here) and infinity (a string here).
Number: TypeAlias = float | Literal["Infinity", "-Infinity"] | None


class Message(BaseModel):
    """Body or reply: an object with exactly these keys."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Sample(Message):
    """One sample; all samples of a request have the same keys.

    `label` is a label, or an object with a label of each attribute; `prompt` is a text, or the
    messages of a conversation.
    """

    text: str
    prefix: str = ""
    label: str | dict[str, str | int | None] = ""
    source: str = ""
    reference: str | Annotated[list[str], Field(min_length=1)] = ""
    context: str = ""
    history: str = ""
    prompt: str | list[dict[str, Any]] = ""
    group: str = ""
    answer_after: str = ""
    unfinished: Unfinished = "score"


class ScoreBody(Message):
    """Body of `POST /score`."""

    samples: list[Sample]

    @field_validator("samples")
    @classmethod
    def _fit_together(cls, samples: list[Sample]) -> list[Sample]:
        for i, sample in enumerate(samples):
            if sample.model_fields_set != samples[0].model_fields_set:
                key = min(sample.model_fields_set ^ samples[0].model_fields_set)
                raise ValueError(f"samples[0] and samples[{i}] must both have {key!r}, or none")
            if not sample.text.startswith(sample.prefix):
                # A reply does not repeat a text: proxies and clients log errors.
                raise ValueError(f"samples[{i}]: prefix must be the beginning of text")
        return samples

    def to_samples(self) -> Samples:
        keys = self.samples[0].model_fields_set if self.samples else {"text"}
        columns: Any = {COLUMN_OF[k]: [getattr(s, k) for s in self.samples] for k in keys}
        return Samples(**columns)


class Result(Message):
    """Rewards of one sample.

    The total is null if the sample failed. A component is null if it is NaN; an infinite one
    is sent as a string, failed or not, so that the client gets the exact batch.
    """

    total: float | None
    components: dict[str, Number]
    failed: bool


class ScoreReply(Message):
    """Reply to `POST /score`; `score_reply` makes it. `fingerprint` identifies the reward."""

    results: list[Result]
    seconds: float
    fingerprint: str

    def to_batch(self, names: Sequence[str], n: int) -> RewardBatch:
        """Return the rewards of n samples, with these components in this order."""
        rows = self.results
        if len(rows) != n:
            raise ValueError(f"{len(rows)} results for {n} samples")
        for i, row in enumerate(rows):
            if row.components.keys() != set(names):
                raise ValueError(f"results[{i}] has the components {', '.join(row.components)}")
        return RewardBatch(
            np.array([row.total for row in rows], np.float64),
            {name: np.array([row.components[name] for row in rows], np.float64) for name in names},
            np.array([row.failed for row in rows], np.bool_),
            self.seconds,
        )


class ErrorReply(BaseModel):
    """Reply to a request that is refused or fails: why, and where in the body."""

    detail: str | list[dict[str, Any]]


def score_reply(batch: RewardBatch, fingerprint: str) -> bytes:
    """Return the reply to `POST /score`; see `Result`."""
    infinite = {math.inf: "Infinity", -math.inf: "-Infinity"}  # not NaN
    totals, *columns = (
        [value if math.isfinite(value) else infinite.get(value) for value in values.tolist()]
        for values in (batch.total, *batch.components.values())
    )
    names, rows = (
        batch.components,
        zip(totals, zip(*columns, strict=True), batch.failed.tolist(), strict=True),
    )
    results = [
        {"total": total, "components": dict(zip(names, row, strict=True)), "failed": failed}
        for total, row, failed in rows
    ]
    return dumps({"results": results, "seconds": batch.seconds, "fingerprint": fingerprint})


def dumps(value: Any) -> bytes:
    """Return compact JSON in ASCII, which preserves any text, even an unpaired surrogate."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
