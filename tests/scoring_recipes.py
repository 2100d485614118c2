"""Files and options of the recipes that train scoring models."""

from __future__ import annotations

import json
from pathlib import Path


def written(file: Path, lines: list[str]) -> str:
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(file)


def overrides(
    folder: Path, train: object, test: object, exclude: object, **values: object
) -> list[str]:
    """Return options that put small files, and values by name, into a real configuration."""
    files = {"train": train, "test": test, "exclude": exclude}
    given = {
        "model.init_args.folder": folder / "model",
        **{f"data.init_args.{name}": json.dumps(content) for name, content in files.items()},
        "data.init_args.validation_share": 0.2,
        "trainer.default_root_dir": folder,
        "trainer.logger.init_args.folder": folder,
        "trainer.callbacks.init_args.dirpath": folder / "checkpoints",
        "trainer.enable_progress_bar": "false",
        **values,
    }
    return [f"--{name}={value}" for name, value in given.items()]
