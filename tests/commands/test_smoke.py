"""`ctrlreward train --smoke` of the shipped configurations."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest
import wandb

from ctrlreward.cli import main
from ctrlreward.commands.config_files import read_config
from ctrlreward.commands.training_job import TrainCLI, build
from ctrlreward.files import JsonLog
from ctrlreward.plots.curves import curve

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TRANSFER = CONFIGS / "textual_transfer"
ON_TOP = ("small", "literature", "as_printed")
JOBS = [
    [path]
    for path in sorted(CONFIGS.rglob("*.yaml"))
    if ({"trainer", "model"} <= read_config(path).content.keys() or path.stem[:6] == "guard_")
    and path.stem not in ON_TOP
]
JOBS += [[TRANSFER / "m7.yaml", TRANSFER / f"{name}.yaml"] for name in ON_TOP]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary ones."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    return tmp_path


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[-1].stem)
def test_every_configuration_has_a_smoke_run(
    job: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two steps with few texts, and with nothing but its folder to write into."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(TrainCLI, "instantiate_classes", lambda self: None)  # needs data
    cli = build([*(part for path in job for part in ("--config", str(path))), "--smoke"])
    trainer = cli.config.trainer
    assert (trainer.limit_train_batches, trainer.max_epochs, trainer.val_check_interval) == (
        2,
        1,
        1,
    )
    written = cli.parser.dump(cli.config, skip_validation=True)
    folders = re.findall(r"^\W*(?:folder|dirpath|save_dir|default_root_dir): (\S+)", written, re.M)
    folders = [path for path in folders if path != "null"]
    assert folders
    assert all(path.startswith(f"{folder}/") for path in folders), folders
    for name, most in (("count", 4), ("batch_size", 2), ("generations_per_prompt", 1)):
        numbers = re.findall(rf"^\W*{name}: (\d+)", written, re.M)
        assert all(int(number) <= most for number in numbers)


def test_the_smoke_run_of_the_demo_goes_through_all_its_parts(
    workplace: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", "configs/controlled_generation/sentiment_smollm2.yaml", "--smoke"])
    wandb.finish()
    (root,) = folder.glob("demo-smoke-*")
    assert f"files in {root}: after.jsonl" in capsys.readouterr().err
    history = JsonLog(root / "metrics.jsonl").read()
    assert len(curve(history, "reward/total")[0]) == 2
    assert len(curve(history, "score/attribute_relevance")[0]) == 2
    summary = json.loads((root / "summary.json").read_text())
    assert (summary["steps"], summary["before"]["generations"]) == (2, 4)
    assert {"before.jsonl", "after.jsonl", "checkpoints", "curves.png", "samples", "wandb"} <= {
        path.name for path in root.iterdir()
    }
    assert not Path("runs").exists()
