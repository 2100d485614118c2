"""Lightning still has the private names that we use, and its counts are those of our records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lightning_choice import CSVLogger, HistoryLogger, RewardCheckpoint, RolloutSamples

from ctrlreward import RewardBatch
from ctrlreward.files import JsonLog
from ctrlreward.runs.logs import read_log

pytestmark = pytest.mark.lightning


@pytest.mark.parametrize("updates", [1, 3])
def test_every_record_of_a_validation_has_the_number_of_its_optimizer_steps(
    fit, counter, watch, held_out, tmp_path: Path, updates: int
) -> None:
    """Under manual optimisation with several updates per batch, too, and across a resume."""

    class Manual(counter):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = updates == 1
            self.last_rollout = None

        def training_step(self, batch: object, batch_idx: int) -> object:
            self.log("before_update", self.weight.detach())
            for _ in range(0 if updates == 1 else updates):
                self.optimizers().zero_grad()
                self.manual_backward(-self.weight)
                self.optimizers().step()
            self.last_rollout = (held_out, rewards)
            return super().training_step(batch, batch_idx) if updates == 1 else None

    def train(batches: int, ckpt_path: str | None) -> None:
        scorer = watch([0.1 * i for i in range(20)])
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), save_top_k=-1)
        fit(
            Manual(),
            [scorer, keeper, RolloutSamples(every_n_batches=1)],
            logger=[HistoryLogger(str(tmp_path)), CSVLogger(tmp_path, "csv", version=batches)],
            log_every_n_steps=1,
            max_steps=batches * updates,
            val_check_interval=2,
            ckpt_path=ckpt_path,
        )

    total = np.zeros(len(held_out))
    rewards = RewardBatch(total, {"v": total}, total > 0, 0.0)
    train(4, None)
    train(6, "last")
    ends = [2 * updates, 4 * updates, 6 * updates]
    rows = JsonLog(tmp_path / "metrics.jsonl").read()
    logged = read_log(tmp_path / "csv" / "version_6").rows  # joined with version_4
    names = [path.name for path in sorted((tmp_path / "kept").glob("step=*.ckpt"))]
    assert [row["step"] for row in rows if "score/v" in row] == ends
    assert [step for step, row in logged if "score/v" in row] == ends
    assert [int(name[5:11]) for name in names] == ends
    files = sorted((tmp_path / "samples" / "score").iterdir())
    assert [int(path.stem[5:]) for path in files] == ends
    # The row of a training step has the number that is reached by its updates.
    trained = {row["step"]: row["before_update"] for row in rows if "before_update" in row}
    assert trained == {updates * (i + 1): float(updates * i) for i in range(6)}
    files = sorted((tmp_path / "samples" / "rollout").iterdir())
    assert [int(path.stem[5:]) for path in files] == list(trained)
