"""CTRLEval against the published procedure: one pattern per row, batches of 8 in the given order.

    python benchmarks/ctrleval.py [--texts 8] [--runs 5]

Models are a randomly initialised PEGASUS (4 + 4 layers, width 256) with the real vocabulary, and
SmolLM2-135M on half of the texts. Needs PEGASUS's tokenizer, tokenizers/pegasus in the folder
CTRLREWARD_DATA.
"""

from __future__ import annotations

import tempfile
from itertools import cycle

import numpy as np
import published
import torch
from side_by_side import DATA, Work, compare, parse_options
from transformers import AutoTokenizer, PegasusConfig, PegasusForConditionalGeneration

from ctrlreward import Samples
from ctrlreward.models.tasks import TEXT_SLOT
from ctrlreward.ratings.rated_files import read_rated
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.scorers import CTRLEval
from ctrlreward.scorers.task import Task

SUITE, PEER = "ctrleval", "published procedure"
CASES = (
    *(("sentiment", "attribute_relevance"), ("topic", "attribute_relevance")),
    *(("sentiment", "coherence"), ("sentiment", "consistency")),
)


def save_pegasus(folder: str) -> None:
    """Save a randomly initialised PEGASUS with the real tokenizer."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(DATA / "tokenizers" / "pegasus")
    config = PegasusConfig(
        vocab_size=len(tokenizer), d_model=256, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_position_embeddings=512,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1,
    )  # fmt: skip
    PegasusForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def scoring(scorer: CTRLEval, samples: Samples) -> Work:
    """Return a callable that scores the aspect."""
    scorer.load()
    (aspect,) = scorer.aspects
    return lambda: scorer.score(samples)[aspect]


def with_pegasus(folder: str, rated: Samples, runs: int) -> None:
    for task, aspect in CASES:
        options = {"iwf": local_file("ctrleval/iwf_full.txt"), "dtype": "float32"}
        scorer = CTRLEval(folder, task, (aspect,), **options)
        labels = [label for label, _ in zip(cycle(scorer.labels), rated.texts, strict=False)]
        samples = rated if task == "sentiment" else rated.replace(labels=labels)

        def peer(s: CTRLEval = scorer, a: str = aspect, t: Samples = samples) -> np.ndarray:
            return published.by_infilling(s, a, t)

        name = f"pegasus {aspect}" + " of topic" * (task == "topic")
        compare(SUITE, name, scoring(scorer, samples), peer, runs, PEER)


def with_a_causal_model(samples: Samples, runs: int) -> None:
    task = Task.load("sentiment")
    after_text = Task([p for p in task.prompts if p.startswith(TEXT_SLOT)], task.verbalizers)
    scorer = CTRLEval("smollm2-135m", after_text, ("attribute_relevance",), dtype="float32")
    compare(
        *(SUITE, "causal relevance", scoring(scorer, samples)),
        *(lambda: published.by_continuing(scorer, samples), runs, PEER),
    )


def main() -> None:
    options = parse_options(__doc__, 8)
    rated = read_rated(local_file("ctrleval/data_senti.txt")).samples
    with tempfile.TemporaryDirectory() as folder:
        save_pegasus(folder)
        with_pegasus(folder, rated[: options.texts], options.runs)
    with_a_causal_model(rated[: (options.texts + 1) // 2], options.runs)


if __name__ == "__main__":
    main()
