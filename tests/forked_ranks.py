"""Two forked processes as Lightning's ranks 0 and 1; forking saves importing everything twice.

Used by the scripts that tests start, which add this folder to their path.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable


def on_two_ranks(run: Callable[[int], None]) -> None:
    """Run a function on two ranks, then exit with status 1 if one of them failed.

    Args:
        run: Function of the rank. Its trainers need `devices=2` and `strategy="ddp"`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    forking = multiprocessing.get_context("fork")
    ranks = [forking.Process(target=_as_rank, args=(run, rank, port)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(int(any(rank.exitcode for rank in ranks)))


def _as_rank(run: Callable[[int], None], rank: int, port: int) -> None:
    # With these variables, Lightning starts no processes of its own.
    os.environ |= {
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    run(rank)
