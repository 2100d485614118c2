"""Texts of other trainers: read as they are written, and decided on as our own."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctrlreward.cli import main
from ctrlreward.runs import report, select
from ctrlreward.runs.compare import compare_runs
from ctrlreward.runs.folder import StoredRun, read_stored_run
from ctrlreward.runs.report_contents import run_contents
from ctrlreward.runs.results import read_run
from ctrlreward.runs.stored_texts import shared_prompts
from ctrlreward.samples import Samples
from ctrlreward.scorers.records import read_scored_samples, write_scored_samples

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


def null(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def lines(file: Path, rows: list[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


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


def gym_row(step: int, each: Text, attempt: int) -> dict[str, Any]:
    said = [{"type": "output_text", "text": each.text, "annotations": []}]
    masked = {"mask_sample": True} if np.isnan(each.reward) else {}
    return {
        "responses_create_params": {"input": chat(f"Question {each.prompt}?"), "tools": []},
        "response": {
            "output": [
                {"type": "reasoning", "summary": []},
                {"type": "message", "role": "assistant", "content": said},
            ]
        },
        "reward": 0.0 if masked else each.reward,
        "brevity": 0.0 if masked else each.brevity,
        **masked,
        "_ng_task_index": each.prompt,
        "_ng_rollout_index": attempt,
        "agent_ref": {"name": "simple_agent"},
    }


def write_nemo_gym(folder: Path) -> None:
    for step, texts in numbers().items():
        rows = [gym_row(step, each, place % REPEATS) for place, each in enumerate(texts)]
        lines(folder / f"step_{step}" / "rollouts.jsonl", rows[::-1])  # as they are completed
        lines(folder / f"step_{step}" / "rollouts_materialized_inputs.jsonl", rows[:1])


def write_verifiers(folder: Path) -> None:
    """prime-rl's folders, whose rows are of verifiers."""
    for step, texts in numbers().items():
        rows = [
            {"example_id": each.prompt, "prompt": chat(f"Question {each.prompt}?"),
             "completion": [{"role": "assistant", "content": each.text}], "answer": "x",
             "reward": 0.0 if np.isnan(each.reward) else each.reward,
             "error": {"error": "Timeout"} if np.isnan(each.reward) else None,
             "metrics": {"brevity": 0.0 if np.isnan(each.reward) else each.brevity},
             "info": {"difficulty": 3}}
            for each in texts
        ]  # fmt: skip
        lines(folder / "rollouts" / f"step_{step}" / "eval_rollouts.jsonl", rows)


def write_traces(folder: Path) -> None:
    for step, texts in numbers().items():
        rows = []
        for each in texts:
            asked = [{"message": m, "parent": i - 1 if i else None, "sampled": False}
                     for i, m in enumerate(chat(f"Question {each.prompt}?"))]  # fmt: skip
            said = {"message": {"role": "assistant", "content": each.text}, "parent": 1,
                    "sampled": True}  # fmt: skip
            failed = np.isnan(each.reward)
            rows.append({
                "id": "0", "task": {"type": "T", "data": {"idx": each.prompt}, "key": None},
                "nodes": [*asked, said],
                "rewards": {"right": None if failed else {"score": each.reward, "weight": 1.0}},
                "metrics": {"brevity": null(each.brevity)}, "ok": not failed, "errors": [],
            })  # fmt: skip
        place = folder / "rollouts" / f"step_{step}" / "eval" / "all"
        lines(place / "traces.jsonl.gz", rows[:7])  # a stream that was compressed and goes on
        lines(place / "traces.jsonl", rows[7:])


def write_records(folder: Path) -> None:
    rows = [
        {"step": step, "prompt_id": f"q{each.prompt}", "prompt": f"Question {each.prompt}?",
         "completion": each.text,
         "scores": {"reward": null(each.reward), "brevity": null(each.brevity)}}
        for step, texts in numbers().items()
        for each in texts
    ]  # fmt: skip
    lines(folder / "eval.jsonl", rows)


