"""Smoke mode of `ctrlreward train`: all parts of a job, in two steps and with a few texts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from ctrlreward.command_line.config_files import with_strings

_STEPS = 2

_TRAINER = {
    "limit_train_batches": _STEPS,
    "limit_val_batches": _STEPS,
    "limit_test_batches": _STEPS,
    "max_epochs": 1,
    "val_check_interval": 1,
    "log_every_n_steps": 1,
    "accumulate_grad_batches": 1,
    "devices": 1,
}

# Largest value, or number of items, of options with these names.
_FEWER = {
    "batch_size": 2,
    "num_generations": 2,
    "generations_per_prompt": 1,
    "max_completion_length": 8,
    "evaluators": 2,
    "prefixes": 2,
    "count": 4,
    "min_count": 1,
    "epochs": 1,
    "every_n_batches": 1,
    "min_steps": 1,
    # After two batches with a larger rate, a network only writes the end of a text.
    "learning_rate": 1e-5,
}

# Judges trained for two steps rate no sentence as good: with these, any GM is above 0.
_EVERY_GM = (0.0, 0.0, 1e9, -1e9)


def shrink(config: Namespace) -> Namespace:
    """Return the configuration of a smoke run, from the parsed one of a job.

    Two training steps with a validation after each, a few texts everywhere, and a temporary folder.
    Models that the job needs are used if they exist, and otherwise trained in smoke runs.
    """
    name = Path(config.trainer.default_root_dir or "run").name
    root = tempfile.mkdtemp(prefix=f"{name}-smoke-")
    config.trainer.default_root_dir = root
    config.smoke = False  # the saved configuration is small already
    folders: dict[str, str] = {}
    for group in _groups(config):
        for key, value in vars(group).items():
            if key in _FEWER:
                limit = _FEWER[key]
                if isinstance(value, str):  # the name of a file
                    continue
                if isinstance(value, list):
                    setattr(group, key, value[: int(limit)])
                else:
                    setattr(group, key, limit if value is None else min(value, limit))
        if "thresholds" in group and "classifier" in group:
            group.thresholds = _EVERY_GM
        folder = group.get("folder")
        if not folder or "${" in folder or Path(folder).is_relative_to(tempfile.gettempdir()):
            continue
        # Trained models must not replace the models of an earlier job.
        own = group is config.model.get("init_args")
        if own or not Path(folder).expanduser().exists():
            folders[folder] = str(Path(root, "trained", *Path(folder).parts[-2:]))
            if "config" in group and "arguments" in group:
                group.arguments = [*group.arguments, "--smoke"]
    for key, value in _TRAINER.items():
        config.trainer[key] = value
    return with_strings(config, lambda text: folders.get(text, text))


def written(folder: Path) -> str:
    """Return one line on the output of a smoke run."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names = dict.fromkeys(Path(file).parts[0] for file in files if not file.startswith("."))
    return f"smoke run: {len(files)} files in {folder}: {', '.join(names)}"


def _groups(value: Any) -> Iterator[Namespace]:
    """Yield a namespace and all nested ones."""
    if isinstance(value, Namespace):
        yield value
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    for each in value if isinstance(value, list | tuple) else ():
        yield from _groups(each)
