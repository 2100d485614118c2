from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import yaml

from ctrlreward.command_line.config_files import (
    check_names,
    extended_files,
    fill_in_run_folder,
    read_config,
    with_extended,
)
from ctrlreward.jobs.training_job import build
from ctrlreward.weights.sources import TRAINED_NAMES

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
    arguments, files = with_extended([f"--config={tmp_path / 'c.yaml'}", "--x=1"])
    assert arguments == ["--config", a, "--config", "c: 1\n", "--x=1"]
    assert [Path(file.path).name for file in files] == ["a.yaml", "b.yaml", "c.yaml"]
    before, _ = with_extended(["--x=1", "--config", str(tmp_path / "c.yaml")])
    assert before == arguments  # else the file would replace the option


def test_replacements_are_of_the_extended_files_alone(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: &same [runs/a, x/a.txt, 1]\ndata: *same\nb: runs/ab")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\nreplace: {runs/a: runs/ab, b: c}\nc: runs/a")
    arguments, files = with_extended(["--config", str(tmp_path / "b.yaml")])
    replaced = {"model": ["runs/ab", "x/a.txt", 1], "data": ["runs/ab", "x/a.txt", 1]}
    assert yaml.safe_load(arguments[1]) == {**replaced, "b": "runs/abc"}
    assert arguments[3] == "c: runs/a\n"
    assert files[0].line(("data",)) == 2
    for content, error in (
        ("replace: {a: b}", "b.yaml:1: replace needs extends"),
        ("extends: a.yaml\nreplace: {a: 1}", "b.yaml:2: replace must be a mapping of strings"),
    ):
        (tmp_path / "b.yaml").write_text(content)
        with pytest.raises(ValueError, match=error):
            with_extended(["--config", str(tmp_path / "b.yaml")])


ANCHORED = """
model: &model {labels: &labels [negative, positive], template: &template "{label}: {prefix}"}
data: {labels: *labels, template: *template, more: [*labels]}
"""


def test_anchors_replace_values_wherever_they_are_named(tmp_path: Path) -> None:
    """Through several files, of which the one on top has the last word."""
    (tmp_path / "a.yaml").write_text(ANCHORED)
    middle = {"extends": "a.yaml", "anchors": {"labels": ["past", "future"], "template": "x"}}
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(middle))
    top = {"extends": "b.yaml", "anchors": {"labels": {"tense": ["past"]}}, "trainer": {"x": 1}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(top))
    arguments, files = with_extended(["--config", str(tmp_path / "c.yaml")])
    labels = {"tense": ["past"]}
    both = {"labels": labels, "template": "x"}
    assert yaml.safe_load(arguments[1]) == {"model": both, "data": {**both, "more": [labels]}}
    assert yaml.safe_load(arguments[3]) == {"trainer": {"x": 1}}
    assert files[0].line(("data", "labels")) == 3  # a mistake in it has the line of the anchor


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "extends: a.yaml\nanchors:\n  label: [a]",
            "b.yaml:3: anchors.label is not an anchor of .*a.yaml .did you mean 'labels'.., which "
            "has labels, template, model$",
        ),
        ("extends: a.yaml\nanchors: [labels]", "b.yaml:2: anchors must be a mapping, such as lab"),
        ("anchors: {labels: [a]}", "b.yaml:1: anchors needs extends: it is about the values of"),
        ("extends: plain.yaml\nanchors: {labels: [a]}", "of .*plain.yaml, which has none"),
    ],
)
def test_anchors_that_are_not_there_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(ANCHORED)
    (tmp_path / "plain.yaml").write_text("model: {labels: [a]}")
    (tmp_path / "b.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        with_extended(["--config", str(tmp_path / "b.yaml")])


def test_only_the_runs_folder_can_be_named() -> None:
    config = Namespace(a=["x/${trainer.default_root_dir}/y", 1], b={"c": "plain"})
    assert fill_in_run_folder(config, "runs/z") == Namespace(a=["x/runs/z/y", 1], b={"c": "plain"})
    with pytest.raises(
        ValueError, match=r"trainer.root.* names another value: only .*default_root"
    ):
        fill_in_run_folder({"a": "${trainer.root}"}, "runs")


CONFIGS = Path(__file__).resolve().parents[2] / "configs"
DEMO = CONFIGS / "controlled_generation" / "sentiment_smollm2.yaml"


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.name)
def test_nothing_but_the_trainers_folder_names_the_folder_of_a_run(path: Path) -> None:
    file = read_config(path)
    check_names([], [file]) if "trainer" in file.content else None
    root = file.content.get("trainer", {}).get("default_root_dir", "none")
    for keys, value in file.values():
        if keys != ("trainer", "default_root_dir"):
            assert value != root, keys
            assert not str(value).startswith(f"{root}/"), keys
        if keys == ("model", "init_args", "folder") or keys[-1] in ("dirpath", "save_dir"):
            # The names of trained models are folders of the cache.
            of_run = str(value).startswith("${trainer.default_root_dir}")
            assert of_run or value in TRAINED_NAMES, keys


