"""A served reward under Ray Serve: replicas behind one address, replaced when they die.

$ serve run ctrlreward.serving.ray_serve:application reward=reward.yaml replicas=2 num_gpus=1
"""

# No annotations of the future here: Ray reads the class of the options from `application`.

import os
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveInt

from ctrlreward.command_line.config_files import read_reward
from ctrlreward.extras import import_extra
from ctrlreward.serving.application import served_app
from ctrlreward.serving.get_reward import GetReward

serve = import_extra("ray.serve", "ctrlreward.serving.ray_serve")


class ReplicaOptions(BaseModel):
    """Options of `application`, as `key=value` of `serve run` or under `args:` of its YAML file.

    `reward`, `waiting` and `get_reward` are as of `ctrlreward serve`; so is CTRLREWARD_TOKEN.

    Attributes:
        replicas: Copies of the reward, each with its own queue and models.
        num_cpus: CPU cores of a replica; its scorers use as many threads, at least one.
        num_gpus: GPUs of a replica, where all scorers run; 0.5 puts two replicas on one.
    """

    model_config = ConfigDict(extra="forbid")

    reward: Path
    replicas: PositiveInt = 1
    num_cpus: NonNegativeFloat = 1.0
    num_gpus: NonNegativeFloat = 0.0
    waiting: PositiveInt = 4096
    get_reward: GetReward | None = None


class RewardReplica:
    """Replica of a served reward, which takes requests when its models are loaded."""

    def __init__(self, threads: int, **arguments: Any) -> None:
        # Ray sets OMP_NUM_THREADS by num_cpus, unless the machine's environment sets it.
        torch.set_num_threads(threads)
        self._arguments = arguments

    def __serve_build_asgi_app__(self) -> FastAPI:
        self._app = served_app(**self._arguments)
        return self._app

    async def check_health(self) -> None:
        """Wait for the models, and raise unless requests are accepted."""
        await self._app.state.loading
        self._app.state.batcher.check_ready()


def application(options: ReplicaOptions) -> Any:
    """Return the application of Ray Serve; see `ReplicaOptions`."""
    deployment: Any = serve.deployment(
        serve.ingress()(RewardReplica),
        name="reward",
        num_replicas=options.replicas,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        max_ongoing_requests=options.waiting,  # a replica makes its batches from them
        graceful_shutdown_timeout_s=120,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    return deployment.bind(
        max(1, int(options.num_cpus)),
        block=read_reward(options.reward),
        device="cuda" if options.num_gpus else None,
        token=os.environ.get("CTRLREWARD_TOKEN"),
        waiting=options.waiting,
        get_reward=options.get_reward,
    )
