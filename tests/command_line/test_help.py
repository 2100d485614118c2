"""The help of each command, whose examples run as they are printed, on tiny models."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from tiny_models import use_weights

from ctrlreward.cli import COMMANDS, main
from ctrlreward.jobs.training_job import build
from ctrlreward.samples import as_samples
from ctrlreward.scorers.records import write_scored_samples

LETTERS = " abcdefghijklmnopqrstuvwxyzT.,"
RUN = ("compare", "doctor", "probe", "recipes", "report", "rescore", "score", "select")


def write_csv(name: str, rows: list[dict[str, Any]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(name: str, rows: list[Any]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_llama: Callable[[str], str],
    one_thread: None,
) -> None:
    """A folder with each file that an example names, and a tiny model under the short name."""
    monkeypatch.chdir(tmp_path)
    use_weights(monkeypatch, {"smollm2-135m": tiny_llama(LETTERS)})
    texts = [f"Tea is {'very ' * i}hot, so wait." for i in range(6)]
    samples = [{"text": t, "prefix": "Tea is", "label": "positive"} for t in texts]
    for name in ("texts.jsonl", "validation.jsonl"):
        write_jsonl(name, [row | {"topic": "science"} for row in samples])
    outputs = [
        {"system": system, "prompt": f"Tea {i} is", "output": text}
        for i, text in enumerate(texts)
        for system in "AB"
    ]
    write_csv("systems.csv", outputs)
    for name in ("scored.csv", "base.csv", "tuned.csv"):
        write_csv(name, [row | {"log_likelihood": -1, "polarity": 0} for row in outputs])
    held_out = {"score/fail_rate": 0.0, "score/sim": 0.5, "score/distinct_2": 0.9}
    logged = [{"step": i, "reward/total": i, **held_out} for i in (1, 2)]
    stored = as_samples(samples, groups=range(len(samples)))
    for run in ("demo", "seed0", "seed1"):
        for step in (1, 2):
            path = f"runs/{run}/samples/score/step={step:06d}.jsonl"
            write_scored_samples(path, stored, {"x": [i / 9 for i in range(6)]})
        write_jsonl(f"runs/{run}/metrics.jsonl", logged)
    for folder, metrics in (
        ("out/grpo", {"reward": 1, "score/relevance": 0.5, "score/distinct_2": 0.9}),
        ("out", {"eval_loss": 0.5}),
    ):
        Path(folder).mkdir(parents=True, exist_ok=True)
        history = [{"step": step, **metrics} for step in (1, 2)]
        Path(folder, "trainer_state.json").write_text(json.dumps({"log_history": history}))
    write_jsonl(
        "verl.jsonl", [{"step": i, "data": {"val-core/gsm8k/reward/mean@4": i}} for i in (1, 2)]
    )
    Path("checkpoints/gsm8k/global_step_2").mkdir(parents=True)
    distinct = "distinct_2: {scorer: Distinct, score: distinct_2}"
    fluency = "fluency: {scorer: Perplexity, score: log_likelihood}"
    Path("judge.yaml").write_text(f"components:\n  {fluency}\n  {distinct}\n")
    Path("reward.yaml").write_text(f"components: {{{distinct}}}")
    Path("rewards.py").write_text("def format_reward(texts): return [len(t) for t in texts]\n")


def helped(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with suppress(SystemExit):
        main([*arguments, "--help"])
    return capsys.readouterr().out


def examples(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each command line below the word "examples"."""
    for line in text.partition("examples:\n")[2].splitlines():
        if line.startswith("  "):
            program, *arguments = shlex.split(line)
            assert program == "ctrlreward"
            yield arguments


@pytest.mark.parametrize("command", RUN)
def test_the_examples_run(command: str, files: None, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(examples(helped([command], capsys)))
    assert lines
    for arguments in lines:
        if command == "score":
            Path("scored.csv").unlink(missing_ok=True)
        with suppress(SystemExit) if command == "probe" else nullcontext():
            main(arguments)  # a probe that finds a weakness exits with 1
        assert capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_a_help_with_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped([command] if command else [], capsys)
    assert text.startswith("usage: ctrlreward")
    assert f"  ctrlreward {command}" in text.partition("examples:\n")[2]


def test_the_example_of_train_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    (arguments,) = examples(helped(["train"], capsys))
    assert build(arguments[1:]).trainer.max_steps == 10
    assert list(tmp_path.iterdir()) == []
