"""A server as a child process: it serves, ends with its parent, and says why it does not start."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from letter_scorers import letters_reward

from ctrlreward import Samples
from ctrlreward.serving import child_server
from ctrlreward.serving.child_server import RewardServer
from ctrlreward.serving.server_connection import ServerError

FILE = "class_path: letter_scorers.letters_reward\n"
SAMPLES = Samples(["soup", "", "broth"], labels=["o", "o", "b"])


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "reward.yaml"
    path.write_text(FILE)
    return path


def test_serves_within_the_block_and_ends_with_it(file: Path, tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    server = RewardServer(file, token="opensesame", log=log)
    with server as remote:
        here = letters_reward()(SAMPLES)
        np.testing.assert_array_equal(remote(SAMPLES).total, here.total)
        assert remote.weights == letters_reward().weights
        assert server.process is not None
        assert lives(server.process.pid)
        assert server.url == remote.url
        assert "opensesame" not in " ".join(server.process.args)  # type: ignore[arg-type]
        with pytest.raises(ServerError, match="Pass its token"):
            type(remote)(remote.url).load()
    assert server.process.returncode == 0
    assert "ready" in log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ends_when_its_parent_is_killed(file: Path) -> None:
    forking = multiprocessing.get_context("fork")  # saves importing everything, as its server is
    here, there = forking.Pipe()
    parent = forking.Process(target=_hold, args=(file, there))
    parent.start()
    try:
        assert here.poll(300)
        child = here.recv()
        assert lives(child)
    finally:
        parent.kill()  # SIGKILL: no block is left, no finaliser runs
        parent.join()
    for _ in range(1200):
        if not lives(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the server outlived its parent")


class Forked:
    """`subprocess.Popen` of the server, as a fork of this process."""

    returncode = None

    def __init__(self, command: list[str], *, stdout: Any, **_: Any) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for descriptor in (1, 2):
                os.dup2(stdout.fileno(), descriptor)
            sys.stdout = os.fdopen(1, "w", buffering=1)
            child_server.main(int(command[3]), command[4:])
            os._exit(0)

    def poll(self) -> None:
        return None


def _hold(file: Path, pipe: Any) -> None:
    child_server.subprocess.Popen = Forked
    server = RewardServer(file)
    with server:
        assert server.process is not None
        pipe.send(server.process.pid)
        time.sleep(600)


def test_one_that_does_not_start_shows_its_log(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"  # what the command says is part of `test_serve.py`
    python.write_text("#!/bin/sh\necho No such folder: models/rater >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    server = RewardServer(file)
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 1 .*No such folder: models"):
        server.__enter__()
    assert server.process is not None
    assert server.process.poll() == 1
    assert server.log is None  # the temporary file is gone


def test_one_that_is_not_ready_in_time_is_ended(file: Path) -> None:
    server = RewardServer(file, start_seconds=0.01)
    with pytest.raises(RuntimeError, match=r"is not ready after 0 s \(`ctrlreward serve "):
        server.__enter__()
    assert server.process is not None
    assert server.process.poll() is not None
