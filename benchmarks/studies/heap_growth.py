"""Scores texts of changing lengths and prints how much resident memory grew, in MiB.

    python benchmarks/studies/heap_growth.py MODEL trimmed|untrimmed

MODEL is a folder of a PEGASUS, or any name of a model. Run both: the difference is what trims save.
"""

from __future__ import annotations

import random
import sys

import psutil

from ctrlreward import Samples
from ctrlreward.processor import heap
from ctrlreward.scorers import CTRLEval

WORDS = """soup garden waiter slow warm letter river street music quiet green table winter story
window bread coat market bridge kind late small bright ticket""".split()


def main(model: str, trimmed: str) -> None:
    if trimmed == "untrimmed":
        heap.trim_if_grown = lambda: None
    draw = random.Random(0)

    def sentence() -> str:
        return f"The {' '.join(draw.choices(WORDS, k=draw.randint(6, 24)))}."

    texts = [" ".join(sentence() for _ in range(draw.randint(2, 5))) for _ in range(256)]
    samples = Samples(texts, prefixes=["The"] * len(texts), labels=["positive"] * len(texts))
    ctrleval = CTRLEval(model)
    process = psutil.Process()
    ctrleval.score(samples[:4])
    first = process.memory_info().rss
    for start in range(0, len(texts), 16):
        ctrleval.score(samples[start : start + 16])
    print((process.memory_info().rss - first) / 2**20)


if __name__ == "__main__":
    main(*sys.argv[1:])
