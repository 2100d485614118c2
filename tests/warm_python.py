"""Python processes that have imported what most scripts of tests need: forks of pytest's own.

To import PyTorch, transformers and Lightning takes longer than what these scripts do with them.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import multiprocessing.util
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

_server: TextIO


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
            "streams": [os.devnull, str(output), str(errors)],
            "timeout": timeout,
        }
        print(json.dumps(job), file=_server, flush=True)
        code = json.loads(_server.readline())
        printed = [file.read_text("utf-8") for file in (output, errors)]
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout, *printed)
    return subprocess.CompletedProcess(command, code, *printed)


def _serve() -> None:
    """Fork for each job and reply with its exit code."""
    gc.freeze()
    while line := _server.readline():
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(job)
        print(json.dumps(_code(child, job["timeout"])), file=_server, flush=True)


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
    """Run the job's script as the main program of this process, and end as Python does."""
    os.setpgid(0, 0)
    for descriptor, file in enumerate(job["streams"]):
        opened = os.open(file, os.O_CREAT | os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv = job["command"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    logging.root.handlers.clear()  # pytest's; a new process has none
    atexit._clear()  # what the tests' process does at its end
    atexit.register(multiprocessing.util._exit_function)
    code: object = None
    try:
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
