from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from ctrlreward.commands.config_files import fill_root, with_extended
from ctrlreward.commands.training_job import build

BASE = """
model: {class_path: pytorch_lightning.demos.boring_classes.BoringModel}
data: {class_path: pytorch_lightning.demos.boring_classes.BoringDataModule}
trainer:
  accelerator: cpu
  max_steps: 1
  default_root_dir: %s
  logger:
    - class_path: ctrlreward.callbacks.HistoryLogger
      init_args: {folder: "${trainer.default_root_dir}/history"}
"""


def test_one_option_moves_all_that_names_the_runs_folder(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE % (tmp_path / "base"))
    top = {"extends": "base.yaml", "trainer": {"default_root_dir": str(tmp_path / "run")}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(top))
    for options, folder in (
        ([], "run"),
        ([f"--trainer.default_root_dir={tmp_path / 'other'}"], "other"),
    ):
        trainer = build(["--config", str(tmp_path / "run.yaml"), *options]).trainer
        assert Path(trainer.default_root_dir) == tmp_path / folder
        assert Path(str(trainer.loggers[0].save_dir)) == tmp_path / folder / "history"


def test_a_file_is_extended_through_several(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("extends: b.yaml\nc: 1")
    (tmp_path / "b.yaml").write_text("extends: a.yaml")
    (tmp_path / "a.yaml").write_text("a: 1")
    a = str(tmp_path / "a.yaml")
    assert with_extended(["--config", str(tmp_path / "c.yaml")]) == [
        *("--config", a),
        *("--config", "c: 1\n"),
    ]
    assert with_extended(["--config", a, "--config=absent.yaml"]) == [
        *("--config", a),
        *("--config", "absent.yaml"),
    ]


def test_only_the_runs_folder_can_be_named() -> None:
    config = Namespace(a=["x/${trainer.default_root_dir}/y", 1], b={"c": "plain"})
    assert fill_root(config, "runs/z") == Namespace(a=["x/runs/z/y", 1], b={"c": "plain"})
    with pytest.raises(ValueError, match=r"names \$\{trainer.root\}: only .*default_root_dir"):
        fill_root({"a": "${trainer.root}"}, "runs")


def test_the_command_names_what_is_wrong_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: absent.yaml")
    command = [sys.executable, "-m", "ctrlreward", "train", str(tmp_path / "a.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "absent.yaml, which does not exist" in done.stderr
    assert "Traceback" not in done.stderr
