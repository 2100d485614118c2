"""A served reward under Ray Serve: replicas behind one address, replaced when they die."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ctrlreward.arguments import not_negative, positive
from ctrlreward.extras import import_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

APP = "ctrlreward"  # name of the application in Ray Serve

_POLL = 1.0  # seconds between checks of the replicas
_MARGIN = 15.0  # seconds to end a replica, after its grace
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}  # no line per request
_ERROR = re.compile(r"^\S*Error: .*", re.MULTILINE)
_NOT_LOADED = re.compile(r"not ready: failed: (.*)")
_OBJECT_STORE = 256 * 2**20  # bytes of a Ray that we start: requests are small


@dataclass(frozen=True)
class RayServeOptions:
    """Cluster, resources and load of the replicas under Ray Serve.

    Args:
        address: `HOST:PORT` of a cluster's head, or "auto" for the cluster of this machine; null
            starts a Ray on this machine, which ends with the command.
        num_cpus: CPU cores of a replica; its scorers use as many threads, at least one.
        num_gpus: GPUs of a replica, the only visible ones; 0.5 puts two replicas on one. With any,
            the scorers are on "cuda" unless `--device` is set.
        max_replicas: Most replicas; Ray starts further ones while each has more than
            `target_ongoing_requests` pending, and ends them when load falls. Null keeps
            their number at `--replicas`.
        target_ongoing_requests: Average requests per replica if their number follows the load.
        max_ongoing_requests: Most pending requests of a replica, from which it makes its batches:
            as many as one batch has texts, or more.
        max_queued_requests: Most requests that wait for a replica; above it the reply is 503. -1
            for no limit.
    """

    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_replicas: int | None = None
    target_ongoing_requests: float = 64.0
    max_ongoing_requests: int = 512
    max_queued_requests: int = 16_384

    def __post_init__(self) -> None:
        for name in ("num_cpus", "num_gpus"):
            not_negative(f"ray.{name}", getattr(self, name))
        if not (self.num_cpus or self.num_gpus):
            raise ValueError("ray.num_cpus and num_gpus are both 0, must have CPUs, GPUs or both")
        for name in ("target_ongoing_requests", "max_ongoing_requests"):
            positive(f"ray.{name}", getattr(self, name))
        queued, must = self.max_queued_requests, "must be positive, or -1 for no limit"
        if queued < 1 and queued != -1:
            raise ValueError(f"ray.max_queued_requests {must}, got {queued}")


class RewardReplica:
    """Replica of a served reward for Ray Serve, started when its models are loaded."""

    def __init__(self, build: Callable[[], FastAPI], threads: int) -> None:
        import torch  # takes seconds, and the options need none

        # Ray sets OMP_NUM_THREADS by num_cpus, unless the machine's environment sets it.
        torch.set_num_threads(threads)
        self._build = build

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application; Ray Serve runs its lifespan."""
        try:
            self._reward_app = self._build()
        except (ValueError, ImportError) as error:  # it could be built where it was sent from
            raise RuntimeError(
                f"the reward can't be built on this node ({error}). Install the same version of "
                "ctrlreward, and what the reward's file imports."
            ) from error
        return self._reward_app

    async def check_health(self) -> None:
        """Wait for the models, and raise unless requests are accepted."""
        await self._reward_app.state.loading
        self._reward_app.state.batcher.check_ready()


