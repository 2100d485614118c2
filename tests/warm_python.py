"""Python processes that have imported what most scripts of tests need: forks of pytest's own.

To import PyTorch, transformers and Lightning takes longer than what these scripts do with them.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, TextIO

_server: TextIO
_asking = threading.Lock()


def start_server() -> None:
    """Fork the process that is forked for each script, before tests start threads.

    It ends with this process, at the end of its input.
    """
    global _server
    ours, theirs = socket.socketpair()
    server = os.fork()
    _server = (theirs if server == 0 else ours).makefile("rw")
    (ours if server == 0 else theirs).close()
    if server == 0:
        _serve()
        os._exit(0)


class WarmProcess:
    """A Python file or `python -m MODULE` in a fork, whose output goes to files.

    Args:
        command: The file, or "-m" and the module, and arguments.
        output: File for its standard output.
        errors: File for its standard error.
    """

    def __init__(self, command: Sequence[object], output: Path, errors: Path) -> None:
        job = {
            "command": [str(word) for word in command],
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "streams": [os.devnull, str(output), str(errors)],
        }
        self.pid: int = _ask(job)
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if it still runs after some seconds."""
        if self.returncode is None:
            self.returncode = _ask({"wait": self.pid, "timeout": timeout})
        return self.returncode

    def end(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.wait(0) is None:
            os.kill(self.pid, number)


def run_warm(script: Path, *arguments: object, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a Python file in a fork, as `subprocess.run` with captured output would.

    After `timeout` seconds the fork and its children are killed: a `subprocess.TimeoutExpired`.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, errors = (Path(folder, name) for name in ("stdout", "stderr"))
        process = WarmProcess([script, *arguments], output, errors)
        code = process.wait(timeout)
        if code is None:
            os.killpg(process.pid, 9)
        printed = [file.read_text("utf-8") for file in (output, errors)]
    if code is None:
        raise subprocess.TimeoutExpired(str(script), timeout, *printed)
    return subprocess.CompletedProcess(str(script), code, *printed)


def _ask(job: Mapping[str, Any]) -> Any:
    with _asking:
        print(json.dumps(job), file=_server, flush=True)
        return json.loads(_server.readline())


def _serve() -> None:
    """Fork for each job and reply with the child's id, or wait for a child."""
    while line := _server.readline():
        job = json.loads(line)
        if "wait" in job:
            reply = _code(job["wait"], job["timeout"])
        elif (reply := os.fork()) == 0:
            _become(job)
        print(json.dumps(reply), file=_server, flush=True)


def _code(child: int, timeout: float) -> int | None:
    """Wait for a fork; return its exit code, None if it took too long."""
    until = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.01)


def _become(job: Mapping[str, Any]) -> None:
    """Run the job's script as the main program of this process, and end as Python does."""
    os.setpgid(0, 0)
    for descriptor, file in enumerate(job["streams"]):
        opened = os.open(file, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv = job["command"]
    logging.root.handlers.clear()  # pytest's; a new process has none
    atexit._clear()  # what the tests' process does at its end
    atexit.register(util._exit_function)
    code: object = None
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
