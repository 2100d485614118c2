"""What a finished or running job left on disk, as the sequence of its steps.

    >>> run = read_stored_run(Path("runs/demo"))  # doctest: +SKIP
    >>> [(each.step, each.metrics["score/sim"], each.checkpoint) for each in run.steps]
    ...  # doctest: +SKIP

Numbers come from the log of any trainer (`ctrlreward.tables.run_logs`), texts and scores by prompt
from the files of a `GenerationScorer`, checkpoints from the names of files and folders.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ctrlreward.arguments import Mode
from ctrlreward.functional.means import valid_row_means
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_samples
from ctrlreward.tables.run_logs import read_log


@dataclass(frozen=True)
class StoredStep:
    """What a run left of a step at which it logged something.

    Attributes:
        step: Training step.
        metrics: Key → value that was logged at this step, NaN if it was NaN or infinite. Values of
            earlier steps are not repeated.
        evidence: Key → value of each held-out prompt, shape (prompts,), as
            `GenerationScorer.evidence` had it; empty without files of samples.
        samples: Name of a `GenerationScorer` → JSONL file with its texts and scores
            (`ctrlreward.scorers.records.read_scored_samples`).
        checkpoint: File or folder of the checkpoint, None if there is none.
    """

    step: int
    metrics: Mapping[str, float]
    evidence: Mapping[str, Scores] = field(default_factory=dict)
    samples: Mapping[str, Path] = field(default_factory=dict)
    checkpoint: Path | None = None


@dataclass(frozen=True)
class StoredRun:
    """A run, as its files tell it.

    Attributes:
        path: What was read: a folder, or the file of a log.
        source: Kind of the log, such as `"HistoryLogger"`.
        steps: Steps at which something was logged, in order.
        modes: Key → better direction, where the log declares it.
    """

    path: Path
    source: str
    steps: Sequence[StoredStep]
    modes: Mapping[str, Mode] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """All logged keys, in the order in which they appear."""
        return list(dict.fromkeys(key for each in self.steps for key in each.metrics))


def read_stored_run(path: Path, checkpoints: Path | None = None) -> StoredRun:
    """Read the log, the samples and the checkpoints of a run.

    Args:
        path: Folder of the run, or the file of its log. Samples and checkpoints are searched in the
            folder, or in the folder of the file.
        checkpoints: Folder of the checkpoints, where the trainer writes them elsewhere.

    Raises:
        FileNotFoundError: There is no such file or folder.
        ValueError: No known log, a damaged one, or one without a number.
    """
    raise NotImplementedError