WRITERS: dict[str, tuple[Callable[[Path], None], str, tuple[str, str]]] = {
    "trl": (write_trl, "completions", ("accuracy", "brevity")),
    "verl": (write_verl, "validation", ("score", "brevity")),
    "nemo_gym": (write_nemo_gym, "rollouts", ("reward", "brevity")),
    "verifiers": (write_verifiers, "rollouts/eval_rollouts", ("reward", "brevity")),
    "traces": (write_traces, "rollouts/eval/all/traces", ("reward", "brevity")),
    "records": (write_records, "eval", ("reward", "brevity")),
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


def reported(run: Path, *options: str) -> dict[str, Any]:
    return run_contents(str(run), report._parser().parse_args([str(run), *options]))


def rounded(value: Any) -> Any:
    """Sums of the same numbers in another order differ by rounding."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 12) if isinstance(value, float) else value


def decisions(printed: Callable[..., str], run: Path, name: str, keys: tuple[str, str]) -> Any:
    reward, brevity = (f"{name}/{key}" for key in keys)
    options = ("--maximise", reward, "--guard", f"{reward}:{brevity}", "--stop", "patience=1")
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
    assert "distinguishable from all other candidates" in theirs["reason"]
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


def rescored(folder: Path, name: str, printed: Callable[..., str]) -> tuple[list[Any], int, str]:
    """Return the new scores, and the step that they select with its reason."""
    judge = folder.with_name("judge.yaml")
    judge.write_text("components:\n  variety: {scorer: Distinct, score: distinct_2}\n")
    found = json.loads(printed("rescore", folder, judge, "--json").replace(f"{name}/", "texts/"))
    choice = found["decisions"][0]["rescored"]
    return rounded(found["validations"]), choice["step"], choice["reason"]


OURS: list[Any] = []  # the same for all kinds


def test_the_texts_are_scored_again_as_ours(
    kind: str, tmp_path: Path, printed: Callable[..., str]
) -> None:
    write, name, keys = WRITERS[kind]
    write(tmp_path / "theirs")
    if not OURS:
        write_ours(tmp_path / "ours", "texts", keys)
        OURS.append(rescored(tmp_path / "ours", "texts", printed))
    found = rescored(tmp_path / "theirs", name, printed)
    assert found == OURS[0]
    assert "texts/variety" in found[0][0]
    assert "with 12 prompts" in found[2]
    folder = tmp_path / "theirs" / "rescored" / "judge" / "samples" / name
    texts, _ = read_scored_samples(folder / "step=000020.jsonl")
    assert sorted(texts.texts) == sorted(each.text for each in numbers()[20])
    again = read_stored_run(tmp_path / "theirs")  # what we wrote is neither its log nor its texts
    assert list(again.texts) == [name]
    assert f"{name}/variety" not in again.keys


def test_the_report_has_texts_verdict_and_diagnosis(kind: str, tmp_path: Path) -> None:
    write, name, keys = WRITERS[kind]
    write(tmp_path)
    found = reported(tmp_path)
    assert found["missing"] == []
    assert found["decisions"]["key"] == f"{name}/{keys[0]}"
    assert found["decisions"]["step"] == 30
    assert found["verdict"]["sentence"].startswith("It worked")
    (texts,) = found["texts"]
    assert (texts["name"], texts["columns"]) == (name, ["step 10", "step 20", "step 30"])
    shown = next(each for each in texts["items"] if "Question 4?" in each["p"])
    assert [text[:-2] for text in shown["t"]] == [f"very good {step} 4" for step in STEPS]
    assert {each["phrase"] for each in found["phrases"]} >= {"very good 30"}


def test_a_run_without_a_log_is_compared(tmp_path: Path) -> None:
    write_verl(tmp_path / "a")
    write_verl(tmp_path / "b")
    runs = [read_run(str(tmp_path / each)) for each in "ab"]
    assert set(runs[0].curves["validation/score"]) == {*STEPS}
    assert compare_runs(runs, ["validation/score"]).studies


# What is read


def test_a_log_beside_the_texts(tmp_path: Path) -> None:
    write_verl(tmp_path)
    lines(tmp_path / "log.jsonl", [{"step": 20, "data": {"actor/entropy": 0.5}}])
    run = read_stored_run(tmp_path)
    assert run.source == "verl; texts of verl, 3 steps"
    assert run.steps[1].metrics["actor/entropy"] == 0.5
    assert "validation/score" in run.steps[1].evidence
    write_records(tmp_path / "own")
    lines(tmp_path / "own" / "log.jsonl", [{"step": 20, "loss": 0.5}])
    assert read_stored_run(tmp_path / "own").log == tmp_path / "own" / "log.jsonl"


def test_one_file_a_parquet_file_and_a_checkpoint(tmp_path: Path) -> None:
    write_records(tmp_path)
    (tmp_path / "checkpoint-20").mkdir()
    run = read_stored_run(tmp_path / "eval.jsonl")
    assert (run.folder, run.source) == (tmp_path, "texts of records, 3 steps")
    assert run.steps[1].checkpoint == tmp_path / "checkpoint-20"
    write_nemo_gym(tmp_path / "gym")  # folders of texts are no checkpoints, which may be removed
    (tmp_path / "gym" / "step_10" / "model.safetensors").touch()
    assert list(read_stored_run(tmp_path / "gym").checkpoints) == [10]
    rows = [json.loads(line) for line in (tmp_path / "eval.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "eval.parquet")
    again = read_stored_run(tmp_path / "eval.parquet")
    assert [each.metrics for each in again.steps] == [each.metrics for each in run.steps]


@pytest.fixture
def bucket() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/bucket", recursive=True)


def test_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Callable[..., str], bucket: Any
) -> None:
    write_verl(tmp_path)
    bucket.put(str(tmp_path / "validation"), "/bucket/validation", recursive=True)
    monkeypatch.chdir(tmp_path)
    out = printed("select", "memory://bucket/validation", "--maximise", "validation/score")
    assert "keep step 30 (not on disk): validation/score is" in out
    with pytest.raises(FileNotFoundError, match="No such file or folder: memory://bucket/train"):
        read_stored_run("memory://bucket/train")
    printed("report", "memory://bucket/validation")
    assert (tmp_path / "validation" / "report.html").is_file()


def test_failures_of_nemo_gym_are_counted_once(tmp_path: Path) -> None:
    """A rollout that succeeded later has not failed; one that never did is NaN."""
    each = Text(0, "good", 1.0, 0.5)
    done, again = gym_row(10, each, 0), gym_row(10, each, 1)
    lines(tmp_path / "step_10" / "rollouts.jsonl", [done])
    failure = {"_ng_failure_class": "judge_failed", "_ng_task_index": 0, "_ng_rollout_index": 1}
    retried = {**done, "_ng_failure_class": "judge_failed"}
    lines(tmp_path / "step_10" / "rollouts_failures.jsonl", [retried, failure, failure, again][:3])
    (step,) = read_stored_run(tmp_path).steps
    assert step.metrics == {
        "rollouts/reward": 1.0, "rollouts/brevity": 0.5, "rollouts/fail_rate": 0.5
    }  # fmt: skip


def test_prompts_with_more_or_fewer_texts(tmp_path: Path, printed: Callable[..., str]) -> None:
    rows = [
        {"step": step, "prompt": f"{i}", "completion": f"text {i} {j}", "scores": {"r": i + step}}
        for step in (1, 2)
        for i in range(8)
        for j in range(2 if i else 3)
    ]
    lines(tmp_path / "texts.jsonl", rows)
    run = read_stored_run(tmp_path)
    assert run.steps[0].evidence["texts/r"].tolist() == [1.0 + i for i in range(8)]
    judge = tmp_path / "judge.yaml"
    judge.write_text("components:\n  variety: {scorer: Distinct, score: distinct_2}\n")
    assert "(no scores by prompt)" in printed("rescore", tmp_path, judge)
    assert reported(tmp_path)["texts"][0]["total"] == 2 * len(rows) // 2


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
    found = reported(tmp_path, "--maximise", "completions/accuracy")
    assert any("its prompts differ between the steps" in each for each in found["missing"])


def test_steps_with_the_same_prompts_remain_pairs(
    tmp_path: Path, printed: Callable[..., str]
) -> None:
    write_verl(tmp_path)
    file = tmp_path / "validation" / "20.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    lines(file, [{**row, "input": row["input"].replace("Question 3?", "Another")} for row in rows])
    out = printed("select", tmp_path, "--maximise", "validation/score")
    assert "validation has other prompts at step 20: compared by means, not by prompt" in out
    assert "(compared by means, not by prompt, with 1 of 2 other candidates), disting" in out


def test_the_prompts_that_most_steps_share() -> None:
    assert shared_prompts({}) == set()
    assert shared_prompts({10: "a"}) == {10}
    assert shared_prompts({10: "a", 20: "b"}) == set()
    assert shared_prompts({10: "a", 20: "a", 30: "b", 40: "b"}) == {30, 40}


def test_rollouts_of_ours_with_other_prompts_are_no_pairs(tmp_path: Path) -> None:
    for step in (1, 2):
        samples = Samples(["text"] * 4, prompts=[f"{step} {i}" for i in range(4)])
        file = tmp_path / "samples" / "rollout" / f"step={step:06d}.jsonl"
        write_scored_samples(file, samples, {"r": np.arange(4.0)})
    run = read_stored_run(tmp_path)
    assert [dict(each.evidence) for each in run.steps] == [{}, {}]
    assert run.steps[0].metrics["rollout/r"] == 1.5


# A running job


def test_an_incomplete_line_waits_and_new_rows_are_read(tmp_path: Path) -> None:
    write_records(tmp_path)
    file = tmp_path / "eval.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert len(read_stored_run(tmp_path).texts["eval"][30].order) == PROMPTS * REPEATS - 1
    file.write_bytes(whole)
    run = read_stored_run(tmp_path)
    assert len(run.texts["eval"][30].order) == PROMPTS * REPEATS
    more = json.dumps({"step": 40, "prompt": "p", "completion": "c", "scores": {"reward": 1}})
    file.write_bytes(whole + more.encode())  # complete without the end of its line
    assert [each.step for each in read_stored_run(tmp_path).steps] == [*STEPS, 40]
    file.write_bytes(whole[: whole.find(b"\n") + 1])
    with pytest.raises(ValueError, match="changed while it was read"):
        run.texts["eval"][10].read()


def test_a_watched_step_counts_once_it_has_all_texts(
    tmp_path: Path, printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_verl(tmp_path)
    file = tmp_path / "validation" / "30.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    polls: list[float] = []

    def sleep(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 3:
            raise KeyboardInterrupt
        if len(polls) == 2:
            file.write_bytes(whole)

    monkeypatch.setattr(select.time, "sleep", sleep)
    out = printed("select", tmp_path, "--maximise", "validation/score", "--watch")
    shown = [line for line in out.splitlines() if line.startswith("step ")]
    full = read_stored_run(tmp_path).steps[2].metrics["validation/score"]
    assert shown[2] == f"step 30: validation/score {full:.4g} (selected)"


# Errors


def broken(folder: Path, write: Callable[[Path], None], file: str, change: Any) -> Path:
    write(folder)
    rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    lines(folder / file, change(rows))
    return folder


def without(key: str) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [*rows[:3], {k: v for k, v in rows[3].items() if k != key}, *rows[4:]]


@pytest.mark.parametrize(
    ("write", "file", "change", "message"),
    [
        (write_verl, "validation/20.jsonl", without("output"),
         r"20\.jsonl:4 has no 'output', which a row of verl has, only input, gts"),
        (write_verl, "validation/20.jsonl", lambda rows: [*rows[:6], {**rows[6], "step": 30}],
         r"20\.jsonl:7 has step 30, but .*20\.jsonl:1 has 20: a file of verl must have one step"),
        (write_verl, "validation/20.jsonl", lambda rows: [{**rows[0], "output": 7}, *rows],
         r"20\.jsonl:1 is not a row of verl: completion must be a text or messages, got 7"),
        (write_verl, "validation/20.jsonl", lambda rows: [rows[0], [1]],
         r"20\.jsonl:2 is not a JSON object"),
        (write_nemo_gym, "step_20/rollouts.jsonl", without("response"),
         r"rollouts\.jsonl:4 has no 'response', which a row of NeMo Gym has"),
        (write_verifiers, "rollouts/step_20/eval_rollouts.jsonl", without("example_id"),
         r"eval_rollouts\.jsonl:4 has no 'example_id'"),
        (write_records, "eval.jsonl", lambda rows: [{**rows[0], "step": "ten"}, *rows],
         r"eval\.jsonl:1 is not a row of records: step must be an integer, got 'ten'"),
        (write_records, "eval.jsonl", lambda rows: [{**rows[0], "scores": [1]}, *rows],
         r"eval\.jsonl:1 is not a row of records: scores must be name → number, got \[1\]"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named(
    write: Any, file: str, change: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        read_stored_run(broken(tmp_path, write, file, change))


@pytest.mark.parametrize("line", [1, 5])
def test_a_truncated_line_is_named(tmp_path: Path, line: int) -> None:
    write_verl(tmp_path)
    file = tmp_path / "validation" / "20.jsonl"
    content = file.read_text().splitlines()
    content[line - 1] = content[line - 1][:30]
    file.write_text("\n".join(content) + "\n")
    with pytest.raises(ValueError, match=rf"20\.jsonl:{line} is not JSON"):
        read_stored_run(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write_traces(tmp_path / "a")
    (file,) = (tmp_path / "a" / "rollouts" / "step_20").rglob("*.gz")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"traces\.jsonl\.gz is not a whole gzip file"):
        read_stored_run(tmp_path / "a")
    write_trl(tmp_path / "b")
    file = tmp_path / "b" / "completions" / "completions_00020.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"completions_00020\.parquet can't be read as Parquet"):
        read_stored_run(tmp_path / "b")


def test_results_of_an_unknown_moment(tmp_path: Path) -> None:
    write_nemo_gym(tmp_path)
    shutil.move(tmp_path / "step_20" / "rollouts.jsonl", tmp_path / "rollouts.jsonl")
    with pytest.raises(ValueError, match=r"rollouts\.jsonl:1 is not .* step_20/rollouts\.jsonl"):
        read_stored_run(tmp_path)
    steps = read_stored_run(tmp_path / "step_10" / "rollouts.jsonl").steps
    assert [each.step for each in steps] == [10]
    assert [each.step for each in read_stored_run(tmp_path / "step_30").steps] == [30]


def test_several_kinds_need_a_choice(tmp_path: Path) -> None:
    write_verl(tmp_path)
    write_records(tmp_path)
    with pytest.raises(ValueError, match=r"has texts of records, verl\. Choose .* --format"):
        read_stored_run(tmp_path)
    assert list(read_stored_run(tmp_path / "validation").texts) == ["validation"]


def test_a_given_format(tmp_path: Path) -> None:
    write_records(tmp_path)
    write_ours(tmp_path, "score", ("a", "b"))  # our texts come first, unless others are asked for
    assert read_stored_run(tmp_path).texts == {}
    run: StoredRun = read_stored_run(tmp_path, texts="records")
    assert list(run.texts) == ["eval"]
    with pytest.raises(ValueError, match=r"eval\.jsonl:1 has no 'score', which a row of verl has"):
        read_stored_run(tmp_path, texts="verl")
    with pytest.raises(ValueError, match=r"--format .*'tlr'.*trl"):
        read_stored_run(tmp_path, texts="tlr")


def test_an_unknown_folder_and_a_pickle(tmp_path: Path) -> None:
    lines(tmp_path / "notes.txt", [{"a": 1}])
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "optimizer.pt").write_bytes(b"\x80\x04N.")  # no texts
    with pytest.raises(
        ValueError, match=r"nor has it texts that are read: completions_\*\.parquet"
    ) as raised:
        read_stored_run(tmp_path)
    assert "pickle" not in str(raised.value)
    file = tmp_path / "rollout_20.pt"
    file.write_bytes(b"\x80\x04N.")
    for run in (tmp_path, file):
        with pytest.raises(ValueError, match=r"rollout_20\.pt may be a pickle, as of slime's"):
            read_stored_run(run)
