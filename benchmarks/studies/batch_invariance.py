"""Difference that company makes to the score of a text, by scorer and dtype, on trained weights.

    python benchmarks/studies/batch_invariance.py [--texts 48] [--dtypes float32 bfloat16]
        [--threads 2]

Each text is scored alone, then all of them in one call ("together"), then in another order with a
token budget of 256 ("shuffled"). Prints, for each score, the largest absolute difference from the
text alone, and the largest relative one; of another dtype than the first, also the largest absolute
difference of a text alone between the two ("of dtype").

The texts are CTRLEval's rated ones and human transfers of Yelp sentences. A classifier
takes part if the text_cnn recipe has trained one (`--classifier`). The table is in
docs/performance.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of side_by_side

import numpy as np
import torch
from side_by_side import machine, parse_options

from ctrlreward import Samples
from ctrlreward.data import local_file
from ctrlreward.scorers import (
    Accuracy,
    Alignment,
    CTRLEval,
    InfillingPerplexity,
    LexiconSentiment,
    ModelOptions,
    Perplexity,
    Scorer,
    Similarity,
)
from ctrlreward.weights.dtypes import Dtype

SMALL_BUDGET = 256
EVALUATORS = 9  # of 72, as in the demo's reward

Build = Callable[[Dtype, int | None], Scorer]


def rated_texts(count: int) -> Samples:
    """Return rated texts with prefix and label, spread over the file."""
    with open(local_file("ctrleval/data_senti.txt"), encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = rows[:: max(1, len(rows) // count)][:count]
    labels, prefixes, texts = (list(column) for column in list(zip(*rows, strict=True))[:3])
    return Samples(texts, prefixes=prefixes, labels=labels)


def transfers(count: int) -> Samples:
    """Return human transfers of sentences, with the sentences as sources."""
    rows: list[tuple[str, str, str]] = []
    for style, target in enumerate(("positive", "negative")):
        with open(local_file(f"li2018/reference.{style}"), encoding="utf-8") as file:
            pairs = (line.rstrip("\n").split("\t") for line in islice(file, count // 2))
            rows += [(reference, source, target) for source, reference in pairs]
    texts, sources, labels = (list(column) for column in zip(*rows, strict=True))
    return Samples(texts, sources=sources, labels=labels)


def cases(classifier: Path) -> Iterator[tuple[str, Build, Callable[[int], Samples]]]:
    """Yield the model's name, a function that builds the scorer, and one that reads its texts."""
    lm, encoder = "smollm2-135m", "minilm-l6"

    def options(dtype: Dtype, budget: int | None) -> ModelOptions:
        return {"dtype": dtype, "batch_tokens": budget}

    yield lm, lambda d, b: CTRLEval(lm, evaluators=EVALUATORS, **options(d, b)), rated_texts
    yield lm, lambda d, b: Perplexity(lm, **options(d, b)), rated_texts
    yield lm, lambda d, b: InfillingPerplexity(lm, **options(d, b)), rated_texts
    yield encoder, lambda d, b: Similarity(encoder, **options(d, b)), transfers
    yield encoder, lambda d, b: Alignment(encoder, **options(d, b)), transfers
    if (classifier / "config.json").is_file():
        yield "TextCNN", lambda d, b: Accuracy(str(classifier), **options(d, b)), transfers
    yield "glove-6b-50d", lambda d, b: Similarity("glove-6b-50d"), transfers  # of one dtype
    yield "no model", lambda d, b: LexiconSentiment(), transfers


def differences(
    build: Build, dtype: Dtype, samples: Samples
) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Yield the differences of each score of a scorer, and the scores of the texts alone."""
    scorer = build(dtype, None)
    rows = [scorer.score(samples[[i]]) for i in range(len(samples))]
    together = scorer.score(samples)
    order = np.random.default_rng(0).permutation(len(samples))
    shuffled = build(dtype, SMALL_BUDGET).score(samples[order.tolist()])
    for name in scorer.specs:
        alone = np.concatenate([row[name] for row in rows])
        record: dict[str, Any] = {
            "scorer": type(scorer).__name__,
            "score": name,
            "dtype": dtype,
            "lowest": float(alone.min()),
            "highest": float(alone.max()),
        }
        for company, found, expected in (
            ("together", together[name], alone),
            ("shuffled", shuffled[name], alone[order]),
        ):
            change = abs(found - expected)
            relative = np.divide(
                change, abs(expected), where=expected != 0, out=np.zeros(len(change))
            )
            record[company] = float(change.max())
            record[f"{company}_relative"] = float(relative.max())
        yield record, alone


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--classifier", type=Path, default=Path("runs/text_cnn_yelp/model"))


def main() -> None:
    options = parse_options(__doc__, 48, add_options)
    if options.curve:
        return
    print(f"# {machine()}, {torch.backends.cpu.get_cpu_capability()}, {options.texts} texts")
    print(
        f"{'model':14}{'scorer':21}{'score':26}{'dtype':10}{'range of scores':>20}"
        f"{'together':>10}{'relative':>10}{'shuffled':>10}{'relative':>10}{'of dtype':>10}"
    )
    first: dict[tuple[str, str, str], np.ndarray] = {}
    for dtype in options.dtypes:
        for model, build, texts in cases(options.classifier):
            for record, alone in differences(build, dtype, texts(options.texts)):
                expected = first.setdefault((model, record["scorer"], record["score"]), alone)
                record["of_dtype"] = float(abs(alone - expected).max())
                values = f"{record['lowest']:.4g} to {record['highest']:.4g}"
                columns = [*record][-5:]
                print(
                    f"{model:14}{record['scorer']:21}{record['score']:26}{dtype:10}{values:>20}"
                    + "".join(f"{record[column]:10.1e}" for column in columns)
                )
                print(json.dumps({"model": model, **record}), flush=True)


if __name__ == "__main__":
    main()
