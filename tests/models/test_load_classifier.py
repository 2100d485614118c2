from __future__ import annotations

import json
from pathlib import Path

import pytest

from ctrlreward.models import classifier as module
from ctrlreward.models.classifier import load_classifier
from ctrlreward.models.text_cnn import TextCNN, TextCNNClassifier, TextCNNConfig, save_text_cnn


def test_a_text_cnn_is_known_by_its_model_type(tmp_path: Path) -> None:
    save_text_cnn(TextCNN(TextCNNConfig(("good",), ("no", "yes"), 4)), tmp_path)
    classifier = load_classifier(str(tmp_path), batch_tokens=7)
    assert isinstance(classifier, TextCNNClassifier)
    assert (classifier.labels, classifier.batch_tokens) == (("no", "yes"), 7)


@pytest.mark.parametrize("config", [None, {"model_type": "bert"}, {}])
def test_all_others_are_left_to_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, str] | None
) -> None:
    monkeypatch.setattr(module, "Classifier", lambda *arguments: arguments)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    given = (str(tmp_path), "cpu", "bfloat16", 7)
    assert load_classifier(*given) == given


def test_a_configuration_that_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json is not a JSON object"):
        load_classifier(str(tmp_path))
