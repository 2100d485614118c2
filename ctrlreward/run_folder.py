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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ctrlreward.arguments import Mode
from ctrlreward.files import JsonLog
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_samples


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
    rows: dict[int, dict] = {}
    if (path / "metrics.jsonl").is_file():
        log = JsonLog(path / "metrics.jsonl").read()
    else:
        states = sorted(
            path.glob("checkpoint-*/trainer_state.json"), key=lambda p: p.stat().st_mtime
        )
        if not states:
            raise ValueError(f"{path} has no log")
        log = json.loads(states[-1].read_text())["log_history"]
        log = [{k.removeprefix("eval_"): v for k, v in row.items()} for row in log]
    for row in log:
        rows.setdefault(row["step"], {}).update(
            {
                k: math.nan if v is None else v
                for k, v in row.items()
                if k != "step" and not isinstance(v, str)
            }
        )
    samples: dict[int, dict[str, Path]] = {}
    for file in sorted(path.glob("samples/*/step=*.jsonl")):
        samples.setdefault(int(file.stem[5:]), {})[file.parent.name] = file
    steps = []
    for step in sorted({*rows, *samples}):
        evidence = {}
        for name, file in samples.get(step, {}).items():
            texts, scores = read_scored_samples(file)
            evidence |= {f"{name}/{k}": v for k, v in scores.items()}
        steps.append(StoredStep(step, rows.get(step, {}), evidence, samples.get(step, {})))
    return StoredRun(path, "?", steps)
