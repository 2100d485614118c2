"""Command `ctrlreward serve`: a reward as a service."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.extras import import_extra

if TYPE_CHECKING:
    from uvicorn import Server

    from ctrlreward.serving.batcher import Batcher
    from ctrlreward.serving.get_reward import GetReward

_DESCRIPTION = """Serve the reward of a YAML file over HTTP.

The file is the `reward:` block of a recipe, or a whole recipe. /openapi.json has the routes.
Other machines need the token in the environment variable CTRLREWARD_TOKEN."""

_IDLE = 75  # seconds that an unused connection is kept: longer than clients keep one

_EXAMPLES = (
    "ctrlreward serve reward.yaml --device cuda:1 --port 8700",
    "ctrlreward serve configs/controlled_generation/sentiment_smollm2.yaml",
    "CTRLREWARD_TOKEN=$(cat token.txt) ctrlreward serve reward.yaml --host 0.0.0.0",
    "ctrlreward serve reward.yaml --get_reward.failed_score=-1.0 --get_reward.columns.labels=label",
)


def run(arguments: list[str]) -> None:
    """Serve until a SIGTERM or an interruption, which finish accepted requests."""
    with user_errors():
        for module in ("fastapi", "uvicorn", "prometheus_client"):
            import_extra(module, "ctrlreward serve")
        from ctrlreward.command_line.parser import command_parser

        parser = command_parser("ctrlreward serve", "REWARD [options]", _DESCRIPTION, _EXAMPLES)
        parser.add_function_arguments(serve, as_group=False, as_positional=True)
        config = parser.parse_args(arguments)
        serve(**parser.instantiate(config).as_dict())


def serve(
    reward: Path,
    *,
    device: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    waiting: int = 4096,
    grace: int = 120,
    get_reward: GetReward | None = None,
) -> None:
    """Serve a reward.

    Args:
        reward: YAML file with `components`, or with `class_path` and `init_args` of a reward, at
            the top, under the key `reward`, or in a recipe under `model.init_args.reward`.
        device: Device of all scorers, such as cuda:1; null keeps the devices of the file.
        host: Address to listen at. Other machines reach 0.0.0.0, which needs a token, this one
            alone 127.0.0.1.
        port: Port to listen at; 0 picks a free one.
        waiting: Most requests that wait; one more is refused (503).
        grace: Seconds after a SIGTERM in which accepted requests are finished.
        get_reward: Options of OpenRLHF's route /get_reward; null leaves it out.
    """
    block = read_reward(reward)
    # The token of the server and its clients, which is not in a command line.
    token = os.environ.get("CTRLREWARD_TOKEN")
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    if token is None and not all(ipaddress.ip_address(each[4][0]).is_loopback for each in found):
        raise ValueError(f"--host {host} needs a token: set CTRLREWARD_TOKEN")
    if not 0 <= port < 2**16:
        raise ValueError(f"--port must be from 0 to 65535, got {port}")
    sockets = [socket.create_server((each[4][0], port), family=each[0]) for each in found]
    import uvicorn

    from ctrlreward.serving.application import served_app  # with torch: after all checks

    app = served_app(block, device, token=token, waiting=waiting, get_reward=get_reward)
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=_IDLE,
        limit_concurrency=2 * waiting,  # connections: probes are answered while requests wait
        http="h11",  # which limits headers; httptools stores any number
    )
    with suppress(KeyboardInterrupt):  # raised again by uvicorn, after its shutdown
        asyncio.run(_serve(uvicorn.Server(config), app.state.batcher, sockets))
    if app.state.batcher.state == "failed":
        raise SystemExit(1)


async def _serve(server: Server, batcher: Batcher, sockets: list[socket.socket]) -> None:
    """Serve until the process is asked to end, or the models can't be loaded."""

    async def report() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        print(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        while batcher.state == "loading":
            await asyncio.sleep(0.01)
        if batcher.state == "ready":
            print("ready", flush=True)
        server.should_exit = batcher.state == "failed"

    reporting = asyncio.create_task(report())
    await server.serve(sockets)
    reporting.cancel()
