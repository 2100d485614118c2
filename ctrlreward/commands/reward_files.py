"""YAML files of rewards, for `ctrlreward serve`.

This module imports neither PyTorch nor a scorer, so that a mistake is reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ctrlreward.arguments import did_you_mean
from ctrlreward.commands.config_files import ConfigFile, check_models, read_config

# Keys of a reward, and of a component, in the short form.
REWARD_KEYS = ("components", "aggregate", "thresholds", "device")
AGGREGATES = ("weighted", "gm")
COMPONENT_KEYS = ("scorer", "score", "weight", "options")


def read_reward(path: Path) -> tuple[dict[str, Any], ConfigFile]:
    """Read the reward of a YAML file.

    Returns:
        `class_path` and `init_args` of the reward, or `components` and its other arguments, and the
        file.

    Raises:
        ValueError: The file is not YAML, has no reward, or has a wrong key.
        OSError: It can't be read.
    """
    file = read_config(path)
    check_models(file)
    for keys, block in _places(file.content):
        if isinstance(block, Mapping) and "class_path" in block:
            return dict(block), file.below(keys)
        if isinstance(block, Mapping) and "components" in block:
            own = file.below(keys)
            _check_short_form(own, block)
            return dict(block), own
    raise ValueError(
        f"{path} has no reward: give components, or class_path and init_args, bare, under "
        "'reward:' or under 'model: init_args: reward:'"
    )


def _places(content: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the places of a file where a reward may be; a recipe's own class_path is its model."""
    yield (), content
    yield ("reward",), content.get("reward")
    model = content.get("model")
    arguments = model.get("init_args") if isinstance(model, Mapping) else None
    if isinstance(arguments, Mapping):
        yield ("model", "init_args", "reward"), arguments.get("reward")


def _check_short_form(file: ConfigFile, block: Mapping[str, Any]) -> None:
    for key in block:
        if key not in REWARD_KEYS:
            raise file.error((key,), f"is not a key{did_you_mean(key, REWARD_KEYS)}")
    aggregate = block.get("aggregate", AGGREGATES[0])
    if aggregate not in AGGREGATES:
        hint = did_you_mean(aggregate, AGGREGATES)
        names = " or ".join(AGGREGATES)
        raise file.error(("aggregate",), f"must be {names}, got {aggregate!r}{hint}")
    components = block["components"]
    if not isinstance(components, Mapping) or not components:
        raise file.error(("components",), "must be names with a scorer each")
    for name, given in components.items():
        if isinstance(given, str) or (isinstance(given, Mapping) and "class_path" in given):
            continue
        keys = ("components", name)
        if not isinstance(given, Mapping) or not isinstance(given.get("scorer"), str):
            known = list(given) if isinstance(given, Mapping) else []
            near = next((key for key in known if did_you_mean(key, ("scorer",))), None)
            hint = f", not {near!r}" if near else ""
            raise file.error(keys, f"must have a scorer{hint}, such as scorer: CTRLEval")
        weight = given.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise file.error((*keys, "weight"), f"must be a number, got {weight!r}")
