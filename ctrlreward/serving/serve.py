"""Command `ctrlreward serve`: a reward as a service."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.extras import import_extra
from ctrlreward.tables.rows import read_bytes

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ctrlreward.serving.get_reward import GetReward

_DESCRIPTION = """Serve the reward of a YAML file over HTTP.

The file is the `reward:` block of a recipe, or a whole recipe. /openapi.json has the routes."""

_IDLE = 75  # seconds that an unused connection is kept: longer than clients keep one

_EXAMPLES = (
    "ctrlreward serve reward.yaml --device cuda:1 --port 8700",
    "ctrlreward serve configs/controlled_generation/sentiment_smollm2.yaml",
    "ctrlreward serve reward.yaml --host 0.0.0.0 --token_file token.txt",
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
    token_file: Path | None = None,
    waiting: int = 4096,
    body_bytes: int = 8 * 2**20,
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
        token_file: File with the bearer token that clients must send. Without it, the environment
            variable CTRLREWARD_TOKEN is the token; without both, no token is needed.
        waiting: Most requests that wait; one more is refused (503).
        body_bytes: Longest body of a request; a longer one is refused (413).
        grace: Seconds after a SIGTERM in which accepted requests are finished.
        get_reward: Options of OpenRLHF's route /get_reward; null leaves it out.
    """
    if grace < 1:
        raise ValueError(f"grace must be at least 1 second, got {grace}")
    block = read_reward(reward)
    token = read_token(token_file)
    loopback = False
    with suppress(OSError, ValueError):
        loopback = ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    if token is None and not loopback:
        raise ValueError(
            f"--host {host} is reached by other machines, which need a token. Pass --token_file, "
            "or set CTRLREWARD_TOKEN."
        )
    from ctrlreward.serving.application import served_app  # with torch: after all checks

    app = served_app(
        block,
        device,
        token=token,
        waiting=waiting,
        body_bytes=body_bytes,
        get_reward=get_reward,
    )
    if not _serve(app, listen(host, port), grace, waiting):
        raise SystemExit(1)


def read_token(path: Path | None) -> str | None:
    """Return the token of a file, or of the environment; None without both."""
    from ctrlreward.serving.server_connection import TOKEN_VARIABLE

    if path is None:
        return os.environ.get(TOKEN_VARIABLE)
    token = read_bytes(path).decode("utf-8-sig", "replace").strip()
    if not token:
        raise ValueError(f"{path} is empty. Write the token into it.")
    return token


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one."""
    if not 0 <= port < 2**16:  # the system would take the last 16 bits
        raise ValueError(f"port must be 0 to 65535, got {port}")
    try:
        *kind, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol: asyncio sends small replies at once for TCP alone, not after 40 ms.
        listener = socket.socket(*kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        raise OSError(f"can't listen at {host}:{port} ({error.strerror}), choose another") from None
    return listener


def _serve(app: FastAPI, listener: socket.socket, grace: int, waiting: int) -> bool:
    """Serve until the process is asked to end; return False if the models can't be loaded."""
    import uvicorn

    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=_IDLE,
        limit_concurrency=2 * waiting,  # connections: probes are answered while requests wait
        http="h11",  # which limits headers; httptools stores any number
    )
    server = uvicorn.Server(config)
    batcher, loaded = app.state.batcher, True
    # uvicorn raises the signal again after its shutdown; without a handler the status is not 0.
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    async def report() -> None:
        nonlocal loaded
        while not server.started:
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        print(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
        await app.state.loading
        loaded = batcher.state != "failed"
        if loaded:
            print("ready", flush=True)
        else:
            server.should_exit = True

    async def main() -> None:
        reporting = asyncio.create_task(report())
        await server.serve([listener])
        reporting.cancel()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:  # raised again by uvicorn, after its shutdown
        pass
    finally:
        signal.signal(signal.SIGTERM, previous)
        if app.state.loading.cancelled():  # a thread can't be ended in the middle of a model
            os._exit(0)
        if batcher.scoring:
            message = f"error: scoring did not end within --grace {grace}"
            print(message, file=sys.stderr, flush=True)
            os._exit(1)
    return loaded
