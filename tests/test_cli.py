"""`ctrlreward train` on the shipped configurations, with a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import signal
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

from ctrlreward.callbacks import (
    BeforeAfter,
    GenerationScorer,
)
from ctrlreward.cli import main
from ctrlreward.command_line.config_files import read_job, resolved
from ctrlreward.files import JsonLog
from ctrlreward.jobs.training_job import build, run_folders
from ctrlreward.plots import curve

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEMO = CONFIGS / "controlled_generation" / "sentiment_smollm2.yaml"
LETTERS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:'-"


# The shipped configuration


@pytest.fixture
def nothing_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache, which must stay empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("nothing_loaded")
def test_the_demo_builds_trainer_model_and_data() -> None:
    cli = build(["--config", str(DEMO)])
    assert list(cli.model.children()) == []  # the policy loads when training starts
    batch = next(iter(cli.datamodule.train_dataloader()))
    assert len(batch) == cli.datamodule.batch_size
    assert cli.trainer.max_steps > 0
    assert cli.config.ckpt_path is None
    callbacks = cli.trainer.callbacks
    (watch,) = (c for c in callbacks if isinstance(c, GenerationScorer))
    (report,) = (c for c in callbacks if isinstance(c, BeforeAfter))
    # Training, selection and report have prefixes of their own.
    seen: set[str] = set()
    for samples in (cli.datamodule.prompts, watch.samples, report.samples):
        names = {prefix.casefold() for prefix in samples.prefixes}
        assert seen.isdisjoint(names)
        seen |= names
    # The report has enough texts of each label.
    assert len(report.samples) * report.generations_per_prompt >= 128
    labels = report.samples.labels
    assert labels is not None
    assert len({labels.count(label) for label in set(labels)}) == 1
    assert set(labels) == set(cli.datamodule.prompts.labels)


def test_a_run_that_sigterm_ended_exits_with_143(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own

    def fit(*_: Any, **__: Any) -> None:
        raise SIGTERMException

    monkeypatch.setattr(pl.Trainer, "fit", fit)
    with pytest.raises(SystemExit) as exit:
        main(["train", "--config", str(DEMO)])
    assert exit.value.code == 143


# A run that is killed and resumed

KILLER = """
import os, signal
import pytorch_lightning as pl


class Killer(pl.Callback):
    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def classes(options: Any) -> Iterator[dict[str, Any]]:
    """Yield all parts of a configuration that name a class or a function."""
    if isinstance(options, dict) and "class_path" in options:
        yield options
    for inner in options.values() if isinstance(options, dict) else options:
        if isinstance(inner, dict | list):
            yield from classes(inner)


def shrunk(file: Path, folder: Path, model: str) -> dict[str, Any]:
    """Return a configuration with another model, fewer prefixes and its own folder."""
    options = read_job(file)
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


SMALL = [
    "--model.generation.num_generations=2",
    "--model.generation.max_completion_length=8",
    "--data.init_args.batch_size=2",
]


