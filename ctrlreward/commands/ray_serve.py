"""A served reward under Ray Serve: replicas behind one address, replaced when they die."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ctrlreward.commands.serve import RayServeOptions
from ctrlreward.commands.served_reward import ServedReward
from ctrlreward.commands.shards.ray_workers import connect_ray
from ctrlreward.extras import import_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

APP = "ctrlreward"
"""Name of the application in Ray Serve."""

_POLL = 1.0  # seconds between looks at the replicas
_MARGIN = 15.0  # seconds to end a replica, after its grace
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}  # no line per request
_ERROR = re.compile(r"^\S*Error: .*", re.MULTILINE)
_NOT_LOADED = re.compile(r"not ready: failed: (.*)")


class RewardReplica:
    """Replica of a served reward, which Ray Serve starts, checks and replaces.

    It counts as started when its models are loaded; until then it gets no request.

    Args:
        served: Recipe of the application.
        threads: Threads of PyTorch.
    """

    def __init__(self, served: ServedReward, threads: int) -> None:
        # Ray sets OMP_NUM_THREADS by num_cpus, unless the machine's environment has one.
        torch.set_num_threads(threads)
        self._served = served

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application; Ray Serve runs its lifespan."""
        try:
            self._reward_app = self._served.app()
        except SystemExit:
            raise RuntimeError(
                "the reward can't be built on this node: install the same version of ctrlreward, "
                "and what the reward's file imports"
            ) from None
        return self._reward_app

    async def check_health(self) -> None:
        """Wait for the models, and raise unless requests are accepted.

        Raises:
            NotReady: The models could not be loaded, or the replica is ending.
        """
        await self._reward_app.state.loading
        self._reward_app.state.requests.check_ready()


def serve_on_ray(
    served: ServedReward, host: str, port: int, replicas: int, grace: int, options: RayServeOptions
) -> bool:
    """Serve a reward by replicas until a SIGTERM or an interruption.

    Prints the address when all replicas run, and a line for each replica that starts or ends.

    Args:
        served: Recipe of the application; local files that it names must be on all nodes.
        host: Address to listen at, on the cluster's head.
        port: Port to listen at.
        replicas: Replicas at the start; the fewest if `options.max_replicas` is given.
        grace: Seconds in which accepted requests are finished at the end.
        options: Cluster, resources and load.

    Returns:
        False if the models can't be loaded; the cause is printed.

    Raises:
        ValueError: The port is 0, the machine has not the resources, `max_replicas` is below
            `replicas`, or the cluster serves a reward already.
        ConnectionError: There is no cluster at the address.
        ImportError: ray is not installed.
    """
    if options.max_replicas is not None and options.max_replicas < replicas:
        raise ValueError(f"ray.max_replicas = {options.max_replicas}: give {replicas} or more")
    if not port:
        raise ValueError("port = 0: give a port that is free on the cluster's head")
    with _cluster(options.address) as ray, _stopping() as stop:
        _check_resources(ray.cluster_resources(), replicas, options)
        with _serve(host, port) as client:
            return _serve_until_stopped(client, served, replicas, grace, options, stop)


def _serve_until_stopped(
    client: Any,
    served: ServedReward,
    replicas: int,
    grace: int,
    options: RayServeOptions,
    stop: threading.Event,
) -> bool:
    """Deploy the application and report its replicas until the end; see `serve_on_ray`."""
    from ray import serve

    if APP in serve.status().applications:
        raise ValueError("the cluster serves a reward already: end the command that serves it")
    target = serve.RunTarget(_application(served, replicas, grace, options), APP, "/")
    serve.run_many([target], wait_for_applications_running=False)
    announced = False
    running: dict[str, str] = {}
    try:
        while not stop.is_set():
            details = client.get_serve_details()
            application = details["applications"].get(APP)
            if application is None:
                print("another program deleted the application", file=sys.stderr)
                return False
            if application["status"] == "DEPLOY_FAILED":
                print(f"the reward can't be served: {_cause(application)}", file=sys.stderr)
                return False
            running = _report(running, _replicas(application, options.num_gpus))
            if application["status"] == "RUNNING" and not announced:
                print(f"serving on {_url(details['http_options'])}\nready", flush=True)
                announced = True
            stop.wait(_POLL)
        return True
    finally:
        serve.delete(APP, _blocking=False)  # replicas finish what they hold
        deadline = time.monotonic() + grace + _MARGIN
        while APP in serve.status().applications and time.monotonic() < deadline:
            time.sleep(_POLL / 5)


