"""JSON of the service's own contract, which the server and the client both read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlreward.columns import JSON_KEYS, shortened
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.serving.wire_values import (
    InvalidBody,
    check,
    checked_object,
    from_number,
    from_numbers,
    refuse_key,
    to_number,
    to_numbers,
)

PROTOCOL = 1
FINGERPRINT_HEADER = "X-Ctrlreward-Fingerprint"

_COLUMNS = {key: name for name, key in JSON_KEYS.items()}


@dataclass(frozen=True)
class ScoredRequest:
    """The rewards of one request of n samples.

    Attributes:
        batch: The rewards; a sample with an error is NaN throughout.
        errors: Index of each sample that made a scorer raise → message of the scorer.
    """

    batch: RewardBatch
    errors: Mapping[int, str]


@dataclass(frozen=True)
class ScoreBody:
    """Body of `POST /score`: samples, and whether one that makes a scorer raise fails them all."""

    samples: Samples
    strict: bool = False


@dataclass(frozen=True)
class ScorerBody:
    """Body of `POST /scorers/{id}/score`: samples, and the scores that are wanted."""

    samples: Samples
    names: tuple[str, ...]


@dataclass(frozen=True)
class FoldBody:
    """Body of `POST /scorers/{id}/fold`: a score of a corpus, and the values of its samples."""

    name: str
    parts: tuple[Scores, ...]


def records(samples: Samples) -> list[dict[str, str]]:
    """Return one record per sample, with the singular keys of the columns that are present."""
    columns = samples.columns()
    keys = [JSON_KEYS[name] for name in columns]
    return [dict(zip(keys, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def parse_records(given: object) -> Samples:
    """Return the samples of some records.

    Raises:
        InvalidBody: A record has no text, an unknown key, an item that is not a string, a prefix
            that does not start its text, or not the keys of the first record. Names the item.
    """
    check(given, list, "a list of records", ("samples",))
    assert isinstance(given, list)
    columns: dict[str, list[str]] = {}
    for i, record in enumerate(given):
        check(record, dict, "an object with the key 'text'", ("samples", i))
        if i == 0:
            columns = {_COLUMNS[key]: [] for key in record if key in _COLUMNS}
        _check_keys(record, [JSON_KEYS[name] for name in columns], i)
        for name, column in columns.items():
            key = JSON_KEYS[name]
            check(record[key], str, "a string", ("samples", i, key))
            column.append(record[key])
        if "prefixes" in columns and not record["text"].startswith(record["prefix"]):
            raise InvalidBody(
                f"prefix = {shortened(record['prefix'])} does not start "
                f"text = {shortened(record['text'])}: give the text with its prefix",
                ("samples", i, "prefix"),
            )
    return Samples(**columns) if columns else Samples([])


def score_body(samples: Samples, strict: bool = False) -> dict[str, Any]:
    """Return the body of `POST /score`."""
    return {"samples": records(samples), "strict": strict}


def parse_score_body(body: object) -> ScoreBody:
    """Return the content of the body of `POST /score`.

    Raises:
        InvalidBody: It is not allowed; names the item.
    """
    given = checked_object(body, required=("samples",), optional=("strict",))
    strict = given.get("strict", False)
    check(strict, bool, "true or false", ("strict",))
    return ScoreBody(parse_records(given["samples"]), strict)


def scorer_body(samples: Samples, names: Iterable[str]) -> dict[str, Any]:
    """Return the body of `POST /scorers/{id}/score`."""
    return {"samples": records(samples), "names": list(names)}


def parse_scorer_body(body: object) -> ScorerBody:
    """Return the content of the body of `POST /scorers/{id}/score`.

    Raises:
        InvalidBody: It is not allowed; names the item.
    """
    given = checked_object(body, required=("samples", "names"))
    check(given["names"], list, "a list of names of scores", ("names",))
    for i, name in enumerate(given["names"]):
        check(name, str, "a string", ("names", i))
    return ScorerBody(parse_records(given["samples"]), tuple(given["names"]))


def fold_body(name: str, parts: Iterable[Scores]) -> dict[str, Any]:
    """Return the body of `POST /scorers/{id}/fold`."""
    return {"name": name, "parts": [to_numbers(part) for part in parts]}


def parse_fold_body(body: object) -> FoldBody:
    """Return the content of the body of `POST /scorers/{id}/fold`.

    Raises:
        InvalidBody: It is not allowed; names the item.
    """
    given = checked_object(body, required=("name", "parts"))
    check(given["name"], str, "a string", ("name",))
    check(given["parts"], list, "a list of lists of numbers", ("parts",))
    parts = tuple(from_numbers(part, ("parts", i)) for i, part in enumerate(given["parts"]))
    if len({len(part) for part in parts}) > 1:
        lengths = ", ".join(str(len(part)) for part in parts)
        raise InvalidBody(f"the parts have {lengths} items: give as many to each", ("parts",))
    return FoldBody(given["name"], parts)


def score_reply(scored: ScoredRequest) -> dict[str, Any]:
    """Return the reply to `POST /score`.

    The total of a sample is null if it failed. A component is null where it is NaN; an infinite
    one travels as a string, failed or not, so that the client has the batch as it was.
    """
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


def parse_score_reply(reply: object, names: Sequence[str], n: int) -> ScoredRequest:
    """Return the rewards of a reply to `POST /score`.

    Args:
        reply: Value of the JSON.
        names: The components of the reward; in this order they are returned.
        n: Samples that were sent.

    Raises:
        InvalidBody: The reply is of another form, or does not have n results.
    """
    given = checked_object(reply, required=("results", "seconds"))
    check(given["results"], list, "a list of results", ("results",))
    if len(given["results"]) != n:
        raise InvalidBody(f"{len(given['results'])} results for {n} samples", ("results",))
    total, failed = np.empty(n), np.empty(n, dtype=np.bool_)
    components = {name: np.empty(n) for name in names}
    errors = {}
    for i, result in enumerate(given["results"]):
        place = ("results", i)
        result = checked_object(result, ("total", "components", "failed"), ("error",), place)
        found = checked_object(result["components"], names, (), (*place, "components"))
        check(result["failed"], bool, "true or false", (*place, "failed"))
        total[i] = from_number(result["total"], (*place, "total"))
        failed[i] = result["failed"]
        for name, values in components.items():
            values[i] = from_number(found[name], (*place, "components", name))
        if "error" in result:
            errors[i] = str(result["error"])
    seconds = from_number(given["seconds"], ("seconds",))
    return ScoredRequest(RewardBatch(total, components, failed, seconds), errors)


def scores_reply(scores: Mapping[str, Scores]) -> dict[str, Any]:
    """Return the reply to `POST /scorers/{id}/score`."""
    return {"scores": {name: to_numbers(values) for name, values in scores.items()}}


def parse_scores_reply(reply: object, names: Iterable[str], n: int) -> dict[str, Scores]:
    """Return the scores of a reply to `POST /scorers/{id}/score`, arrays of shape (n,) by name.

    Raises:
        InvalidBody: The reply is of another form, lacks a name, or has not n scores of one.
    """
    given = checked_object(
        checked_object(reply, required=("scores",))["scores"], tuple(names), place=("scores",)
    )
    scores = {name: from_numbers(values, ("scores", name)) for name, values in given.items()}
    for name, values in scores.items():
        if len(values) != n:
            raise InvalidBody(f"{len(values)} scores for {n} samples", ("scores", name))
    return scores


def fold_reply(value: float) -> dict[str, Any]:
    """Return the reply to `POST /scorers/{id}/fold`."""
    return {"value": to_number(value)}


def parse_fold_reply(reply: object) -> float:
    """Return the score of a corpus from a reply to `POST /scorers/{id}/fold`.

    Raises:
        InvalidBody: The reply is of another form.
    """
    return from_number(checked_object(reply, required=("value",))["value"], ("value",))


def _check_keys(record: Mapping[str, Any], expected: Sequence[str], i: int) -> None:
    """Raise unless a record has `text`, keys of columns only, and those of the first record."""
    for key in record:
        if key not in _COLUMNS:
            refuse_key(key, tuple(_COLUMNS), ("samples", i))
    for key in ("text", *expected):
        if key not in record:
            raise InvalidBody(
                f"samples[{i}] has no {key!r}: give every sample the same keys, 'text' among them",
                ("samples", i, key),
                "missing",
            )
    for key in record:
        if key not in expected:
            raise InvalidBody(
                f"samples[{i}] has {key!r}, samples[0] has not: give all samples the same keys",
                ("samples", i, key),
                "extra_forbidden",
            )
