"""The demo with a tiny model: killed, resumed and as if it had not been killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from warm_python import WarmProcess

from ctrlreward.command_line.config_files import read_job, resolved
from ctrlreward.files import JsonLog

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEMO = CONFIGS / "controlled_generation" / "sentiment_smollm2.yaml"
LETTERS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:'-"
SMALL = [
    "--model.generation.num_generations=2",
    "--model.generation.max_completion_length=8",
    "--data.init_args.batch_size=2",
    "--trainer.max_steps=8",
    "--trainer.val_check_interval=2",
]
MEASURED = ("time/", "rollout/tokens_per_second")  # differ from run to run


def classes(options: Any) -> Iterator[dict[str, Any]]:
    """Yield all parts of a configuration that name a class or a function."""
    if isinstance(options, dict) and "class_path" in options:
        yield options
    for inner in options.values() if isinstance(options, dict) else options:
        if isinstance(inner, dict | list):
            yield from classes(inner)


def shrunk(folder: Path, model: str) -> dict[str, Any]:
    """Return the demo's configuration with another model, fewer prefixes and its own folder."""
    options = read_job(DEMO)
    options["trainer"]["default_root_dir"] = str(folder)
    options = resolved(options)
    del options["values"]
    for part in classes(options):
        arguments = part["init_args"]
        if "model" in arguments or ".recipes." in part["class_path"]:
            own = arguments.get("held_out", arguments)
            own["model"] = model
            own.pop("dtype", None)
            own.pop("lora", None)
        if part is options["data"]:
            del arguments["model"]
        if "prefixes" in arguments:
            arguments["prefixes"] = arguments["prefixes"][:2]
        if "patience" in arguments:
            arguments["patience"] = 99
        arguments.pop("generations_per_prompt", None)
        arguments.pop("constraints", None)
    return options


class Demo:
    """A run of the demo in a folder, in processes that have imported all of it."""

    def __init__(self, base: Path, model: str) -> None:
        self.base, self.folder = base, base / "run"
        base.mkdir(parents=True)
        (base / "demo.yaml").write_text(yaml.safe_dump(shrunk(self.folder, model)))

    def start(self, *options: str) -> WarmProcess:
        command = ["-m", "ctrlreward", "train", self.base / "demo.yaml", *SMALL, *options]
        return WarmProcess(command, self.base / "output", self.base / "errors")

    def finish(self, *options: str) -> None:
        assert self.start(*options).wait(280) == 0, (self.base / "errors").read_text()

    def rows(self) -> list[dict[str, Any]]:
        return JsonLog(self.folder / "metrics.jsonl").read()

    def left(self) -> dict[str, Any]:
        """Return what the run left on disk, without what differs from run to run."""
        rows = [{k: v for k, v in r.items() if not k.startswith(MEASURED)} for r in self.rows()]
        last = torch.load(self.folder / "checkpoints" / "last.ckpt", weights_only=True)
        weights = {name: value.tolist() for name, value in last["state_dict"].items()}
        texts = {
            str(file.relative_to(self.folder)): JsonLog(file).read()
            for file in sorted(self.folder.rglob("*.jsonl"))
            if file.name != "metrics.jsonl" and "wandb" not in file.parts
        }
        checkpoints = sorted(file.name for file in (self.folder / "checkpoints").iterdir())
        hidden = [str(f) for f in self.folder.rglob(".*.unfinished")]
        return {"rows": rows, "weights": weights, "texts": texts, "files": [*checkpoints, *hidden]}


def close_to(value: Any) -> Any:
    """Return what equals a value but for rounding: a resumed process has other addresses."""
    if isinstance(value, dict):
        return {key: close_to(item) for key, item in value.items()}
    if isinstance(value, list):
        return [close_to(item) for item in value]
    return pytest.approx(value, rel=1e-4, abs=1e-6, nan_ok=True) if type(value) is float else value


@pytest.fixture(scope="module")
def uncut(tiny_llama: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A run that is not killed."""
    demo = Demo(tmp_path_factory.mktemp("uncut") / "demo", tiny_llama(LETTERS))
    demo.finish()
    return demo


def test_the_report_covers_the_run(uncut: Demo) -> None:
    assert [row["step"] for row in uncut.rows() if "reward/total" in row] == [*range(1, 9)]
    summary = json.loads((uncut.folder / "summary.json").read_text())
    assert (summary["steps"], summary["stopped_by"]) == (8, "max_steps")
    assert summary["before"]["generations"] == 16
    assert set(summary["seconds"]) == {"start", "before", "train", "after", "total"}
    assert Path(summary["best_checkpoint"], "adapter_model.safetensors").exists()
    assert (uncut.folder / "config.yaml").exists()


# Number of logged rows at the kill, and the seconds after; at random moments for `make soak`.
KILLS = [(5, 0.0)]
RANDOM = [(i % 9, random.Random(i).uniform(0, 1)) for i in range(20)]


@pytest.mark.parametrize(
    ("rows", "seconds"), [*KILLS, *(pytest.param(*r, marks=pytest.mark.soak) for r in RANDOM)]
)
def test_a_killed_run_is_resumed(
    rows: int, seconds: float, uncut: Demo, tiny_llama: Callable[[str], str], tmp_path: Path
) -> None:
    demo = Demo(tmp_path / "demo", tiny_llama(LETTERS))
    process = demo.start()
    while len(demo.rows()) < rows and process.wait(0.01) is None:
        pass
    if process.wait(seconds) is None:
        os.killpg(process.pid, signal.SIGKILL)
    resumable = (demo.folder / "checkpoints" / "last.ckpt").exists()
    if process.wait(30):
        if not resumable:  # a folder with a run is refused
            shutil.rmtree(demo.folder, ignore_errors=True)
        demo.finish(*(["--ckpt_path=last"] if resumable else []))
    assert resumable or seconds
    found = demo.left()
    for what, value in uncut.left().items():
        assert found[what] == close_to(value), what
