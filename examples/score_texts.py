# /// script
# requires-python = ">=3.11"
# dependencies = ["ctrlreward[gguf]"]
#
# [tool.uv.sources]
# ctrlreward = { path = "..", editable = true }
# ///
"""Compare the texts of two systems: mean scores, the difference with its interval, the worst texts.

uv run examples/score_texts.py
uv run examples/score_texts.py texts.csv   # columns: system, text, prefix, label
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from ctrlreward import CTRLEval, Perplexity
from ctrlreward.functional.sequential import paired_difference

PREFIXES = [
    "The food",
    "The room",
    "The guide",
    "The concert",
    "The train",
    "The garden",
    "The soup",
]
LABELS = ["negative", "positive", "negative", "positive", "negative", "positive", "negative"]
FIRST = [
    "was cold and bland.",
    "was clean, bright and quiet.",
    "forgot half of the tour.",
    "made our evening.",
    "was late, and nobody told us why.",
    "is lovely, with roses everywhere.",
    "tasted of nothing but salt.",
]
SECOND = [
    "food food was.",
    "is a room in a house.",
    "guided us, and guided.",
    "was loud.",
    "train on the train was a train.",
    "has a fence and a gate.",
    "was in a bowl.",
]
ROWS = [
    (system, f"{prefix} {end}", prefix, label)
    for system, ends in (("first", FIRST), ("second", SECOND))
    for prefix, end, label in zip(PREFIXES, ends, LABELS, strict=True)
]


def read(path: str) -> list[tuple[str, ...]]:
    """Return (system, text, prefix, label) of each row of a CSV file."""
    with Path(path).open(encoding="utf-8", newline="") as lines:
        return [
            (row["system"], row["text"], row["prefix"], row["label"])
            for row in csv.DictReader(lines)
        ]


def main(path: str | None = None) -> None:
    """Print a table of means, the paired differences and the worst texts."""
    rows = read(path) if path else ROWS
    systems, texts, prefixes, labels = (list(column) for column in zip(*rows, strict=True))
    scores: dict[str, list[float]] = {}
    for scorer in (CTRLEval("smollm2-135m", task="sentiment"), Perplexity("smollm2-135m")):
        scores |= scorer.score(texts, prefixes=prefixes, labels=labels)
    names = sorted(set(systems))
    by_system = {
        (name, system): [s for s, of in zip(values, systems, strict=True) if of == system]
        for name, values in scores.items()
        for system in names
    }
    print(f"{'':22}" + "".join(f"{system:>10}" for system in names) + "   difference, 95 %")
    for name in scores:
        means = [sum(by_system[name, system]) / len(by_system[name, system]) for system in names]
        line = f"{name:22}" + "".join(f"{mean:10.3f}" for mean in means)
        first, last = (by_system[name, system] for system in (names[0], names[-1]))
        if len(first) == len(last):  # the same prompts in the same order
            change = paired_difference(last, minus=first)
            line += f"   {change.value:+.3f} ({change.low:.3f} to {change.high:.3f})"
        print(line)
    print("\nleast relevant:")
    for value, text in sorted(zip(scores["attribute_relevance"], texts, strict=True))[:3]:
        print(f"{value:8.3f}  {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
