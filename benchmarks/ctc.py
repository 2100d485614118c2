"""CTC's embedding alignment against the packages ctc_score and bert-score.

    python benchmarks/ctc.py [--texts 200] [--runs 5]

The mean alignment in both directions of dialog responses and their histories, on MiniLM in float32.
As in real data, several responses share a history. Needs NLTK's stop words,
stopwords_english.txt in the folder CTRLREWARD_DATA, and the packages: pip install
'ctrlreward[bench]'.

ctc_score encodes one pair at a time, twice for the two directions, and ignores special tokens.
bert-score encodes each distinct text once, in batches. It leaves special tokens out of its means,
but a token may be aligned with them, and negative cosines count as 0. Its numbers therefore differ
from ours.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import DATA, compare, parse_options

from ctrlreward import Samples
from ctrlreward.models.sources import resolve
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.scorers import Alignment

MODEL = "minilm-l6"
LAYERS = 6


def dialogs(count: int) -> Samples:
    """Return the first responses with their dialog histories."""
    rows = json.loads(local_file("ctc/persona_chat.json").read_text(encoding="utf-8"))[:count]
    return Samples(
        texts=[row["response"].strip() for row in rows],
        sources=[row["dialog_history"].strip() for row in rows],
    )


def peers() -> tuple[Any, Any]:
    """Return the packages' classes for embedding alignment, with our model."""
    import nltk
    from bert_score import BERTScorer

    with tempfile.TemporaryDirectory() as folder:
        # ctc_score loads NLTK's stop words at import, although the mean of E does not use them.
        words = Path(folder) / "corpora" / "stopwords"
        words.mkdir(parents=True)
        text = (DATA / "stopwords_english.txt").read_text(encoding="utf-8")
        (words / "english").write_text(text, encoding="utf-8")
        nltk.data.path.insert(0, folder)
        from ctc_score.models.bert_aligner import BERTAligner

    model = {"model_type": resolve(MODEL), "num_layers": LAYERS, "device": "cpu"}
    return BERTAligner(aggr_type="mean", **model), BERTScorer(**model)


def main() -> None:
    options = parse_options(__doc__, 200)
    scorer = Alignment(MODEL, dtype="float32")
    package, batched = peers()
    samples = dialogs(options.texts)

    def ours() -> np.ndarray:
        scores = scorer.score(samples)
        return np.concatenate([scores["preservation_output"], scores["preservation_source"]])

    def by_ctc_score() -> np.ndarray:
        pairs = list(zip(samples.texts, samples.sources, strict=True))
        directions = [*pairs, *((x, y) for y, x in pairs)]
        return np.array([package.get_score(a, b, remove_stopwords=False) for a, b in directions])

    def by_bert_score() -> np.ndarray:
        precision, recall, _ = batched.score(list(samples.texts), list(samples.sources))
        return np.concatenate([precision.numpy(), recall.numpy()])

    compare("ctc", "E, ctc_score", ours, by_ctc_score, options.runs, "ctc_score 0.1.3")
    compare("ctc", "E, bert-score", ours, by_bert_score, options.runs, "bert-score 0.3.13")


if __name__ == "__main__":
    main()
