"""Constants of corpus_cost.py on this machine: the driver's times, and a model's texts per second.

python benchmarks/studies/corpus_rates.py
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of floor

import floor
import numpy as np
import torch
from corpus_cost import texts_per_second

from ctrlreward import Samples
from ctrlreward.corpus.corpus_scoring import (
    Corpus,
    check_corpus,
    score_corpus,
    scored_shards,
    write_output,
)
from ctrlreward.corpus.shard_store import ShardStore
from ctrlreward.scorers import LexiconSentiment, Perplexity
from ctrlreward.scorers.base import score
from ctrlreward.tables.locations import Location
from ctrlreward.tables.row_streams import RowStream
from ctrlreward.tables.table_columns import Columns
from ctrlreward.tables.table_writing import TableShape


def score_at_once(components: Any, shards: Any) -> Iterator[tuple[int, Any]]:
    """Score as workers that take no time."""
    for shard in shards:
        pickle.dumps(shard)
        yield shard.number, dict.fromkeys(components, np.zeros(len(shard.samples)))


def measure_driver(count: int = 20_000) -> None:
    """Print the driver's seconds per text and per shard on this machine."""
    scorer = LexiconSentiment()
    components = {name: scorer[name] for name in scorer.specs}
    text = "The staff was friendly and the soup was warm. " * 6  # some 60 tokens
    seconds: dict[int, list[float]] = {}
    for chunk in (100, 5_000) * 2:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            with open(folder / "in.jsonl", "w") as file:
                for i in range(count):
                    row = {"id": i, "text": f"{i} {text}", "label": "positive"}
                    file.write(json.dumps(row) + "\n")
            corpus = Corpus(
                RowStream(Location(folder / "in.jsonl")),
                Columns(),
                ["id", "text", "label"],
            )
            shape = TableShape(".jsonl")
            store = ShardStore(Location(folder / "partial"), list(components))
            times = [time.perf_counter()]
            manifest = check_corpus(corpus, components, {}, chunk, [shape])
            times.append(time.perf_counter())
            with contextlib.redirect_stderr(io.StringIO()):
                score_corpus(corpus, components, manifest, store, score_at_once)
            times.append(time.perf_counter())
            scored = scored_shards(corpus, manifest, store)
            write_output(list(components), scored, [Location(folder / "out.jsonl")], [shape])
            times.append(time.perf_counter())
            seconds[chunk] = np.diff(times).tolist()  # the second time, all is imported
    (few, small), (many, large) = ((count / chunk, chunk) for chunk in seconds)
    handling = (seconds[small][1] - seconds[large][1]) / (few - many)
    print(f"per shard {handling:.1e} s")
    print(f"per text while scoring {(seconds[large][1] - many * handling) / count:.1e} s")
    print(f"per text before and after {(seconds[large][0] + seconds[large][2]) / count:.1e} s")


def measure_model(texts: int = 32) -> None:
    """Print derived and measured texts per second of SmolLM2-135M on this CPU, in one thread."""
    torch.set_num_threads(1)
    scorer = Perplexity("smollm2-135m", dtype="float32")
    components = {name: scorer[name] for name in scorer.specs}
    sentence = "the staff was friendly, the soup was warm."
    samples = Samples([" ".join([f"Table {i}:", *[sentence] * 5]) for i in range(texts)])
    score(components, samples)
    with floor.count_cost() as cost:
        score(components, samples)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        score(components, samples)
        times.append(time.perf_counter() - started)
    tokens = cost.embedded / texts
    parameters = sum(p.numel() for p in scorer.loaded_model.model.parameters())
    peak = floor.speed().gflops * 1e9
    counted = cost.flops / (2 * parameters * tokens * texts)
    derived, measured = texts_per_second(parameters, tokens, peak), texts / min(times)
    print(f"{parameters / 1e6:.1f}M parameters, {tokens:.0f} tokens, {peak / 1e9:.0f} GFLOP/s")
    print(f"operations counted over 2 · parameters · tokens: {counted:.3f}")
    print(
        f"texts/s: {derived:.1f} derived, {measured:.1f} measured, share {measured / derived:.2f}"
    )


if __name__ == "__main__":
    measure_driver()
    measure_model()
