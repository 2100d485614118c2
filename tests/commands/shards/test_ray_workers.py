"""Actors of Ray: every shard once, on one node and on two, whatever dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from commands.shards.test_workers import TEXTS, collect, components, same, shards
from ray_cluster import OBJECT_STORE, ray_cluster  # noqa: F401
from shard_scorers import Length, Threads

from ctrlreward import Samples
from ctrlreward.commands.shards import ray_workers
from ctrlreward.commands.shards.ray_workers import RayOptions, RayWorkers
from ctrlreward.commands.shards.workers import InProcess, Shard
from ctrlreward.scorers.base import Scores


@pytest.fixture(scope="module")
def two(ray_cluster: Any) -> Iterator[RayWorkers]:  # noqa: F811
    with RayWorkers(2, RayOptions(num_cpus=0.5)) as workers:  # one CPU is left for other tests
        yield workers


def expected(texts: list[str]) -> dict[int, list[Scores]]:
    with InProcess() as here:
        return collect(here, Length(), shards(texts))


def test_actors_score_every_shard_once(two: RayWorkers, tmp_path: Path) -> None:
    same(collect(two, Length(str(tmp_path), seconds=0.1), shards(TEXTS)), expected(TEXTS))
    pids = {call.name.partition("-")[0] for call in tmp_path.iterdir()}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids
    assert collect(two, Threads(), shards(TEXTS[:2]))[0][0].tolist() == [1.0, 1.0]


def test_an_actor_has_the_threads_that_were_asked_for(ray_cluster: Any) -> None:  # noqa: F811
    with RayWorkers(1, threads=2) as workers:
        assert collect(workers, Threads(), shards(TEXTS[:2]))[0][0].tolist() == [2.0, 2.0]


def test_errors_of_scorers_name_the_rows(two: RayWorkers) -> None:
    texts = [*TEXTS[:7], "bad", *TEXTS[8:]]
    with pytest.raises(ValueError, match=r"^in\.jsonl:8: text = 'bad': give a good one$") as raised:
        collect(two, Length(), shards(texts))
    assert type(raised.value) is ValueError


def test_what_can_not_be_read_in_another_process(two: RayWorkers) -> None:
    class TwoParts(Exception):  # of a local class, by value; its pickle can't be loaded
        def __init__(self, what: str, why: str) -> None:
            super().__init__(f"{what}: {why}")

    class Raises(Length):
        def score_samples(self, samples: Samples) -> dict[str, Scores]:
            raise TwoParts("soup", "cold")

    class Unread(Length):
        def __setstate__(self, state: object) -> None:
            raise ModuleNotFoundError("No module named 'kitchen'")

    class Locked(Length):
        def __init__(self) -> None:
            super().__init__()
            self.lock = Lock()

    for scorer, kind, message in (
        (Raises(), RuntimeError, "TwoParts: soup: cold"),
        (Unread(), ModuleNotFoundError, "No module named 'kitchen'"),
        (Locked(), ValueError, "Locked can't be sent to other processes .*lock"),
    ):
        with pytest.raises(kind, match=message) as raised:
            collect(two, scorer, shards(TEXTS))
        assert type(raised.value) is kind
    same(collect(two, Length(), shards(TEXTS)), expected(TEXTS))  # the actors live on


def test_an_actor_that_dies_is_replaced(
    two: RayWorkers,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [*TEXTS[:7], "kill", *TEXTS[8:]]
    (tmp_path / "kill").touch()
    same(collect(two, Length(str(tmp_path)), shards(texts)), expected(texts))
    assert capsys.readouterr().err.count("in.jsonl:7 to in.jsonl:8 are scored again") == 1
    (tmp_path / "kill").touch()
    monkeypatch.setattr(ray_workers, "MOST_DEATHS", 1)  # a start takes seconds
    with pytest.raises(RuntimeError, match=r"workers died while they scored in\.jsonl:7 to"):
        collect(two, Length(str(tmp_path)), shards(texts))


def test_a_cluster_that_is_too_small(
    ray_cluster: Any,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RayWorkers(5) as workers:
        assert collect(workers, Length(), iter([])) == {}
    assert "the Ray cluster has room for 2 of 5 actors" in capsys.readouterr().err
    with (
        RayWorkers(1, RayOptions(num_cpus=1, num_gpus=1)) as workers,
        pytest.raises(ValueError, match=r"has 1 CPUs and 1 GPUs for an actor: they have 2 CPUs, 0"),
    ):
        collect(workers, Length(), shards(TEXTS))


def test_a_node_that_dies_takes_no_row_along(ray_cluster: Any, tmp_path: Path) -> None:  # noqa: F811
    node = ray_cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE)
    killed = False

    def watched() -> Iterator[Shard]:
        nonlocal killed
        for shard in shards(TEXTS):
            if shard.number == 6:
                ray_cluster.remove_node(node, allow_graceful=False)
                killed = True
            yield shard

    with RayWorkers(3, RayOptions(num_cpus=1)) as workers:  # one fits on the first node
        unit = Length(str(tmp_path), seconds=0.3)
        found = {n: list(s.values()) for n, s in workers.score(components(unit), watched())}
    assert killed
    assert len({call.name.partition("-")[0] for call in tmp_path.iterdir()}) >= 2
    same(found, expected(TEXTS))


@pytest.mark.parametrize("bad", [{"num_cpus": -1}, {"num_gpus": -1}, {"num_cpus": 0}])
def test_bad_options(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="num_"):
        RayOptions(**bad)  # type: ignore[arg-type]
