"""The reward of a YAML file, or of a function in a Python file or module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from ctrlreward.aggregates import Aggregate
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.parser import import_scorers
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.scorers.base import Component, Scorer

# Keys of a component in the short form; others are options of its scorer.
_COMPONENT_KEYS = ("scorer", "score", "weight", "options")


def load_reward(given: str, device: str | None = None) -> AnyReward:
    """Return the reward of a YAML file, or of `file.py:function` or `module:function`."""
    if given.endswith((".yaml", ".yml")):
        return build_reward(Path(given), device)
    place, colon, name = given.rpartition(":")
    if not colon:
        raise ValueError(f"must be a YAML file, FILE.py:FUNCTION or MODULE:FUNCTION, got {given!r}")
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        module = importlib.import_module(place)
    elif not Path(place).is_file():
        raise OSError(f"No such file: {place}")
    else:
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec, place
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{place} has no function {name!r}")
    return function if isinstance(function, AnyReward) else Reward({name: function})


def build_reward(path: Path, device: str | None = None) -> AnyReward:
    """Return the reward of a YAML file; see `serve`. Errors name the file."""
    block = read_reward(path)
    try:
        return reward_of(block, device)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def reward_of(block: Mapping[str, Any], device: str | None = None) -> AnyReward:
    """Return the reward of a block of `read_reward`, on a device if any."""
    if block.get("class_path") in ("ctrlreward.Reward", "ctrlreward.reward.Reward"):
        block = block.get("init_args") or {}
    if "class_path" in block:
        reward = _parsed("reward", AnyReward, block)
    else:
        options = dict(block)
        components = options.pop("components", None)
        if not isinstance(components, Mapping):
            raise ValueError("components must be a mapping of names to scorers")
        if isinstance(options.get("aggregate"), Mapping):
            options["aggregate"] = _parsed("aggregate", Aggregate, options["aggregate"])
        reward = Reward({name: _component(name, c) for name, c in components.items()}, **options)
    if device is not None and isinstance(reward, Reward):
        for component in reward.components.values():
            component.scorer.to(device)
        reward.device = device
    return reward


def _parsed(name: str, kind: type, value: object) -> Any:
    """Return the object of a class and its arguments."""
    import_scorers([str(value)])
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument(f"--{name}", type=kind, required=True)
    try:
        config = parser.parse_object({name: deepcopy(value)})  # it modifies its argument
    except ArgumentError as error:
        raise ValueError(str(error)) from None
    return parser.instantiate(config)[name]


def scorer_classes(path: str | Path) -> list[dict[str, Any]]:
    """Return the distinct scorers of the components of a YAML file, each as `class_path`."""
    blocks: list[dict[str, Any]] = []
    for name, block in read_reward(Path(path)).get("components", {}).items():
        block = block[0] if isinstance(block, list) and block else block
        found = {key: _class_of(name, block).get(key) or {} for key in ("class_path", "init_args")}
        if found not in blocks:
            blocks.append(found)
    return blocks


def _component(name: str, block: Any) -> Any:
    """Return a component, with its weight if any: of a scorer's class, or of a `function`."""
    if isinstance(block, list) and len(block) == 2:
        return _component(name, block[0]), block[1]
    kind = Scorer | Component if isinstance(block, Mapping) and "class_path" in block else Scorer
    component = _parsed(name, kind, _class_of(name, block))  # type: ignore[arg-type]
    if isinstance(block, str) or kind is not Scorer:
        return component
    if "score" in block:
        try:
            component = component[block["score"]]
        except KeyError as error:
            raise ValueError(f"components.{name}: {error.args[0]}") from None
    return (component, block["weight"]) if "weight" in block else component


def _class_of(name: str, block: Any) -> dict[str, Any]:
    """Return the class of a component and its arguments, of its short form too."""
    if isinstance(block, str):
        block = {"scorer": block}
    if isinstance(block, Mapping) and "function" in block:
        block = {"scorer": "FunctionScorer", **block}
    if not isinstance(block, Mapping) or not {"class_path", "scorer"} & block.keys():
        raise ValueError(
            f"components.{name} must have a scorer, such as scorer: CTRLEval, or a function"
        )
    if "class_path" in block:
        return dict(block)
    options = {key: value for key, value in block.items() if key not in _COMPONENT_KEYS}
    options |= block.get("options") or {}
    path = block["scorer"] if "." in block["scorer"] else f"ctrlreward.scorers.{block['scorer']}"
    return {"class_path": path, "init_args": options}
