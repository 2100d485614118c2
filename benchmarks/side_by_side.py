"""Side-by-side benchmarks: timings of two alternating sides, and a table.

A side is a callable without arguments that returns an array of scores. Each row is printed twice:
as a line of the table and as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from ctrlreward.recipes.data_sets import data_folder

DATA = data_folder()

Work = Callable[[], np.ndarray]


def parse_options(description: str | None, texts: int) -> argparse.Namespace:
    """Parse the options of all suites, set the threads, silence warnings, and print the columns."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=texts, help="number of texts")
    parser.add_argument("--runs", type=int, default=5, help="alternating pairs of runs")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    quiet()
    print(f"# {machine()}")
    print(
        f"{'suite':11}{'case':34}{'ours s':>9}{'peer s':>9}{'ratio (min-max)':>20}"
        f"{'difference':>12}",
        flush=True,
    )
    return given


def quiet() -> None:
    """Silence warnings and progress bars."""
    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)


def machine() -> str:
    """Return processor, threads, torch version and date in one line."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    threads = f"{torch.get_num_threads()} threads"
    return f"{processor}, {threads}, torch {torch.__version__}, {date.today().isoformat()}"


def compare(suite: str, case: str, ours: Work, peer: Work, runs: int, peer_name: str) -> None:
    """Time two sides in alternating runs after a warm-up of each, and print the row.

    Seconds are medians; the ratio is the median of the peer's over ours, over pairs of runs, above
    1 where we are faster.
    """
    ours(), peer()
    pairs = []
    for _ in range(runs):
        ours_s, a = _timed(ours)
        peer_s, b = _timed(peer)
        pairs.append((ours_s, peer_s))
    ratios = [peer_s / ours_s for ours_s, peer_s in pairs]
    ours_s, peer_s = np.median(pairs, axis=0).tolist()
    row = {
        **{"suite": suite, "case": case, "peer": peer_name, "runs": runs},
        **{"ours_s": ours_s, "peer_s": peer_s, "ratio": float(np.median(ratios))},
        **{"ratio_min": min(ratios), "ratio_max": max(ratios)},
        "largest_difference": float(np.abs(a - b).max()),
    }
    spread = f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
    print(
        f"{suite:11}{case:34}{ours_s:9.3f}{peer_s:9.3f}{spread:>20}"
        f"{row['largest_difference']:12.1e}"
    )
    print(json.dumps(row), flush=True)


def _timed(work: Work) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
