"""Script of test_last_run.py: hold a run's folder until it is killed, or print why it can't."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytorch_lightning as pl

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.jobs.last_run import run_folders


def hold(folder: str, start: Path, resumed: bool) -> None:
    history = HistoryLogger(folder)
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=folder, logger=history)
    print("ready", flush=True)
    while not start.exists():
        time.sleep(0.01)
    try:
        with run_folders(trainer, resumed):
            print("held", flush=True)
            time.sleep(600)
    except ValueError as error:
        print(error, flush=True)


if __name__ == "__main__":
    hold(sys.argv[1], Path(sys.argv[2]), "resumed" in sys.argv)
