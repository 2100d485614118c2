"""Texts of other trainers: read as they are written, and decided on as our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrlreward.cli import main
from ctrlreward.runs import report
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.report_contents import contents
from ctrlreward.samples import Samples
from ctrlreward.scorers.records import write_scored_samples

STEPS, PROMPTS, REPEATS = (10, 20, 30), 12, 2


class Text(NamedTuple):
    prompt: int
    text: str
    reward: float
    brevity: float


def numbers(seed: int = 0) -> dict[int, list[Text]]:
    """Step → texts; the reward rises, brevity falls, and one sample of step 20 fails."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(size=PROMPTS)
    found = {
        step: [
            Text(i, f"very good {step} {i} {j}", *np.round(level[i] + [step / 40, -step / 40], 4))
            for i in range(PROMPTS)
            for j in range(REPEATS)
        ]
        for step in STEPS
    }
    found[20][5] = found[20][5]._replace(reward=float("nan"), brevity=float("nan"))
    return found


def shuffled(texts: list[Text], step: int) -> list[Text]:
    """As a loader that shuffles validation leaves them: completions of a prompt stay together."""
    order = np.random.default_rng(step).permutation(PROMPTS)
    return [text for i in order for text in texts if text.prompt == i]


def lines(file: Path, rows: list[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": text}]


def write_ours(folder: Path, name: str, keys: tuple[str, str]) -> None:
    for step, texts in numbers().items():
        asked = [f"Question {each.prompt}?" for each in texts]
        samples = Samples([each.text for each in texts], prompts=asked, groups=asked)
        scores = {
            keys[0]: np.array([each.reward for each in texts]),
            keys[1]: np.array([each.brevity for each in texts]),
        }
        write_scored_samples(folder / "samples" / name / f"step={step:06d}.jsonl", samples, scores)


def write_trl(folder: Path) -> None:
    """As `GRPOTrainer.log`; the trainer's own file is in tests/huggingface/test_trainers.py."""
    place = folder / "completions"
    place.mkdir(parents=True)
    for step, texts in numbers().items():
        table = pa.table({
            "step": [step] * len(texts),
            "prompt": [chat(f"Question {each.prompt}?") for each in texts],
            "completion": [[{"role": "assistant", "content": each.text}] for each in texts],
            "accuracy": [each.reward for each in texts],
            "brevity": [each.brevity for each in texts],
            "extracted": [each.text for each in texts],
            "advantage": [0.0] * len(texts),
        })  # fmt: skip
        pq.write_table(table, place / f"completions_{step:05d}.parquet")


def write_verl(folder: Path) -> None:
    for step, texts in numbers().items():
        rows = [
            {"input": f"user\nQuestion {each.prompt}?", "output": each.text,
             "gts": str(each.prompt), "score": each.reward, "step": step,
             "brevity": each.brevity, "pred": "7"}
            for each in shuffled(texts, step)
        ]  # fmt: skip
        lines(folder / "validation" / f"{step}.jsonl", rows)


WRITERS: dict[str, tuple[Callable[[Path], None], str, tuple[str, str]]] = {
    "trl": (write_trl, "completions", ("accuracy", "brevity")),
    "verl": (write_verl, "validation", ("score", "brevity")),
}


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def call(*arguments: object) -> str:
        main([str(argument) for argument in arguments])
        return capsys.readouterr().out

    return call


def reported(run: Path) -> dict[str, Any]:
    return contents(read_stored_run(run), report.parser().parse_args([str(run)]))


def rounded(value: Any) -> Any:
    """Sums of the same numbers in another order differ by rounding."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 12) if isinstance(value, float) else value


def decisions(printed: Callable[..., str], run: Path, name: str, keys: tuple[str, str]) -> Any:
    reward, brevity = (f"{name}/{key}" for key in keys)
    options = (
        "--maximise",
        reward,
        "--guard",
        f"{reward}=max:{brevity}=max",
        "--stop",
        "patience=1",
    )
    found = json.loads(printed("select", run, *options, "--json"))
    return rounded({k: v for k, v in found.items() if k not in ("run", "log", "source")})


def test_the_decisions_are_ours_on_the_same_numbers(
    kind: str, tmp_path: Path, printed: Callable[..., str]
) -> None:
    write, name, keys = WRITERS[kind]
    write(tmp_path / "theirs")
    write_ours(tmp_path / "ours", name, keys)
    theirs = decisions(printed, tmp_path / "theirs", name, keys)
    assert theirs == decisions(printed, tmp_path / "ours", name, keys)
    assert (theirs["step"], theirs["alarm_step"]) == (30, 20)
    assert "distinguishable from all others" in theirs["reason"]
    assert all(each["intervals"] for each in theirs["validations"])
    ours, run = (read_stored_run(tmp_path / each) for each in ("ours", "theirs"))
    assert [each.step for each in run.steps] == [*STEPS]
    for first, second in zip(ours.steps, run.steps, strict=True):
        for key in (*keys, "fail_rate"):
            key = f"{name}/{key}"
            assert second.metrics[key] == pytest.approx(first.metrics[key], rel=1e-12)
            rows = (np.sort(each.evidence[key]) for each in (first, second))
            np.testing.assert_array_equal(*rows)
    assert run.steps[1].metrics[f"{name}/fail_rate"] == pytest.approx(1 / (PROMPTS * REPEATS))


def test_the_texts_are_scored_again_and_reported(
    kind: str, tmp_path: Path, printed: Callable[..., str]
) -> None:
    write, name, _ = WRITERS[kind]
    run = tmp_path / "run"
    write(run)
    if kind == "trl":
        lines(run / "log.jsonl", [{"step": 10, "rewards/accuracy/mean": 0.5}])
    judge = tmp_path / "judge.yaml"
    judge.write_text("components:\n  variety: {scorer: Distinct, score: distinct_2}\n")
    found = json.loads(printed("rescore", run, judge, "--maximise", f"{name}/variety", "--json"))
    assert [row["step"] for row in found["validations"]] == [*STEPS]
    assert f"{name}/variety" in found["validations"][0]["metrics"]
    again = read_stored_run(run)  # what we wrote is neither its log nor its texts
    assert list(again.samples) == [name]
    assert f"{name}/variety" not in again.keys
    report = reported(run)
    assert report["decisions"]["step"] == 30
    (texts,) = report["texts"]
    shown = next(each for each in texts["items"] if "Question 4?" in each["prompt"])
    assert [each["text"][:-2] for each in shown["versions"]] == [
        f"very good {step} 4" for step in STEPS
    ]


# What is read


def test_a_log_beside_the_texts(tmp_path: Path) -> None:
    write_verl(tmp_path)
    lines(tmp_path / "log.jsonl", [{"step": 20, "data": {"actor/entropy": 0.5}}])
    run = read_stored_run(tmp_path)
    assert run.source == "verl"
    assert run.steps[1].metrics["actor/entropy"] == 0.5
    assert "validation/score" in run.steps[1].evidence


# Prompts


def test_other_prompts_are_compared_by_means(tmp_path: Path, printed: Callable[..., str]) -> None:
    """As many prompts, but others: what TRL stores of training."""
    write_trl(tmp_path)
    for step in STEPS:
        file = tmp_path / "completions" / f"completions_{step:05d}.parquet"
        rows = pq.read_table(file).to_pylist()
        changed = [{**row, "prompt": f"{step} {row['prompt'][1]['content']}"} for row in rows]
        pq.write_table(pa.Table.from_pylist(changed), file)
    out = printed("select", tmp_path, "--maximise", "completions/accuracy")
    assert "completions has other prompts at each step: compared by means, not by prompt" in out
    assert "(no scores by prompt)" in out
    assert not any(each.evidence for each in read_stored_run(tmp_path).steps)


@pytest.mark.parametrize("since", [20, 30])
def test_prompts_that_change_for_good_are_a_new_reference(
    tmp_path: Path, printed: Callable[..., str], since: int
) -> None:
    """Not if one step between others differs, as batches of training do."""
    write_verl(tmp_path)
    files = {step: tmp_path / "validation" / f"{step}.jsonl" for step in STEPS}
    written = {step: file.read_text() for step, file in files.items()}
    renamed = {step: text.replace("Question 3?", "Else") for step, text in written.items()}
    for step in (step for step in STEPS if step >= since):
        files[step].write_text(renamed[step])
    out = printed("select", tmp_path, "--maximise", "validation/score")
    assert f"from step {since} on: a new reference" in out
    assert "step 30 (not on disk)" in out
    files[20].write_text(renamed[20])
    files[30].write_text(written[30])
    out = printed("select", tmp_path, "--maximise", "validation/score")
    assert "at each step: compared by means" in out


# A run that was killed


def test_an_incomplete_last_line_is_not_read(tmp_path: Path) -> None:
    write_verl(tmp_path)
    file = tmp_path / "validation" / "30.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    left = read_stored_run(file).samples["validation"][30]
    assert len(left.samples) == PROMPTS * REPEATS - 1
    row = {**json.loads(whole.splitlines()[0]), "step": 40}
    file.write_bytes(whole + json.dumps(row).encode())  # complete without the end of its line
    assert [each.step for each in read_stored_run(tmp_path).steps] == [*STEPS, 40]


# Errors


@pytest.mark.parametrize("change", [{"output": 7}, {"output": None}, {"step": "ten"}], ids=str)
def test_a_broken_row_is_named(change: dict[str, Any], tmp_path: Path) -> None:
    write_verl(tmp_path)
    file = tmp_path / "validation" / "20.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    lines(file, [rows[0], rows[1] | change, *rows[2:]])
    with pytest.raises(ValueError, match=r"20\.jsonl:2"):
        read_stored_run(tmp_path)
