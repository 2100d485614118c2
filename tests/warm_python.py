"""Python processes that have imported what most scripts of tests need: forks of pytest's own.

To import PyTorch, transformers and Lightning takes longer than what these scripts do with them.
"""

from __future__ import annotations

import atexit
import logging
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_server: Connection


def start_server() -> None:
    """Fork the process that is forked for each script, before tests start threads.

    It ends with this process, at the end of its input.
    """
    global _server
    _server, theirs = Pipe()
    if os.fork() == 0:
        _server.close()
        with suppress(EOFError):
            _serve(theirs)
        os._exit(0)
    theirs.close()


class WarmProcess:
    """A Python file or `python -m MODULE` in a fork, whose output goes to files.

    Args:
        command: The file, or "-m" and the module, and arguments.
        output: File for its standard output.
        errors: File for its standard error.
    """

    def __init__(self, command: Sequence[object], output: Path, errors: Path) -> None:
        words, files = [str(word) for word in command], [str(output), str(errors)]
        self.pid: int = _ask(words, dict(os.environ), os.getcwd(), files)

    def wait(self, timeout: float) -> int | None:
        """Return its exit code; None if it still runs after some seconds."""
        code: int | None = _ask(self.pid, timeout)
        return code

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


def _ask(*job: object) -> Any:
    _server.send(job)
    return _server.recv()


def _serve(jobs: Connection) -> None:
    """Reply to each job: for a command, with the id of its fork; for an id, with its exit code."""
    forks: dict[int, Any] = {}
    while True:
        job = jobs.recv()
        if len(job) == 2:
            forks[job[0]].join(job[1])
            jobs.send(forks[job[0]].exitcode)
        else:
            fork = get_context("fork").Process(target=_become, args=job)
            fork.start()
            forks[fork.pid or 0] = fork
            jobs.send(fork.pid)


def _become(words: list[str], environment: dict[str, str], folder: str, files: list[str]) -> None:
    """Run a script as the main program of this process."""
    os.setpgid(0, 0)
    for descriptor, file in enumerate(files, 1):
        opened = os.open(file, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    logging.root.handlers.clear()  # pytest's; a new process has none
    atexit._clear()  # what the tests' process does at its end
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