FIRST_SECOND = """
import sys
from ctrlreward.cli import main

wrong = [line.split() for line in sys.argv[1:]]
for arguments in wrong:
    try:
        main(arguments)
    except SystemExit as ended:
        loaded = {"torch", "transformers", "pytorch_lightning"} & set(sys.modules)
        assert (ended.code, loaded) == (2, set()), (arguments, ended.code, loaded)
    else:
        raise AssertionError(arguments)
"""
MISTYPED = {
    "train nope.yaml": "error: No such file: nope.yaml",
    "train -c nope.yaml": "error: No such file: nope.yaml",
    f"train {DEMO} --trainer.max-step 3": "--trainer.max_step is not an option "
    "(did you mean --trainer.max_steps?)",
    f"train {DEMO} --trainr.max_steps 3": "(did you mean --trainer?)",
    f"train {DEMO} --model.init_args.model=smollm2-135": "(did you mean 'smollm2-135m'?)",
    "train extending.yaml": "extending.yaml:1: extends names absent.yaml, which does not exist",
    "serve nope.yaml": "error: No such file: nope.yaml",
    "serve reward.yaml --prot 8": "--prot is not an option (did you mean --port?)",
    "score a.csv b.csv --scorers Perplexity --scorers.model minilm": "(did you mean 'minilm-l6'?)",
    "score in.jsonl": "the following arguments are required: output, scorers",
    "score in.jsonl out.csv --scorers Perplexty": "Perplexty (did you mean Perplexity?)",
    "score in.jsnl out.csv --scorers Perplexity": "in.jsnl (did you mean in.jsonl?)",
    "score in.jsonl out.xlsx --scorers Perplexity": "out.xlsx must end in one of .jsonl",
    "score in.jsonl out.csv --scorer Perplexity": "--scorer (did you mean --scorers?)",
    "trian": "No such command: 'trian' (did you mean train?)",
}


