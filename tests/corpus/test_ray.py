"""Ray: data sets with scores, and replicas of a served reward, on one cluster, whatever dies."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow
import pytest
from fakes import Length, Rank, letters_reward

from ctrlreward import RemoteReward, Samples
from ctrlreward.corpus.ray_data import BatchScorer, score_dataset
from ctrlreward.tables.columns import Columns

# Ray reads them when it is imported. The second one makes all of its processes listen on the
# loopback address only; the third one gives workers the priority of other tests, as they would wait
# for minutes on a busy machine.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 — Ray's spelling

OBJECT_STORE = 100 << 20  # bytes, of each node


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """`ray.cluster_utils.Cluster` with one node of two CPUs, to which this process is connected.

    Its environment says another number of threads than an actor or a replica has.
    """
    ray = pytest.importorskip("ray")  # slow to import
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


# Data sets


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Rows of which one has no score; each batch is at least one of them."""
    texts = [f"text {i}" + "e" * (i % 5) for i in range(40)]
    return [{"id": i, "output": "" if i == 7 else text} for i, text in enumerate(texts)]


def test_actors_of_ray_data_score_as_this_process(
    ray_cluster: Any, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    import ray

    scorer = Length(str(tmp_path), seconds=0.2)
    # The rest of the CPUs is left for other tests.
    options = {"actors": 2, "num_cpus": 0.1, "batch_size": 4}
    columns = Columns(text="output")
    dataset = ray.data.from_items(rows, override_num_blocks=10)
    scored = score_dataset(dataset, [scorer], columns=columns, names=["a"], **options)
    found = sorted(scored.take_all(), key=lambda row: row["id"])
    expected = Length().score([row["output"] for row in rows])
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    for name, values in expected.items():
        scores = [np.nan if row[f"a.{name}"] is None else row[f"a.{name}"] for row in found]
        np.testing.assert_array_equal(scores, values)
    processes = {call.name.partition("-")[0] for call in tmp_path.iterdir()}
    assert processes
    assert str(os.getpid()) not in processes


@pytest.mark.soak  # starting another one takes ten seconds
def test_an_actor_that_dies_takes_no_row_along(
    ray_cluster: Any, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    import ray

    rows[13]["output"] = "kill"
    (tmp_path / "kill").touch()
    dataset = ray.data.from_items(rows, override_num_blocks=10)
    columns = Columns(text="output")
    scored = score_dataset(dataset, [Length(str(tmp_path))], columns=columns, num_cpus=0.1)
    found = {row["id"]: row["length"] for row in scored.take_all()}
    assert found == {row["id"]: float(len(row["output"])) or None for row in rows}


def test_a_batch_has_the_scores_of_its_rows(rows: list[dict[str, Any]]) -> None:
    scorer = pickle.loads(pickle.dumps(BatchScorer([Length()], None, Columns("output"), {}, None)))
    table = scorer(pyarrow.Table.from_pylist(rows))
    assert table.column_names == ["id", "output", "length", "e"]
    assert table["length"].to_pylist() == [float(len(row["output"])) or None for row in rows]


def test_scores_that_compare_texts_need_one_machine() -> None:
    with pytest.raises(ValueError, match="Rank"):
        score_dataset(None, [Rank()])


# Replicas


CLIENTS = 32


@pytest.fixture(scope="module")
def url(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of two replicas, whose options are strings, as those of `serve run`."""
    from ray import serve

    from ctrlreward.serving.ray_serve import ReplicaOptions, application

    file = tmp_path_factory.mktemp("ray_serve") / "reward.yaml"
    file.write_text("class_path: fakes.placed_reward\ninit_args: {seconds: 0.02}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    trainer = {"failed_score": -1.0, "columns": {"labels": "label"}}
    given = {"reward": str(file), "replicas": "2", "num_cpus": "0.9", "get_reward": trainer}
    serve.run(application(ReplicaOptions.model_validate(given)))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def test_rewards_are_those_of_this_process(url: str) -> None:
    remote = RemoteReward(url, patience=30)
    samples = Samples(["soup", "", "broth"], labels=["o", "o", "b"])
    here, there = letters_reward()(samples), remote(samples)
    np.testing.assert_allclose(there.components["letters"], here.components["letters"], atol=1e-6)
    assert there.failed.tolist() == [False, True, False]
    # As many as its CPUs, although the environment says otherwise.
    assert there.components["threads"][0] == 1
    with pytest.raises(ValueError, match=r"labels\[0\] = 'bread'"):
        remote(["soup"], labels="bread")
    # The route of a trainer.
    body = {"query": ["soup"], "prompts": [""], "labels": ["o"]}
    reply = httpx2.post(f"{url}/get_reward", json=body, timeout=60)
    assert reply.json()["extra_logs"]["letters"] == [1.0]


@pytest.mark.soak
def test_a_replica_that_is_killed_is_replaced_and_no_answer_is_wrong(url: str) -> None:
    def ask(client: int) -> None:
        """Send texts of this client one after another: letters found, and who counted them."""
        remote = RemoteReward(url, patience=30)
        for i in range(20):
            batch = remote(["o" * (1 + client + CLIENTS * i)], labels="o").components
            answers[client].append((float(batch["letters"][0]), int(batch["process"][0])))

    answers: list[list[tuple[float, int]]] = [[] for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [threads.submit(ask, n) for n in range(CLIENTS)]
        # In the middle of the load: both replicas have answered.
        while len(before := {process for found in answers for _, process in found}) < 2:
            assert not any(client.done() for client in clients)
            time.sleep(0.01)
        os.kill(min(before), signal.SIGKILL)
        for client in clients:
            client.result()
    for n, found in enumerate(answers):
        assert [letters for letters, _ in found] == [1 + n + CLIENTS * i for i in range(20)]
    after: set[int] = set()
    deadline = time.monotonic() + 120
    while len(after) < 2 and time.monotonic() < deadline:
        after.add(int(RemoteReward(url, patience=30)(["o"], labels="o").components["process"][0]))
    assert len(after) == 2
    assert after & before == before - {min(before)}
