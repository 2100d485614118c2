"""A served reward under Ray Serve: replicas behind one address, replaced when they die."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from ctrlreward.extras import import_extra
from ctrlreward.ray_cluster import RayServeOptions, connect_ray
from ctrlreward.serving.server_connection import url_of

if TYPE_CHECKING:
    from fastapi import FastAPI

APP = "ctrlreward"  # name of the application in Ray Serve

_POLL = 1.0  # seconds between checks of the replicas
_MARGIN = 15.0  # seconds to end a replica, after its grace
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}  # no line per request
_ERROR = re.compile(r"^\S*Error: .*", re.MULTILINE)
_NOT_LOADED = re.compile(r"not ready: failed: (.*)")


class RewardReplica:
    """Replica of a served reward for Ray Serve, started when its models are loaded."""

    def __init__(self, build: Callable[[], FastAPI], threads: int) -> None:
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
        connected = connect_ray(options.address, {}, log_to_driver=False)
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
