"""Ten thousand calls, hundreds of validations, clients that come and go: nothing grows.

Memory is what the process uses: pages of a mapped file of weights become resident when they are
first read, and the allocator keeps free memory for texts of other lengths; neither is growth.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import psutil
import pytest
import pytorch_lightning as pl
import torch
from fakes import Letters, letters_reward
from lightning_choice import quiet_trainer
from runs.test_rescore import Writer
from serving.conftest import running
from serving.test_faults import send
from torch.utils.data import DataLoader

from ctrlreward import RemoteReward, Samples
from ctrlreward.callbacks import GenerationScorer, HistoryLogger
from ctrlreward.serving.application import create_app

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600), pytest.mark.usefixtures("one_thread")]

# Share of the lengths below, for a machine without the time.
SCALE = float(os.environ.get("CTRLREWARD_SOAK", "1"))
MOST_KIB = 256.0  # growth per 1,000 rounds
DRAW = random.Random(0)


def texts(n: int) -> list[str]:
    """Return texts of words that no call has had, of random lengths."""

    def word() -> str:
        return "".join(DRAW.choices(ascii_letters, k=DRAW.randint(1, 9)))

    return [f"The soup {' '.join(word() for _ in range(DRAW.randint(1, 12)))}." for _ in range(n)]


def anonymous_kib() -> float:
    """Return the resident memory that no file backs, without what the allocator keeps free."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return float(status.partition("RssAnon:")[2].split()[0])


class Memory(pl.Callback):
    """Memory after each validation."""

    def __init__(self) -> None:
        self.kib: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        gc.collect()
        self.kib.append(anonymous_kib())


def slope_of(work: Callable[[], object], rounds: int, name: str) -> float:
    """Return KiB per 1,000 rounds, by regression over the second half; threads and files stay."""
    rounds = max(40, int(rounds * SCALE))
    process, seen, memory = psutil.Process(), [], []
    started = now = (0, 0)
    every = max(1, rounds // 100)
    for i in range(rounds):
        work()
        if i % every == 0 and i >= rounds // 2:
            gc.collect()
            now = (process.num_threads(), process.num_fds())
            started = started if seen else now
            seen.append(i)
            memory.append(anonymous_kib())
    slope = float(np.polyfit(seen, memory, 1)[0] * 1000)
    print(f"{name}: {rounds} rounds, {slope:+.0f} KiB per 1,000, {memory[0]:.0f} KiB, {now}")
    assert now[0] <= started[0] + 1
    assert now[1] <= started[1] + 2
    return slope


def test_clients_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # pytest keeps each line
    reward = letters_reward()
    letters: Any = reward["letters"].scorer
    app = create_app(reward)
    with running(app) as server:
        samples = Samples(["soup", "noon"], labels=["o", "n"])
        expected = letters_reward()(samples).total

        def work() -> None:
            with send(server, b"{", length=100):  # and hangs up
                pass
            remote = RemoteReward(server.url)
            np.testing.assert_array_equal(remote(samples).total, expected)
            remote.release()
            letters.calls.clear()  # which the test's scorer keeps

        assert slope_of(work, 5000, "serving") < MOST_KIB
        assert app.state.batcher.waiting == []


def test_five_hundred_validations(tmp_path: Path) -> None:
    prompts = Samples(["The soup", "The view"], labels=["o", "e"])
    scorer = GenerationScorer({"letters": Letters()["letters"]}, prompts)
    rounds = max(40, int(500 * SCALE))
    memory = Memory()
    trainer = quiet_trainer(
        default_root_dir=tmp_path,
        max_steps=rounds,
        val_check_interval=1,
        check_val_every_n_epoch=None,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        logger=HistoryLogger(tmp_path),
        callbacks=[scorer, memory],
    )
    data = DataLoader(torch.zeros(rounds, 1))
    trainer.fit(Writer(), data, data)
    assert len(memory.kib) >= rounds - 1
    half = len(memory.kib) // 2
    slope = float(np.polyfit(range(half), memory.kib[-half:], 1)[0] * 1000)
    print(f"validations: {rounds} rounds, {slope:+.0f} KiB per 1,000")
    assert slope < 8 * MOST_KIB  # a row of the history each, and its file
