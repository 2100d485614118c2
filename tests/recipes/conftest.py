"""Fixtures of the recipes: one thread, tiny models, and files of two styles with judges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

THINGS = ("soup", "room", "bus", "play", "tea", "inn")
SENTENCES = {
    "sour": [f"the {thing} was so cold ." for thing in THINGS],
    "sweet": [f"the {thing} was so lovely ." for thing in THINGS],
}


@pytest.fixture(autouse=True)
def in_one_thread(one_thread: None) -> None:
    """Models are tiny, and sums repeat themselves."""


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random BERT."""
    from tiny_models import save_bert
    from transformers import BertModel

    return save_bert(tmp_path_factory.mktemp("encoder"), BertModel, initializer_range=0.3)


@pytest.fixture
def letters(tiny_llama: Callable[[str], str]) -> str:
    """Folder of a random language model of letters."""
    return tiny_llama(" abcdefghijklmnopqrstuvwxyz.")


@pytest.fixture
def styles(tmp_path: Path) -> dict[str, str]:
    """Style → file of its sentences, with one that is too short and one that is repeated."""
    for style, sentences in SENTENCES.items():
        (tmp_path / style).write_text("\n".join([*sentences, "too short", sentences[0]]))
    return {style: str(tmp_path / style) for style in SENTENCES}


@pytest.fixture
def scoring_models(letters: str, tmp_path: Path) -> object:
    """Random judges of the two styles, by whose thresholds every GM is above 0."""
    from scoring_recipes import random_judge

    from ctrlreward import WordVectors
    from ctrlreward.recipes.scoring_models.text_cnn import TextCNNClassifier
    from ctrlreward.recipes.style_transfer import ScoringModels

    words = {word for side in SENTENCES.values() for text in side for word in text.split()}
    random = np.random.default_rng(0)
    vectors = WordVectors({word: random.normal(size=4).tolist() for word in sorted(words)})
    judge = TextCNNClassifier(random_judge(tmp_path / "judge", SENTENCES))
    return ScoringModels(judge, vectors, letters, thresholds=(-8.0, -100.0, 1e6, -1e6))
