"""Script of test_interruptions.py: a run that is interrupted.

`python interrupted_runs.py HOW FOLDER`, where `HOW` is raise, sigterm or sigkill; on two ranks,
"kill the scoring rank".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forked_ranks import on_two_ranks
from lightning_choice import GenerationScorer, HistoryLogger, RewardCheckpoint, pl, quiet_trainer
from module_files import load

from ctrlreward import Samples

shared = load(Path(__file__).with_name("conftest.py"))

AT = 5  # steps before the interruption; validations were after 2 and 4
LIMIT = 120.0  # seconds within which an interrupted run must end


class Module(shared.Counter):
    """Module that logs at each step and calls `interrupt` at step `AT`."""

    interrupt: Callable[[pl.LightningModule], None] | None = None

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.log("loss", self.weight.detach())
        if self.global_step == AT and self.interrupt is not None:
            self.interrupt(self)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("held_out", self.weight.detach(), sync_dist=True)

    def export_adapter(self, folder: str) -> None:
        (Path(folder) / "weight").write_text(str(self.weight.item()))


class Slow(shared.Curve):
    """Scorer that is still running when the run is interrupted, or kills it after step 6."""

    kills = False

    def score_samples(self, samples: Samples) -> dict[str, Any]:
        scores = super().score_samples(samples)
        if self.kills and " at 6 " in samples.texts[0]:
            kill()
        time.sleep(0.5)
        return scores


def fit(
    folder: Path,
    kind: type[shared.Curve] = shared.Curve,
    module: Module | None = None,
    ckpt_path: str | None = None,
    **options: Any,
) -> None:
    """Train for eight steps with a validation after every second one."""
    scorer = kind([0.125 * i for i in range(9)])
    prompts = Samples(texts=["The food", "The film"])
    keeper = RewardCheckpoint("held_out", "max", dirpath=str(folder / "kept"), save_top_k=2)
    trainer = quiet_trainer(
        callbacks=[GenerationScorer({"v": scorer["value"]}, prompts), keeper],
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        enable_checkpointing=True,
        log_every_n_steps=1,
        logger=HistoryLogger(str(folder)),
        max_steps=8,
        num_sanity_val_steps=0,
        val_check_interval=2,
        **options,
    )
    trainer.fit(module or Module(), ckpt_path=ckpt_path)


def wait_for_sigterm(module: pl.LightningModule) -> None:
    Path(module.trainer.default_root_dir, "ready").touch()
    until = time.monotonic() + LIMIT
    while not module.trainer.received_sigterm and time.monotonic() < until:
        time.sleep(0.01)


def fail(module: pl.LightningModule) -> None:
    raise ValueError("the loss is gone")


def kill(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_while_saving() -> None:
    """Kill the process when it writes the third `last.ckpt`, with half of its bytes on disk."""
    count = 0

    def fsync(file: int) -> None:
        nonlocal count
        count += "last.ckpt" in os.readlink(f"/proc/self/fd/{file}")
        if count == 3:
            os.ftruncate(file, os.fstat(file).st_size // 2)
            kill()

    os.fsync = fsync


def fit_a_rank(number: int) -> None:
    folder = Path(sys.argv[2])
    os.dup2(os.open(folder / f"rank{number}", os.O_CREAT | os.O_WRONLY), 2)
    Slow.kills = True
    fit(folder, Slow, devices=2, strategy="ddp")


def main(how: str, folder: Path) -> None:
    if how == "kill the scoring rank":
        on_two_ranks(fit_a_rank)
        return
    if how == "sigkill":
        kill_while_saving()
    module = Module()
    module.interrupt = {"raise": fail, "sigterm": wait_for_sigterm}.get(how)
    raised = "nothing"
    try:
        fit(folder, Slow, module)
    except BaseException as error:
        raised = f"{type(error).__name__}: {error}"
        raise
    finally:
        names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        (folder / "seen.json").write_text(json.dumps({"raised": raised, "threads": names}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
