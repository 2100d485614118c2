"""The reward of a YAML file, and the application that serves it, on this machine or another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ctrlreward.command_line.config_files import ConfigFile
from ctrlreward.command_line.reward_file import reward_of
from ctrlreward.reward import Reward
from ctrlreward.serving.remote_reward import RemoteReward
from ctrlreward.serving.trainer_options import TrainerRoutes

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ctrlreward.serving.limits import ServeOptions


@dataclass(frozen=True)
class ServedReward:
    """Recipe of a served reward: plain data, which may be sent to other machines.

    `block` is the reward, as `read_reward` returns it; a device of None keeps the devices of
    the block, and `trainers` of None leaves their routes out.
    """

    block: Mapping[str, Any]
    device: str | None
    options: ServeOptions
    trainers: TrainerRoutes | None = None

    def app(self, file: ConfigFile | None = None) -> FastAPI:
        """Return the application; its lifespan loads the models.

        Raises a ValueError if a class or an argument of the file is wrong, the reward is on another
        server, or the routes can't serve it.
        """
        from ctrlreward.serving.application import create_app

        reward = reward_of(self.block, self.device, file)
        if not isinstance(reward, Reward):
            where = f", {reward.url}" if isinstance(reward, RemoteReward) else ""
            raise ValueError(
                f"the file has the reward of another server{where}: serve its own file"
            )
        routers = []
        if self.trainers is not None:
            from ctrlreward.serving.trainer_routes import trainer_routes

            routers.append(trainer_routes(self.trainers, reward))
        return create_app(reward, self.options, routers)
