"""`ctrlreward train --smoke`: all parts of a job, in two steps and with a few texts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

_TRAINER = {
    **dict.fromkeys(("limit_train_batches", "limit_val_batches", "limit_test_batches"), 2),
    **dict.fromkeys(("max_epochs", "val_check_interval", "log_every_n_steps"), 1),
    **dict.fromkeys(("accumulate_grad_batches", "devices"), 1),
}

# Largest value, or number of items, of options with these names.
_FEWER = {
    **dict.fromkeys(("batch_size", "num_generations", "evaluators", "prefixes"), 2),
    **dict.fromkeys(("generations_per_prompt", "min_count", "epochs"), 1),
    **dict.fromkeys(("every_n_batches", "min_steps"), 1),
    "max_completion_length": 8,
    "count": 4,
    # After two batches with a larger rate, a network only writes the end of a text.
    "learning_rate": 1e-5,
}

# Judges trained for two steps rate no sentence as good: with these, any GM is above 0.
_EVERY_GM = (0.0, 0.0, 1e9, -1e9)


def options() -> list[str]:
    """Return the options of a smoke run, in a new temporary folder."""
    folder = {"default_root_dir": tempfile.mkdtemp(prefix="ctrlreward-smoke-")}
    return [f"--trainer.{key}={value}" for key, value in {**_TRAINER, **folder}.items()]


def shrink(config: Namespace) -> Namespace:
    """Return a parsed job with the sizes of a smoke run.

    Models that the job needs are used if they exist, and otherwise trained in smoke runs.
    """
    root = config.trainer.default_root_dir
    config.smoke = False  # the saved configuration is small already
    moved: dict[str, str] = {}  # folders of models, which must not replace a job's
    for group in _groups(config):
        for key in _FEWER.keys() & vars(group).keys():
            value, limit = group[key], _FEWER[key]
            if isinstance(value, list):
                group[key] = value[: int(limit)]
            elif not isinstance(value, str):  # the name of a file
                group[key] = limit if value is None else min(value, limit)
        if "thresholds" in group and "classifier" in group:
            group.thresholds = _EVERY_GM
        folder = group.get("folder")
        if not folder or Path(folder).is_relative_to(tempfile.gettempdir()):
            continue
        if group is config.model.get("init_args") or not Path(folder).expanduser().exists():
            moved[folder] = str(Path(root, "trained", *Path(folder).parts[-2:]))
            if "config" in group and "arguments" in group:
                group.arguments = [*group.arguments, "--smoke"]
    return _with_strings(config, lambda text: moved.get(text, text))


def _groups(value: Any) -> Iterator[Namespace]:
    """Yield a namespace and all nested ones."""
    if isinstance(value, Namespace):
        yield value
        value = vars(value)
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, Namespace | dict | list | tuple):
            yield from _groups(each)


def _with_strings(value: Any, changed: Callable[[str], str]) -> Any:
    """Return a copy of nested dictionaries, namespaces and lists with each string changed."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, list):
        return [_with_strings(inner, changed) for inner in value]
    if isinstance(value, dict):
        return {key: _with_strings(inner, changed) for key, inner in value.items()}
    if isinstance(value, Namespace):
        return Namespace(**_with_strings(vars(value), changed))
    return value
