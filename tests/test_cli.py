"""The real configurations, with a tiny model in the place of the pretrained one."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytorch_lightning as pl
import torch
import wandb
import yaml
from pytorch_lightning.utilities.exceptions import SIGTERMException
from wandb.proto import wandb_internal_pb2

from ctrlreward.callbacks import (
    BeforeAfter,
    GenerationScorer,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from ctrlreward.callbacks.stopping import decide
from ctrlreward.cli import USAGE, main
from ctrlreward.commands.train import build
from ctrlreward.files import JsonLog
from ctrlreward.plots.curves import curve

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
FILES = sorted(CONFIGS.glob("controlled_generation/*.yaml"))
LETTERS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:'-"


# Each file as it is

every_file = pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(CONFIGS)))


@pytest.fixture
def nothing_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache that stays empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that the command line's is taken back
    yield
    assert list(tmp_path.iterdir()) == []


@every_file
@pytest.mark.usefixtures("nothing_loaded")
def test_a_configuration_gives_trainer_model_and_data(file: Path) -> None:
    cli = build(["--config", str(file)])
    assert list(cli.model.children()) == []  # the policy is loaded when training starts
    batch = next(iter(cli.datamodule.train_dataloader()))
    assert len(batch) == cli.datamodule.batch_size
    assert cli.trainer.max_steps > 0
    assert cli.config.ckpt_path is None
    assert any(isinstance(c, GenerationScorer) for c in cli.trainer.callbacks)


@every_file
@pytest.mark.usefixtures("nothing_loaded")
def test_training_selection_and_report_have_prefixes_of_their_own(file: Path) -> None:
    cli = build(["--config", str(file)])
    sets = [cli.datamodule.prompts.prefixes]
    for callback in cli.trainer.callbacks:
        if isinstance(callback, GenerationScorer | BeforeAfter):
            sets.append(callback.samples.prefixes)
    assert len(sets) == 3
    seen: set[str] = set()
    for prefixes in sets:
        names = {prefix.casefold() for prefix in prefixes}
        assert seen.isdisjoint(names)
        seen |= names


@every_file
@pytest.mark.usefixtures("nothing_loaded")
def test_the_report_rests_on_enough_texts_of_all_labels(file: Path) -> None:
    cli = build(["--config", str(file)])
    (report,) = (c for c in cli.trainer.callbacks if isinstance(c, BeforeAfter))
    assert len(report.samples) * report.generations_per_prompt >= 128
    labels = report.samples.labels
    assert labels is not None
    assert len({labels.count(label) for label in set(labels)}) == 1
    assert set(labels) == set(cli.datamodule.prompts.labels)


@pytest.mark.usefixtures("nothing_loaded")
def test_every_key_is_an_option() -> None:
    options = ["--model.init_args.kl_coef=0.5", "--trainer.max_steps=7", "--ckpt_path=last"]
    cli = build(["--config", str(FILES[0]), *options])
    assert (cli.model.kl_coef, cli.trainer.max_steps) == (0.5, 7)
    assert cli.config.ckpt_path == "last"


@pytest.mark.usefixtures("nothing_loaded")
def test_an_option_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["train", "--config", str(FILES[0]), "--model.init_args.temperatur=1.0"])
    assert exit.value.code == 2
    assert "temperatur" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_loaded")
def test_a_run_that_sigterm_ended_has_not_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*_: Any, **__: Any) -> None:
        raise SIGTERMException

    monkeypatch.setattr(pl.Trainer, "fit", fit)
    with pytest.raises(SystemExit) as exit:
        main(["train", "--config", str(FILES[0])])
    assert exit.value.code == 143


# Usage


@pytest.mark.parametrize("arguments", [[], ["sing"], ["--config", "file.yaml"]])
def test_no_such_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == USAGE + "\n"


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([option])
    assert capsys.readouterr().out == USAGE + "\n"


# A run that is killed and goes on

KILLER = """
import os, signal
import pytorch_lightning as pl


