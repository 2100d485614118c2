"""What the suites share: two sides timed in turn, their memory, the table, the cost curve.

A side is a callable without arguments that returns an array of scores, or None where there is
nothing to compare. Each row is printed twice: for the eye, and as one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import platform
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

from ctrlreward.processor.heap import trim

DATA = Path(os.environ.get("CTRLREWARD_DATA", "../shared/data"))
CURVE_TEXTS = (8, 16, 32, 64, 128, 256, 512)
CURVE_WORDS = (20, 50, 100, 200, 400)

# Seconds of a run that chance can't change much: one is enough for a cost curve.
_LONG = 5.0

Work = Callable[[], np.ndarray | None]

_HEADER = (
    f"{'suite':11}{'case':34}{'ours s':>9}{'peer s':>9}{'ratio (min-max)':>20}"
    f"{'difference':>12}{'ours MiB':>10}{'peer MiB':>10}{'of floor':>10}"
)


@dataclass(frozen=True)
class Row:
    """What one comparison found.

    Attributes:
        ours_s: Median seconds of a run; `peer_s` likewise.
        ratio: Median over pairs of runs of the peer's seconds over ours; above 1 we are faster.
        largest_difference: Of any score, absolute; None where the two are not comparable.
        ours_mib: Peak memory of a run above what was resident before; None where the system
            doesn't tell (anywhere but Linux).
        floor: The work's cost in operations and bytes, and how near to it our time is.
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


def options(
    description: str | None,
    texts: int,
    more: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.Namespace:
    """The command line that all suites have; sets the threads and silences what is not asked for.

    Args:
        description: Of the suite; its first line is shown.
        texts: How many are scored unless told.
        more: Adds what only this suite has; None adds nothing.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=texts)
    parser.add_argument("--runs", type=int, default=5, help="alternating pairs of runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--curve", action="store_true", help="print the cost curve instead")
    parser.add_argument("--curve-texts", type=int, nargs="+", default=CURVE_TEXTS)
    parser.add_argument("--curve-words", type=int, nargs="+", default=CURVE_WORDS)
    if more is not None:
        more(parser)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    if not DATA.is_dir():
        parser.error(f"{DATA} is no folder: set CTRLREWARD_DATA to the data folder")
    return given


def machine() -> str:
    """Processor, threads, torch and day, in one line."""
    return (
        f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"{date.today().isoformat()}"
    )


def header() -> None:
    """Prints what the table stands on: the machine, what it reaches, the columns."""
    speed = floor.speed()
    print(f"# {machine()}")
    print(f"# plain: {speed.gflops:.1f} GFLOP/s (matrix product), {speed.gbytes:.1f} GB/s (copy)")
    print(_HEADER, flush=True)


def compare(
    suite: str,
    case: str,
    ours: Work,
    peer: Work,
    runs: int,
    peer_name: str = "plain",
    needed: Work | None = None,
) -> Row:
    """Times two sides in turn, after a warm-up of each, and prints the row.

    Args:
        suite: Its name.
        case: What is scored.
        ours: Our side.
        peer: The other.
        runs: Pairs of runs, ours first in each.
        peer_name: Who the other side is.
        needed: Our work without padding, where that can be had: its operations are the floor's.
            None has those of `ours`.
    """
    ours(), peer()
    pairs = []
    for _ in range(runs):
        ours_s, a = _timed(ours)
        peer_s, b = _timed(peer)
        pairs.append((ours_s, peer_s))
    ratios = [theirs / own for own, theirs in pairs]
    own = float(np.median([p[0] for p in pairs]))
    row = Row(
        suite,
        case,
        peer_name,
        runs,
        own,
        float(np.median([p[1] for p in pairs])),
        float(np.median(ratios)),
        min(ratios),
        max(ratios),
        None if a is None or b is None else float(np.abs(a - b).max()),
        peak_mib(ours),
        peak_mib(peer),
        floor.of(ours, needed or ours, own),
    )
    show(row)
    return row


def show(row: Row) -> None:
    """Prints a row of the table and its line of JSON."""
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
    make: Callable[[list[str]], Work],
    texts: Sequence[int],
    words: Sequence[int],
    words_each: int = 60,
) -> None:
    """Seconds and peak memory of ours over the number of texts and over their length.

    Prints one line of JSON and a row a point, and of the first the exponent: the slope of
    log seconds over log texts, 1 where twice as many texts take twice as long.

    Args:
        suite: Its name.
        case: What is scored.
        make: From texts to the work of scoring them.
        texts: How many, each of `words_each` words.
        words: How long eight texts are.
        words_each: Words of a text where their number grows.
    """
    for axis, points in (
        ("texts", [(n, words_each) for n in texts]),
        ("words", [(8, n) for n in words]),
    ):
        sizes = [point[axis == "words"] for point in points]
        seconds, memory = [], []
        make(running_texts(*points[0]))()
        for count, length in points:
            work = make(running_texts(count, length))
            took: list[float] = []
            memory.append(peak_mib(lambda w=work, t=took: t.append(_timed(w)[0])))
            if took[0] < _LONG:
                took += [_timed(work)[0] for _ in range(2)]
            seconds.append(min(took))
            print(
                f"{suite:11}{case:34}{count:5} texts of {length:3} words{seconds[-1]:10.3f} s"
                f"{_cell(memory[-1], '8.0f')} MiB",
                flush=True,
            )
        curve = {"suite": suite, "case": case, axis: sizes, "seconds": seconds, "peak_mib": memory}
        if len(sizes) > 1:
            curve["exponent"] = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
            print(f"{suite:11}{case:34}seconds grow as {axis} ^ {curve['exponent']:.2f}")
        print(json.dumps(curve), flush=True)


def running_texts(count: int, words: int) -> list[str]:
    """Texts of so many words each, cut from running text one after the other, all different."""
    lines = (DATA / "wikitext2" / "test.txt").read_text(encoding="utf-8").splitlines()
    running = " ".join(line for line in lines if not line.startswith(" ="))
    all_words = [word for word in running.split() if word != "<unk>"]
    if count * words > len(all_words):
        raise ValueError(
            f"{count} texts of {words} words: the data has {len(all_words)} words, ask for fewer"
        )
    return [" ".join(all_words[i * words : (i + 1) * words]) for i in range(count)]


def peak_mib(work: Work) -> float | None:
    """Peak memory of a run above what was resident before it; None where Linux's /proc isn't."""
    gc.collect()
    trim()  # else what earlier runs have freed would be used again, and not be seen
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
