from __future__ import annotations

import json
from collections import Counter
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
    BatchEncoding,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)
from word_models import WORDS, save_word_bert, word_tokenizer

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


def test_only_b_is_cut(by_token: str, caplog: pytest.LogCaptureFixture) -> None:
    aligner = TokenAligner(by_token)
    (long,) = aligner.align([("the food was good", "bad " * 20)])
    assert caplog.messages == [
        "('the food was good', 'bad bad bad bad bad bad bad bad bad b…') has 27 tokens "
        "and the model reads 16: the end of b is dropped"
    ]
    (short,) = aligner.align([("the food was good", "bad " * 9)])  # 4 + 9 + 3 special ones
    np.testing.assert_allclose(long.values, short.values, atol=1e-5)


def test_a_alone_too_long_is_cut_and_named(by_token: str, caplog: pytest.LogCaptureFixture) -> None:
    cut, *_ = TokenAligner(by_token).align([(f"good {'bad ' * i}", "bad") for i in (19, 30, 0)])
    assert caplog.messages == [
        "('good bad bad bad bad bad bad bad bad …', 'bad') has 24 tokens and the model reads "
        "16: a fills the limit and is truncated (and 1 more pairs)"
    ]
    assert len(cut.spans) == len(cut.values) == 12  # 16, less b and 3 special ones


@pytest.mark.parametrize("b_first", [False, True])
@given(a=st.integers(1, 90), b=st.integers(1, 90), limit=st.integers(5, 24))
def test_only_beginnings_are_truncated_and_give_the_same(
    by_token: str, b_first: bool, a: int, b: int, limit: int
) -> None:
    """Of two long texts, a tokenizer keeps all combinations of the parts that it cuts off."""
    tokenizer = AutoTokenizer.from_pretrained(by_token)
    pair = [" ".join((WORDS * 9)[:n]) for n in (a, b)]
    ours = encode_pairs(tokenizer, [(pair[0], pair[1])], limit, b_first=b_first)
    with pytest.MonkeyPatch.context() as patch:
        whole = "ctrlreward.models.pairs._beginnings"
        patch.setattr(whole, lambda encoding, first, second, limit: (first, second))
        assert encode_pairs(tokenizer, [(pair[0], pair[1])], limit, b_first=b_first) == ours


def test_two_texts_of_100_000_words(by_token: str) -> None:
    words = "good bad " * 50_000
    (found,) = TokenAligner(by_token).align([(words, words)])  # it took more than 20 GB
    assert np.isfinite(found.values).all()


@pytest.mark.parametrize("labels", [("OK", "BAD"), ("LABEL_0", "LABEL_1")])
def test_other_labels_are_refused(tmp_path: Path, labels: tuple[str, str]) -> None:
    folder = save_word_bert(tmp_path, BertForTokenClassification, dict(enumerate(labels)))
    named = ", ".join(labels)
    with pytest.raises(ValueError, match=f"has the labels {named}. Rename the one for aligned"):
        TokenAligner(folder)


@pytest.mark.parametrize("padding", [None, 7])
def test_a_decoder_is_a_regression_with_any_padding(padding: int | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    tokens = {"vocab_size": 14, "pad_token_id": padding}
    config = LlamaConfig(
        **shape, **tokens, num_hidden_layers=1, num_labels=1, initializer_range=1.0
    )
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer = word_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path)
    model = LlamaForSequenceClassification.from_pretrained(tmp_path).eval()
    for (a, b), found in zip(PAIRS, RegressionAligner(str(tmp_path)).align(PAIRS), strict=True):
        with torch.inference_mode():
            expected = model(**tokenizer(a, b, return_tensors="pt")).logits[0]
        np.testing.assert_allclose(found.values, expected.numpy(), atol=1e-5)


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
    aligner = TokenAligner(decoder, unit="piece")
    model = LlamaForTokenClassification.from_pretrained(decoder).eval()
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    pairs = [("the food was good", "good food"), ("slow", "the staff was slow and not friendly")]
    for (a, b), alignment in zip(pairs, aligner.align(pairs), strict=True):
        assert "".join(a[start:end] for start, end in alignment.spans) == a
        ids = tokenizer(b).input_ids + tokenizer(f"\n\n{a}").input_ids
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].double()
        expected = logits.softmax(-1)[-len(alignment.spans) :, 0]
        np.testing.assert_allclose(alignment.values, expected, atol=1e-5)
        assert alignment.values.std() > 0.001
    words = list(TokenAligner(decoder).align(pairs))
    assert [
        [a[s:e] for s, e in found.spans] for (a, _), found in zip(pairs, words, strict=True)
    ] == [a.split() for a, _ in pairs]
    without_a, without_b = aligner.align([("", "good"), ("good", "")])
    assert (without_a.spans, len(without_a.values)) == ((), 0)
    assert np.isnan(without_b.values).all()
    assert len(without_b.values)


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
    assert len(whole.ids) == len(pair.ids) + sum(pair.dropped)


def test_more_outputs_are_no_regression(tmp_path: Path) -> None:
    folder = save_word_bert(tmp_path, BertForSequenceClassification, LABELS)
    with pytest.raises(ValueError, match="has 2 outputs, must be a regression model, which"):
        RegressionAligner(folder)


@pytest.mark.parametrize("aligner", [TokenAligner, RegressionAligner])
def test_an_untrained_head_is_refused(tmp_path: Path, aligner: type) -> None:
    folder = save_word_bert(tmp_path, BertModel, {0: "LABEL_0"})
    assert "architectures" in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match=r"classifier\.bias"):
        aligner(folder)


def test_a_long_text_is_read_in_linear_time(by_token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list of an encoding, as long as the text, is built once."""
    reads: Counter[str] = Counter()

    class Counted:
        def __init__(self, encoding: object) -> None:
            self.encoding = encoding

        def __getattr__(self, name: str) -> object:
            reads[name] += 1
            return getattr(self.encoding, name)

    item = BatchEncoding.__getitem__
    monkeypatch.setattr(BatchEncoding, "__getitem__", lambda self, row: Counted(item(self, row)))
    tokenizer = AutoTokenizer.from_pretrained(by_token)
    (pair,) = encode_pairs(tokenizer, [(" ".join(WORDS * 50), "good food")], limit=10**6)
    assert len(pair.spans) == 500
    assert set(reads.values()) == {1}
