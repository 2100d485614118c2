from __future__ import annotations

from weakref import ref

import numpy as np
import pytest
from asked_models import inputs_seen

from ctrlreward.models.aligner import EmbeddingAligner, group_shared_texts
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


def test_a_long_text_is_cut_and_named_by_its_beginning(
    aligner: EmbeddingAligner, caplog: pytest.LogCaptureFixture
) -> None:
    long = "a rather long review of food " + "food " * 5000
    (alignment,) = aligner.align([(long, "food")])
    assert caplog.messages == [
        "'a rather long review of food food foo…' has 5008 tokens and is "
        "truncated to the 512 that the model reads"
    ]
    assert len(alignment.spans) == 510


def test_an_encoder_without_a_limit(
    aligner: EmbeddingAligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = aligner.align(PAIRS[:1])
    monkeypatch.setattr(aligner.encoder, "max_tokens", int(1e30))  # as of T5
    (found,) = aligner.align(PAIRS[:1])
    assert found.spans == expected.spans
    assert found.values.tolist() == expected.values.tolist()


def test_many_pairs_are_read_some_at_a_time_and_each_text_once(
    aligner: EmbeddingAligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(aligner.align(PAIRS))
    monkeypatch.setattr("ctrlreward.models.batching._WINDOW_CHARACTERS", 60)
    calls: list[list[str]] = []
    own = aligner._tokens
    monkeypatch.setattr(aligner, "_tokens", lambda texts: calls.append(texts) or own(texts))
    for found, alignment in zip(aligner.align(PAIRS), expected, strict=True):
        assert found.spans == alignment.spans
        np.testing.assert_allclose(found.values, alignment.values, atol=1e-5)
    assert len(calls) > 1
    read = [text for texts in calls for text in texts]
    assert sorted(read) == sorted({text for pair in PAIRS for text in pair})


def test_tokens_of_a_text_are_let_go_of_after_its_last_pair(
    aligner: EmbeddingAligner, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ref] = []
    most = 0
    own = aligner._tokens

    def watched(texts: list[str]) -> list:
        nonlocal most
        rows = own(texts)
        made.extend(ref(vectors) for _, vectors in rows)
        most = max(most, sum(vectors() is not None for vectors in made))
        return rows

    monkeypatch.setattr("ctrlreward.models.batching._WINDOW_CHARACTERS", 1)
    monkeypatch.setattr(aligner, "_tokens", watched)
    # Four texts about each of ten sources, both ways, in an order that parts them.
    pairs = [(f"answer {k} of {i}", f"source {i}") for k in range(4) for i in range(10)]
    for _ in aligner.align(group_shared_texts([*pairs, *((b, a) for a, b in pairs)])):
        pass
    assert most == 4  # a source and a text, and those of the call before until it ends


def test_texts_without_tokens(aligner: EmbeddingAligner) -> None:
    nothing, against_nothing = aligner.align([("", "food"), ("food", "")])
    assert nothing.spans == ()
    assert nothing.values.shape == (0,)
    assert np.isnan(against_nothing.values).all()
    assert against_nothing.spans == ((0, 4),)
