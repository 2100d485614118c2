"""Side-by-side benchmarks: timings of two alternating sides, peak memory, table and cost curves.

A side is a callable without arguments that returns an array of scores, or None if there is nothing
to compare. Each row is printed twice: as a line of the table and as a line of JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import floor
import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from ctrlreward.recipes.data_sets import data_folder, local_file

DATA = data_folder()
CURVE_TEXTS = (8, 16, 32, 64, 128, 256, 512)
CURVE_WORDS = (20, 50, 100, 200, 400)

# Runs of at least this many seconds vary little: a cost curve times them once.
_LONG_S = 5.0

Work = Callable[[], np.ndarray | None]

_HEADER = (
    f"{'suite':11}{'case':34}{'ours s':>9}{'peer s':>9}{'ratio (min-max)':>20}"
    f"{'difference':>12}{'ours MiB':>10}{'peer MiB':>10}{'of peak':>10}"
)


@dataclass(frozen=True)
class Row:
    """Result of one comparison.

    Attributes:
        suite: Name of the suite.
        case: Name of the case.
        peer: Name of the other side.
        runs: Pairs of runs.
        ours_s: Median seconds of our runs.
        peer_s: Median seconds of the peer's runs.
        ratio: Median of the peer's seconds over ours, over pairs of runs; above 1 we are faster.
        ratio_min: The smallest of these ratios.
        ratio_max: The largest of these ratios.
        largest_difference: Largest absolute difference between scores; None if not comparable.
        ours_mib: Peak memory of our run in MiB above the resident memory before it; None except on
            Linux.
        peer_mib: The same for the peer.
        floor: Lower bound of our run time; None if we do no matrix products.
    """

    suite: str
    case: str
    peer: str
    runs: int
    ours_s: float
    peer_s: float
    ratio: float
    ratio_min: float
    ratio_max: float
    largest_difference: float | None
    ours_mib: float | None
    peer_mib: float | None
    floor: floor.Floor | None


def parse_options(
    description: str | None,
    texts: int,
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.Namespace:
    """Parse the options that all suites have, set the threads and silence warnings.

    Args:
        description: Description of the suite, of which `--help` shows the first line.
        texts: Default number of texts.
        add_options: Adds the suite's own options to the parser.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=texts, help="number of texts")
    parser.add_argument("--runs", type=int, default=5, help="alternating pairs of runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", action="store_true", help="print the cost curve instead")
    parser.add_argument("--curve-texts", type=int, nargs="+", default=CURVE_TEXTS)
    parser.add_argument("--curve-words", type=int, nargs="+", default=CURVE_WORDS)
    if add_options is not None:
        add_options(parser)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    return given


def machine() -> str:
    """Return processor, threads, torch version and date in one line."""
    return (
        f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"{date.today().isoformat()}"
    )


def print_header() -> None:
    """Print the machine, its peak rates and the columns of the table."""
    speed = floor.speed()
    print(f"# {machine()}")
    print(f"# peak: {speed.gflops:.1f} GFLOP/s (matrix product), {speed.gbytes:.1f} GB/s (copy)")
    print(_HEADER, flush=True)


def compare(
    suite: str,
    case: str,
    ours: Work,
    peer: Work,
    runs: int,
    peer_name: str = "plain",
    needed: Work | None = None,
    dtype: torch.dtype = torch.float32,
) -> Row:
    """Time two sides in alternating runs after a warm-up of each, and print the row.

    Args:
        suite: Name of the suite.
        case: Name of the case.
        ours: Our side.
        peer: The other side.
        runs: Pairs of runs, ours first in each pair.
        peer_name: Name of the other side.
        needed: Our side without padding, whose operations make the lower bound of the run time;
            None takes `ours`.
        dtype: Type of our side's weights.
    """
    ours(), peer()
    pairs = []
    for _ in range(runs):
        ours_s, a = _timed(ours)
        peer_s, b = _timed(peer)
        pairs.append((ours_s, peer_s))
    ratios = [peer_s / ours_s for ours_s, peer_s in pairs]
    median_s = float(np.median([ours_s for ours_s, _ in pairs]))
    row = Row(
        suite,
        case,
        peer_name,
        runs,
        median_s,
        float(np.median([peer_s for _, peer_s in pairs])),
        float(np.median(ratios)),
        min(ratios),
        max(ratios),
        None if a is None or b is None else float(np.abs(a - b).max()),
        peak_mib(ours),
        peak_mib(peer),
        floor.measure(ours, needed or ours, median_s, dtype),
    )
    print_row(row)
    return row


