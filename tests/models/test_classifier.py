from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    pipeline,
)
from word_models import WORDS, save_word_bert, word_config, word_tokenizer

from ctrlreward import Accuracy
from ctrlreward.models.classifier import Classifier

TEXTS = ["the food was good", "bad", "the staff was not friendly and slow and bad", "", "bad", "?"]
LABELS = {0: "negative", 1: "neutral", 2: "positive"}


def save_bert(folder: Path, labels: int = 3) -> str:
    return save_word_bert(folder, BertForSequenceClassification, first_labels(labels))


def first_labels(count: int = 3) -> dict[int, str]:
    return {i: LABELS[i] for i in range(count)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("bert"))


def one_by_one(folder: str, texts: list[str]) -> np.ndarray:
    """Softmax with transformers alone, without batches and padding."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits = [
            model(torch.tensor([tokenizer(text, truncation=True).input_ids])).logits[0]
            for text in texts
        ]
    probabilities = torch.stack(logits).softmax(dim=-1).numpy()
    known = [not text or any(word in WORDS for word in text.split()) for text in texts]
    return np.where(np.array(known)[:, None], probabilities, np.nan)


@pytest.mark.parametrize("batch_tokens", [1, 20, 8192])
def test_equals_one_text_at_a_time(folder: str, batch_tokens: int) -> None:
    classifier = Classifier(folder, batch_tokens=batch_tokens)
    assert classifier.text_padding == classifier.padding  # BERT does not read it
    values = classifier.probabilities(TEXTS)
    assert values.dtype == np.float64
    # Weights this large turn float32's rounding, which differs between machines, into some 1e-6.
    np.testing.assert_allclose(values, one_by_one(folder, TEXTS), atol=1e-5)
    np.testing.assert_allclose(values[:-1].sum(axis=1), 1, atol=1e-9)
    assert np.isnan(values[-1]).all()  # "?" is no word of the model
    assert values[:-1].std(axis=0).min() > 0.01  # the texts are told apart


# Their results for a text depend on padding after it, which the attention mask does not hide.
READ_PADDING: dict[str, dict[str, object]] = {
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_head": 16, "d_inner": 48},
    "convbert": {"hidden_size": 32, "embedding_size": 32, "head_ratio": 1, "num_hidden_layers": 2,
                 "num_attention_heads": 2, "intermediate_size": 48},
}  # fmt: skip


@pytest.mark.parametrize("family", READ_PADDING)
def test_a_model_that_reads_padding_gets_none(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {**READ_PADDING[family], "initializer_range": 0.3, "pad_token_id": 0}
    config = AutoConfig.for_model(family, vocab_size=len(WORDS) + 9, id2label=LABELS, **shape)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    texts = [text for text in TEXTS if text]
    values = Classifier(str(tmp_path)).probabilities(texts)
    np.testing.assert_allclose(values, one_by_one(str(tmp_path), texts), atol=1e-5)


@pytest.mark.parametrize("padding", [None, 7, -1, 12])  # 12 is not embedded
def test_a_decoder_pads_with_its_own_token_and_not_the_tokenizers(
    padding: int | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    tokens = {"vocab_size": 12, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": padding}
    config = GPT2Config(**shape, **tokens, initializer_range=0.5, id2label=LABELS)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    special = {"eos_token": "<|endoftext|>", "unk_token": "[UNK]"}
    word_tokenizer(special=special).save_pretrained(tmp_path)
    texts = [text for text in TEXTS if text]
    values = Classifier(str(tmp_path)).probabilities(texts)
    np.testing.assert_allclose(values, one_by_one(str(tmp_path), texts), atol=1e-5)


def test_models_without_a_head_of_labels_are_refused(tmp_path: Path) -> None:
    save_bert(tmp_path / "untrained")
    BertModel(word_config(LABELS)).save_pretrained(tmp_path / "untrained")
    for folder in (
        save_bert(tmp_path / "regression", labels=1),
        save_constant(tmp_path / "ratings", [2.0, 3.0], problem_type="regression"),
        str(tmp_path / "untrained"),
    ):
        with pytest.raises(ValueError, match=f"model = '{folder}'"):
            Classifier(folder)


def save_constant(folder: Path, logits: list[float], **config: object) -> str:
    """Save a model whose outputs are these for each text."""
    save_bert(folder, labels=len(logits))
    settings = word_config(first_labels(len(logits)))
    settings.update(config)
    model = BertForSequenceClassification(settings)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor(logits))
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("config", "expected", "accuracy"),
    [
        # e² / (e² + e³) and 1 / (1 + e⁻²)
        ({}, [0.2689414, 0.7310586], [0, 1]),
        ({"problem_type": "single_label_classification"}, [0.2689414, 0.7310586], [0, 1]),
        ({"problem_type": "multi_label_classification"}, [0.8807971, 0.9525741], [1, 1]),
    ],
)
def test_the_head_is_read_as_it_was_trained(tmp_path, config, expected, accuracy) -> None:
    folder = save_constant(tmp_path, [2.0, 3.0], **config)
    np.testing.assert_allclose(Classifier(folder).probabilities(["bad"]), [expected], atol=1e-6)
    labels = ["negative", "neutral"]
    scores = Accuracy(folder).score(["bad", "bad"], labels=labels)
    np.testing.assert_allclose(scores["label_probability"], expected, atol=1e-6)
    assert scores["accuracy"].tolist() == accuracy
    # The pipeline of transformers is the published reading of a head.
    pipe = pipeline("text-classification", model=folder, tokenizer=folder, top_k=None)
    by_label = {each["label"]: each["score"] for each in pipe(["bad"])[0]}
    np.testing.assert_allclose([by_label[label] for label in labels], expected, atol=1e-6)
