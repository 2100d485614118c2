from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import spread_weights
from transformers import (
    AutoTokenizer,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForTokenClassification,
    pipeline,
)
from word_models import WORDS, save_word_bert

from ctrlreward.models.aligner import RegressionAligner, TokenAligner
from ctrlreward.models.pairs import encode_pairs

PAIRS = [
    ("the food was good", "good food"),
    ("the staff  was slow", "the staff was not friendly and slow"),
    ("bad", "bad"),
    ("the food was good", "good food"),
    ("good food", "the food was good"),
]
LABELS = {0: "aligned", 1: "hallucinated"}  # the recipe has them the other way round

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_word_bert(tmp_path_factory.mktemp("d"), BertForTokenClassification, LABELS)


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_word_bert(
        tmp_path_factory.mktemp("r"), BertForSequenceClassification, {0: "LABEL_0"}
    )


@pytest.mark.parametrize("kind", ["token", "regression"])
def test_without_a_there_is_no_value_and_without_b_it_is_nan(
    by_token: str, regression: str, kind: str
) -> None:
    aligner = TokenAligner(by_token) if kind == "token" else RegressionAligner(regression)
    without_a, without_b = aligner.align([("", "good"), ("good", " ")])
    assert without_a.spans == ()
    assert without_a.values.shape == (0,)
    assert without_b.spans == ((0, 4),)
    assert np.isnan(without_b.values).all()
    assert list(aligner.align([])) == []


def test_models_without_a_head_of_their_kind_are_refused(tmp_path: Path) -> None:
    for kind, head, labels in (
        (TokenAligner, BertForTokenClassification, {0: "OK", 1: "BAD"}),
        (RegressionAligner, BertForSequenceClassification, LABELS),
    ):
        folder = save_word_bert(tmp_path / f"{kind.__name__} {head.__name__}", head, labels)
        with pytest.raises(ValueError, match=f"model = '{folder}'"):
            kind(folder)


def test_entailment_is_that_of_transformers_pipeline(tmp_path: Path) -> None:
    labels = {0: "contradiction", 1: "Entailment", 2: "neutral"}
    folder = save_word_bert(tmp_path, BertForSequenceClassification, labels)
    judge = pipeline("text-classification", model=folder, top_k=None)
    for (a, b), found in zip(PAIRS, RegressionAligner(folder).align(PAIRS), strict=True):
        shares = {row["label"]: row["score"] for row in judge({"text": b, "text_pair": a})}
        assert found.values == pytest.approx([shares["Entailment"]], abs=1e-6)
        assert found.spans == ((0, len(a)),)


@pytest.mark.parametrize("b_first", [False, True])
@given(a=st.integers(1, 90), b=st.integers(1, 90), limit=st.integers(5, 24))
def test_a_pair_is_cut_as_the_tokenizer_cuts_it(
    by_token: str, b_first: bool, a: int, b: int, limit: int
) -> None:
    """Of b while a fits beside the three special tokens, else of the longer one."""
    tokenizer = AutoTokenizer.from_pretrained(by_token)
    pair = [" ".join((WORDS * 9)[:n]) for n in (a, b)]
    (found,) = encode_pairs(tokenizer, [(pair[0], pair[1])], limit, b_first=b_first)
    of_b = "only_first" if b_first else "only_second"
    strategy = of_b if a + 3 < limit else "longest_first"
    whole = tokenizer(*pair[:: -1 if b_first else 1], truncation=strategy, max_length=limit)
    assert list(found.ids) == whole.input_ids


def test_two_texts_of_100_000_words(by_token: str) -> None:
    words = "good bad " * 50_000
    (found,) = TokenAligner(by_token).align([(words, words)])  # it took more than 20 GB
    assert np.isfinite(found.values).all()


@pytest.fixture
def decoder(tmp_path: Path, tiny_causal: Callable[..., str]) -> str:
    """A tiny Llama that classifies tokens, as the recipe writes it: b is read before a."""
    base = tiny_causal("llama")
    config = LlamaConfig.from_pretrained(base, id2label=LABELS)
    config.aligner_b_first = True
    model = LlamaForTokenClassification(config)
    spread_weights(model)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_decoder_reads_b_then_a_line_and_a(decoder: str) -> None:
    model = LlamaForTokenClassification.from_pretrained(decoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    pairs = [("the food was good", "good food"), ("slow", "the staff was slow and not friendly")]
    for (a, b), alignment in zip(pairs, TokenAligner(decoder).align(pairs), strict=True):
        words = [a[start:end] for start, end in alignment.spans]
        assert words == a.split()
        line = tokenizer(f"\n\n{a}", return_offsets_mapping=True)
        ids = tokenizer(b).input_ids + line.input_ids
        with torch.inference_mode():
            features = model.model(torch.tensor([ids])).last_hidden_state[0][-len(line.input_ids) :]
        # A token that ends within or with a word belongs to it: its space is before it.
        ends = [end - 2 for _, end in line.offset_mapping]
        for (start, stop), value in zip(alignment.spans, alignment.values, strict=True):
            own = [k for k, end in enumerate(ends) if start < end <= stop]
            expected = model.score(features[own].sum(0)).softmax(-1)[0].item()
            assert value == pytest.approx(expected, abs=1e-5)
        assert len({*words}) < 2 or alignment.values.std() > 0.001


@pytest.mark.parametrize("b_first", [True, False])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    a=st.text("ab \n", min_size=1, max_size=30),
    b=st.text("ab \n", max_size=60),
    limit=st.integers(8, 40),
)
def test_a_pair_of_a_decoder_fits_the_limit(
    tiny_causal: Callable[..., str], b_first: bool, a: str, b: str, limit: int
) -> None:
    """Truncation keeps what separates the texts, and the spans are those of a."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama"))
    (pair,) = encode_pairs(tokenizer, [(a, b)], limit, b_first=b_first)
    assert len(pair.ids) <= limit
    (whole,) = encode_pairs(tokenizer, [(a, b)], 10**6, b_first=b_first)
    assert pair.spans == whole.spans[: len(pair.spans)]
    assert all(0 <= start < end <= len(a) for start, end in pair.spans)
    assert pair.length == len(whole.ids)
