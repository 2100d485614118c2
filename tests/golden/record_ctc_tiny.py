"""Record what the published CTC package prints with the tiny models of `tests/tiny_aligners.py`.

    pip install 'ctrlreward[bench]'
    PYTHONPATH=tests python tests/golden/record_ctc_tiny.py NLTK_DATA > tests/golden/ctc_tiny.json

NLTK_DATA is a folder with `corpora/stopwords/english`. The package loads its aligners by name from
the hub; here they get tiny weights, the checkpoints' names of weights and the package's own code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nltk
import torch
from tiny_aligners import bert, head, roberta, save_tokenizer
from transformers import AutoTokenizer

nltk.data.path.insert(0, sys.argv[1])

from ctc_score import DialogScorer, SummarizationScorer  # noqa: E402
from ctc_score.models.aligner import Aligner  # noqa: E402
from ctc_score.models.bert_aligner import BERTAligner  # noqa: E402
from ctc_score.models.bleurt_aligner_pt import BLEURTAligner, BleurtModel  # noqa: E402
from ctc_score.models.discriminative_aligner import DiscriminativeAligner  # noqa: E402

TEXTS = json.loads(Path(__file__).with_name("ctc_texts.json").read_text(encoding="utf-8"))


def discriminative(folder: str, seed: int, aggregate: str) -> DiscriminativeAligner:
    aligner = DiscriminativeAligner.__new__(DiscriminativeAligner)
    Aligner.__init__(aligner, aggregate)
    torch.nn.Module.__init__(aligner)
    aligner._roberta, aligner._classifier = roberta(seed), head(2, seed)
    aligner._tokenizer = AutoTokenizer.from_pretrained(folder)
    aligner._space_char = "Ġ"
    aligner._bos_id = aligner._tokenizer.bos_token_id
    aligner._device = "cpu"
    return aligner.eval()


def regression(folder: str, seed: int) -> BLEURTAligner:
    aligner = BLEURTAligner.__new__(BLEURTAligner)
    Aligner.__init__(aligner, None)
    weights = bert(seed)
    model = BleurtModel(weights.config)
    model.bert, model.dense = weights, head(1, seed)
    aligner.bleurt_model, aligner.device = model.eval(), "cpu"
    aligner.tokenizer = AutoTokenizer.from_pretrained(folder)
    return aligner


def main() -> dict[str, Any]:
    pairs = [(row["output"].lower(), row["source"].lower()) for row in TEXTS["transfers"]]
    with tempfile.TemporaryDirectory() as berts, tempfile.TemporaryDirectory() as robertas:
        bert().save_pretrained(berts)
        save_tokenizer(Path(berts), "bert")
        save_tokenizer(Path(robertas), "roberta")
        layers = {}
        for layer in (0, 2, 4):
            aligner = BERTAligner(
                "mean", model_type=berts, num_layers=layer, lang="en", device="cpu"
            )
            layers[layer] = [aligner.align(a, b)[1] for a, b in pairs]
        words = [discriminative(robertas, 0, "mean").align(a, b) for a, b in pairs]
        dialog = DialogScorer("D-persona_chat", device="cpu")
        summed = discriminative(robertas, 0, "sum")
        dialog._aligners = dict.fromkeys(("fact_to_response", "fact_history_to_response"), summed)
        summary = SummarizationScorer("D-cnndm", device="cpu")
        summary._aligners = {
            "doc_to_summ": discriminative(robertas, 0, "mean"),
            "summ_to_ref": discriminative(robertas, 1, "mean"),
        }
        regressed = SummarizationScorer("R-cnndm", device="cpu")
        regressed._aligners = {
            "doc_to_summ": regression(berts, 0),
            "summ_to_ref": regression(berts, 1),
        }
        return {
            "package": f"ctc_score {version('ctc_score')}, tiny seeded models, float32, CPU",
            "embedding": layers,
            "words": [tokens for tokens, _ in words],
            "discriminative": [values for _, values in words],
            "regression": [regression(berts, 0).get_score(a, b, False) for a, b in pairs],
            "dialogs": [
                {
                    name: dialog.score(
                        row["fact"].lower(), row["history"].lower(), row["response"].lower(), name
                    )
                    for name in ("engagingness", "groundedness")
                }
                for row in TEXTS["dialogs"]
            ],
            **{
                f"relevance_{kind}": [
                    scorer.score(
                        row["document"].lower(),
                        [reference.lower() for reference in row["references"]],
                        row["summary"].lower(),
                        "relevance",
                    )
                    for row in TEXTS["summaries"]
                ]
                for kind, scorer in (("discriminative", summary), ("regression", regressed))
            },
        }


if __name__ == "__main__":
    with torch.inference_mode():
        print(json.dumps(main(), indent=1))
