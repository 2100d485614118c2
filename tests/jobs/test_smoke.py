"""`ctrlreward train --smoke` of the shipped configurations."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import wandb

from ctrlreward.cli import main
from ctrlreward.command_line.config_files import read_config, with_extended
from ctrlreward.files import JsonLog
from ctrlreward.jobs.training_job import TrainCLI, build

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
TRANSFER = CONFIGS / "textual_transfer"
ON_TOP = ("small", "as_printed", "official")
JOBS = [
    [path]
    for path in sorted(CONFIGS.rglob("*.yaml"))
    if path.stem not in ON_TOP
    and ({"trainer", "model"} <= (keys := read_config(path).keys()) or "extends" in keys)
]
JOBS += [[TRANSFER / "yelp.yaml", TRANSFER / f"{name}.yaml"] for name in ON_TOP]


def one_of_each_kind() -> list[Any]:
    """Return the jobs as parameters, with the mark soak except one of each folder and keys."""
    seen, parameters = set(), []
    for job in JOBS:
        kind = (job[-1].parent, len(job), frozenset(read_config(job[-1])))
        parameters.append(pytest.param(job, marks=pytest.mark.soak if kind in seen else []))
        seen.add(kind)
    return parameters


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary ones."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    return tmp_path


@pytest.mark.parametrize("job", one_of_each_kind(), ids=lambda job: job[-1].stem)
def test_every_configuration_has_a_smoke_run(
    job: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two steps, and with nothing but its folder to write into."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(TrainCLI, "instantiate_classes", lambda self: None)  # needs data
    files = [part for path in job for part in ("--config", str(path))]
    cli = build(with_extended([*files, "--smoke"]))
    trainer = cli.config.trainer
    limits = (trainer.limit_train_batches, trainer.max_epochs, trainer.val_check_interval)
    assert limits == (2, 1, 1)
    written = cli.parser.dump(cli.config, skip_validation=True)
    folders = re.findall(r"^\W*(?:folder|dirpath|save_dir|default_root_dir): (\S+)", written, re.M)
    folders = [path for path in folders if path != "null"]
    assert folders
    assert all(path.startswith(f"{folder}/") for path in folders), folders


@pytest.mark.parametrize(
    ("recipe", "texts", "logged"),
    [
        pytest.param("sentiment", 4, {"score/judge"}, marks=pytest.mark.soak),
        ("multi_attribute", 16, {"score/topic_relevance", "score/corpus/accuracy_deviation"}),
    ],
)
def test_the_smoke_run_of_a_recipe_goes_through_all_its_parts(
    workplace: dict[str, str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    recipe: str,
    texts: int,
    logged: set[str],
) -> None:
    main(["train", f"configs/controlled_generation/{recipe}_smollm2.yaml", "--smoke"])
    wandb.finish()
    (root,) = folder.glob("*-smoke-*")
    assert f"report: {root}" in capsys.readouterr().err
    history = JsonLog(root / "metrics.jsonl").read()
    for key in {"reward/total", "score/attribute_relevance"} | logged:
        assert len([row for row in history if key in row]) == 2
    summary = json.loads((root / "summary.json").read_text())
    assert (summary["steps"], summary["before"]["generations"]) == (2, texts)
    assert {"before.jsonl", "after.jsonl", "checkpoints", "samples", "wandb"} <= {
        path.name for path in root.iterdir()
    }
    assert 'class="verdict' in (root / "report.html").read_text()
    assert not Path("runs").exists()