def test_what_is_mistyped_is_said_before_pytorch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "extending.yaml").write_text("extends: absent.yaml")
    (tmp_path / "reward.yaml").write_text("components: {d: Distinct}")
    (tmp_path / "in.jsonl").write_text('{"text": "soup"}\n')
    done = subprocess.run(
        [sys.executable, "-c", FIRST_SECOND, *MISTYPED],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for message in MISTYPED.values():
        assert message in done.stderr


def edited(keys: Sequence[str | int], value: Any, renamed: str = "") -> dict[str, Any]:
    """Return the demo with another value of a key, or another key."""
    content: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    at: Any = content
    for key in keys[:-1]:
        at = at[key]
    if renamed:
        at[renamed] = at.pop(keys[-1])
    else:
        at[keys[-1]] = value
    return content


INIT = ("model", "init_args")
WATCH = ("trainer", "callbacks", 1)
MISTAKES = {
    "top level": (edited(["trainer"], 0, "trainr"), "trainr", "mean 'trainer'?"),
    "of the trainer": (
        edited(["trainer", "max_steps"], 0, "max_step"), "trainer.max_step", "mean 'max_steps'?"),
    "argument": (
        edited([*INIT, "objective"], 0, "objectiv"), "model.init_args.objectiv",
        "mean 'objective'?"),
    "in a group": (
        edited([*INIT, "generation", "temperature"], 0, "temprature"),
        "model.init_args.generation.temprature", "mean 'temperature'?"),
    "old name": (edited([*INIT, "lora", "r"], 0, "rank"), "model.init_args.lora.rank", "Use r"),
    "of a reward": (
        edited([*INIT, "reward", "init_args", "fluency"], 0, "fluenc"),
        "model.init_args.reward.init_args.fluenc", "mean 'fluency'?"),
    "of a callback": (
        edited([*WATCH, "init_args", "template"], 0, "templat"),
        "trainer.callbacks[1].init_args.templat", "mean 'template'?"),
    "of a judge": (
        edited(["trainer", "callbacks", 5, "init_args", "judges", "sentiment_auc", "init_args",
                "positive"], 0, "positiv"),
        "trainer.callbacks[5].init_args.judges.sentiment_auc.init_args.positiv",
        "mean 'positive'?"),
    "type": (edited(["trainer", "max_steps"], "five"), "trainer.max_steps", "be int, got 'five'"),
    "type within": (
        edited(["data", "init_args", "batch_size"], "five"), "data.init_args.batch_size",
        "be int, got 'five'"),
    "choice": (
        edited([*INIT, "objective", "algorithm"], "grp"), "model.init_args.objective.algorithm",
        "mean 'grpo'?"),
    "class": (
        edited(["model", "class_path"], "ctrlreward.policy.PolicyTunr"), "model.class_path",
        "mean 'PolicyTuner'?"),
    "function": (
        edited([*WATCH, "class_path"], "ctrlreward.recipes.controlled_generation.held_out_scorr"),
        "trainer.callbacks[1].class_path", "mean 'held_out_scorer'?"),
    "init_args": (edited(["data", "init_args"], 0, "init_arg"), "data.init_arg", "'init_args'?"),
    "model": (edited([*INIT, "model"], "smollm-135m"), "model = 'smollm-135m'", "'smollm2-135m'?"),
    "lacking": (edited([*INIT], {"model": "m"}), "model", "lacks reward"),
    "range": (
        edited([*INIT, "generation", "temperature"], -1), "generation.temperature",
        "must be positive, got -1"),
    "value": (
        edited(["trainer", "callbacks", 4, "init_args", "dirpath"], "${trainer.root}"),
        "${trainer.root}", "only ${trainer.default_root_dir}"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_yaml_is_one_line_with_file_key_and_suggestion(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., str]
) -> None:
    content, key, suggestion = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.setattr(pl.Trainer, "fit", lambda *_, **__: pytest.fail("it trains"))
    said = fails("train", "job.yaml").splitlines()
    (line,) = [line for line in said if not line.startswith("Seed")]
    assert line.startswith("error: ")
    if mistake not in ("value", "range"):
        assert re.search(r"job\.yaml:\d+: ", line)
    if mistake not in ("value", "range", "lacking"):
        name = key.partition(" =")[0].split(".")[-1]
        number = int(line.split(":")[2])
        assert Path("job.yaml").read_text().splitlines()[number - 1].strip("- ").startswith(name)
    assert key in line
    assert suggestion in line


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.lr=1", "--model.lr is not an option. Use optimizer.learning_rate."),
        ("--model.lora.lora_alph=8", "--model.lora.lora_alph is not an option (did you mean "),
        ("--model.objective.bet=1", "--model.objective.bet is not an option (did you mean 'be"),
        ("--seed_everything=x", "--seed_everything must be bool or int"),
        ("--ckpt_path=nope.ckpt", "No such file: nope.ckpt"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(
    option: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[..., str],
) -> None:
    """Options of classes are not abbreviated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pl.Trainer, "fit", lambda *_, **__: pytest.fail("it trains"))
    assert fails("train", DEMO, option).splitlines()[-1].startswith(f"error: {message}")


def test_bad_yaml_has_its_line(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / "job.yaml").write_text("trainer:\n  max_steps: [1, 2\nmodel: x\n")
    said = fails("train", tmp_path / "job.yaml")
    assert re.match(r"error: .*job\.yaml:3: is not YAML: .+\n$", said)


@pytest.mark.parametrize("read", ["when it is built", "when training starts"])
def test_missing_data_is_one_line_with_its_key(
    read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = {"when it is built": "yelp_warm_up", "when training starts": "text_cnn_yelp"}[read]
    text = (CONFIGS / "style_transfer" / f"{name}.yaml").read_text()
    Path("job.yaml").write_text(text.replace(" yelp-shen/", " my/"))
    line = fails("train", "job.yaml", "--trainer.accelerator=cpu").splitlines()[-1]
    assert re.match(r"error: job\.yaml:\d+: \S+ = my/\S+: no such file", line)


def test_a_config_is_relative_to_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an anchor of another file as well, as seen from the current folder; else as given."""
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    shipped.mkdir()
    own.mkdir()
    for file in (shipped / "judge.yaml", own / "mine.yaml"):
        file.write_text("seed_everything: 0\n")
    (shipped / "base.yaml").write_text(
        "data:\n  models:\n  - {folder: a, config: judge.yaml}\n  - &other {config: none.yaml}\n"
    )
    job = own / "job.yaml"
    job.write_text("extends: ../shipped/base.yaml\nanchors: {other: {config: mine.yaml}}\n")
    for folder, prefix in ((tmp_path, ""), (own, "../")):
        monkeypatch.chdir(folder)
        (base, _) = extended_files(os.path.relpath(job))
        judge, other = (model["config"] for model in base.content["data"]["models"])
        assert judge == f"{prefix}shipped/judge.yaml"
        assert other == ("own/mine.yaml" if folder == tmp_path else "mine.yaml")
    (base,) = extended_files(str(shipped / "base.yaml"))
    assert base.content["data"]["models"][1] == {"config": "none.yaml"}
