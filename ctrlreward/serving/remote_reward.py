"""`RemoteReward`: the reward of a server, in place of a `Reward` of this process."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from os import PathLike
from typing import Any

from ctrlreward.arguments import checked_keywords, kind_of
from ctrlreward.files import read_json
from ctrlreward.placement import Worker
from ctrlreward.reward import AccuracyScore, AnyReward, Reward, RewardBatch, Thresholds
from ctrlreward.samples import Samples, records_of
from ctrlreward.scorers.base import Component, CorpusFold, Scorer, Scores, ScoreSpec, check_columns
from ctrlreward.serving.contract import FoldReply, ScoreReply, ScoresReply, to_numbers
from ctrlreward.serving.description import describe
from ctrlreward.serving.server_connection import ServerConnection


@checked_keywords()
class RemoteReward(AnyReward):
    """The reward that a server computes (`ctrlreward serve`); usable like a `Reward`.

    Building it opens no connection: names and weights are fetched at their first use, or by `load`,
    which waits until the server has loaded its models. Copies in other processes share the server.
    A request is repeated, with growing pauses, while the server can't be reached, is loading or is
    full (429, 503).

    Args:
        url: Address of the server: `"http://127.0.0.1:8700"`.
        token: Bearer token of the server; None takes `$CTRLREWARD_TOKEN`, if set.
        expect: Reward that the server must have: a `Reward`, a description as `GET /reward` returns
            it, or the JSON file of one. Of a description, only its entries are compared:
            `{"weights": {"relevance": 1.0}}`. None accepts any.
        timeout: Seconds to wait for one reply.
        patience: Seconds to repeat a request, and to wait for a server that starts later. None: 120
            to repeat a request, and 3 to reach a server that never replied.

    Raises:
        ValueError: The URL is not one of HTTP, a number is not positive, or the file is not JSON.
        TypeError: `expect` is of another type.
        ServerLost: At the first use or later: the server does not answer. A `ConnectionError`.
        OtherReward: Likewise: the server has another reward, than expected or before.

    Examples:
        >>> remote = RemoteReward("http://127.0.0.1:8700", expect={"weights": {"relevance": 1.0}})
        >>> remote.url
        'http://127.0.0.1:8700'
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        expect: dict[str, Any] | str | PathLike[str] | AnyReward | None = None,
        timeout: float = 600.0,
        patience: float | None = None,
    ) -> None:
        self._connection = ServerConnection(url, token, timeout, patience, _expected(expect))
        self._scorers_by_id: dict[str, RemoteScorer] = {}
        self._worker = Worker()

    @property
    def url(self) -> str:
        """Address of the server."""
        return self._connection.url

    @property
    def description(self) -> dict[str, Any]:
        """Description of the served reward, as returned by `serving.describe`."""
        return self._connection.description

    @property
    def components(self) -> dict[str, Component]:  # type: ignore[override]  # read-only
        """The components by name, scored by the server."""
        scorers = self._scorers_by_id
        for scorer in self.description["scorers"]:
            scorers.setdefault(scorer["id"], RemoteScorer(self._connection, scorer["id"]))
        return {
            name: Component(scorers[c["scorer"]], c["score"], c.get("given"), c.get("at_least"))
            for name, c in self.description["components"].items()
        }

    @property
    def derived(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the further columns of its batches."""
        return tuple(self.description.get("derived", ()))

    @property
    def weights(self) -> dict[str, float] | None:  # type: ignore[override]
        """The weight of each component of a weighted reward; None with other aggregates."""
        weights: dict[str, float] | None = self.description["weights"]
        return None if weights is None else dict(weights)

    @property
    def thresholds(self) -> Thresholds | None:  # type: ignore[override]
        """t1 to t4 of `"gm"`; None with other aggregates."""
        thresholds = self.description["thresholds"]
        return None if thresholds is None else tuple(thresholds)

    @property
    def accuracy_score(self) -> AccuracyScore | None:  # type: ignore[override]
        """The score that is the accuracy of `"gm"`; None with other aggregates."""
        score: AccuracyScore | None = self.description["accuracy_score"]
        return score

    def load(self) -> None:
        """Wait until the server is ready, and check that it has the expected reward."""
        self._connection.connect()

    def release(self) -> None:
        """End the background thread and close the connections; a later call opens new ones."""
        self._worker.close(cancel=True)
        self._connection.close()

    def _score(self, samples: Samples) -> RewardBatch:
        """Return the rewards that the server computed; `seconds` is the duration of its scoring."""
        components = self.components
        check_columns(components, samples)
        body = {"samples": records_of(samples), "strict": True}
        reply = ScoreReply.model_validate(self._connection.post("/score", body))
        return reply.to_batch([*components, *self.derived], len(samples))


class RemoteScorer(Scorer):
    """Scorer on a server, without a local device: `remote["relevance"].scorer`."""

    def __init__(self, connection: ServerConnection, id_: str) -> None:
        self.connection = connection
        self.id = id_

    @property
    def pointwise(self) -> bool:  # type: ignore[override]  # known when the server is
        """True if the score of a sample does not depend on the other samples."""
        return bool(self._description["pointwise"])

    @property
    def of_groups(self) -> bool:  # type: ignore[override]
        """True if all samples of a group share one value."""
        return bool(self._description["of_groups"])

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score, as reported by the server."""
        return {
            name: ScoreSpec(
                spec["higher_is_better"],
                (-math.inf if low is None else low, math.inf if high is None else high),
            )
            for name, spec in self._description["scores"].items()
            for low, high in [spec["range"]]
        }

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """Folds that the server computes from numbers."""
        return {
            name: CorpusFold(tuple(parts), partial(self._fold, name))
            for name, parts in self._description["folds"].items()
        }

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that the scores need, each with the score that needs it on the server."""
        required: Mapping[str, Mapping[str, str]] = self._description["required_columns"]
        wanted = self.specs if names is None else names
        return {c: reader for name in wanted for c, reader in required.get(name, {}).items()}

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> dict[str, Scores]:
        """Request the scores, or only `names`, from the server, each float64 of shape (n,)."""
        wanted = sorted(self.specs if names is None else names)
        body = {"samples": records_of(samples), "names": wanted}
        reply = self.connection.post(f"/scorers/{self.id}/score", body)
        return ScoresReply.model_validate(reply).to_scores(wanted, len(samples))

    def load(self) -> None:
        """Wait until the server is ready."""
        self.connection.connect()

    def release(self) -> None:
        """Close the connections; the server keeps its models."""
        self.connection.close()

    @property
    def _description(self) -> dict[str, Any]:
        scorers: list[dict[str, Any]] = self.connection.description["scorers"]
        return next(scorer for scorer in scorers if scorer["id"] == self.id)

    def _fold(self, name: str, *parts: Scores) -> float:
        body = {"name": name, "parts": [to_numbers(part) for part in parts]}
        reply = self.connection.post(f"/scorers/{self.id}/fold", body)
        return FoldReply.model_validate(reply).value


def _expected(
    expect: Mapping[str, Any] | str | PathLike[str] | AnyReward | None,
) -> Mapping[str, Any] | None:
    """Return the description of an expected reward."""
    if isinstance(expect, RemoteReward):
        return expect.description
    if isinstance(expect, Reward):
        return describe(expect)
    if isinstance(expect, str | PathLike):
        try:
            expect = read_json(expect)
        except ValueError as error:
            raise ValueError(
                f"expect = {str(expect)!r} is not JSON ({error}). Save the response of GET /reward."
            ) from None
    if expect is not None and not isinstance(expect, Mapping):
        raise TypeError(
            f"expect must be a Reward, a description, or the JSON file of one, got "
            f"{kind_of(expect)}"
        )
    return expect
