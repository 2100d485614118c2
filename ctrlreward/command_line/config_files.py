"""YAML files of training jobs and of rewards, and the files that they extend.

This module imports neither PyTorch nor Lightning, so that a mistake is reported at once.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from ctrlreward.files import ShallowLoader

_EXTENDING = _EXTENDS, _REPLACE, _ANCHORS = ("extends", "replace", "anchors")

# Mappings whose options a file may set in part; other mappings are values.
_GROUPS = (
    *("model", "data", "trainer", "reward", "init_args"),
    *("objective", "generation", "optimizer", "critic", "lora"),
)
_PLACE = "${trainer.default_root_dir}"
# Keys of a component in the short form; others are options of its scorer.
COMPONENT_KEYS = ("scorer", "score", "weight", "given", "at_least", "options")


_OF_CLASSES = {"class_path", "init_args", "dict_kwargs"}


@dataclass(frozen=True)
class ConfigFile:
    """A YAML file.

    `as_written` is False if the content differs from the file. `anchors` are the names of the
    values that the file marks (`labels: &labels [...]`).
    """

    path: str
    content: Mapping[str, Any]
    as_written: bool = True
    anchors: Sequence[str] = ()

    def error(self, keys: tuple[str, ...], problem: str) -> ValueError:
        """Return the error of a key: `FILE: KEY PROBLEM`."""
        return ValueError(f"{self.path}: {'.'.join(keys)} {problem}")

    def values(self) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the keys that lead to each value that is neither a mapping nor a list."""
        return _leaves(self.content, ())


def read_config(path: str | Path, anchors: Mapping[str, Any] | None = None) -> ConfigFile:
    """Read a YAML file; `anchors` are values that replace the file's own, by anchor."""
    if not Path(path).is_file():
        raise OSError(f"No such file: {path}")
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = _Loader(text, anchors or {})
        root = root_of(loader)
        content = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{line}: is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if root is None or not isinstance(content, dict):
        raise ValueError(f"{path} must be a YAML mapping")
    unchanged = not set(loader.names) & set(anchors or {})
    file = ConfigFile(str(path), content, unchanged, loader.names)
    for block in _mappings(content):  # with another key, the parser would ignore the class
        if "class_path" in block and (others := block.keys() - _OF_CLASSES):
            raise ValueError(f"{path}: {sorted(others)[0]} is not a key next to class_path")
    return file


_MOST_NODES = 100_000  # of a file, with what its aliases stand for


def root_of(loader: yaml.SafeLoader) -> yaml.Node | None:
    """Return the root of a document.

    Raises:
        YAMLError: It is not YAML, nested too deeply, or its aliases stand for more values than any
            configuration has.
    """
    try:
        root = loader.get_single_node()
        size = 0 if root is None else _size(root, {})
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply, or contains itself by an alias") from None
    if size > _MOST_NODES:
        raise yaml.YAMLError("its aliases stand for too many values")
    return root


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Return the number of nodes, those behind an alias once per alias."""
    if node not in known:
        known[node] = 1 + sum(_size(each, known) for each in _inner(node))
    return known[node]


def _inner(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield the nodes of a list, or the keys and values of a mapping."""
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from item if isinstance(item, tuple) else (item,)


