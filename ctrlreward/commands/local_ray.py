"""Ray of this process: a cluster that is joined, or one of this machine that is started for it."""

from __future__ import annotations

import logging
import os
from typing import Any

from ctrlreward.extras import import_extra

_OBJECT_STORE = 256 * 2**20  # bytes of a Ray of our own: shards and requests are small


def connect_ray(address: str | None, own: dict[str, Any], **options: Any) -> bool:
    """Join a cluster or start Ray on this machine, unless Ray is connected already.

    A Ray that is started here listens on the loopback address, has no dashboard and sends no usage
    statistics.

    Args:
        address: Address of a cluster, or None to start one.
        own: Options of `ray.init` for a Ray that is started.
        **options: Options of `ray.init` for both.

    Returns:
        Whether it was connected here, so that `ray.shutdown` is the caller's.

    Raises:
        ConnectionError: There is no cluster at the address.
        ImportError: ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        # Read when Ray is imported: its processes listen on the loopback address, not on all.
        # `_node_ip_address` does not do it, since Ray resolves 127.0.0.1 to another one.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray = import_extra("ray", "--engine ray")
    if ray.is_initialized():
        return False
    if not address:
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE, **own}
    ray.init(address or "local", logging_level=logging.ERROR, **options)
    return True
