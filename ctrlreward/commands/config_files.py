"""Configurations that extend others, and values that name another value."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

_EXTENDS = "extends"
_ROOT = "trainer.default_root_dir"
_PLACE = re.compile(r"\$\{([^}]*)\}")


def with_extended(arguments: Sequence[str]) -> list[str]:
    """Put what a configuration extends before it.

    `--config m7.yaml`, whose `extends: yelp.yaml` names a file beside it, becomes `--config
    yelp.yaml --config <the rest of m7.yaml>`. What it extends may itself extend others.

    Args:
        arguments: Arguments of `ctrlreward train`.

    Raises:
        ValueError: A file extends one that does not exist, or itself.
    """
    result: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        option, has_value, value = argument.partition("=")
        if option in ("--config", "-c"):
            given = value if has_value else next(rest, None)
            result += [argument] if given is None else _options(given)
        else:
            result.append(argument)
    return result


def fill_root(config: Any, root: str) -> Any:
    """Replace `${trainer.default_root_dir}` in each string of a configuration, in place.

    So one option moves all that a run writes.

    Args:
        config: Nested dictionaries, namespaces and lists.
        root: The trainer's `default_root_dir`.

    Returns:
        The configuration, or the new string if it is one.

    Raises:
        ValueError: A string names another value.
    """
    if isinstance(config, str):
        for name in _PLACE.findall(config):
            if name != _ROOT:
                raise ValueError(f"{config!r} names ${{{name}}}: only ${{{_ROOT}}} is known")
        return config.replace(f"${{{_ROOT}}}", root)
    if isinstance(config, list):
        config[:] = [fill_root(item, root) for item in config]
    elif isinstance(config, (dict, Namespace)):
        items = config if isinstance(config, dict) else vars(config)
        for key, value in items.items():
            items[key] = fill_root(value, root)
    return config


def _options(name: str) -> list[str]:
    return [part for text in _layers(name, ()) for part in ("--config", text)]


def _layers(name: str, above: tuple[Path, ...]) -> Iterator[str]:
    """Yield the files that a configuration extends, and then itself or what is left of it.

    The parser says what is wrong with a file that can't be read.
    """
    path = Path(name)
    if not path.is_file():
        yield name
        return
    if path.resolve() in above:
        raise ValueError(f"{name} extends itself")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict) or _EXTENDS not in content:
        yield name
        return
    base = path.parent / str(content.pop(_EXTENDS))
    if not base.is_file():
        raise ValueError(f"{name} extends {base}, which does not exist")
    yield from _layers(str(base), (*above, path.resolve()))
    if content:
        yield yaml.safe_dump(content, sort_keys=False)
