"""The examples in the help of each command, run as they are printed, on tiny models."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_bert, use_weights
from transformers import BertModel

from ctrlreward.cli import COMMANDS, main
from ctrlreward.jobs.training_job import build
from ctrlreward.policy.model import LoRA, load_policy
from ctrlreward.samples import as_samples
from ctrlreward.scorers.records import write_scored_samples

LETTERS = " abcdefghijklmnopqrstuvwxyzT.,"
KINDS = ("ctrleval", "ctc", "li2018", "rated")
HELPS = [
    [],
    *([command] for command in COMMANDS if command not in ("train", "serve")),
    *(["meta-eval", kind] for kind in KINDS),
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("bert"), BertModel)


def write_csv(name: str, rows: list[dict[str, Any]]) -> None:
    with open(name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_jsonl(name: str, rows: list[Any]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def interrupted(server: ThreadingHTTPServer) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_llama: Callable[[str], str],
    encoder: str,
    one_thread: None,
) -> None:
    """A folder with each file that an example names, and tiny models under the short names."""
    monkeypatch.chdir(tmp_path)
    llama = tiny_llama(LETTERS)
    use_weights(monkeypatch, {"smollm2-135m": llama, "minilm-l6": encoder})
    texts = [f"Tea is {'very ' * i}hot, so wait." for i in range(6)]
    samples = [{"text": t, "prefix": "Tea is", "label": "positive"} for t in texts]
    write_jsonl("texts.jsonl", [row | {"topic": "science"} for row in samples])
    outputs = [
        {"system": system, "prompt": f"Tea {i} is", "output": text}
        for i, text in enumerate(texts)
        for system in "AB"
    ]
    write_csv("systems.csv", outputs)
    scores = {"log_likelihood": -1, "polarity": 0}
    for name in ("scored.csv", "base.csv", "tuned.csv"):
        write_csv(name, [row | scores for row in outputs])
    rated = [{"fluency": i % 4, "overall": i} for i in range(6)]
    write_jsonl("rated.jsonl", [a | b for a, b in zip(samples, rated, strict=True)])
    Path("prefixes.txt").write_text("Tea is\nThe soup\n")
    load_policy(llama, LoRA(4), "cpu").save_pretrained("runs/tuned/adapter")
    for seed in (0, 1):
        Path(f"runs/seed{seed}").mkdir(parents=True)
        steps = [{"step": i, "score/x": i + seed} for i in range(3)]
        write_jsonl(f"runs/seed{seed}/metrics.jsonl", steps)
        last = Path(f"runs/seed{seed}/samples/score/step=000002.jsonl")
        write_scored_samples(last, as_samples(samples), {"x": [seed + i / 9 for i in range(6)]})
    stored = as_samples(samples, groups=range(len(samples)))
    for step in (1, 2):
        write_scored_samples(f"runs/demo/samples/score/step={step:06d}.jsonl", stored, {})
    held_out = {"score/fail_rate": 0.0, "score/sim": 0.5, "score/distinct_2": 0.9}
    rows = [{"step": i, "reward/total": i, **held_out} for i in (1, 2)]
    write_jsonl("runs/demo/metrics.jsonl", rows)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupted)
    for folder, logged in (
        ("out/grpo", {"reward": 1, "score/relevance": 0.5, "score/distinct_2": 0.9}),
        ("out", {"eval_loss": 0.5}),
    ):
        Path(folder).mkdir(parents=True, exist_ok=True)
        history = [{"step": step, **logged} for step in (1, 2)]
        Path(folder, "trainer_state.json").write_text(json.dumps({"log_history": history}))
    verl = [{"step": i, "data": {"val-core/gsm8k/reward/mean@4": i}} for i in (1, 2)]
    write_jsonl("verl.jsonl", verl)
    Path("checkpoints/gsm8k/global_step_2").mkdir(parents=True)
    distinct = "distinct_2: {scorer: Distinct, score: distinct_2}"
    fluency = "fluency: {scorer: Perplexity, score: log_likelihood}"
    Path("judge.yaml").write_text(f"components:\n  {fluency}\n  {distinct}\n")
    Path("reward.yaml").write_text(f"components: {{{distinct}}}")
    write_jsonl("validation.jsonl", samples)
    answers = zip(texts[1:], texts, strict=False)
    pairs = [{"prompt": "Tea?", "chosen": a, "rejected": b} for a, b in answers]
    write_jsonl("chosen.jsonl", pairs)
    functions = ("format_reward", "politeness")
    count = "(texts): return [t.count('.') for t in texts]\n"
    Path("rewards.py").write_text("".join(f"def {name}{count}" for name in functions))
    senti = [("positive", "Tea is", text, i % 4, i, 6 - i) for i, text in enumerate(texts)]
    monkeypatch.setenv("CTRLREWARD_DATA", "data")
    for data_set in ("ctrleval", "ctc", "li2018", "multicontrol", "yelp_shen"):
        Path("data", data_set).mkdir(parents=True)
    Path("data/yelp_shen/sentiment.test.0").write_text("the tea was cold .\n")
    Path("data/ctrleval/data_senti.txt").write_text(
        "".join("\t".join(map(str, r)) + "\n" for r in senti)
    )
    dialogs = [
        {"response": text, "dialog_history": "hi", "fact": "Tea", "model": "abc"[i % 3],
         "engaging": i % 4, "uses_knowledge": i}
        for i, text in enumerate(texts)
    ]  # fmt: skip
    Path("data/ctc/persona_chat.json").write_text(json.dumps(dialogs))
    transfers = [
        {"item": f"n-{i // 2}", "target": "positive", "system": "ab"[i % 2], "source": "Bad tea.",
         "output": text, "grammaticality": i % 3, "sentiment": i, "topic": i % 4}
        for i, text in enumerate(texts)
    ]  # fmt: skip
    write_csv("data/li2018/human_ratings_yelp.csv", transfers)
    people = ("anna", "ben", "carla")
    labels = [dict(zip(people, row.split(), strict=True)) for row in ("yes no no", "no no no")]
    write_csv("rated.csv", labels)
    released = [[[0, -1, -1], "In summary, tea."], [[-1, 2, -1], "In summary, hot tea."]]
    write_jsonl("data/multicontrol/generate_prior.txt", released)
    Path("openai-community").mkdir()
    for name in ("gpt2", "gpt2-large"):
        Path("openai-community", name).symlink_to(llama)


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


@pytest.mark.parametrize("command", HELPS, ids="-".join)
def test_the_examples_run(
    command: list[str], files: None, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped(command, capsys)
    assert text.startswith("usage: ctrlreward")
    lines = list(examples(text))
    assert lines
    for arguments in lines:
        for other in ("scored.csv", "topic.jsonl"):  # of the examples before it
            if other in arguments[2:3]:
                Path(other).unlink(missing_ok=True)
        with suppress(SystemExit) if arguments[0] == "probe" else nullcontext():
            main(arguments)  # a probe that finds a weakness exits with 1
        written = [name for name in arguments[2:3] if arguments[0] == "score"]
        files_written = [f for name in written for f in (Path(name), *Path(name).glob("*"))]
        assert all(file.stat().st_size > 0 for file in files_written)
        assert capsys.readouterr().out


def test_the_example_of_train_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    text = helped(["train"], capsys)
    (arguments,) = examples(text)
    cli = build(arguments[1:])
    assert cli.trainer.max_steps == 10
    assert list(tmp_path.iterdir()) == []
