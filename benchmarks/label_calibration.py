"""Pooled ranking of attribute relevance over all labels, before and after calibration.

    python benchmarks/label_calibration.py [--texts 40]
        [--labels world sports business science] [--file generate_prior_extend.txt]

Prints the AUC of all pairs of a text and a label, right against wrong, for the released outputs
of PriorCTG whose topic is controlled.
"""

from __future__ import annotations

import argparse
import json
import random

import numpy as np

from ctrlreward import CTRLEval
from ctrlreward.functional import auc
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.scorers.task import Task

TOPICS = 4


def released_outputs(file: str, count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Return random outputs of each topic, with its index: world, sports, business, technology."""
    lines = local_file(f"multicontrol/{file}").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    draw = random.Random(seed)
    chosen = []
    for topic in range(TOPICS):
        texts = [text for (_, other, _), text in rows if other == topic and text.strip()]
        draw.shuffle(texts)
        chosen += [(text, topic) for text in texts[:count]]
    return chosen


def pooled_auc(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Return the AUC over all pairs of a text and a label."""
    right = np.eye(probabilities.shape[1], dtype=bool)[targets]
    return auc(probabilities.ravel(), right.ravel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", default="generate_prior_extend.txt")
    parser.add_argument("--texts", type=int, default=40, help="texts per topic")
    parser.add_argument(
        "--labels", nargs=TOPICS, default=["world", "sports", "business", "science"]
    )
    options = parser.parse_args()
    texts, targets = zip(*released_outputs(options.file, options.texts), strict=True)
    other, _ = zip(*released_outputs("generate_prior.txt", 8), strict=True)
    task = Task(Task.load("topic").prompts, {label: [label] for label in options.labels})
    print("calibration              pooled AUC   accuracy   mean by label")
    for name, calibration in (("none", False), ("neutral texts", True), ("32 outputs", other)):
        scorer = CTRLEval(task=task, aspects="attribute_relevance", calibration=calibration)
        values = scorer.probabilities(texts)
        area = pooled_auc(values, np.array(targets))
        accuracy = np.mean(values.argmax(axis=1) == targets)
        means = " ".join(f"{mean:.2f}" for mean in values.mean(axis=0))
        print(f"{name:24s} {area:.3f}        {accuracy:.3f}      {means}", flush=True)


if __name__ == "__main__":
    main()
