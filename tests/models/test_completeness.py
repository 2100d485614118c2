"""A model is loaded with all of its weights, or refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_bert
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from ctrlreward import CTRLEval
from ctrlreward.models.aligner import TokenAligner
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.classifier import Classifier
from ctrlreward.models.encoder import Encoder
from ctrlreward.models.loading import load_frozen
from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.policy.model import load_base

Loader = Callable[[str], object]


def policy(model: str) -> object:
    return load_base(model, None, "cpu")


@pytest.fixture
def model_of(
    tiny_causal: Callable[..., str], tiny_bart: str, tmp_path: Path
) -> Callable[[str], Path]:
    """Return a function from a kind of model to a copy of its folder."""

    def build(kind: str) -> Path:
        folder = tmp_path / kind
        if kind in ("llama", "gpt2", "mamba"):
            shutil.copytree(tiny_causal(kind), folder)
        elif kind == "bart":
            shutil.copytree(tiny_bart, folder)
        else:
            labels = {"id2label": {0: "aligned", 1: "other"}}
            head, options = {
                "encoder": (BertModel, {}),
                "classifier": (BertForSequenceClassification, {}),
                "tokens": (BertForTokenClassification, labels),
            }[kind]
            save_bert(folder, head, **options)
        return folder

    return build


def edited(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> str:
    """Change the weights of a folder."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


MODELS: list[tuple[str, Loader, str]] = [
    ("llama", CausalLM, "model.layers.1.mlp.up_proj.weight"),
    ("mamba", CausalLM, "backbone.layers.0.mixer.A_log"),
    ("llama", policy, "model.layers.1.mlp.up_proj.weight"),
    ("bart", policy, "model.decoder.layers.1.fc1.weight"),
    ("bart", Seq2SeqInfiller, "model.decoder.layers.1.fc1.weight"),
    ("encoder", Encoder, "encoder.layer.0.attention.self.query.weight"),
    ("classifier", Classifier, "bert.pooler.dense.weight"),  # the head reads it
    ("classifier", Classifier, "classifier.bias"),
    ("tokens", TokenAligner, "classifier.weight"),
]


@pytest.mark.parametrize(("kind", "load", "weight"), MODELS)
def test_a_missing_or_misshaped_weight_is_named(
    model_of: Callable[[str], Path], kind: str, load: Loader, weight: str
) -> None:
    folder = model_of(kind)
    load(str(folder))  # complete
    for change in (
        lambda weights: weights.update({weight: weights[weight][..., :-1].clone()}),
        lambda weights: weights.pop(weight),
    ):
        edited(folder, change)
        with pytest.raises(ValueError, match=re.escape(weight)) as caught:
            load(str(folder))
        assert str(folder) in str(caught.value)


def test_a_model_of_another_kind_is_refused(tiny_bart: str, tmp_path: Path) -> None:
    encoder = save_bert(tmp_path, BertForMaskedLM)
    loads: list[Loader] = [CausalLM, lambda model: CTRLEval(model).load(), policy, Seq2SeqInfiller]
    for load in loads:
        with pytest.raises(ValueError, match=encoder):
            load(encoder)
    with pytest.raises(ValueError, match=tiny_bart):
        CausalLM(tiny_bart)


def test_what_nothing_reads_may_be_missing(model_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder = model_of("encoder")
    whole = Encoder(str(folder)).embed(["soup"])
    edited(folder, lambda weights: [weights.pop(k) for k in [*weights] if "pooler" in k])
    assert (Encoder(str(folder)).embed(["soup"]) == whole).all()
    # Other heads: of masked language modelling, and the output layer that is tied to the input.
    encoder = Encoder(save_bert(tmp_path / "masked", BertForMaskedLM))
    assert encoder.embed(["ab"]).shape == (1, 16)
    tied = model_of("gpt2")
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    assert load_frozen(AutoModelForCausalLM, str(tied)).config.tie_word_embeddings
    assert load_frozen(AutoModel, str(tied)).config.n_layer == 2
