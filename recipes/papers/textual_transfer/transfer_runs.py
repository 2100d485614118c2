"""Runs of textual transfer, read from the folders that they wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from ctrlreward.files import JsonLog, read_json
from ctrlreward.plots import curve
from ctrlreward.recipes.style_transfer.tradeoff import GMPath, TransferPoint, transfer_path

_MODEL = re.compile(r"m[0-7](?![0-9])", re.IGNORECASE)
_PAPERS_ACCURACY = 0.8

# Corpora of the paper.
YELP, LITERATURE = "Yelp", "Literature"


@dataclass(frozen=True)
class TransferRun(GMPath):
    """Validations and test report of one run.

    Attributes:
        folder: Folder of the run's `HistoryLogger`.
        name: Name of the folder, `m2_seed0`.
        model: Model of the paper, `M2`; "" if the name has none.
        points: n validations, in the order of their steps.
        gm: GM of each, NaN where it was not logged.
        test: Content of `test.json`; empty without one.
    """

    folder: Path
    name: str
    model: str
    points: Sequence[TransferPoint]
    gm: Sequence[float]
    test: Mapping[str, Any]

    @property
    def corpus(self) -> str:
        """The paper's corpus: Literature for a folder such as `literature/m2`, else Yelp."""
        names = self.folder.resolve().parts[-2:]
        return LITERATURE if any("literature" in name.lower() for name in names) else YELP


def read_transfer_run(folder: Path) -> TransferRun:
    """Read a run that has logged corpus scores and, if it has ended, written a `test.json`.

    Args:
        folder: Folder of the run's `HistoryLogger`.

    Raises:
        ValueError: No validation has accuracy, similarity and perplexity of the corpus.
    """
    history = JsonLog(folder / "metrics.jsonl").read()

    def values(name: str) -> dict[int, float]:
        return dict(zip(*curve(history, f"score/corpus/{name}"), strict=True))

    points = transfer_path(*map(values, ("accuracy", "similarity", "perplexity")))
    if not points:
        raise ValueError(
            f"{folder}/metrics.jsonl has no step with score/corpus/accuracy, similarity and "
            "perplexity, must be the folder of a run with a validation"
        )
    gm = values("gm")
    report = folder / "test.json"
    test = read_json(report) if report.is_file() else {}
    name = folder.resolve().name
    model = _MODEL.search(name)
    return TransferRun(
        folder,
        name,
        model.group().upper() if model else "",
        points,
        [gm.get(point.step, nan) for point in points],
        test,
    )


def common_accuracy(runs: Sequence[TransferRun]) -> float:
    """Return the accuracy that all runs come nearest to, 0 to 1.

    Sim and PP of two models can be compared at an equal accuracy only, as each is bought with it.
    The paper takes 0.8 or so, which a short run may never see. So this is the accuracy of a
    validation whose largest distance to the other runs is smallest, up to 0.01, and of several
    such accuracies the one nearest to 0.8.

    Args:
        runs: One run or more.
    """

    def rank(accuracy: float) -> tuple[float, float]:
        distance = max(abs(run.points[run.nearest(accuracy)].accuracy - accuracy) for run in runs)
        return max(distance, 0.01), abs(accuracy - _PAPERS_ACCURACY)

    return min((point.accuracy for run in runs for point in run.points), key=rank)