class _Loader(ShallowLoader):
    """Loader that keeps the names of anchors, and replaces the values of some."""

    def __init__(self, text: str, replaced: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.replaced = replaced
        self.names: list[str] = []

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; the error of one that Python can't read has its line."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # an integer of thousands of digits, the 32nd of a month
            mark = node.start_mark
            raise yaml.constructor.ConstructorError(None, None, str(error), mark) from None

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node: the file's, or the one that replaces it."""
        name = None if self.check_event(yaml.AliasEvent) else self.peek_event().anchor
        node: Any = super().compose_node(parent, index)
        if name is None:
            return node
        self.names.append(name)
        if name in self.replaced:
            node = yaml.compose(yaml.safe_dump(self.replaced[name]), yaml.SafeLoader)
            self.anchors[name] = node
        return node


def with_extended(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which a configuration follows the files it extends.

    `--config m7.yaml`, whose `extends: yelp.yaml` names a file in the same folder, becomes
    `--config yelp.yaml --config <the rest of m7.yaml>`. `replace`, a mapping of strings, replaces
    each in all values of the extended files. `anchors` replaces the values that they mark:
    `anchors: {labels: [past, present]}` replaces `labels: &labels [negative]` and each `*labels`.
    Options come last, since they have priority over files.
    """
    configs: list[str] = []
    options: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        option, has_value, value = argument.partition("=")
        path = (value if has_value else next(rest, None)) if option in ("--config", "-c") else None
        if path is None:
            options.append(argument)
            continue
        for file in extended_files(path):
            own = {key: value for key, value in file.content.items() if key not in _EXTENDING}
            # The parser can't read a file that extends another.
            unchanged = file.as_written and len(own) == len(file.content)
            name = file.path if unchanged else yaml.safe_dump(own, sort_keys=False)
            configs += ["--config", name] if own else []
    return configs + options


def extended_files(path: str) -> list[ConfigFile]:
    """Return the files that a configuration extends, the first one first, and then itself."""
    found = []
    for file in _layers(path, ()):
        content = _with_configs(file.content, Path(file.path).parent)
        unchanged = file.as_written and content == file.content
        found.append(replace(file, content=content, as_written=unchanged))
    return found


def merged(files: Sequence[ConfigFile]) -> dict[str, Any]:
    """Return the content of files of which each extends the one before, as one mapping."""
    content = reduce(_merged, [file.content for file in files])
    return {key: value for key, value in content.items() if key not in _EXTENDING}


def read_reward(path: Path) -> dict[str, Any]:
    """Return the reward block of a YAML file, by `class_path` or `components`.

    A training job's block is the reward of its model, or of the files that it extends.
    """
    content = merged(extended_files(str(path)))
    # A recipe's own class_path is its model.
    for keys in ((), ("reward",), ("model", "init_args", "reward")):
        block: Any = content
        for key in keys:
            block = block.get(key) if isinstance(block, Mapping) else None
        if isinstance(block, Mapping) and {"class_path", "components"} & block.keys():
            return dict(block)
    raise ValueError(
        f"{path} has no reward, must have components, or class_path and init_args, at the top, "
        "under 'reward:' or under 'model: init_args: reward:'"
    )


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content of two files of which the second extends the first.

    Arguments of one class and options of one group are merged, `callbacks+` appends to
    `callbacks`, and other values are replaced, as by the parser of a job.
    """
    result = dict(below)
    for key, new in above.items():
        old = result.get(key)
        if key.endswith("+"):
            result[key[:-1]] = [*(result.get(key[:-1]) or ()), *new]
            continue
        result[key] = new
        if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
            continue
        same_class = new.get("class_path", old.get("class_path")) == old.get("class_path")
        if same_class and (key in _GROUPS or "class_path" in old):
            result[key] = _merged(old, new)
    return result


def with_strings(value: Any, changed: Callable[[str], str]) -> Any:
    """Return a copy of nested dictionaries, namespaces and lists with each string changed."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, list):
        return [with_strings(inner, changed) for inner in value]
    if isinstance(value, dict):
        return {key: with_strings(inner, changed) for key, inner in value.items()}
    if isinstance(value, Namespace):
        return type(value)(**with_strings(vars(value), changed))
    return value


def fill_in_run_folder(config: Any, folder: str) -> Any:
    """Return a copy with `${trainer.default_root_dir}` filled in: one option moves a whole run."""

    def filled_in(text: str) -> str:
        filled = text.replace(_PLACE, folder)
        if "${" in filled:
            raise ValueError(f"{text!r} names another value: only {_PLACE} is known")
        return filled

    return with_strings(config, filled_in)


def _layers(
    name: str, above: tuple[Path, ...], anchors: Mapping[str, Any] | None = None
) -> Iterator[ConfigFile]:
    """Yield the files that a configuration extends, and then itself."""
    path = Path(name)
    if path.resolve() in above:
        raise ValueError(f"{name} extends itself")
    file = read_config(name, anchors)
    if _EXTENDS in file.content:
        base = path.parent / str(file.content[_EXTENDS])
        if not base.is_file():
            raise file.error((_EXTENDS,), f"names {base}, which does not exist")
        replaced = _mapping(file, _REPLACE, " of strings, such as a.txt: b.txt", str)
        anchored = _mapping(file, _ANCHORS, ", such as labels: [past, present]", object)
        own = _with_configs(anchored, path.parent)
        layers = list(_layers(str(base), (*above, path.resolve()), {**own, **(anchors or {})}))
        known = [anchor for layer in layers for anchor in layer.anchors]
        for anchor in own:
            if anchor not in known:
                raise file.error(
                    (_ANCHORS, anchor),
                    f"is not an anchor of {base}, which has "
                    f"{', '.join(dict.fromkeys(known)) or 'none'}",
                )
        pattern = re.compile("|".join(map(re.escape, replaced)))  # replaces no string twice
        for layer in layers:
            if replaced:
                content = with_strings(
                    layer.content, lambda text: pattern.sub(lambda m: replaced[m[0]], text)
                )
                layer = replace(layer, content=content, as_written=False)
            yield layer
    for key in () if _EXTENDS in file.content else (_REPLACE, _ANCHORS):
        if key in file.content:
            raise file.error((key,), f"needs {_EXTENDS}: it is about the values of that file")
    yield file


def _mapping(file: ConfigFile, key: str, such_as: str, kind: type) -> Mapping[str, Any]:
    """Return the mapping under a key, of which all keys and values are of a kind."""
    given = file.content.get(key, {})
    if not (
        isinstance(given, dict)
        and all(isinstance(each, kind) for pair in given.items() for each in pair)
    ):
        raise file.error((key,), f"must be a mapping{such_as}")
    return given


def _with_configs(value: Any, folder: Path) -> Any:
    """Return a copy of a value in which each `config` that is a file in the folder leads there."""
    if isinstance(value, list):
        return [_with_configs(inner, folder) for inner in value]
    if not isinstance(value, dict):
        return value
    copied = {key: _with_configs(inner, folder) for key, inner in value.items()}
    name = copied.get("config")
    if isinstance(name, str) and (folder / name).is_file():
        copied["config"] = os.path.normpath(folder / name)
    return copied


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a mapping and all nested ones."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _mappings(inner)


def _leaves(value: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*keys, str(key)))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, (*keys, str(i)))
    else:
        yield keys, value
