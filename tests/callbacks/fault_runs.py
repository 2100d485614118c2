"""Script of test_faults.py: one run in this process, with a fault.

`python fault_runs.py FAULT FOLDER`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from forked_ranks import on_two_ranks
from lightning_choice import GenerationScorer, RewardCheckpoint
from module_files import load

from ctrlreward import Samples

shared = load(Path(__file__).with_name("conftest.py"))

AT = 4  # step of the fault; validations are after each second one


class Faulty(shared.Curve):
    """Scorer whose fault is in the validation after step `AT`."""

    def __init__(self, fault: str) -> None:
        super().__init__([0.125 * i for i in range(9)])
        self.fault, self.draws = fault, False

    def score_samples(self, samples: Samples) -> Any:
        if self.fault == "kill the scoring rank" and f" at {AT} " in samples.texts[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().score_samples(samples)


class Dying(shared.Counter):
    """Module whose second rank dies in step `AT`."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.global_step == AT and self.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def fit(folder: Path, fault: str, **options: Any) -> None:
    scorer = Faulty(fault)
    prompts = Samples(texts=["The food", "The film"])
    callbacks = [
        GenerationScorer({"v": scorer["value"]}, prompts),
        RewardCheckpoint("score/v", "max", dirpath=str(folder / "kept")),
    ]
    trainer = shared.validating_trainer(folder, callbacks, **options)
    trainer.fit(Dying() if fault == "kill the other rank" else shared.Counter())


def main(fault: str, folder: Path) -> None:
    def rank(number: int) -> None:
        output = os.open(folder / f"rank{number}", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 2)
        fit(folder, fault, devices=2, strategy="ddp")

    on_two_ranks(rank)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
