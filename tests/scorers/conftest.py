"""Every scorer, built once from tiny models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
from device_cases import SCORERS, few_evaluators
from tiny_models import save_judges, save_reward_model

from ctrlreward.models.word_vectors import WordVectors
from ctrlreward.scorers import Scorer

VOCABULARY = tuple("the soup was warm we ate it all left no tea rain bread old good dull".split())


@pytest.fixture(scope="session")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_llama: Callable[[str], str],
    tiny_causal: Callable[[str], str],
    seq2seq_folders: dict[str, str],
) -> dict[str, str]:
    """Tiny models by kind, with weights large enough for texts to differ clearly."""
    folder = tmp_path_factory.mktemp("models")
    draw = np.random.default_rng(0).normal
    WordVectors({word: draw(size=5) for word in VOCABULARY}).save(folder / "vectors")
    return {
        **save_judges(folder, VOCABULARY, initializer_range=0.4),
        "llama": tiny_llama(ascii_letters + " .,!?;:"),
        "reward": save_reward_model(folder / "reward", tiny_causal("gpt2")),
        **{family: tiny_causal(family) for family in ("gpt2", "bloom", "mamba")},
        **seq2seq_folders,
        "vectors": str(folder / "vectors"),
    }


@pytest.fixture(scope="session")
def built(folders: dict[str, str]) -> Callable[..., Scorer]:
    """A function from a case and options to its scorer, built once."""

    @cache
    def build(name: str, **options: Any) -> Scorer:
        scorer: Scorer = SCORERS[name](folders, {**few_evaluators(name), **options})
        return scorer

    return build
