"""The reward of a YAML file, or of a function in a Python file or module."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError

from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.config_files import COMPONENT_KEYS, ConfigFile, read_reward
from ctrlreward.command_line.config_mistakes import one_line
from ctrlreward.command_line.parser import CommandParser
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.components import as_component

_UNKNOWN = re.compile(r"(\w+) is not an option(?: \(did you mean '(\w+)')?")


def load_reward(given: str, device: str | None = None) -> AnyReward:
    """Return the reward of a YAML file, or of `file.py:function` or `module:function`.

    Raises:
        ValueError: The reward is not one of these, or the module does not have the function.
        OSError: The file does not exist.
    """
    if given.endswith((".yaml", ".yml")):
        return build_reward(Path(given), device)
    place, colon, name = given.rpartition(":")
    if not colon:
        raise ValueError(f"must be a YAML file, FILE.py:FUNCTION or MODULE:FUNCTION, got {given!r}")
    function = _function(place, name)
    return function if isinstance(function, AnyReward) else Reward({name: function})


def _function(place: str, name: str) -> Callable[..., Any] | AnyReward:
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise OSError(f"No such file: {place}")
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec, place
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        module = importlib.import_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"{place} has no function {name!r}")
    return found


def build_reward(path: Path, device: str | None = None) -> AnyReward:
    """Return the reward of a YAML file; see `serve`."""
    block, file = read_reward(path)
    return reward_of(block, device, file)


def reward_of(
    block: Mapping[str, Any], device: str | None = None, file: ConfigFile | None = None
) -> AnyReward:
    """Return the reward of a block; see `served_app`. Errors name the file."""
    if "class_path" in block:
        reward = _parsed("reward", AnyReward, block, file and file.under("reward"))
    else:
        own = file and file.below(("components",))
        components = {key: _component(key, each, own) for key, each in block["components"].items()}
        try:
            reward = Reward(components, **{k: v for k, v in block.items() if k != "components"})
        except (ValueError, TypeError) as error:
            if file is None:
                raise
            raise ValueError(f"{file.path}: {error}") from None
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
    options |= block.get("options") or {}
    path = block["scorer"] if "." in block["scorer"] else f"ctrlreward.scorers.{block['scorer']}"
    module, _, attribute = path.rpartition(".")
    with suppress(ImportError):  # the parser reports it
        if isfunction(getattr(importlib.import_module(module), attribute, None)):
            path, options = "ctrlreward.scorers.FunctionScorer", {"function": path, **options}
    try:
        component = _parsed(name, Scorer, {"class_path": path, "init_args": options}, file)
    except ValueError as error:
        written = f"{name}.scorer = {block['scorer']}"
        problem = str(error).replace(f"{name}.class_path = {path}", written)
        if wrong := _UNKNOWN.search(problem):  # the parser does not know the keys of a component
            hint = did_you_mean(wrong[1], [*COMPONENT_KEYS, wrong[2] or ""])
            problem = f"{problem[: wrong.end(1)]} is not an option{hint}" if hint else problem
        raise ValueError(problem) from None
    key = "score"
    try:
        if key in block:
            component = component[block[key]]
        if "given" in block or "at_least" in block:
            key = "given"
            component = as_component(name, component)
            component = replace(component, given=block.get("given"), at_least=block.get("at_least"))
    except (KeyError, ValueError) as error:
        raise file.error((name, key), f"is wrong: {error.args[0]}") if file else error from None
    return (component, block["weight"]) if "weight" in block else component
