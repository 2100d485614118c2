from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import yaml

from ctrlreward.command_line.config_files import read_config, read_job, resolved, with_extended
from ctrlreward.jobs.training_job import build

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
    config = ["--config", str(tmp_path / "run.yaml")]
    option = f"--trainer.default_root_dir={tmp_path / 'other'}"
    for arguments, folder in (
        (config, "run"),
        ([*config, option], "other"),
        ([option, *config], "other"),
    ):
        trainer = build(with_extended(arguments)).trainer
        assert Path(trainer.default_root_dir) == tmp_path / folder
        assert Path(str(trainer.loggers[0].save_dir)) == tmp_path / folder / "history"


def test_a_file_can_not_extend_itself(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("extends: b.yaml")
    with pytest.raises(ValueError, match="extends"):
        read_job(tmp_path / "b.yaml")


VALUES = """
values: {labels: [negative, positive], judges: {a: 1, b: 2}}
model: {init_args: {labels: "${values.labels}", generation: {top_p: 1, count: 2}}}
trainer: {x: 0, callbacks: [1], judges: "${values.judges}", root: "${model.init_args.labels}"}
"""


TOP = """
extends: b.yaml
values: {labels: {tense: [past]}}
model: {init_args: {generation: {count: 3}}}
trainer: {callbacks+: [2]}
"""


def test_values_are_those_of_the_file_on_top(tmp_path: Path) -> None:
    """Groups are merged, a value is replaced as a whole, and what names it follows."""
    (tmp_path / "a.yaml").write_text(VALUES)
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nvalues: {judges: {c: 3}}")
    (tmp_path / "c.yaml").write_text(TOP)
    labels = {"tense": ["past"]}
    assert resolved(read_job(tmp_path / "c.yaml")) == {
        "values": {"labels": labels, "judges": {"c": 3}},
        "model": {"init_args": {"labels": labels, "generation": {"top_p": 1, "count": 3}}},
        "trainer": {"x": 0, "callbacks": [1, 2], "judges": {"c": 3}, "root": labels},
    }
    (tmp_path / "d.yaml").write_text("extends: a.yaml\nmodel: {x: '${values.lables}'}")
    with pytest.raises(ValueError, match="lables"):
        resolved(read_job(tmp_path / "d.yaml"))


CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DEMO = CONFIGS / "controlled_generation" / "sentiment_smollm2.yaml"


MISTAKES = (
    "--trainer.max_step=3",
    "--model.lora.lora_alph=8",  # options of classes are not abbreviated
    "--model.generation.temperature=-1",
    "--ckpt_path=nope.ckpt",
)


@pytest.mark.parametrize("option", MISTAKES)
def test_a_mistake_exits_before_training(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., str]
) -> None:
    """As an option, and as a key of a file; the message names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pl.Trainer, "fit", lambda *_, **__: pytest.fail("it trains"))
    name, _, value = option.removeprefix("--").partition("=")
    named = name.split(".")[-1] if "." in name else value
    assert named in fails("train", DEMO, option)
    content: Any = value
    for key in reversed(name.split(".")):
        content = {key: content}
    Path("top.yaml").write_text(yaml.safe_dump(content))
    assert named in fails("train", "--config", DEMO, "--config", "top.yaml")
    assert not Path("runs").exists()


def test_a_key_next_to_class_path_is_refused(tmp_path: Path) -> None:
    """The parser would ignore the class."""
    (tmp_path / "a.yaml").write_text("model:\n- {class_path: a.B, init_arg: {c: 1}}\n")
    with pytest.raises(ValueError, match="init_arg "):
        read_config(tmp_path / "a.yaml")


def test_a_config_is_relative_to_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a value of another file as well, as seen from the current folder; else as given."""
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    shipped.mkdir()
    own.mkdir()
    for file in (shipped / "judge.yaml", own / "mine.yaml"):
        file.write_text("seed_everything: 0\n")
    (shipped / "base.yaml").write_text(
        "values: {other: {config: none.yaml}}\n"
        "data:\n  models:\n  - {folder: a, config: judge.yaml}\n"
        "  - {config: '${values.other.config}'}\n"
    )
    job = own / "job.yaml"
    job.write_text("extends: ../shipped/base.yaml\nvalues: {other: {config: mine.yaml}}\n")
    for folder, prefix in ((tmp_path, ""), (own, "../")):
        monkeypatch.chdir(folder)
        judge, other = (
            model["config"] for model in resolved(read_job(os.path.relpath(job)))["data"]["models"]
        )
        assert judge == f"{prefix}shipped/judge.yaml"
        assert other == ("own/mine.yaml" if folder == tmp_path else "mine.yaml")
    assert resolved(read_job(shipped / "base.yaml"))["values"]["other"] == {"config": "none.yaml"}
