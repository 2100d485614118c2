"""Record what the published CTC package prints for the sentences of `ctc_texts.json`.

    pip install 'ctrlreward[bench]'
    python tests/golden/record_ctc.py NLTK_DATA > tests/golden/ctc_scores.json

NLTK_DATA is a folder with `corpora/stopwords/english`, which the package reads when it is imported.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nltk

from ctrlreward.models.sources import resolve

nltk.data.path.insert(0, sys.argv[1])

from ctc_score import DialogScorer, StyleTransferScorer, SummarizationScorer  # noqa: E402
from ctc_score.scorer import E_MODEL_CONFIGS  # noqa: E402

TEXTS = json.loads(Path(__file__).with_name("ctc_texts.json").read_text(encoding="utf-8"))

# The package names its models; MiniLM, which a wheel brings along, takes the place of one of them.
E_MODEL_CONFIGS["bert"] = {"model_type": resolve("minilm-l6"), "num_layers": 6}


def dialog_scores(row: dict[str, str]) -> dict[str, float]:
    columns = (row["fact"], row["history"], row["response"])
    return {name: DIALOG.score(*columns, name) for name in ("engagingness", "groundedness")}


def transfer_scores(row: dict[str, str]) -> dict[str, float]:
    aligner = TRANSFER._get_aligner("sent_to_sent")
    pair = {"input_text": row["output"], "context": row["source"]}
    back = {"input_text": row["source"], "context": row["output"]}
    return {
        "preservation": TRANSFER.score(row["source"], row["output"], "preservation"),
        "preservation_output": aligner.get_score(**pair, remove_stopwords=False),
        "preservation_source": aligner.get_score(**back, remove_stopwords=False),
    }


def summary_scores(row: dict[str, Any]) -> dict[str, float]:
    def score(references: list[str], aspect: str) -> float:
        return SUMMARY.score(row["document"], references, row["summary"], aspect)

    relevance = [score([reference], "relevance") for reference in row["references"]]
    return {"consistency": score([], "consistency"), "relevance": relevance}


DIALOG, TRANSFER, SUMMARY = (
    scorer("E-bert", device="cpu")
    for scorer in (DialogScorer, StyleTransferScorer, SummarizationScorer)
)

if __name__ == "__main__":
    scores = {
        "package": f"ctc_score {version('ctc_score')}, E aligner, MiniLM layer 6, float32, CPU",
        "dialogs": [dialog_scores(row) for row in TEXTS["dialogs"]],
        "transfers": [transfer_scores(row) for row in TEXTS["transfers"]],
        "summaries": [summary_scores(row) for row in TEXTS["summaries"]],
    }
    print(json.dumps(scores, indent=1))
