"""Cost of 1,000 texts for each scorer on the CPU: seconds of one core, and operations.

    OMP_NUM_THREADS=1 python benchmarks/scorer_cost.py [--seconds 10] [--scorers Perplexity ...]

Texts are made of built-in passages, 52 words on average. SmolLM2-135M and MiniLM-L6 have their
weights; the other models have the size of published ones and random weights (random_models.py).
Seconds are the time that the process computes, so other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # of device_cases

from device_cases import CASES, samples_of
from random_models import Folders
from side_by_side import machine, quiet
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from ctrlreward import Distinct, Repetition, Samples
from ctrlreward.models.passages import passages
from ctrlreward.models.sources import resolve
from ctrlreward.scorers import LexiconSentiment

# Cases of device_cases.py, and their scorer and model in the table.
SHOWN = {
    "CTRLEval llama": "`CTRLEval`, three aspects | SmolLM2-135M",
    "Perplexity llama": "`Perplexity` | SmolLM2-135M",
    "Judge": "`Judge` | SmolLM2-135M",
    "BARTScore": "`BARTScore`, faithfulness and F-score | size of BART-base",
    "Alignment embedding": "`Alignment`, embedding, dialog | MiniLM-L6",
    "Alignment discriminative": "`Alignment`, discriminative, dialog | size of MiniLM-L6",
    "Alignment regression": "`Alignment`, regression, dialog | size of MiniLM-L6",
    "Accuracy bert": "`Accuracy` | size of MiniLM-L6",
    "AttributeClassifier": "`AttributeClassifier`, two attributes | MiniLM-L6 size, SmolLM2-135M",
    "Similarity": "`Similarity` | MiniLM-L6",
    "TransferQuality": "`TransferQuality` | size of MiniLM-L6, MiniLM-L6, SmolLM2-135M",
    "Distinct": "`Distinct` | tokenizer of SmolLM2",
    "Repetition": "`Repetition` | tokenizer of SmolLM2",
    "LexiconSentiment": "`LexiconSentiment` | none",
}
WITHOUT_A_MODEL: dict[str, Any] = {
    "Distinct": lambda f, o: Distinct(f["llama"]),
    "Repetition": lambda f, o: Repetition(f["llama"]),
    "LexiconSentiment": lambda f, o: LexiconSentiment(),
}


def made(count: int) -> Samples:
    """Return samples with all columns; a text begins as one passage and ends as another."""
    pairs = list(islice(permutations(passages(), 2), 5 * count))
    pairs = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]
    halves = {p: (". ".join((s := p.text.split(". "))[:2]), ". ".join(s[2:])) for p in passages()}
    columns = [[f"{halves[a][0]}. {halves[b][1]}" for a, b in pairs[i::5]] for i in range(5)]
    texts, sources, references, contexts, histories = (column[:count] for column in columns)
    return Samples(
        texts,
        prefixes=[pair[0].prefix for pair in pairs[0::5]][:count],
        labels=[("positive", "negative")[i % 2] for i in range(count)],
        sources=sources,
        references=references,
        contexts=contexts,
        histories=histories,
        groups=["a"] * count,
    )


def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


COUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention}


def cost(folders: Folders, case: str, build: Any, seconds: float) -> tuple[float, float, int]:
    """Return CPU seconds and TFLOP of 1,000 texts, and how many were scored."""
    scorer = build(folders, {"device": "cpu"})

    def scored(count: int) -> float:
        texts = samples_of(case, made(count))
        started = time.process_time()
        scorer.score(texts)
        return time.process_time() - started

    scored(2)  # loads the model
    each = scored(2) / 2
    count = max(2, min(300, int(seconds / max(each, 1e-6))))  # of 1,560 pairs, five a sample
    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        spent = scored(count)
    if count >= 8:  # the counter takes time as well
        spent = scored(count)
    scorer.release()
    return spent / count * 1000, counter.get_total_flops() / count / 1e9, count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each scorer")
    parser.add_argument("--scorers", nargs="+", help="only those with one of these words in them")
    options = parser.parse_args()
    quiet()
    print(f"{machine()}\n\n| scorer | model | core seconds | TFLOP |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        weights = Path(place, "weights")
        weights.mkdir()
        for name, model in (("llama", "smollm2-135m"), ("encoder", "minilm-l6")):
            (weights / name).symlink_to(resolve(model))
        folders = Folders(Path(place), weights)
        for case, build in ({**CASES, **WITHOUT_A_MODEL}).items():
            if case not in SHOWN:
                continue
            if options.scorers and not any(word in case for word in options.scorers):
                continue
            spent, operations, count = cost(folders, case, build, options.seconds)
            figures = " | ".join(f"{float(f'{x:.3g}'):,g}" for x in (spent, operations))
            print(f"| {SHOWN[case]} | {figures} |", flush=True)
            print(f"{case}: {count} texts", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
