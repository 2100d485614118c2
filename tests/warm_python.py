"""Python processes that have imported what most scripts of tests need: forks of one, started once.

To import PyTorch, transformers and Lightning takes longer than what these scripts do with them.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def run_warm(script: Path, *arguments: object, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a Python file in a fork, as `subprocess.run` with captured output would.

    Args:
        script: The file.
        arguments: Its arguments.
        timeout: Seconds after which the fork and its children are killed.

    Raises:
        subprocess.TimeoutExpired: It took longer.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, errors = (Path(folder, name) for name in ("stdout", "stderr"))
        command = [str(script), *map(str, arguments)]
        job = {
            "command": command,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            "output": [str(output), str(errors)],
            "timeout": timeout,
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        code = json.loads(server.stdout.readline())
        printed = [file.read_text("utf-8") for file in (output, errors)]
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, *printed)
    return subprocess.CompletedProcess(command, code, *printed)


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process to fork; it ends with this one, at the end of its input."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    return server


def _serve() -> dict[str, Any] | None:
    """Fork for each job and reply with its exit code; return the job in the fork."""
    import lightning_choice  # noqa: F401 — and with it PyTorch and transformers

    while line := sys.stdin.readline():
        job: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return job
        print(json.dumps(_code(child, job["timeout"])), flush=True)
    return None


def _code(child: int, timeout: float) -> int | None:
    """Wait for a fork; return its exit code, None if it took too long."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, 9)
    os.waitpid(child, 0)
    return None


def _become(job: Mapping[str, Any]) -> None:
    """Run the job's script as the main program of this process."""
    os.setpgid(0, 0)
    for descriptor, file in enumerate(job["output"], start=1):
        opened = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv = job["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    # Not inside a function that forks: the fork ends as any Python process does, with its threads
    # and its exit code.
    if (job := _serve()) is not None:
        _become(job)
