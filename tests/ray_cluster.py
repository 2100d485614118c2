"""A local Ray for tests, to which further node processes can be added on this machine.

A test module imports the fixture: `from ray_cluster import ray_cluster  # noqa: F401`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

# Ray reads them when it is imported. The second one makes all of its processes listen on the
# loopback address only.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

OBJECT_STORE = 100 << 20  # bytes, of each node


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """`ray.cluster_utils.Cluster` with one node of two CPUs, to which this process is connected.

    `add_node(num_cpus=1, object_store_memory=OBJECT_STORE)` starts another node process, and
    `remove_node` kills it. All of them end with the module.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