def _application(served: ServedReward, replicas: int, grace: int, options: RayServeOptions) -> Any:
    from ray import serve

    if options.num_gpus and served.device is None:
        served = replace(served, device="cuda")
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
        # Of the first start: replicas that die later are replaced without end.
        max_constructor_retry_count=1,
        **number,
    )
    return deployment.bind(served, max(1, int(options.num_cpus)))


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Start a Ray on this machine, or join a cluster; leave no Ray of our own behind."""
    connected = connect_ray(address, {}, log_to_driver=False)
    ray = import_extra("ray", "--engine ray")
    try:
        yield ray
    finally:
        if connected:
            ray.shutdown()


@contextmanager
def _serve(host: str, port: int) -> Iterator[Any]:
    """Start Ray Serve with a proxy on the head, or join one that runs; yield its client."""
    from ray import serve

    # The client's details have nodes and process ids of replicas, which `serve.status` lacks.
    from ray.serve.context import _get_global_client

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    joined = _get_global_client(raise_if_no_controller_running=False) is not None
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": host, "port": port},
        logging_config=_LOGGING,
    )
    try:
        yield _get_global_client()
    finally:
        if not joined:
            serve.shutdown()


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that a SIGTERM or an interruption sets."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    former = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, former, strict=True):
            signal.signal(number, handler)


def _check_resources(
    resources: Mapping[str, float], replicas: int, options: RayServeOptions
) -> None:
    for kind, each in (("CPU", options.num_cpus), ("GPU", options.num_gpus)):
        needed, there = replicas * each, resources.get(kind, 0.0)
        if needed <= there:
            continue
        message = f"{replicas} replicas of {each:g} {kind} need {needed:g}, Ray has {there:g}"
        if options.address is None:
            fewer = f"give fewer replicas, or less to each by --ray.num_{kind.lower()}s"
            raise ValueError(f"{message}: {fewer}")
        print(f"warning: {message}: the rest starts once there are more", file=sys.stderr)


def _replicas(application: Mapping[str, Any], num_gpus: float) -> dict[str, str]:
    """Return id → place of each replica that runs."""
    gpus = f", {num_gpus:g} GPU" if num_gpus else ""
    return {
        replica["replica_id"]: f"node {replica['node_ip']}, process {replica['pid']}{gpus}"
        for deployment in application["deployments"].values()
        for replica in deployment["replicas"]
        if replica["state"] == "RUNNING"
    }


def _report(former: Mapping[str, str], running: dict[str, str]) -> dict[str, str]:
    """Print a line for each replica that ended or started; return those that run."""
    for name, place in former.items():
        if name not in running:
            print(f"replica {name} ended: {place}", flush=True)
    for name, place in running.items():
        if name not in former:
            print(f"replica {name} runs: {place}", flush=True)
    return running


def _url(http_options: Mapping[str, Any]) -> str:
    host, port = http_options["host"], http_options["port"]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _cause(application: Mapping[str, Any]) -> str:
    """Return the line of Ray's report, which has tracebacks, that says why a start failed."""
    messages = [deployment["message"] for deployment in application["deployments"].values()]
    report = "\n".join([application["message"], *messages])
    causes = _NOT_LOADED.findall(report) or _ERROR.findall(report)
    return causes[-1] if causes else report
