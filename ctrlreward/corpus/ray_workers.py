"""Workers that are actors of Ray, on this machine or on a cluster."""

from __future__ import annotations

import math
import os
from typing import Any

from ctrlreward.corpus.workers import LoadedComponents, ScoreShards, WorkerDied, WorkerPool
from ctrlreward.extras import import_extra
from ctrlreward.progress import write_line
from ctrlreward.ray_cluster import RayOptions, connect_ray

# Seconds between warnings that the cluster has no free CPUs or GPUs.
_PATIENCE = 60.0


class RayWorkers(WorkerPool):
    """Actors on any nodes of the cluster with free CPUs and GPUs.

    Ray restarts and retries nothing, since lost shards are known here. If Ray is connected
    already, it is used and not shut down.
    """

    def __init__(self, workers: int, options: RayOptions, threads: int | None = None) -> None:
        super().__init__(workers, threads or max(1, int(options.num_cpus)))
        self.options = options
        self._started = False

    def __enter__(self) -> ScoreShards:
        address = self.options.address or os.environ.get("RAY_ADDRESS")
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # of lines of actors, also in log files
        cpus = math.ceil(self.workers * self.options.num_cpus)
        # Warnings of scorers in actors are shown here.
        self._started = connect_ray(address, {"num_cpus": cpus}, log_to_driver=True)
        self.ray = import_extra("ray", "--engine ray")
        self.dumps = self.ray.cloudpickle.dumps
        try:
            capacity = self.capacity()
        except ValueError:
            self.__exit__()
            raise
        if capacity < self.workers:
            write_line(f"the Ray cluster can hold {capacity} of {self.workers} actors")
            self.workers = capacity
        return self.score

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        if self._started:
            self.ray.shutdown()

    def start(self) -> _ActorHandle:
        """Start an actor."""
        return _ActorHandle(self)

    def capacity(self) -> int:
        """Return how many actors the cluster can run."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        asked = {"CPU": self.options.num_cpus, "GPU": self.options.num_gpus}
        asked = {name: number for name, number in asked.items() if number}
        capacity = sum(
            min(int(node.get(name, 0) / number + 1e-9) for name, number in asked.items())
            for node in nodes
        )
        if capacity == 0:
            has = "; ".join(
                ", ".join(f"{node.get(name, 0):g} {name}s" for name in asked) for node in nodes
            )
            wanted = " and ".join(f"{number:g} {name}s" for name, number in asked.items())
            raise ValueError(
                f"no node of the Ray cluster has {wanted} for an actor: they have {has}. Set "
                "smaller --ray.num_cpus and --ray.num_gpus, or add a node."
            )
        return capacity


class _ActorHandle:
    """One actor; its number of PyTorch threads is independent of its CPUs in Ray."""

    def __init__(self, pool: RayWorkers) -> None:
        self._ray = pool.ray
        self._pool = pool
        cpus, gpus = pool.options.num_cpus, pool.options.num_gpus
        actor = self._ray.remote(LoadedComponents).options(num_cpus=cpus, num_gpus=gpus)
        # It sees only its GPUs.
        self._actor = actor.remote(pool.threads, "cuda" if gpus else None)

    def call(self, method: str, argument: object) -> Any:
        """Return the result of a method, or raise its error or `WorkerDied`."""
        returned = getattr(self._actor, method).remote(argument)
        while method == "load" and not self._ray.wait([returned], timeout=_PATIENCE)[0]:
            self._pool.capacity()  # raises if the cluster has lost its nodes
            write_line("waiting until the cluster has CPUs and GPUs for an actor")
        try:
            return self._ray.get(returned)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:  # of the actor, its node, or its result
            early = (
                " before it had work; each node needs ctrlreward, and what your scorers import, at "
                "the versions of this machine"
            )
            raise WorkerDied(f"{type(error).__name__}{early * (method == 'load')}") from error

    def end(self) -> None:
        """End the actor; if unreachable, it may still occupy its CPUs."""
        self._ray.kill(self._actor)
