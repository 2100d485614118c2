"""Side-by-side benchmarks: timings of two alternating sides, their peak memory, and a table.

A side is a callable without arguments that returns an array of scores, or None if there is nothing
to compare. Each row is printed twice: as a line of the table and as a line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import platform
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from ctrlreward.recipes.data_sets import data_folder, local_file

DATA = data_folder()

Work = Callable[[], np.ndarray | None]


def parse_options(description: str | None, texts: int) -> argparse.Namespace:
    """Parse the options of all suites, set the threads, silence warnings, and print the columns.

    Args:
        description: Description of the suite, of which `--help` shows the first line.
        texts: Default number of texts.
    """
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
        f"{'difference':>12}{'ours MiB':>10}{'peer MiB':>10}",
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
    1 where we are faster; MiB are the peak memory of a run above the resident memory before it.

    Args:
        suite: Name of the suite.
        case: Name of the case.
        ours: Our side.
        peer: The other side.
        runs: Pairs of runs, ours first in each pair.
        peer_name: Name of the other side.
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
        "largest_difference": None if a is None or b is None else float(np.abs(a - b).max()),
        **{"ours_mib": peak_mib(ours), "peer_mib": peak_mib(peer)},
    }
    spread = f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
    cells = [
        f"{'-':>{width}}" if row[name] is None else f"{row[name]:{width}{form}}"
        for name, width, form in (
            ("largest_difference", 12, ".1e"),
            ("ours_mib", 10, ".0f"),
            ("peer_mib", 10, ".0f"),
        )
    ]
    print(f"{suite:11}{case:34}{ours_s:9.3f}{peer_s:9.3f}{spread:>20}{''.join(cells)}")
    print(json.dumps(row), flush=True)


def running_texts(count: int, words: int) -> list[str]:
    """Return consecutive, non-overlapping pieces of WikiText-2, each of the given word count."""
    lines = local_file("wikitext2/test.txt").read_text(encoding="utf-8").splitlines()
    running = " ".join(line for line in lines if not line.startswith(" ="))
    all_words = [word for word in running.split() if word != "<unk>"]
    return [" ".join(all_words[i * words : (i + 1) * words]) for i in range(count)]


def peak_mib(work: Work) -> float | None:
    """Return the peak memory of a run above the resident memory before it; None without /proc."""
    gc.collect()
    if sys.platform == "linux":  # else memory that earlier runs freed would be reused, not counted
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        work()
        return None
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _timed(work: Work) -> tuple[float, np.ndarray | None]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
