"""Ray: data sets with scores, and replicas of `serve`, on one local cluster, whatever dies."""

from __future__ import annotations

import logging
import os
import pickle
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow
import pytest
from fakes import Length, Rank, letters_reward
from warm_python import WarmProcess

from ctrlreward import RemoteReward, Samples
from ctrlreward.corpus.ray_data import BatchScorer, score_dataset
from ctrlreward.serving.ray_serve import RayServeOptions, _check_resources
from ctrlreward.tables.table_columns import Columns

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


REWARD = "class_path: fakes.placed_reward\ninit_args: {seconds: 0.02}\n"
START = 240  # seconds until Ray and the replicas run
CLIENTS = 64


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RayServer:
    """The command as a process, whose output goes to a file."""

    def __init__(self, folder: Path, content: str, *options: str) -> None:
        (folder / "reward.yaml").write_text(content)
        self.log = folder / "log.txt"
        port = f"--port={free_port()}"
        words = ["serve", str(folder / "reward.yaml"), port, "--engine=ray", *options]
        self.log.touch()
        self.process = WarmProcess(["-m", "ctrlreward", *words], self.log, self.log)

    def wait_for(self, pattern: str, seconds: float = START) -> re.Match[str]:
        """Wait until the output has a line that matches; return the match."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            match = re.search(pattern, self.log.read_text(), re.MULTILINE)
            if match:
                return match
            if self.process.wait(0.1) is not None:
                break
        pytest.fail(f"no line {pattern!r} in:\n{self.log.read_text()}")

    def replicas(self) -> dict[str, int]:
        """Replicas that run, by the lines that say so: id → process."""
        lines = re.findall(
            r"^replica (\S+) (runs|ended): .*process (\d+)", self.log.read_text(), re.M
        )
        running: dict[str, int] = {}
        for name, event, pid in lines:
            if event == "runs":
                running[name] = int(pid)
            else:
                del running[name]
        return running


@pytest.fixture(scope="module")
def server(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    folder = tmp_path_factory.mktemp("ray_serve")
    options = ["--replicas=2", "--ray.num_cpus=0.9", f"--ray.address={ray_cluster.address}"]
    trainers = ["--get_reward.failed_score=-1.0", "--get_reward.columns.labels=label"]
    server = RayServer(folder, REWARD, *options, *trainers)
    yield server
    server.process.end(signal.SIGKILL)
    server.process.wait(60)


@pytest.fixture(scope="module")
def url(server: RayServer) -> str:
    server.wait_for("^ready$")
    return server.wait_for(r"^serving on (http://127.0.0.1:\d+)$")[1]


def test_rewards_are_those_of_this_process(server: RayServer, url: str) -> None:
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


def check_that_nothing_is_left() -> None:
    """Nothing is served, and the cluster still runs."""
    import ray
    from ray import serve

    end = time.monotonic() + 60  # a node that died counts until Ray misses it
    while ray.cluster_resources()["CPU"] != 2 and time.monotonic() < end:
        time.sleep(0.2)
    assert ray.cluster_resources()["CPU"] == 2
    assert serve.status().applications == {}


def ask(
    remote: RemoteReward, client: int, requests: int, found: list[tuple[float, int]] | None = None
) -> list[tuple[float, int]]:
    """Send texts of this client one after another: letters found, and the process that counted."""
    found = [] if found is None else found
    for i in range(requests):
        batch = remote(["o" * (1 + client + CLIENTS * i)], labels="o").components
        found.append((float(batch["letters"][0]), int(batch["process"][0])))
    return found


def test_a_client_that_hangs_up_harms_nobody(server: RayServer, url: str) -> None:
    """As in ray#41057, where the batch of a cancelled request was lost."""
    host, port = url.removeprefix("http://").split(":")
    body = b'{"samples": [{"text": "gone", "label": "o"}]}'
    head = f"POST /score HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    remote = RemoteReward(url, patience=30)
    with ThreadPoolExecutor(8) as threads:
        clients = [threads.submit(ask, remote, n, 10) for n in range(8)]
        while not all(client.done() for client in clients):
            for _ in range(4):
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(head.encode() + body)
            time.sleep(0.03)
    for n, client in enumerate(clients):
        expected = [1 + n + CLIENTS * i for i in range(10)]
        assert [letters for letters, _ in client.result()] == expected


def test_a_replica_that_is_killed_is_replaced_and_no_answer_is_wrong(
    server: RayServer, url: str
) -> None:
    before = server.replicas()
    victim = next(iter(before))
    answers: list[list[tuple[float, int]]] = [[] for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [
            threads.submit(ask, RemoteReward(url, patience=30), n, 12, answers[n])
            for n in range(CLIENTS)
        ]
        # In the middle of the load: both replicas have answered.
        while not set(before.values()) <= {process for found in answers for _, process in found}:
            assert not any(client.done() for client in clients)
            time.sleep(0.01)
        os.kill(before[victim], signal.SIGKILL)
        for client in clients:
            client.result()
    for n, found in enumerate(answers):
        assert [letters for letters, _ in found] == [1 + n + CLIENTS * i for i in range(12)]
    server.wait_for(rf"^replica {victim} ended: ")
    server.wait_for(r"(?s)^replica \S+ ended: .*^replica \S+ runs: ")
    after = server.replicas()
    assert len(after) == 2
    assert set(after) & set(before) == set(before) - {victim}


def test_sigterm_finishes_what_was_accepted_and_leaves_the_cluster_as_it_was(
    server: RayServer, url: str
) -> None:
    body = {"samples": [{"text": "soup", "label": "o"}] * 2}
    replicas = server.replicas().values()
    with ThreadPoolExecutor(16) as threads:
        replies = [
            threads.submit(httpx2.post, f"{url}/score", json=body, timeout=60, verify=False)
            for _ in range(16)
        ]
        while not any(reply.done() for reply in replies):
            time.sleep(0.01)
        server.process.end(signal.SIGTERM)
        assert all(len(reply.result().json()["results"]) == 2 for reply in replies)
    assert server.process.wait(60) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in replicas)
    check_that_nothing_is_left()
    log = server.log.read_text()
    assert "Traceback" not in log
    for text in ("soup", "bread", "ooo", "gone", "POST /score"):
        assert text not in log


@pytest.mark.soak
def test_a_reward_that_can_not_be_loaded_ends_the_command_with_the_cause(
    ray_cluster: Any, tmp_path: Path, fails: Callable[..., str]
) -> None:
    path = tmp_path / "reward.yaml"
    path.write_text("class_path: fakes.unloadable_reward\n")
    address = f"--ray.address={ray_cluster.address}"
    error = "the reward can't be served: OSError: No such folder: models/rater"
    said = fails("serve", path, "--engine=ray", f"--port={free_port()}", address, code=1)
    assert error in said.splitlines()
    check_that_nothing_is_left()


@pytest.mark.parametrize(
    ("resources", "options", "message"),
    [
        ({"CPU": 2.0}, RayServeOptions(num_cpus=1), "3 replicas of 1 CPU need 3, Ray has 2. Set"),
        ({"CPU": 9.0}, RayServeOptions(num_gpus=0.5), "3 replicas of 0.5 GPU need 1.5, Ray has 0"),
    ],
)
def test_resources_that_are_not_there_are_an_error_on_one_machine_and_a_warning_on_a_cluster(
    resources: dict[str, float],
    options: RayServeOptions,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match=message):
        _check_resources(resources, 3, options)
    _check_resources(resources, 3, replace(options, address="10.0.0.1:6379"))
    assert message.removesuffix(". Set") in capsys.readouterr().err
