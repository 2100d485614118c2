"""Decisions in trainers without callbacks, such as verl (0.9) and OpenRLHF (0.11).

A class that derives from their trainer calls the object where it validates, with the step and the
metrics: in `RayPPOTrainer._validate` unless `merged`, and in `PPOTrainer.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.files import JsonLog, finite_or_none, json_text, write_whole
from ctrlreward.selection import Decided, RunRules
from ctrlreward.selection.metrics import Evidence


class BestCheckpoint:
    """Applies the rules of a run after each validation, and names the checkpoint to keep in a file.

    `<folder>/best_checkpoint.json` has `step`, `checkpoint` (a path, or null while no checkpoint on
    disk met the constraints), `value`, `reason`, `stop_step` and `alarm_step`. It names only what
    is on disk; call `refresh` after the last checkpoint was saved.
    `<folder>/metrics.jsonl` has the metrics of all validations, for `ctrlreward select`. A resumed
    run replaces rows of the same and later steps. Save as often as you validate.

    Args:
        folder: Folder of the run, for example verl's `trainer.default_local_dir`.
        rules: The rules.
        checkpoint: Path of a checkpoint in the folder: `"global_step_{step}"` is verl's,
            `"_actor/global_step{step}"` OpenRLHF's.

    Attributes:
        decided: The decisions at each validation so far.

    Raises:
        ValueError: When called: no validation has had a key of a rule.

    Examples:
        >>> from ctrlreward.selection import BestRule, RunRules
        >>> rules = RunRules(BestRule("reward", constraints={"acc": (0.5, None)}))
        >>> best_checkpoint = BestCheckpoint("runs/grpo", rules)
        >>> best_checkpoint(10, {"reward": 0.2, "acc": 0.7}).best
        10
        >>> best_checkpoint(20, {"reward": 0.6, "acc": 0.4}).best  # acc is too low
        10
    """

    def __init__(
        self, folder: str | Path, rules: RunRules, checkpoint: str = "global_step_{step}"
    ) -> None:
        self.folder = Path(folder)
        self.rules = rules
        self.checkpoint = checkpoint
        self.decided: list[Decided] = []
        self._history = JsonLog(self.folder / "metrics.jsonl")
        self._evidence: dict[int, Evidence] = {}

    def __call__(
        self, step: int, metrics: Mapping[str, Any], evidence: Evidence | None = None
    ) -> Decided:
        """Decide after a validation at a training step, and write the file.

        `metrics` are by logged key; values that are not numbers are left out. `evidence` is key →
        value of each held-out prompt, such as `HeldOutScorer.evidence`. It is not stored: a resumed
        run decides on the means of earlier validations.
        """
        numbers = {
            key: finite_or_none(float(value))
            for key, value in metrics.items()
            if isinstance(value, int | float | np.number) and type(value) is not bool
        }
        rows = [row for row in self._history.read() if row["step"] < step]
        rows.append({"step": int(step), **numbers})
        self._history.replace(rows)
        self._evidence[step] = evidence or {}
        logged = {key for row in rows for key in row}
        for key in (*self.rules.monitored, *self.rules.others):
            if key not in logged:
                raise ValueError(f"{key!r} is not logged, must be one of {sorted(logged)}")
        steps = []
        for row in rows:
            values = {key: math.nan if value is None else value for key, value in row.items()}
            at = int(values.pop("step"))
            steps.append((at, values, self._evidence.get(at, {})))
        self.decided = list(self.rules.replay(self.rules.validations(steps)))
        self.refresh()
        return self.decided[-1]

    def refresh(self) -> None:
        """Name the best checkpoint that is on disk now."""
        best, pareto = self.rules.best, self.rules.pareto
        seen = [each.validation for each in self.decided]  # with alarms, which are metrics
        saved = [snapshot for snapshot in seen if self._path(snapshot.step).exists()]
        chosen: list[Decided] = []  # as if only what is saved had been validated
        if best is not None or pareto is not None:
            chosen = list(RunRules(best, pareto=pareto).replay(saved))
        last = chosen[-1] if chosen else None
        path = None if last is None or last.best is None else str(self._path(last.best))
        content = self.rules.choice(self.decided, last, path)
        write_whole(self.folder / "best_checkpoint.json", json_text(content))

    def _path(self, step: int) -> Path:
        return self.folder / self.checkpoint.format(step=step)