def print_row(row: Row) -> None:
    """Print a row of the table and its line of JSON."""
    spread = f"{row.ratio:.2f} ({row.ratio_min:.2f}-{row.ratio_max:.2f})"
    share = None if row.floor is None else row.floor.share
    print(
        f"{row.suite:11}{row.case:34}{row.ours_s:9.3f}{row.peer_s:9.3f}{spread:>20}"
        f"{_cell(row.largest_difference, '12.1e')}{_cell(row.ours_mib, '10.0f')}"
        f"{_cell(row.peer_mib, '10.0f')}{_cell(share, '10.0%')}"
    )
    print(json.dumps(asdict(row)), flush=True)


def cost_curve(
    suite: str,
    case: str,
    scoring: Callable[[list[str]], Work],
    texts: Sequence[int],
    words: Sequence[int],
    words_each: int = 60,
) -> None:
    """Print seconds and peak memory of our side over the number of texts and over their length.

    Prints a row per point, and per axis a line of JSON with the exponent: the slope of log seconds
    over log size, 1 for linear growth.

    Args:
        suite: Name of the suite.
        case: Name of the case.
        scoring: Makes the callable that scores the given texts.
        texts: Numbers of texts, each text of `words_each` words.
        words: Numbers of words per text, for eight texts.
        words_each: Words per text when the number of texts varies.
    """
    for axis, points in (
        ("texts", [(n, words_each) for n in texts]),
        ("words", [(8, n) for n in words]),
    ):
        sizes = [point[axis == "words"] for point in points]
        seconds, memory = [], []
        scoring(running_texts(*points[0]))()
        for count, length in points:
            work = scoring(running_texts(count, length))
            times: list[float] = []
            memory.append(peak_mib(lambda w=work, t=times: t.append(_timed(w)[0])))
            if times[0] < _LONG_S:
                times += [_timed(work)[0] for _ in range(2)]
            seconds.append(min(times))
            print(
                f"{suite:11}{case:34}{count:5} texts of {length:3} words{seconds[-1]:10.3f} s"
                f"{_cell(memory[-1], '8.0f')} MiB",
                flush=True,
            )
        curve = {"suite": suite, "case": case, axis: sizes, "seconds": seconds, "peak_mib": memory}
        if len(sizes) > 1:
            curve["exponent"] = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
            print(f"{suite:11}{case:34}seconds grow like {axis} ^ {curve['exponent']:.2f}")
        print(json.dumps(curve), flush=True)


def running_texts(count: int, words: int) -> list[str]:
    """Return consecutive, non-overlapping pieces of WikiText-2, each of the given word count."""
    lines = local_file("wikitext2/test.txt").read_text(encoding="utf-8").splitlines()
    running = " ".join(line for line in lines if not line.startswith(" ="))
    all_words = [word for word in running.split() if word != "<unk>"]
    if count * words > len(all_words):
        raise ValueError(
            f"{count} texts of {words} words: the data has {len(all_words)} words: use fewer"
        )
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _timed(work: Work) -> tuple[float, np.ndarray | None]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _cell(value: float | None, form: str) -> str:
    width = int(form.partition(".")[0])
    missing = value is None or math.isnan(value)
    return f"{'-':>{width}}" if missing else format(value, form)
