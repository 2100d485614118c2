"""YAML files of training jobs and of rewards, and the files that they extend; needs no torch."""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ctrlreward import scorers

# Names that `ctrlreward.scorers` has beside its scorers.
_BASES = {"Component", "ComponentLike", "CompositeScorer", "ModelOptions", "ModelScorer"}
_BASES |= {"Criterion", "Rubric", "Scored", "Scorer", "ScoreSpec", "Task"}
SCORERS = sorted({*dir(scorers)} - _BASES)

# Mappings whose options a file may set in part; other mappings are values.
_GROUPS = (
    *("model", "data", "trainer", "reward", "init_args", "values", "smoke"),
    *("generation", "optimizer", "lora"),
)
_OF_CLASSES = {"class_path", "init_args", "dict_kwargs"}

# Of every smoke run.
_SMOKE: dict[str, Any] = {
    **{f"trainer.limit_{stage}_batches": 2 for stage in ("train", "val", "test")},
    **{f"trainer.{name}": 1 for name in ("max_epochs", "val_check_interval", "log_every_n_steps")},
}


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the content of a YAML file, without what it extends."""
    path = Path(path)
    if not path.is_file():
        raise OSError(f"No such file: {path}")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        mappings = [value for value in nested(content) if isinstance(value, dict)]
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply, or contains itself by an alias") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must be a YAML mapping")
    for block in mappings:  # with another key, the parser would ignore the class
        if "class_path" in block and (others := block.keys() - _OF_CLASSES):
            raise ValueError(
                f"{path}: {min(others)} must be under the init_args of class_path, or next to the "
                "scorer of a component"
            )
    return content


def read_job(path: str | Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the content of a YAML file, merged with the files that it extends.

    `extends: yelp.yaml` names a file in the same folder. A `config` that is a file in the folder of
    the file that names it leads there. `above` are the files that extend this one.
    """
    path = Path(path)
    content = read_config(path)
    for block in nested(content):
        name = block.get("config") if isinstance(block, dict) else None
        if isinstance(name, str) and (path.parent / name).is_file():
            block["config"] = os.path.normpath(path.parent / name)
    base = content.pop("extends", None)
    if base is None:
        return content
    file = path.parent / str(base)
    if path.resolve() in above:
        raise ValueError(f"{path} extends itself")
    if not file.is_file():
        raise ValueError(f"{path} extends {file}, which does not exist")
    return _merged(read_job(file, (*above, path.resolve())), content)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
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
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            if "class_path" in old and not _OF_CLASSES & new.keys():
                new = {"init_args": new}
            same_class = new.get("class_path", old.get("class_path")) == old.get("class_path")
            if same_class and (key in _GROUPS or "class_path" in old):
                result[key] = _merged(old, new)
    return result


def resolved(
    content: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return content with `${values.labels}` and the like filled in, by omegaconf.

    `changes` replaces values before: dotted key → value. A name that is not there is a ValueError.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.create(dict(content))
        for key, value in (changes or {}).items():
            OmegaConf.update(config, key, value, merge=False)
        filled: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return filled


def with_extended(arguments: Sequence[str]) -> list[str]:
    """Return arguments with all configurations as one, merged and with `${...}` filled in.

    `--values.labels` and the like replace values, for names alone. With `--smoke`, so do the dotted
    keys under `smoke:`, after those of every smoke run.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", action="append", default=[])
    parser.add_argument("--smoke", action="store_true")
    for option in {argument.partition("=")[0] for argument in arguments}:
        if option.startswith("--values.") or option == "--trainer.default_root_dir":
            parser.add_argument(option)
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--config", *arguments]
    given, options = parser.parse_known_args(arguments)
    changes = {key: yaml.safe_load(v) for key, v in vars(given).items() if "." in key}
    content: dict[str, Any] = {}
    for path in given.config:
        content = _merged(content, read_job(path))
    smoke = content.pop("smoke", {})
    if given.smoke:
        folder = {"trainer.default_root_dir": tempfile.mkdtemp(prefix="ctrlreward-smoke-")}
        changes = {**_SMOKE, **folder, **smoke, **changes}
    content = resolved(content, changes)
    content.pop("values", None)
    return ["--config", yaml.safe_dump(content, sort_keys=False), *options] if content else options


def read_reward(path: Path) -> dict[str, Any]:
    """Return the reward block of a YAML file, by `class_path` or `components`.

    A training job's block is the reward of its model, or of the files that it extends.
    """
    content = resolved(read_job(path))
    # A recipe's own class_path is its model.
    for keys in ((), ("reward",), ("model", "init_args", "reward")):
        block: Any = content
        for key in keys:
            block = block.get(key) if isinstance(block, Mapping) else None
        if isinstance(block, Mapping) and {"class_path", "components"} & block.keys():
            break
    else:
        raise ValueError(
            f"{path} has no reward, must have components, or class_path and init_args, at the top, "
            "under 'reward:' or under 'model: init_args: reward:'"
        )
    for each in nested(block):
        name = each.get("scorer") if isinstance(each, Mapping) else None
        if isinstance(name, str) and "." not in name and name not in SCORERS:
            raise ValueError(f"{path}: there is no scorer {name!r}, only {', '.join(SCORERS)}")
    return dict(block)


def nested(value: Any) -> Iterator[Any]:
    """Yield a value, and all values inside its mappings and lists."""
    yield value
    if isinstance(value, dict):
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from nested(inner)
