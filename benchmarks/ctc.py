"""CTC's embedding alignment against the packages ctc_score and bert-score.

    python benchmarks/ctc.py [--texts 200] [--runs 5] [--curve]

Dialog responses against their histories on MiniLM in float32, the mean alignment of both
directions; as in real data several responses share a history. Needs the data folder
(CTRLREWARD_DATA) and the packages: pip install 'ctrlreward[bench]'.

ctc_score reads a pair at a time, and each direction anew; special tokens take no part. bert-score
reads each distinct text once, in batches; special tokens count nothing in its means, but a token
may be aligned with them, and no cosine is less than 0. So its numbers are others, and agreement is
stated with that convention on our side, too.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import floor
import numpy as np
from side_by_side import DATA, Work, compare, cost_curve, header, options

from ctrlreward import Samples
from ctrlreward.functional.alignment import best_cosines
from ctrlreward.models.encoder import Encoder
from ctrlreward.scorers import Alignment
from ctrlreward.weights.sources import resolve

SUITE = "ctc"
MODEL = "minilm-l6"
LAYERS = 6


def dialogs(count: int) -> Samples:
    """The first responses, each with what was said before."""
    rows = json.loads((DATA / "ctc" / "persona_chat.json").read_text(encoding="utf-8"))[:count]
    return Samples(
        texts=[row["response"].strip() for row in rows],
        sources=[row["dialog_history"].strip() for row in rows],
    )


def scoring(scorer: Alignment, samples: Samples) -> Work:
    """Both directions, y → x and x → y, one after the other."""
    scorer.load()

    def work() -> np.ndarray:
        scores = scorer.score(samples)
        return np.concatenate([scores["preservation_output"], scores["preservation_source"]])

    return work


def reversed_words(text: str) -> str:
    """A source that no other text has, as long as the text."""
    return " ".join(reversed(text.split()))


def peers() -> tuple[Any, Any]:
    """The packages' own classes for embedding alignment, on our model.

    Raises:
        SystemExit: One is not installed.
    """
    try:
        import nltk

        with tempfile.TemporaryDirectory() as folder:
            # ctc_score reads NLTK's stop words when it is imported, though E's mean needs none.
            words = Path(folder) / "corpora" / "stopwords"
            words.mkdir(parents=True)
            text = (DATA / "stopwords_english.txt").read_text(encoding="utf-8")
            (words / "english").write_text(text, encoding="utf-8")
            nltk.data.path.insert(0, folder)
            from ctc_score.models.bert_aligner import BERTAligner

        from bert_score import BERTScorer
    except ImportError as error:
        raise SystemExit(f"{error}: pip install 'ctrlreward[bench]'") from error
    given = {"model_type": resolve(MODEL), "num_layers": LAYERS, "device": "cpu"}
    return BERTAligner(aggr_type="mean", **given), BERTScorer(**given)


def by_ctc_score(aligner: Any, samples: Samples) -> np.ndarray:
    pairs = list(zip(samples.texts, samples.sources, strict=True))
    directions = [*pairs, *((x, y) for y, x in pairs)]
    return np.array([aligner.get_score(a, b, remove_stopwords=False) for a, b in directions])


def by_bert_score(scorer: Any, samples: Samples) -> np.ndarray:
    precision, recall, _ = scorer.score(list(samples.texts), list(samples.sources))
    return np.concatenate([precision.numpy(), recall.numpy()])


def with_special_tokens(encoder: Encoder, samples: Samples) -> np.ndarray:
    """Ours, as bert-score would have it: special tokens may be aligned with, and 0 is the least."""
    texts = list(dict.fromkeys([*samples.texts, *samples.sources]))
    found = dict(zip(texts, encoder.token_embeddings(texts), strict=True))
    pairs = list(zip(samples.texts, samples.sources, strict=True))
    return np.array(
        [
            best_cosines(found[a][1:-1], found[b]).clip(0.0).mean()
            for a, b in [*pairs, *((x, y) for y, x in pairs)]
        ]
    )


def main() -> None:
    given = options(__doc__, 200)
    scorer = Alignment(("preservation",), MODEL, dtype="float32")
    if given.curve:
        header()
        cost_curve(
            *(SUITE, "E, both directions"),
            lambda texts: scoring(
                scorer, Samples(texts=texts, sources=list(map(reversed_words, texts)))
            ),
            *(given.curve_texts, given.curve_words),
        )
        return
    package, batched = peers()
    header()
    samples = dialogs(given.texts)
    ours = scoring(scorer, samples)
    needed = floor.unpadded(scorer.aligner.encoder, ours)
    compare(
        *(SUITE, "E, ctc_score", ours, lambda: by_ctc_score(package, samples), given.runs),
        *("ctc_score 0.1.3", needed),
    )
    compare(
        *(SUITE, "E, bert-score", ours, lambda: by_bert_score(batched, samples), given.runs),
        *("bert-score 0.3.13", needed),
    )
    alike = with_special_tokens(scorer.aligner.encoder, samples)
    difference = float(np.abs(alike - by_bert_score(batched, samples)).max())
    print(f"# largest difference from bert-score by its own convention: {difference:.1e}")
    record = {
        "suite": SUITE,
        "case": "E, bert-score by its convention",
        "largest_difference": difference,
    }
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
