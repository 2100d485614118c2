"""A classifier by its name, of whatever kind it is."""

from __future__ import annotations

from pathlib import Path

from ctrlreward.models.classifier import Classifier, LabelProbabilities
from ctrlreward.models.text_cnn import MODEL_TYPE, TextCNNClassifier, read_config


def load_classifier(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> LabelProbabilities:
    """A frozen classifier, of the kind that its `config.json` names as `model_type`.

    Args:
        model: Folder that the text_cnn recipe wrote, or what `Classifier` takes.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Raises:
        ValueError: It can't be loaded; see the two classes.
        OSError: A hub id can't be reached.
    """
    config = Path(model).expanduser() / "config.json"
    if config.is_file() and read_config(config).get("model_type") == MODEL_TYPE:
        return TextCNNClassifier(model, device, dtype, batch_tokens)
    return Classifier(model, device, dtype, batch_tokens)
