"""Convert an aligner released with CTC, a pickle of tensors, to a folder with safetensors.

    python -m ctrlreward.recipes.papers.ctc.convert_checkpoint \
        fact_to_response.ckpt FacebookAI/roberta-large aligners/fact_to_response

`Alignment(folder, method="discriminative")` loads it, or `method="regression"` for a BLEURT. Only
tensors are read from the pickle (`torch.load` with `weights_only=True`), other objects are ignored.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import normalizers
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.files import whole_folder
from ctrlreward.models.aligner import ALIGNED
from ctrlreward.models.loading import load_config, load_tokenizer

# The package reads texts in lower case, with straight quotes.
_QUOTES = {"“": '"', "”": '"', "’": "'", "‘": "'"}


def convert(checkpoint: str, encoder: str, folder: str) -> None:
    """Write the folder of an aligner; a checkpoint with a `_classifier` is D, with a `dense` R.

    `checkpoint` is a file of ctc_score 0.1.3, `encoder` the model that the aligner was trained
    from, for its configuration and tokenizer: `FacebookAI/roberta-large` or
    `tals/albert-xlarge-vitaminc-mnli` for D, `google-bert/bert-base-uncased` for R.

    Raises:
        ValueError: The weights do not match such an aligner with this encoder, or the
            folder exists.
        pickle.UnpicklingError: The file contains objects other than tensors.
    """
    path = Path(folder).expanduser()
    if path.exists():
        raise ValueError(f"folder = {folder!r} exists, must be a new folder")
    weights: Mapping[str, Tensor] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    config, tokenizer = load_config(encoder), load_tokenizer(encoder)
    if "_classifier.weight" in weights:
        labels = {0: ALIGNED, 1: "hallucinated"}
        ids = {label: i for i, label in labels.items()}
        config.update({"id2label": labels, "label2id": ids})
        model = AutoModelForTokenClassification.from_config(config)
        body, head = r"^_(roberta|model)\.", r"^_classifier\."
        backend = tokenizer.backend_tokenizer
        steps = [normalizers.Replace(old, new) for old, new in _QUOTES.items()]
        given = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase(), *given])
    elif "dense.weight" in weights:
        config.update({"num_labels": 1, "problem_type": "regression", "aligner_b_first": True})
        model = AutoModelForSequenceClassification.from_config(config)
        body, head = r"^bert\.", r"^dense\."
    else:
        raise ValueError(
            f"checkpoint = {checkpoint!r} has neither _classifier.weight (D) nor dense.weight (R), "
            f"only {', '.join([*weights][:3])}, …"
        )
    prefix = model.base_model_prefix
    renamed = {
        re.sub(head, "classifier.", re.sub(body, f"{prefix}.", name)): weight
        for name, weight in weights.items()
    }
    missing, left = model.load_state_dict(renamed, strict=False)
    # A token classifier does not have a pooler, and older versions saved the numbers of positions.
    unknown = [name for name in left if ".pooler." not in name and "position_ids" not in name]
    if missing or unknown:
        raise ValueError(
            f"checkpoint = {checkpoint!r} and this {config.model_type} differ in "
            f"{len(missing) + len(unknown)} weights: {', '.join([*missing, *unknown][:3])}"
        )
    with whole_folder(path) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)


@user_errors()
def main() -> None:
    """Run the conversion with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("checkpoint", "encoder", "folder"):
        parser.add_argument(name)
    convert(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
