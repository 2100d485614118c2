"""`RewardServer`: a reward server as a child process, which ends with its parent."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from ctrlreward.serving.remote_reward import RemoteReward
from ctrlreward.serving.server_connection import TOKEN_VARIABLE

_POLL = 0.1  # seconds between checks of the child, and of the parent
_GRACE = 30  # seconds to finish after a SIGTERM
_TAIL = 20  # lines of the log in an error
_READY = re.compile(r"^serving on (\S+)\n(?:.*\n)*?ready$", re.MULTILINE)


class RewardServer:
    """A server of a reward as a child process: `with RewardServer("reward.yaml") as remote:`.

    The child serves this machine alone. It ends with the block, and within a second when this
    process ends in any other way, including SIGKILL. `url` and `process` are None before it
    listens.

    Args:
        reward: YAML file of the reward, as for `ctrlreward serve`.
        device: Device of all scorers; None keeps the devices of the file.
        port: Port to listen at; 0 picks a free one.
        options: Further options of `ctrlreward serve`, as on its command line.
        token: Bearer token of the server; None takes `$CTRLREWARD_TOKEN`, if set.
        log: File for the output of the server; None uses a temporary one.
        start_seconds: Seconds to wait until the models are loaded.

    Raises:
        RuntimeError: On entering: the server ended or was not ready in time; includes the end of
            its log.
    """

    def __init__(
        self,
        reward: str | PathLike[str],
        device: str | None = None,
        port: int = 0,
        options: Sequence[str] = (),
        token: str | None = None,
        log: str | PathLike[str] | None = None,
        start_seconds: float = 600.0,
    ) -> None:
        self.arguments = [fspath(reward), "--port", str(port), *options]
        if device is not None:
            self.arguments += ["--device", device]
        self.token = token
        self.log = None if log is None else Path(log)
        self.start_seconds = start_seconds
        self.url: str | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._remote: RemoteReward | None = None
        self._temporary = log is None

    def __enter__(self) -> RemoteReward:
        """Start the server, wait until it is ready, and return its reward."""
        if self.log is None:
            handle, name = tempfile.mkstemp(prefix="ctrlreward-serve-", suffix=".log")
            os.close(handle)
            self.log = Path(name)
        command = [sys.executable, "-m", __name__, str(os.getpid()), *self.arguments]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if self.token is not None:
            environment[TOKEN_VARIABLE] = self.token
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            self.url = self._wait(self.process, self.log)
            self._remote = RemoteReward(self.url, self.token)
            self._remote.load()
        except BaseException:
            self.__exit__()
            raise
        return self._remote

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> str:
        """Wait until the log says that the server is ready; return its address."""
        started = time.monotonic()
        while True:
            ended = process.poll() is not None
            late = time.monotonic() - started > self.start_seconds
            text = log.read_text(encoding="utf-8", errors="replace")
            if not ended and (serving := _READY.search(text)):
                return serving[1]
            if ended or late:
                what = f"ended with status {process.returncode}" if ended else "is not ready"
                tail = "\n".join(text.splitlines()[-_TAIL:])
                raise RuntimeError(
                    f"the reward server {what} after {time.monotonic() - started:.0f} s "
                    f"(`ctrlreward serve {' '.join(self.arguments)}`). The end of its log:\n{tail}"
                )
            time.sleep(_POLL)

    def __exit__(self, *_: object) -> None:
        """End the server after its pending requests."""
        if self._remote is not None:
            self._remote.release()
            self._remote = None
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._temporary and self.log is not None:
            self.log.unlink(missing_ok=True)
            self.log = None
        self.url = None


def end_with(parent: int) -> None:
    """End this process when its parent has ended: with SIGTERM, and at once after a grace."""
    while os.getppid() == parent:
        time.sleep(_POLL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)


def main(parent: int, arguments: Sequence[str]) -> None:
    """Run `ctrlreward serve` in this process for as long as its parent lives."""
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    sys.argv = ["ctrlreward", "serve", *arguments]
    runpy.run_module("ctrlreward", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
