"""Speed of one checkout against another: the same public calls in alternating runs.

    python benchmarks/checkouts.py OLD_PYTHON [--pairs 9] [--cases perplexity ctc]

OLD_PYTHON is the interpreter of an environment with the other checkout installed. Each side is a
process of its own that loads its models once and then waits, so that only one side computes at a
time. A ratio above 1 means that this checkout is slower. The interval is that of the median, from
order statistics, and has a level of at least 95 % from six pairs on. Both read the folder
CTRLREWARD_DATA, which must have what the cases need.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(os.environ.get("CTRLREWARD_DATA", ""))
CASES = (
    *("pegasus relevance", "pegasus topic", "pegasus coherence", "pegasus consistency"),
    *("smollm2 relevance", "ctc", "perplexity", "distinct"),
)


def build_cases(pegasus: str, names: list[str]) -> dict[str, Callable[[], np.ndarray]]:
    """Return a callable per case that scores its texts; models load at the first call."""
    from transformers import GPT2TokenizerFast

    from ctrlreward import Samples
    from ctrlreward.scorers import Alignment, CTRLEval, Distinct, Perplexity

    with open(DATA / "ctrleval" / "data_senti.txt", encoding="utf-8") as file:
        rated = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[:32]
    with open(DATA / "ctc" / "persona_chat.json", encoding="utf-8") as file:
        dialogs = json.load(file)[:200]
    with open(DATA / "multicontrol" / "generate_prior.txt", encoding="utf-8") as file:
        outputs = [json.loads(line)[1] for line in file]

    def samples(count: int, labels: list[str] | None = None) -> Samples:
        rows = rated[:count]
        return Samples(
            texts=[row[2] for row in rows],
            prefixes=[row[1] for row in rows],
            labels=[row[0] for row in rows]
            if labels is None
            else [labels[i % len(labels)] for i in range(count)],
        )

    def ctrleval(model: str, aspect: str, count: int, task: str = "sentiment") -> Any:
        iwf = DATA / "ctrleval" / "iwf_full.txt" if model == pegasus else None
        scorer = CTRLEval(model, task, [aspect], iwf=iwf, dtype="float32")
        own = samples(count, list(scorer.labels) if task == "topic" else None)
        return lambda: scorer.score(own)[aspect]

    def ctc() -> Any:
        scorer = Alignment(aspects=["preservation"], dtype="float32")
        pairs = Samples(
            texts=[str(d["response"]) for d in dialogs if str(d["response"]).strip()],
            sources=[str(d["dialog_history"]) for d in dialogs if str(d["response"]).strip()],
        )
        return lambda: scorer.score(pairs)["preservation"]

    def distinct() -> Any:
        folder = DATA / "tokenizers" / "gpt2"
        tokenizer = GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
        scorer = Distinct(tokenizer)
        own = Samples(texts=outputs, prefixes=[text[:3] for text in outputs])
        return lambda: scorer.score(own)["distinct_2"]

    def perplexity() -> Any:
        scorer = Perplexity(dtype="float32")
        return lambda: scorer.score(samples(32))["log_likelihood"]

    builders: dict[str, Callable[[], Callable[[], np.ndarray]]] = {
        "pegasus relevance": lambda: ctrleval(pegasus, "attribute_relevance", 8),
        "pegasus topic": lambda: ctrleval(pegasus, "attribute_relevance", 8, "topic"),
        "pegasus coherence": lambda: ctrleval(pegasus, "coherence", 8),
        "pegasus consistency": lambda: ctrleval(pegasus, "consistency", 8),
        "smollm2 relevance": lambda: ctrleval("smollm2-135m", "attribute_relevance", 4),
        "ctc": ctc,
        "perplexity": perplexity,
        "distinct": distinct,
    }
    return {name: builders[name]() for name in names}


def serve(pegasus: str, names: list[str]) -> None:
    """Run the cases named on standard input; answer with seconds and scores as JSON."""
    cases = build_cases(pegasus, names)
    print("ready", flush=True)
    for line in sys.stdin:
        case = cases[line.strip()]
        start = time.perf_counter()
        scores = case()
        seconds = time.perf_counter() - start
        print(json.dumps({"s": seconds, "scores": np.asarray(scores).tolist()}), flush=True)


class Side:
    """Process of one checkout that waits for cases to run."""

    def __init__(self, python: str, pegasus: str, names: list[str]) -> None:
        command = [python, __file__, "--serve", pegasus, "--cases", *names]
        environment = {
            **os.environ,
            "OMP_WAIT_POLICY": "passive",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
        raise SystemExit(f"{python} could not build the cases: see the error above")

    def run(self, case: str) -> tuple[float, np.ndarray]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(case, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        return answer["s"], np.array(answer["scores"], dtype=np.float64)


def median_interval(ratios: list[float]) -> tuple[float, float]:
    """Return the narrowest interval of order statistics with at least 95 % for the median."""
    n, ordered = len(ratios), sorted(ratios)
    rank, tail = 0, 0.5**n
    while rank + 1 < n / 2 and 2 * (tail + math.comb(n, rank + 1) * 0.5**n) <= 0.05:
        rank += 1
        tail += math.comb(n, rank) * 0.5**n
    return ordered[rank], ordered[n - 1 - rank]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old_python", nargs="?", help="interpreter of the other checkout")
    parser.add_argument("--pairs", type=int, default=9, help="alternating pairs of runs")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.cases)
        return
    if options.old_python is None:
        parser.error("give the interpreter of the other checkout")
    from ctrleval import save_pegasus  # not in `serve`, where the other checkout may lack it

    with tempfile.TemporaryDirectory() as folder:
        save_pegasus(folder)
        sides = [
            Side(python, folder, options.cases) for python in (options.old_python, sys.executable)
        ]
        print(
            f"{'case':22}{'old s':>9}{'new s':>9}{'new / old, median (95 %)':>28}{'difference':>12}"
        )
        for case in options.cases:
            difference = np.abs(sides[0].run(case)[1] - sides[1].run(case)[1]).max()  # warm-up too
            seconds: list[tuple[float, float]] = []
            for pair in range(options.pairs):
                order = sides if pair % 2 == 0 else sides[::-1]
                timed = {side: side.run(case)[0] for side in order}
                seconds.append((timed[sides[0]], timed[sides[1]]))
            ratios = [new / old for old, new in seconds]
            low, high = median_interval(ratios)
            old, new = np.median(seconds, axis=0)
            cell = f"{np.median(ratios):.3f} ({low:.3f} to {high:.3f})"
            print(f"{case:22}{old:9.3f}{new:9.3f}{cell:>28}{difference:12.1e}", flush=True)
        for side in sides:
            side.process.kill()


if __name__ == "__main__":
    main()
