from __future__ import annotations

import numpy as np
import pytest
from asked_models import inputs_seen

from ctrlreward.models.aligner import EmbeddingAligner
from ctrlreward.models.encoder import Encoder

PAIRS = [
    ("The staff wasn't friendly.", "The waiters were rude, and we didn't stay."),
    ("The waiters were rude, and we didn't stay.", "The staff wasn't friendly."),
    ("The lake froze over in January.", "The staff wasn't friendly."),
    ("no", "unbelievably"),
    ("The staff wasn't friendly.", "The staff wasn't friendly."),
]


@pytest.fixture(scope="module")
def aligner() -> EmbeddingAligner:
    return EmbeddingAligner(Encoder("minilm-l6", batch_tokens=64))


def test_spans_are_the_tokens_of_the_text(aligner: EmbeddingAligner) -> None:
    text = "The  staff wasn't unfriendly 🙂."
    (alignment,) = aligner.align([(text, "no")])
    found = [text[start:end] for start, end in alignment.spans]
    assert found == ["The", "staff", "wasn", "'", "t", "un", "fr", "ien", "dly", "🙂", "."]
    assert len(alignment.values) == len(found)
    assert alignment.values.dtype == np.float64


def test_each_distinct_text_is_read_once(aligner: EmbeddingAligner) -> None:
    with inputs_seen(aligner.encoder.model) as seen:
        assert len(list(aligner.align(PAIRS * 3))) == len(PAIRS) * 3
    shapes = [inputs["input_ids"].shape for inputs in seen]
    assert sum(rows for rows, _ in shapes) == len({text for pair in PAIRS for text in pair})


def test_texts_without_tokens(aligner: EmbeddingAligner) -> None:
    nothing, against_nothing = aligner.align([("", "food"), ("food", "")])
    assert nothing.spans == ()
    assert nothing.values.shape == (0,)
    assert np.isnan(against_nothing.values).all()
    assert against_nothing.spans == ((0, 4),)