def connect_ray(address: str | None, **options: Any) -> bool:
    """Join a cluster or start Ray on this machine; return False if Ray is connected already.

    A Ray that is started here listens on the loopback address, has no dashboard and sends no usage
    statistics; `ray.init` takes the options in addition to ours.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        # Read when Ray is imported: its processes listen on the loopback address, not on all.
        # `_node_ip_address` does not work, since Ray resolves 127.0.0.1 to another address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    ray = import_extra("ray", "--engine ray")
    place = urlsplit(f"//{(address or '').removeprefix('ray://')}")
    if place.port:  # Ray itself repeats for minutes
        try:
            socket.create_connection((place.hostname, place.port), timeout=10).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster answers at {address}: {error}") from None
    if ray.is_initialized():
        return False
    ray.init(address or "local", logging_level=logging.ERROR, **options)
    return True


def serve_on_ray(
    build: Callable[[], FastAPI],
    host: str,
    port: int,
    replicas: int,
    grace: int,
    options: RayServeOptions,
) -> bool:
    """Serve an application by replicas until a SIGTERM; return False if the models can't be loaded.

    Prints the address when all replicas run, and a line for each replica that starts or ends.
    """
    if options.max_replicas is not None and options.max_replicas < replicas:
        raise ValueError(f"ray.max_replicas must be {replicas} or more, got {options.max_replicas}")
    if not port:
        raise ValueError("port must be a free port on the cluster's head, got 0")
    with ExitStack() as stack:
        connected = connect_ray(options.address, log_to_driver=False)
        ray = import_extra("ray", "--engine ray")
        if connected:  # a Ray that was started here is shut down
            stack.callback(ray.shutdown)
        from ray import serve

        # The client's details have nodes and process ids of replicas, which `serve.status` lacks.
        from ray.serve.context import _get_global_client

        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            former = signal.signal(number, lambda *_: stop.set())
            stack.callback(signal.signal, number, former)
        _check_resources(ray.cluster_resources(), replicas, options)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        if _get_global_client(raise_if_no_controller_running=False) is None:
            stack.callback(serve.shutdown)
        http = {"host": host, "port": port}
        serve.start(proxy_location="HeadOnly", http_options=http, logging_config=_LOGGING)
        if APP in serve.status().applications:
            raise ValueError("the cluster serves a reward already: end the command that serves it")
        target = serve.RunTarget(_application(build, replicas, grace, options), APP, "/")
        serve.run_many([target], wait_for_applications_running=False)
        try:
            return _report_until(stop, _get_global_client(), options.num_gpus)
        finally:
            serve.delete(APP, _blocking=False)  # replicas finish their requests
            deadline = time.monotonic() + grace + _MARGIN
            while APP in serve.status().applications and time.monotonic() < deadline:
                time.sleep(_POLL / 5)


def _report_until(stop: threading.Event, client: Any, num_gpus: float) -> bool:
    """Print the address and events of replicas; return False if they can't serve."""
    from ctrlreward.serving.server_connection import url_of

    gpus = f", {num_gpus:g} GPU" if num_gpus else ""
    announced = False
    former: dict[str, str] = {}
    while not stop.is_set():
        details = client.get_serve_details()
        application = details["applications"].get(APP)
        if application is None:
            print("another program deleted the application", file=sys.stderr)
            return False
        deployments = application["deployments"].values()
        if application["status"] == "DEPLOY_FAILED":
            # Of reports with tracebacks, the line that says why a start failed.
            report = "\n".join([application["message"], *(d["message"] for d in deployments)])
            causes = _NOT_LOADED.findall(report) or _ERROR.findall(report) or [report]
            print(f"the reward can't be served: {causes[-1]}", file=sys.stderr)
            return False
        running = {
            replica["replica_id"]: f"node {replica['node_ip']}, process {replica['pid']}{gpus}"
            for deployment in deployments
            for replica in deployment["replicas"]
            if replica["state"] == "RUNNING"
        }
        for name in former.keys() - running.keys():
            print(f"replica {name} ended: {former[name]}", flush=True)
        for name in running.keys() - former.keys():
            print(f"replica {name} runs: {running[name]}", flush=True)
        former = running
        if application["status"] == "RUNNING" and not announced:
            http = details["http_options"]
            print(f"serving on {url_of(http['host'], http['port'])}\nready", flush=True)
            announced = True
        stop.wait(_POLL)
    return True


def _application(
    build: Callable[[], FastAPI], replicas: int, grace: int, options: RayServeOptions
) -> Any:
    from ray import serve

    number: dict[str, Any] = {"num_replicas": replicas}
    if options.max_replicas is not None:
        scaling = {
            "min_replicas": replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.target_ongoing_requests,
        }
        number = {"autoscaling_config": scaling}
    deployment: Any = serve.deployment(
        serve.ingress()(RewardReplica),
        name="reward",
        logging_config=_LOGGING,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        max_ongoing_requests=options.max_ongoing_requests,
        max_queued_requests=options.max_queued_requests,
        graceful_shutdown_timeout_s=grace,
        graceful_shutdown_wait_loop_s=_POLL / 5,
        # Of the first start: replicas that die later are always replaced.
        max_constructor_retry_count=1,
        **number,
    )
    return deployment.bind(build, max(1, int(options.num_cpus)))


def _check_resources(
    resources: Mapping[str, float], replicas: int, options: RayServeOptions
) -> None:
    for kind, each in (("CPU", options.num_cpus), ("GPU", options.num_gpus)):
        needed, there = replicas * each, resources.get(kind, 0.0)
        if needed <= there:
            continue
        message = f"{replicas} replicas of {each:g} {kind} need {needed:g}, Ray has {there:g}"
        if options.address is None:
            fewer = f"Set fewer replicas, or fewer for each by --ray.num_{kind.lower()}s."
            raise ValueError(f"{message}. {fewer}")
        print(f"warning: {message}: the rest starts once there are more", file=sys.stderr)
