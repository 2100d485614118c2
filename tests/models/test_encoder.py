from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import save_bert
from transformers import AutoModel, AutoTokenizer, BertModel

from ctrlreward.models.encoder import Encoder, token_layer
from ctrlreward.models.sources import resolve

TEXTS = [
    "The staff was friendly and the food came quickly.",
    "no.",
    "I would never go back to this place, not even if the meal were free and the wine were good.",
    "",
    "The staff was friendly and the food came quickly.",
    "Waiters here are kind, and you don't wait long for your meal.",
    "The lake froze over in January.",
]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder("minilm-l6", batch_tokens=48)


def hidden_states_one_by_one(texts: list[str], longest: int = 512) -> list[torch.Tensor]:
    """Last hidden states with transformers alone, without batches and padding."""
    folder = resolve("minilm-l6")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, use_safetensors=True, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [
            model(
                **tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
            ).last_hidden_state[0]
            for text in texts
        ]


def test_embeddings_equal_one_text_at_a_time(encoder: Encoder) -> None:
    means = [hidden.mean(dim=0) for hidden in hidden_states_one_by_one(TEXTS)]
    expected = np.stack([(mean / mean.norm()).numpy() for mean in means])
    vectors = encoder.embed(TEXTS)
    assert vectors.dtype == np.float64
    assert vectors.shape == (len(TEXTS), 384)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_text_is_read_as_far_as_sentence_transformers_reads_it(encoder: Encoder, caplog) -> None:
    """all-MiniLM-L6-v2 has 512 positions, of which sentence-transformers reads 256."""
    texts = [" ".join(TEXTS) * 12, f"{TEXTS[2]} " * 11]
    (long, short) = hidden_states_one_by_one(texts, 256)
    assert len(short) < len(long) == 256
    expected = np.stack([(h.mean(dim=0) / h.mean(dim=0).norm()).numpy() for h in (long, short)])
    np.testing.assert_allclose(encoder.embed(texts), expected, atol=1e-5)
    assert "256" in caplog.text
    assert len(encoder.token_embeddings(texts[:1])[0]) == 512


def test_published_layers_are_known_by_name(tmp_path: Path) -> None:
    names = ("bert-base-uncased", "FacebookAI/roberta-large", "roberta-large-mnli", "my/encoder")
    assert [token_layer(name) for name in names] == [9, 17, 9, None]
    (tmp_path / "roberta-large").mkdir()
    assert token_layer(str(tmp_path / "roberta-large")) is None
    assert token_layer("minilm-l6") is None


def test_token_embeddings_equal_one_text_at_a_time(encoder: Encoder) -> None:
    found = encoder.token_embeddings(TEXTS)
    for text, values, expected in zip(TEXTS, found, hidden_states_one_by_one(TEXTS), strict=True):
        assert values.dtype == np.float32
        assert len(values) == len(encoder.tokenizer(text).input_ids)
        np.testing.assert_allclose(values, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "pick"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda h: h[0]),
        ({"pooling_mode_lasttoken": True}, lambda h: h[-1]),
        ({"pooling_mode_mean_tokens": True}, lambda h: h.mean(dim=0)),
    ],
)
def test_a_folder_says_how_it_is_pooled(tmp_path: Path, pooling, pick) -> None:
    folder = declared(tmp_path / "model", ["Transformer", "Pooling"], pooling)
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["a cold soup", "no"]
    with torch.inference_mode():
        hidden = [model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0] for t in texts]
    expected = torch.stack([pick(h) / pick(h).norm() for h in hidden]).numpy()
    np.testing.assert_allclose(Encoder(folder).embed(texts), expected, atol=1e-5)


def test_a_model_of_the_hub_is_read_as_its_files_declare(tmp_path: Path) -> None:
    """As a folder of the same files; in another process, as the place of the cache is read once."""
    folder = Path(
        declared(tmp_path / "model", ["Transformer", "Pooling"], {"pooling_mode_cls_token": True})
    )
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    cache = tmp_path / "hub" / "models--users--encoder"
    shutil.copytree(folder, cache / "snapshots" / ("a" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("a" * 40)
    script = (
        "import sys, numpy as np; from ctrlreward.models.encoder import Encoder\n"
        "hub, local = Encoder('users/encoder'), Encoder(sys.argv[1])\n"
        "assert (hub.pooling, hub.sentence_tokens) == ('cls', 5)\n"
        "assert np.array_equal(hub.embed(['a cold soup']), local.embed(['a cold soup']))"
    )
    offline = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", script, str(folder)], env=offline, check=True)


@pytest.mark.parametrize(
    ("modules", "pooling", "named"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "Dense"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "max"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "mean, cls",
        ),
    ],
)
def test_a_layer_that_is_not_read_is_named(tmp_path: Path, modules, pooling, named) -> None:
    folder = declared(tmp_path / "model", modules, pooling)
    with pytest.raises(ValueError, match=named):
        Encoder(folder).embed(["a"])


def declared(folder: Path, modules: list[str], pooling: dict[str, bool]) -> str:
    (folder / "1_Pooling").mkdir(parents=True)
    save_bert(folder, BertModel)
    rows = [
        {"type": f"sentence_transformers.models.{m}", "path": f"{i}_{m}" if i else ""}
        for i, m in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return str(folder)


def test_unknown_tokens_are_named_and_a_text_of_them_is_nan(encoder: Encoder, caplog) -> None:
    texts = ["I felt \N{SMILING FACE WITH HEART-SHAPED EYES} today.", "I felt well today."]
    vectors = encoder.embed(texts)
    assert np.isfinite(vectors).all()
    (message,) = caplog.messages
    assert "\N{SMILING FACE WITH HEART-SHAPED EYES}'" in message
    caplog.clear()
    thai = encoder.embed([texts[1], "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"])
    assert np.isnan(thai).all(axis=1).tolist() == [False, True]
    assert len(caplog.messages) == 1
