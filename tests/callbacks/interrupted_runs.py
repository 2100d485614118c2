"""Script of test_interruptions.py: runs that are interrupted in several ways and resumed.

Each interrupted run is a forked process, so imports happen once.
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
from lightning_choice import GenerationScorer, RewardCheckpoint, pl
from module_files import load

from ctrlreward import Samples

shared = load(Path(__file__).with_name("conftest.py"))

AT = 5  # steps before the interruption; validations were after 2 and 4
LIMIT = 30.0  # seconds within which an interrupted run must end


class Module(shared.Counter):
    """Module that logs at each step and calls `interrupt` at step `AT`."""

    interrupt: Callable[[pl.LightningModule], None] | None = None

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.log("loss", self.weight.detach())
        if self.global_step == AT and self.interrupt is not None:
            self.interrupt(self)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("held_out", self.weight.detach())

    def export_adapter(self, folder: str) -> None:
        (Path(folder) / "weight").write_text(str(self.weight.item()))


class Slow(shared.Curve):
    """Scorer that is still running when the run is interrupted."""

    def score_samples(self, samples: Samples) -> dict[str, Any]:
        scores = super().score_samples(samples)
        time.sleep(0.5)
        return scores


def fit(folder: Path, overlap: bool, scorer: shared.Curve, module: Module, **options: Any) -> None:
    """Train for eight steps with a validation after every second one."""
    prompts = Samples(texts=["The food", "The film"])
    scorer.draws = not overlap
    callbacks = [
        GenerationScorer({"v": scorer["value"]}, prompts, overlap=overlap),
        RewardCheckpoint("held_out", "max", dirpath=str(folder / "kept"), save_top_k=2),
    ]
    trainer = shared.validating_trainer(folder, callbacks)
    trainer.fit(module, **options)


def whole(folder: Path, overlap: bool) -> None:
    fit(folder, overlap, shared.Curve([0.125 * i for i in range(9)]), Module())


def resumed(folder: Path, overlap: bool) -> None:
    scorer = shared.Curve([0.125 * i for i in range(9)])
    fit(folder, overlap, scorer, Module(), ckpt_path="last")


def interrupted(interrupt: Callable[[pl.LightningModule], None]) -> Callable[[Path, bool], None]:
    def run(folder: Path, overlap: bool) -> None:
        module = Module()
        module.interrupt = interrupt
        raised = "nothing"
        try:
            fit(folder, overlap, Slow([0.125 * i for i in range(9)]), module)
        except BaseException as error:
            raised = f"{type(error).__name__}: {error}"
            raise
        finally:
            names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
            (folder / "seen.json").write_text(json.dumps({"raised": raised, "threads": names}))

    return run


def wait_for_sigterm(module: pl.LightningModule) -> None:
    Path(module.trainer.default_root_dir, "ready").touch()
    until = time.monotonic() + LIMIT
    while not module.trainer.received_sigterm and time.monotonic() < until:
        time.sleep(0.01)


def fail(module: pl.LightningModule) -> None:
    raise ValueError("the loss is gone")


def killed_while_saving(folder: Path, overlap: bool) -> None:
    """Kill the process while it writes the third `last.ckpt`, with half of its bytes on disk."""
    count = 0

    def fsync(file: int) -> None:
        nonlocal count
        path = os.readlink(f"/proc/self/fd/{file}")
        count += "last.ckpt" in path
        if count == 3:
            os.ftruncate(file, os.fstat(file).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fsync
    whole(folder, overlap)


def start(run: Callable[[Path, bool], None], folder: Path, overlap: bool) -> int:
    """Fork a process that does the run and ends like any Python process; return its id."""
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        output = os.open(folder / f"{run.__name__}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # sys.exit runs the interpreter's shutdown, which waits for threads.
        run(folder, overlap)
        sys.exit(0)
    return child


def end(child: int) -> dict[str, Any]:
    """Wait for the process; return its exit code and the seconds until it ended."""
    started = time.monotonic()
    while time.monotonic() - started < LIMIT:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {"code": code, "seconds": time.monotonic() - started}
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"code": None, "seconds": LIMIT}


def main(folder: Path) -> None:
    raising = interrupted(fail)
    terminated = interrupted(wait_for_sigterm)
    ended: dict[str, dict[str, Any]] = {}
    for overlap in (False, True):
        whole(folder / f"whole-{overlap}", overlap)  # also does the late imports of Lightning
        for name, run in (
            ("raise", raising),
            ("sigterm", terminated),
            ("sigkill", killed_while_saving),
        ):
            place = folder / f"{name}-{overlap}"
            child = start(run, place, overlap)
            if name == "sigterm":
                until = time.monotonic() + LIMIT
                while not (place / "ready").exists() and time.monotonic() < until:
                    time.sleep(0.01)
                os.kill(child, signal.SIGTERM)
            ended[place.name] = end(child)
            kept = place / "kept"
            ended[place.name]["files"] = sorted(path.name for path in kept.iterdir())
            ended[place.name]["whole"] = [loads(path) for path in sorted(kept.glob("*.ckpt"))]
            ended[place.name]["rows"] = (place / "metrics.jsonl").read_text().splitlines()
            ended[place.name]["texts"] = texts(place)
            resumed(place, overlap)
    (folder / "ended.json").write_text(json.dumps(ended))


def texts(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "samples" / "score").iterdir())


def loads(path: Path) -> float:
    """Return the weight in a checkpoint, and compare it with the exported adapter."""
    weight = torch.load(path, weights_only=True)["state_dict"]["weight"].item()
    adapter = path.with_name(f"{path.stem}-adapter") / "weight"
    assert path.name == "last.ckpt" or float(adapter.read_text()) == weight
    return float(weight)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
