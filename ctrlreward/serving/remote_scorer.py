"""`RemoteScorer`: one scorer of a reward server."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from ctrlreward.samples import Samples
from ctrlreward.scorers.base import CorpusFold, Scorer, Scores, ScoreSpec
from ctrlreward.serving.server_connection import ServerConnection
from ctrlreward.serving.wire import fold_body, parse_fold_reply, parse_scores_reply, scorer_body


class RemoteScorer(Scorer):
    """A scorer of a server: its scores, directions, ranges and corpus scores, and no device here.

    `RemoteReward` makes them: `remote["relevance"].scorer`.

    Args:
        connection: Connection to the server.
        id_: Id of the scorer on the server.

    Examples:
        >>> from ctrlreward.serving.server_connection import ServerConnection
        >>> scorer = RemoteScorer(ServerConnection("http://127.0.0.1:8700"), "0")
        >>> scorer.devices
        ()
    """

    def __init__(self, connection: ServerConnection, id_: str) -> None:
        self.connection = connection
        self.id = id_

    @property
    def pointwise(self) -> bool:  # type: ignore[override]  # known when the server is
        """True if the score of a sample does not depend on the other samples."""
        return bool(self._description["pointwise"])

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score, as the server states them."""
        return {
            name: ScoreSpec(spec["higher_is_better"], _range(*spec["range"]))
            for name, spec in self._description["scores"].items()
        }

    @property
    def corpus_folds(self) -> Mapping[str, CorpusFold]:
        """Folds that the server computes from numbers."""
        return {
            name: CorpusFold(tuple(parts), partial(self._fold, name))
            for name, parts in self._description["folds"].items()
        }

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that the scores need, each with the name of what needs it on the server."""
        required: Mapping[str, Mapping[str, str]] = self._description["required_columns"]
        wanted = self.specs if names is None else names
        return {c: reader for name in wanted for c, reader in required.get(name, {}).items()}

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> dict[str, Scores]:
        """Ask the server for the scores, or those of them in `names`, each float64 of shape (n,).

        Raises:
            ValueError: The server's scorer rejects the samples.
            ServerLost: The server does not answer.
        """
        wanted = sorted(self.specs if names is None else names)
        reply = self.connection.post(f"/scorers/{self.id}/score", scorer_body(samples, wanted))
        return parse_scores_reply(reply, wanted, len(samples))

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
        reply = self.connection.post(f"/scorers/{self.id}/fold", fold_body(name, parts))
        return parse_fold_reply(reply)


def _range(low: float | None, high: float | None) -> tuple[float, float]:
    return (-math.inf if low is None else low, math.inf if high is None else high)
