"""`RemoteReward`: the reward of a server, in place of a `Reward` of this process."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ctrlreward.arguments import kind_of
from ctrlreward.placement import Worker
from ctrlreward.reward import AnyReward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scorer, Scores, ScoreSpec, check_columns
from ctrlreward.serving.description import digest
from ctrlreward.serving.server_connection import ServerConnection


class RemoteReward(AnyReward):
    """The reward that a server computes (`ctrlreward serve`); usable like a `Reward`.

    Building it opens no connection: names and weights are fetched at their first use, or by `load`,
    which waits until the server has loaded its models. Copies in other processes share the server.
    A request is repeated, with growing pauses, while the server can't be reached, is loading or is
    full (503). A component, `remote["relevance"]`, asks the server for the whole reward.

    Args:
        url: Address of the server: `"http://127.0.0.1:8700"`.
        token: Bearer token of the server; None takes `$CTRLREWARD_TOKEN`, if set.
        expect: Reward that the server must have: the YAML file that it serves, the
            `fingerprint_id` of `GET /ready`, or other entries of that description:
            `{"weights": {"relevance": 1.0}}`. None accepts any.
        timeout: Seconds to wait for one reply.
        patience: Seconds to repeat a request, and to wait for a server that starts later. None: 120
            to repeat a request, and 3 to reach a server that never replied.

    Raises:
        ValueError: The URL is not one of HTTP, or a number is not positive.
        OSError: The file does not exist.
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
        expect: dict[str, Any] | str | PathLike[str] | None = None,
        timeout: float = 600.0,
        patience: float | None = None,
    ) -> None:
        if isinstance(expect, str | PathLike):
            expect = {"fingerprint_id": _fingerprint(str(expect))}
        elif not isinstance(expect, Mapping | None):
            raise TypeError(f"expect must be a file, a digest or a mapping, got {kind_of(expect)}")
        self._connection = ServerConnection(url, token, timeout, patience, expect)
        self._scorers: dict[tuple[bool, bool], RemoteScorer] = {}
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
        """The components by name, scored by the server; those of one kind share a scorer."""
        components = {}
        for name, c in self.description["components"].items():
            kind = c["pointwise"], c["of_groups"]
            scorer = self._scorers.setdefault(kind, RemoteScorer(self, *kind))
            components[name] = Component(scorer, name)
        return components

    @property
    def derived(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the further columns of its batches."""
        return tuple(self.description.get("derived", ()))

    @property
    def given(self) -> dict[str, tuple[str, float]]:  # type: ignore[override]
        """The conditions of components, as in `Reward`."""
        return {name: tuple(each) for name, each in self.description.get("given", {}).items()}

    @property
    def weights(self) -> dict[str, float] | None:  # type: ignore[override]
        """The weight of each component of a weighted reward; None with other aggregates."""
        weights: dict[str, float] | None = self.description["weights"]
        return None if weights is None else dict(weights)

    def load(self) -> None:
        """Wait until the server is ready, and check that it has the expected reward."""
        self._connection.connect()

    def release(self) -> None:
        """End the background thread and close the connections; a later call opens new ones."""
        self._worker.close(cancel=True)
        self._connection.close()

    def _score(self, samples: Samples) -> RewardBatch:
        """Return the rewards that the server computed; `seconds` is the duration of its scoring."""
        check_columns(self.components, samples)
        names = [*self.components, *self.derived]
        return self._connection.score(samples).to_batch(names, len(samples))


class RemoteScorer(Scorer):
    """Components of one kind of a served reward, without a local device."""

    scores_empty = True  # if they do on the server

    def __init__(self, reward: RemoteReward, pointwise: bool, of_groups: bool) -> None:
        self.reward = reward
        self.pointwise, self.of_groups = pointwise, of_groups

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each component, as reported by the server."""
        return {
            name: ScoreSpec(
                c["higher_is_better"],
                (-math.inf if low is None else low, math.inf if high is None else high),
            )
            for name, c in self.reward.description["components"].items()
            if (c["pointwise"], c["of_groups"]) == (self.pointwise, self.of_groups)
            for low, high in [c["range"]]
        }

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """All columns that the reward needs, each with the scorer that needs it on the server."""
        components = self.reward.description["components"].values()
        return {c: reader for each in components for c, reader in each["required_columns"].items()}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        """Request the reward from the server; each component is float64 of shape (n,)."""
        batch = self.reward(samples)
        return {name: batch.components[name] for name in self.specs}

    def load(self) -> None:
        """Wait until the server is ready."""
        self.reward.load()

    def release(self) -> None:
        """Close the connections; the server keeps its models."""
        self.reward._connection.close()


def _fingerprint(expected: str) -> str:
    """Return the digest that is given, or that of a YAML file."""
    if re.fullmatch("[0-9a-f]{64}", expected):
        return expected
    from ctrlreward.command_line.config_files import read_reward

    return digest(read_reward(Path(expected)))
