"""A tiny Llama in a `Trainer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import tiny_trainer
from transformers import Trainer

LETTERS = "abcdef"


@pytest.fixture
def make_trainer(tiny_llama: Callable[[str], str], tmp_path: Path) -> Callable[..., Trainer]:
    """Return a function that makes a trainer which evaluates at every step."""

    def make(**settings: Any) -> Trainer:
        return tiny_trainer(tiny_llama(LETTERS), tmp_path / "run", **settings)

    return make
