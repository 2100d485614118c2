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
from typing import Any

from ctrlreward.arguments import Mode
from ctrlreward.files import JsonLog
from ctrlreward.functional.means import valid_row_means
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import completions_per_prompt, read_scored_samples


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
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {path}")
    rows: dict[int, dict[str, float]] = {}
    for row in _log(path):
        numbers = {
            k: math.nan if v is None else v for k, v in row.items() if not isinstance(v, str)
        }
        rows.setdefault(row["step"], {}).update({k: v for k, v in numbers.items() if k != "step"})
    files = {
        (int(file.stem.removeprefix("step=")), file.parent.name): file
        for file in sorted(path.glob("samples/*/step=*.jsonl"))
    }
    steps = []
    for step in sorted({*rows, *(step for step, _ in files)}):
        samples = {name: file for (at, name), file in files.items() if at == step}
        evidence: dict[str, Scores] = {}
        for name, file in samples.items():
            texts, scores = read_scored_samples(file)
            repeats = completions_per_prompt(texts)
            rows_of = {key: values.reshape(-1, repeats) for key, values in scores.items()}
            evidence |= {f"{name}/{key}": valid_row_means(row) for key, row in rows_of.items()}
        logged = rows.get(step, {})
        evidence = {key: row for key, row in evidence.items() if key in logged}
        steps.append(StoredStep(step, logged, evidence, samples))
    return StoredRun(path, "HistoryLogger", steps)


def _log(path: Path) -> list[dict[str, Any]]:
    if (path / "metrics.jsonl").is_file():
        return JsonLog(path / "metrics.jsonl").read()
    states = list(path.glob("checkpoint-*/trainer_state.json"))
    if not states:
        raise ValueError(f"{path} has no log: neither metrics.jsonl nor a trainer_state.json")
    newest = max(states, key=lambda file: int(file.parent.name.removeprefix("checkpoint-")))
    rows = json.loads(newest.read_text(encoding="utf-8"))["log_history"]
    own = {key for row in rows for key in row if not key.startswith("eval_")}
    plain = {k: k.removeprefix("eval_") for row in rows for k in row}
    return [{k if plain[k] in own else plain[k]: v for k, v in row.items()} for row in rows]