def in_process(arguments: list[str], modules: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, without the settings of `conftest.py` that keep it quiet."""
    start = [sys.executable, "-c", "from ctrlreward.cli import main; main()"]
    quiet = ("WANDB_SILENT", "TRANSFORMERS_VERBOSITY", "TOKENIZERS_PARALLELISM")
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    return subprocess.run(
        [*start, *arguments],
        env=environment | {"PYTHONPATH": str(modules), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


class Resumed(NamedTuple):
    """Files of a run that was killed and resumed."""

    folder: Path
    said: str  # standard error until the kill
    killed: list[dict[str, Any]]  # rows of metrics.jsonl after the kill
    before: bytes  # before.jsonl after the kill
    history: list[dict[str, Any]]  # rows of metrics.jsonl at the end
    summary: dict[str, Any]
    last: dict[str, Any]  # the last checkpoint


@pytest.fixture(scope="module")
def resumed(tiny_llama: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """Train for six steps with a validation every two, killed before the fourth step."""
    base = tmp_path_factory.mktemp("killed")
    folder = base / "run"
    options = shrunk(DEMO, folder, tiny_llama(LETTERS))
    (base / "rest.yaml").write_text(yaml.safe_dump(options))
    options["trainer"]["callbacks"].append({"class_path": "killing.Killer"})
    (base / "killed.yaml").write_text(yaml.safe_dump(options))
    (base / "killing.py").write_text(KILLER)
    arguments = [*SMALL, "--trainer.max_steps=6", "--trainer.val_check_interval=2"]
    quiet = "--trainer.enable_progress_bar=false"
    ended = in_process(["train", "--config", str(base / "killed.yaml"), *arguments, quiet], base)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    killed = JsonLog(folder / "metrics.jsonl").read()
    before = (folder / "before.jsonl").read_bytes()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
        rest = ["--config", str(base / "rest.yaml"), *arguments, "--ckpt_path=last"]
        main(["train", *rest])
        wandb.finish()
    torch.set_num_threads(threads)
    return Resumed(
        folder,
        ended.stderr,
        killed,
        before,
        JsonLog(folder / "metrics.jsonl").read(),
        json.loads((folder / "summary.json").read_text()),
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True),
    )


def test_resumes_from_the_last_checkpoint(resumed: Resumed) -> None:
    assert curve(resumed.killed, "reward/total")[0] == [1, 2, 3]
    assert curve(resumed.killed, "score/attribute_relevance")[0] == [2]
    for metric in ("reward/total", "policy/kl", "rollout/length"):
        assert curve(resumed.history, metric)[0] == list(range(1, 7))
    assert curve(resumed.history, "score/attribute_relevance")[0] == [2, 4, 6]
    kept = [row for row in resumed.killed if row["step"] <= 2]  # later steps were repeated
    assert resumed.history[: len(kept)] == kept
    assert resumed.last["global_step"] == 6


def test_a_new_run_is_refused_where_another_one_is(
    resumed: Resumed,
    tiny_llama: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[..., str],
) -> None:
    """But for a trial run, which writes nothing."""
    folder = tmp_path / "run"
    shutil.copytree(resumed.folder, folder)
    options = shrunk(DEMO, folder, tiny_llama(LETTERS))
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(options))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    limits = ["--trainer.max_steps=1", "--trainer.val_check_interval=1"]
    trial = ["--trainer.fast_dev_run=true", "--trainer.logger=false"]
    main(["train", str(tmp_path / "new.yaml"), *SMALL, *limits, *trial])
    said = fails("train", tmp_path / "new.yaml", *SMALL, *limits)
    assert f"{folder} has a run" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.yaml", "run"]
    for file in ("metrics.jsonl", "summary.json", "before.jsonl", "checkpoints/last.ckpt"):
        assert (folder / file).read_bytes() == (resumed.folder / file).read_bytes()


def test_a_folder_is_of_one_run_at_a_time_and_a_requeued_job_is_resumed(tmp_path: Path) -> None:
    trainer = pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, logger=False)
    for resumed in (False, True):
        with (
            run_folders(trainer, resumed),
            pytest.raises(ValueError, match=f"is in use by process {os.getpid()}"),
            run_folders(trainer, True),
        ):
            pass
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match="has a run"), run_folders(trainer, False):
        pass
    (tmp_path / "hpc_ckpt_1.ckpt").touch()
    with run_folders(trainer, False):
        pass


def test_the_report_covers_the_whole_run(resumed: Resumed) -> None:
    assert (resumed.folder / "before.jsonl").read_bytes() == resumed.before
    assert resumed.summary["steps"] == 6
    assert resumed.summary["stopped_by"] == "max_steps"
    assert resumed.summary["before"]["generations"] == 16
    assert set(resumed.summary["seconds"]) == {"start", "before", "train", "after", "total"}
    adapter = Path(resumed.summary["best_checkpoint"])
    assert (adapter / "adapter_model.safetensors").exists()
    assert (resumed.folder / "curves.png").stat().st_size > 10_000
    assert (resumed.folder / "config.yaml").exists()