class Killer(pl.Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def classes(options: Any) -> Iterator[dict[str, Any]]:
    """Everything in a configuration that names a class or a function."""
    if isinstance(options, dict) and "class_path" in options:
        yield options
    for inner in options.values() if isinstance(options, dict) else options:
        if isinstance(inner, dict | list):
            yield from classes(inner)


def shrunk(file: Path, folder: Path, model: str) -> dict[str, Any]:
    """A configuration with another model, few prefixes and a folder of its own."""
    options = yaml.safe_load(file.read_text().replace("runs/demo", str(folder)))
    for part in classes(options):
        arguments = part["init_args"]
        if "model" in arguments or ".recipes." in part["class_path"]:
            arguments["model"] = model
            arguments.pop("dtype", None)
        if part is options["data"]:
            del arguments["model"]
        if "prefixes" in arguments:
            arguments["prefixes"] = arguments["prefixes"][:2]
        if "patience" in arguments:
            arguments["patience"] = 99
        arguments.pop("generations_per_prompt", None)
        arguments.pop("constraints", None)
    return options


class Broken(NamedTuple):
    """What a run left that was killed, and gone on with."""

    folder: Path
    killed: list[dict[str, Any]]  # rows of metrics.jsonl when it was killed
    before: bytes  # before.jsonl then
    history: list[dict[str, Any]]  # rows in the end
    summary: dict[str, Any]
    last: dict[str, Any]  # the last checkpoint


@pytest.fixture(scope="module")
def broken(tiny_llama: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """Ten steps with a validation after each second one, killed before the sixth."""
    folder = tmp_path_factory.mktemp("run")
    options = shrunk(FILES[0], folder, tiny_llama(LETTERS))
    (folder / "rest.yaml").write_text(yaml.safe_dump(options))
    options["trainer"]["callbacks"].append({"class_path": "killing.Killer"})
    (folder / "killed.yaml").write_text(yaml.safe_dump(options))
    (folder / "killing.py").write_text(KILLER)
    arguments = [
        "--trainer.max_steps=10",
        "--trainer.val_check_interval=2",
        "--trainer.enable_progress_bar=false",
        "--model.init_args.group_size=2",
        "--model.init_args.max_new_tokens=8",
        "--data.init_args.batch_size=2",
    ]
    start = ["-c", "from ctrlreward.cli import main; main()", "train"]
    ended = subprocess.run(
        [sys.executable, *start, "--config", str(folder / "killed.yaml"), *arguments],
        env=os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert "args parameter" not in ended.stderr  # a warning that is not meant for users
    killed = JsonLog(folder / "metrics.jsonl").read()
    before = (folder / "before.jsonl").read_bytes()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "0")  # so that the command line's is taken back
        rest = ["--config", str(folder / "rest.yaml"), *arguments, "--ckpt_path=last"]
        main(["train", *rest])
        wandb.finish()
    torch.set_num_threads(threads)
    return Broken(
        folder,
        killed,
        before,
        JsonLog(folder / "metrics.jsonl").read(),
        json.loads((folder / "summary.json").read_text()),
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True),
    )


def test_goes_on_from_the_last_checkpoint(broken: Broken) -> None:
    assert curve(broken.killed, "reward/total")[0] == [0, 1, 2, 3, 4]
    assert curve(broken.killed, "score/attribute_relevance")[0] == [1, 3]
    for metric in ("reward/total", "policy/kl", "rollout/length"):
        assert curve(broken.history, metric)[0] == list(range(10))
    assert curve(broken.history, "score/attribute_relevance")[0] == [1, 3, 5, 7, 9]
    kept = [row for row in broken.killed if row["step"] < 4]  # the rest was done again
    assert broken.history[: len(kept)] == kept
    assert broken.last["global_step"] == 10


def test_the_callbacks_go_on_counting(broken: Broken) -> None:
    scores = curve(broken.history, "score/attribute_relevance")[1]
    best, waited = -float("inf"), 0
    for score in scores:
        best, waited, *_ = decide(score, best, waited, mode="max", patience=99)
    states = broken.last["callbacks"]

    def state(kind: type) -> dict[str, Any]:
        (found,) = (s for key, s in states.items() if key.startswith(kind.__name__))
        return found

    counted = {"validations": 5, "last_scored_step": 10, "pending": None}
    assert state(GenerationScorer) == counted
    assert state(RewardEarlyStopping)["wait_count"] == waited
    assert state(RewardEarlyStopping)["best_score"].item() == pytest.approx(best)
    kept = state(RewardCheckpoint)
    assert kept["best_model_score"].item() == pytest.approx(max(scores))
    assert Path(kept["best_model_path"]).exists()
    assert sorted(p.name for p in (broken.folder / "samples" / "score").iterdir()) == [
        f"step={step:06d}.jsonl" for step in (2, 4, 6, 8, 10)
    ]


def test_the_report_covers_the_whole_run(broken: Broken) -> None:
    assert (broken.folder / "before.jsonl").read_bytes() == broken.before
    assert broken.summary["steps"] == 10
    assert broken.summary["stopped_by"] == "max_steps"
    assert broken.summary["before"]["generations"] == 16
    assert set(broken.summary["seconds"]) == {"start", "before", "train", "after", "total"}
    adapter = Path(broken.summary["best_checkpoint"])
    assert (adapter / "adapter_model.safetensors").exists()
    assert (broken.folder / "curves.png").stat().st_size > 10_000
    assert (broken.folder / "config.yaml").exists()


def records(path: Path) -> Iterator[wandb_internal_pb2.Record]:
    """The records of a `.wandb` file: LevelDB's log format behind a header of 7 bytes.

    A block has 32 KiB; each piece of a record begins with 4 bytes of checksum, 2 of length and 1
    that says whether it is whole (1), the first (2), in the middle (3) or the last (4).
    """
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def test_the_offline_run_of_wandb_holds_the_curves(broken: Broken) -> None:
    last = max((broken.folder / "wandb").glob("offline-run-*/*.wandb"))
    found: dict[int, float] = {}
    for record in records(last):
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        if "score/attribute_relevance" in row:
            found[row["trainer/global_step"]] = row["score/attribute_relevance"]
    steps, values = curve(broken.history, "score/attribute_relevance")
    assert list(found) == [5, 7, 9]  # after it was killed; the part before is a run of its own
    assert found == pytest.approx(dict(zip(steps[2:], values[2:], strict=True)))
