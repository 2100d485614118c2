"""The reward of a YAML file, and the application that serves it, on this machine or another."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentError

from ctrlreward.adapters.trainer_options import TrainerRoutes
from ctrlreward.commands.command_parser import CommandParser
from ctrlreward.commands.config_files import COMPONENT_KEYS, ConfigFile, read_reward
from ctrlreward.commands.config_mistakes import one_line
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.components import as_component
from ctrlreward.serving.remote_reward import RemoteReward

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
            from ctrlreward.adapters.trainer_routes import trainer_routes

            routers.append(trainer_routes(self.trainers, reward))
        return create_app(reward, self.options, routers)


def build_reward(path: Path, device: str | None = None) -> AnyReward:
    """Return the reward of a YAML file; see `serve`."""
    block, file = read_reward(path)
    return reward_of(block, device, file)


def reward_of(
    block: Mapping[str, Any], device: str | None = None, file: ConfigFile | None = None
) -> AnyReward:
    """Return the reward of a block; see `ServedReward`. Errors name the file."""
    if "class_path" in block:
        reward = _parsed("reward", AnyReward, block, file and file.under("reward"))
    else:
        own = file and file.below(("components",))
        components = {
            name: _component(name, component, own)
            for name, component in block["components"].items()
        }
        reward = Reward(components, **{k: v for k, v in block.items() if k != "components"})
    if device is not None and isinstance(reward, Reward):
        for component in reward.components.values():
            component.scorer.to(device)
        reward.device = device
    return reward


def _parsed(name: str, kind: type, value: object, file: ConfigFile | None) -> Any:
    """Return the object of a class and its arguments."""
    parser = CommandParser(exit_on_error=False)
    parser.add_argument(f"--{name}", type=kind, required=True)
    try:
        config = parser.parse_object({name: deepcopy(value)})  # it modifies its argument
    except ArgumentError as error:
        raise ValueError(one_line(str(error), [file] if file else [])) from None
    return parser.instantiate(config)[name]


def _component(name: str, block: str | Mapping[str, Any], file: ConfigFile | None) -> Any:
    """Return a component, with its weight if any, from the short form."""
    if isinstance(block, str):
        block = {"scorer": block}
    if "class_path" in block:
        return _parsed(name, Scorer, block, file)
    options = {key: value for key, value in block.items() if key not in COMPONENT_KEYS}
    path = block["scorer"] if "." in block["scorer"] else f"ctrlreward.scorers.{block['scorer']}"
    scorer = _parsed(
        name,
        Scorer,
        {"class_path": path, "init_args": options | dict(block.get("options") or {})},
        file,
    )
    component = scorer
    if "score" in block:
        try:
            component = scorer[block["score"]]
        except (KeyError, ValueError) as error:
            message = error.args[0]
            raise file.error((name, "score"), f"= {message}") if file else error from None
    if "given" in block or "at_least" in block:
        component = replace(
            as_component(name, component), given=block.get("given"), at_least=block.get("at_least")
        )
    return (component, block["weight"]) if "weight" in block else component
