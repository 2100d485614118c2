"""Workers that are actors of Ray, on this machine or on a cluster."""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from ctrlreward.commands.shards.workers import (
    MOST_DEATHS,
    ScoredShard,
    Shard,
    died_too_often,
    pickled,
    portable_errors,
    release,
    score_shard,
)
from ctrlreward.extras import import_extra
from ctrlreward.progress import write_line
from ctrlreward.scorers.base import Component, Scores

# Between two lines that say that the cluster has no room.
_PATIENCE = 60.0
_OBJECT_STORE = 256 * 2**20  # bytes of a Ray of our own: shards and requests are small


@dataclass(frozen=True)
class RayOptions:
    """Where actors run, and what each of them takes.

    Args:
        address: Cluster to join, such as `auto` or `10.0.0.1:6379`. None joins the one of the
            variable RAY_ADDRESS, which `ray job submit` sets; without it, Ray is started on this
            machine, for this run.
        num_cpus: CPUs of an actor.
        num_gpus: GPUs of an actor, such as 1 or 0.5; above 0, its models are on `cuda`.

    Raises:
        ValueError: One of them is negative, or there are neither CPUs nor GPUs.
    """

    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            number = getattr(self, name)
            if not 0 <= number < math.inf:
                raise ValueError(f"{name} = {number}: give 0 or more")
        if not (self.num_cpus or self.num_gpus):
            raise ValueError("num_cpus and num_gpus are 0: give CPUs, GPUs or both")


class RayWorkers:
    """Actors, each with models of its own.

    This process reads, and hands an actor the next shard when it has done one: there is no reading
    task that actors could starve, and no queue that holds the corpus. Ray restarts and retries
    nothing, since a shard that was lost is known here: its actor is replaced wherever the cluster
    has room, and the shard is scored again.

    If Ray is connected already, it is used, and left as it is.

    Args:
        workers: Number of actors. Fewer are started where the cluster has no room for all.
        options: Where actors run, and what each of them takes.
        threads: Threads of PyTorch in an actor; None gives it its CPUs.
    """

    def __init__(
        self,
        workers: int,
        options: RayOptions = RayOptions(),
        threads: int | None = None,
    ) -> None:
        self.workers = workers
        self.options = options
        self.threads = threads or max(1, int(options.num_cpus))
        self._actors: list[Any] = []
        self._started = False

    def __enter__(self) -> Self:
        address = self.options.address or os.environ.get("RAY_ADDRESS")
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # of lines of actors, in log files too
        cpus = math.ceil(self.workers * self.options.num_cpus)
        # What scorers warn of in actors is shown here.
        self._started = connect_ray(address, {"num_cpus": cpus}, log_to_driver=True)
        return self

    def __exit__(self, *_: object) -> None:
        ray = import_extra("ray", "--engine ray")
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._started:
            ray.shutdown()

    def score(
        self, components: Mapping[str, Component], shards: Iterable[Shard]
    ) -> Iterator[ScoredShard]:
        """See `Workers.score`.

        Raises:
            ValueError: No node of the cluster has the CPUs and GPUs of one actor.
        """
        ray = import_extra("ray", "--engine ray")
        unit = ray.put(pickled(components, ray.cloudpickle.dumps))
        count = self._room() if not self._actors else len(self._actors)
        self._actors += [self._new_actor() for _ in range(count - len(self._actors))]
        starting = {actor.start.remote(unit): actor for actor in self._actors}
        busy: dict[Any, tuple[Any, Shard]] = {}
        idle: list[Any] = []
        remaining = iter(shards)
        again: list[Shard] = []  # of actors that died
        deaths: Counter[int] = Counter()
        next_shard = next(remaining, None)
        while next_shard or busy:
            while next_shard and idle:
                actor = idle.pop()
                busy[actor.score.remote(next_shard)] = actor, next_shard
                next_shard = again.pop() if again else next(remaining, None)
            done, _ = ray.wait([*busy, *starting], timeout=_PATIENCE)
            if not (done or busy):
                self._room()  # a cluster that has lost its nodes will have none
                write_line("waiting until the cluster has room for an actor")
            for reference in done:
                actor, shard = busy.pop(reference, (starting.pop(reference, None), None))
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except ray.exceptions.RayError as error:  # of the actor, its node, or its result
                    self._actors.remove(actor)
                    ray.kill(actor)  # where it is out of reach, it may still hold its CPUs
                    number = shard.number if shard else -1  # it died before it had any
                    deaths[number] += 1
                    if deaths[number] == MOST_DEATHS:
                        raise died_too_often(shard) if shard else _never_started(error) from None
                    what = f"{shard} are scored again" if shard else "before it had work"
                    write_line(f"an actor died ({type(error).__name__}): {what}")
                    if shard:
                        next_shard, again = shard, [*again, *filter(None, [next_shard])]
                    self._actors.append(self._new_actor())
                    starting[self._actors[-1].start.remote(unit)] = self._actors[-1]
                else:
                    idle.append(actor)
                    if shard:
                        yield shard.number, result

    def _room(self) -> int:
        """Return how many actors to start.

        Raises:
            ValueError: No node has room for one.
        """
        ray = import_extra("ray", "--engine ray")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        asked = {"CPU": self.options.num_cpus, "GPU": self.options.num_gpus}
        asked = {name: number for name, number in asked.items() if number}
        room = sum(
            min(int(node.get(name, 0) / number + 1e-9) for name, number in asked.items())
            for node in nodes
        )
        if room == 0:
            has = "; ".join(
                ", ".join(f"{node.get(name, 0):g} {name}s" for name in asked) for node in nodes
            )
            wanted = " and ".join(f"{number:g} {name}s" for name, number in asked.items())
            raise ValueError(
                f"no node of the Ray cluster has {wanted} for an actor: they have {has}. Give "
                "smaller --ray.num_cpus and --ray.num_gpus, or add a node"
            )
        if room < self.workers:
            write_line(f"the Ray cluster has room for {room} of {self.workers} actors")
        return min(room, self.workers)

    def _new_actor(self) -> Any:
        ray = import_extra("ray", "--engine ray")
        cpus, gpus = self.options.num_cpus, self.options.num_gpus
        actor = ray.remote(_Actor).options(num_cpus=cpus, num_gpus=gpus)
        return actor.remote(self.threads, gpus > 0)


class _Actor:
    """Scores shards with the components of one unit after the other.

    Ray sets OMP_NUM_THREADS by the CPUs of an actor; PyTorch's threads are set apart from it.
    """

    def __init__(self, threads: int, on_gpu: bool) -> None:
        torch.set_num_threads(threads)
        self._on_gpu = on_gpu
        self._components: dict[str, Component] = {}

    def start(self, content: bytes) -> None:
        release(self._components)
        with portable_errors():
            self._components = pickle.loads(content)
        if self._on_gpu:
            for scorer in {component.scorer for component in self._components.values()}:
                scorer.to("cuda")  # the only one that Ray shows it, or the first

    def score(self, shard: Shard) -> dict[str, Scores]:
        return score_shard(self._components, shard)


def _never_started(error: Exception) -> RuntimeError:
    return RuntimeError(
        f"{MOST_DEATHS} actors of Ray died before they had work: {error}. Each node needs "
        "ctrlreward, and what your scorers import, at the versions of this machine"
    )


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
