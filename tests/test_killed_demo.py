"""The demo, with a tiny model, killed at random moments and resumed: minutes, for `make soak`."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from module_files import load
from warm_python import WarmProcess

from ctrlreward.files import JsonLog

pytestmark = pytest.mark.soak

cli = load(Path(__file__).with_name("test_cli.py"))

KILLS = 20
STEPS = ["--trainer.max_steps=8", "--trainer.val_check_interval=2"]
MEASURED = ("time/", "rollout/tokens_per_second")  # differ from run to run


def close_to(value: Any) -> Any:
    """Return what equals a value but for rounding: a resumed process has other addresses."""
    if isinstance(value, dict):
        return {key: close_to(item) for key, item in value.items()}
    if isinstance(value, list):
        return [close_to(item) for item in value]
    return pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True) if type(value) is float else value


class Demo:
    """A run of the demo in a folder, in processes that have imported all of it."""

    def __init__(self, base: Path, model: str) -> None:
        self.base, self.folder = base, base / "run"
        base.mkdir(parents=True)
        config = base / "demo.yaml"
        config.write_text(yaml.safe_dump(cli.shrunk(cli.DEMO, self.folder, model)))
        self.command = ["-m", "ctrlreward", "train", str(config), *cli.SMALL, *STEPS]

    def start(self, *options: str) -> WarmProcess:
        return WarmProcess([*self.command, *options], self.base / "output", self.base / "errors")

    def until_first_row(self, process: WarmProcess) -> None:
        """Wait until the run has logged a step, or has ended."""
        while not (self.folder / "metrics.jsonl").exists() and process.wait(0.01) is None:
            pass

    def finish(self, *options: str) -> float:
        """Run to the end; return the seconds from the first row on."""
        process = self.start(*options)
        self.until_first_row(process)
        started = time.monotonic()
        assert process.wait(280) == 0, (self.base / "errors").read_text()
        return time.monotonic() - started

    def left(self) -> dict[str, Any]:
        """Return what the run left on disk, without what differs from run to run."""
        rows = JsonLog(self.folder / "metrics.jsonl").read()
        kept = [{k: v for k, v in r.items() if not k.startswith(MEASURED)} for r in rows]
        last = torch.load(self.folder / "checkpoints" / "last.ckpt", weights_only=True)
        weights = {name: value.tolist() for name, value in last["state_dict"].items()}
        texts = {
            str(file.relative_to(self.folder)): JsonLog(file).read()
            for file in sorted(self.folder.rglob("*.jsonl"))
            if file.name != "metrics.jsonl" and "wandb" not in file.parts
        }
        checkpoints = sorted(file.name for file in (self.folder / "checkpoints").iterdir())
        hidden = [str(f) for f in self.folder.rglob(".*.unfinished")]
        return {"rows": kept, "weights": weights, "texts": texts, "files": [*checkpoints, *hidden]}


@pytest.fixture(scope="module")
def uncut(
    tiny_llama: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[float, dict[str, Any]]:
    """The seconds of training of a run that is not killed, and what it left."""
    demo = Demo(tmp_path_factory.mktemp("uncut") / "demo", tiny_llama(cli.LETTERS))
    seconds, left = demo.finish(), demo.left()
    assert len(left["rows"]) >= 8
    return seconds, left


@pytest.mark.parametrize("kill", range(KILLS))
def test_the_demo_killed_at_a_random_moment(
    kill: int, uncut: tuple[float, dict[str, Any]], tiny_llama: Callable[[str], str], tmp_path: Path
) -> None:
    seconds, expected = uncut
    demo = Demo(tmp_path / "demo", tiny_llama(cli.LETTERS))
    process = demo.start()
    if kill % 5:  # every fifth one is killed while it starts
        demo.until_first_row(process)
    moment = random.Random(kill).uniform(0.0, seconds)
    if process.wait(moment) is None:
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait(30)
    resumable = (demo.folder / "checkpoints" / "last.ckpt").exists()
    print(f"killed after {moment:.1f} of {seconds:.1f} s: {code=}, {resumable=}")
    if code and not resumable:  # a folder with a run is refused
        shutil.rmtree(demo.folder, ignore_errors=True)
    if code:
        demo.finish(*(["--ckpt_path=last"] if resumable else []))
    found = demo.left()
    for what, value in expected.items():
        assert found[what] == close_to(value), what
