"""Files and options of the recipes that train scoring models, and a tiny judge of two styles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ctrlreward.recipes.scoring_models.text_cnn import (
    TextCNN,
    TextCNNConfig,
    frequent_words,
    save_text_cnn,
)


def written(file: Path, lines: Sequence[str]) -> str:
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(file)


def overrides(
    folder: Path, train: object, test: object, exclude: object, **values: object
) -> list[str]:
    """Return options that put small files, and values by name, into a real configuration."""
    files = {"train": train, "test": test, "exclude": exclude}
    given = {
        **{f"data.init_args.{name}": json.dumps(content) for name, content in files.items()},
        "data.init_args.validation_share": 0.2,
        "trainer.default_root_dir": folder,
        "trainer.enable_progress_bar": "false",
        **values,
    }
    return [f"--{name}={value}" for name, value in given.items()]


def random_judge(folder: Path, sentences: Mapping[str, Sequence[str]]) -> str:
    """Save an untrained TextCNN that tells the styles of sentences; return its folder."""
    torch.manual_seed(0)
    words = frequent_words([text for side in sentences.values() for text in side], 1)
    save_text_cnn(TextCNN(TextCNNConfig(words, tuple(sentences), 8, (2,), 4, 0.0)), folder)
    return str(folder)
