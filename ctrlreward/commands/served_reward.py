"""The reward of a YAML file, and the application that serves it, on this machine or another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ctrlreward.adapters.trainer_options import TrainerRoutes
from ctrlreward.commands.command_parser import CommandParser
from ctrlreward.commands.terminal import user_errors
from ctrlreward.reward import Reward
from ctrlreward.serving.remote_reward import RemoteReward

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ctrlreward.serving.application import ServeOptions


@dataclass(frozen=True)
class ServedReward:
    """Recipe of a served reward: plain data, which may travel to other machines.

    Args:
        block: `class_path` and `init_args` of the reward.
        device: Device of all scorers; None leaves each where the block says.
        options: Limits of the server.
        trainers: Options of the trainers' routes; None leaves these routes out.
    """

    block: Mapping[str, Any]
    device: str | None
    options: ServeOptions
    trainers: TrainerRoutes | None = None

    def app(self) -> FastAPI:
        """Return the application; its lifespan loads the models.

        Raises:
            ValueError: The reward is that of another server, or the routes can't serve it.
            SystemExit: With status 2 after a wrong class or argument.
        """
        from ctrlreward.serving.application import create_app

        reward = reward_of(self.block, self.device)
        routers = []
        if self.trainers is not None:
            from ctrlreward.adapters.trainer_routes import trainer_routes

            routers.append(trainer_routes(self.trainers, reward))
        return create_app(reward, self.options, routers)


def build_reward(path: Path, device: str | None = None) -> Reward:
    """Return the reward of a YAML file.

    Args:
        path: The file: `class_path` and `init_args`, bare, under `reward`, or under
            `model.init_args.reward`.
        device: Device of all scorers; None leaves each where the file says.

    Raises:
        ValueError: The file is no YAML or has no reward.
        OSError: It can't be read.
        SystemExit: With status 2 after a wrong class or argument.
    """
    return reward_of(reward_block(path), device)


def reward_of(block: Mapping[str, Any], device: str | None = None) -> Reward:
    """Return the reward of a block of `class_path` and `init_args`; see `build_reward`."""
    parser = CommandParser(prog="ctrlreward serve", usage="REWARD [options]")
    parser.add_argument("--reward", type=Reward, required=True)
    config = parser.parse_object({"reward": dict(block)})
    with user_errors(parser):
        reward = parser.instantiate(config).reward
    assert isinstance(reward, Reward)
    if isinstance(reward, RemoteReward):
        raise ValueError(
            f"the file has the reward of another server, {reward.url}: serve its own file"
        )
    if device is not None:
        for component in reward.components.values():
            component.scorer.to(device)
        reward.device = device
    return reward


def reward_block(path: Path) -> dict[str, Any]:
    """Return `class_path` and `init_args` of the reward in a YAML file.

    Raises:
        ValueError: The file is no YAML or has no reward.
        OSError: It can't be read.
    """
    if not path.is_file():
        raise OSError(f"there is no file {path}: give a YAML file with a reward")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    for block in _places(content):
        if isinstance(block, Mapping) and "class_path" in block:
            return dict(block)
    raise ValueError(
        f"{path} has no reward: give class_path and init_args, bare, under 'reward:' or under "
        "'model: init_args: reward:'"
    )


def _places(content: object) -> Iterator[object]:
    """Yield the places of a file where a reward may be; a recipe's own class_path is its model."""
    if isinstance(content, Mapping):
        yield content
        yield content.get("reward")
        model = content.get("model")
        arguments = model.get("init_args") if isinstance(model, Mapping) else None
        yield arguments.get("reward") if isinstance(arguments, Mapping) else None
