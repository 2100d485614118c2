"""What each shortcut of the CPU gains in a training step of the demo: with it against without it.

    python benchmarks/studies/shortcuts.py [--pairs 7] [--only oneDNN]

Both sides compute the same step in one process, in alternating order. Prints the seconds without
over the seconds with, the median of the pairs and their range: above 1, the shortcut gains. A
shortcut that gains less than 1.10 on no supported processor is not worth its lines.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from step_phases import machine, phases

from ctrlreward.processor import onednn

# Shortcut → context without it, and the phases that it takes part in.
SHORTCUTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    # Only where MKL lacks AVX-512 kernels; models keep their layers, which then multiply plainly.
    "oneDNN": (
        partial(patch.object, onednn, "_mkl_lacks_avx512", lambda: False),
        ("reward", "reference"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="shortcuts whose name contains this")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    print(f"# {machine()}, {options.dtype}")
    works = phases(options.dtype)
    for work in works.values():
        work()  # memory of the first run

    def seconds(names: tuple[str, ...]) -> float:
        started = time.perf_counter()
        for name in names:
            works[name]()
        return time.perf_counter() - started

    step = sum(seconds((name,)) for name in works)
    for shortcut, (without, names) in SHORTCUTS.items():
        if options.only not in shortcut:
            continue
        saved, ratios = [], []
        for pair in range(options.pairs):
            sides = {}
            for side in ("with", "without") if pair % 2 else ("without", "with"):
                with without() if side == "without" else nullcontext():
                    sides[side] = seconds(names)
            saved.append(sides["without"] - sides["with"])
            ratios.append((step + saved[-1]) / step)
        print(
            f"{shortcut:20}{np.median(ratios):6.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of a "
            f"step, {np.median(saved):+.2f} s"
        )
        print(json.dumps({"shortcut": shortcut, "step_s": step, "saved_s": saved}))


if __name__ == "__main__":
    main()
