"""`ctrlreward select`: selection, stop and alarm from a log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROWS = [(10, 0.2, 0.5), (20, 0.4, 0.75), (30, 0.6, 0.625), (40, 0.9, 0.25), (50, 0.5, 0.125)]
MAXIMISE = ("--maximise", "reward")
AGAIN = "--subject_to"
CONSTRAINED = (*MAXIMISE, "--subject_to", "acc>=0.5")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of five validations with checkpoints; the best with acc >= 0.5 is step 30."""
    place = tmp_path / "run"
    place.mkdir()
    rows = [{"step": s, "reward": r, "acc": a, "loss": -r, "width": 1} for s, r, a in ROWS]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, _, _ in ROWS:
        (place / "checkpoints" / f"step={step:06d}-adapter").mkdir(parents=True)
        (place / "checkpoints" / f"step={step:06d}-adapter" / "adapter.safetensors").write_text("a")
        (place / "checkpoints" / f"step={step:06d}.ckpt").write_text("weights")
    (place / "checkpoints" / "last.ckpt").write_text("weights")
    return place


@pytest.fixture
def select(called: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    return partial(called, "select")


def test_the_checkpoint_to_keep(folder: Path, select: Any) -> None:
    status, out, _ = select(folder, *CONSTRAINED, "--stop", "patience=1")
    assert status == 0
    assert f"keep {folder / 'checkpoints' / 'step=000030.ckpt'}: reward is 0.6000 at step 30" in out
    assert "stop at step 50: reward has not improved by more than 0.0 in the last 1 score " in out
    marks = {line.split()[0]: line for line in out.splitlines() if line.strip()[:2].isdigit()}
    assert "selected" in marks["30"]
    assert "0.25 ✗" in marks["40"]
    assert "0.625 ✓" in marks["30"]


def test_a_checkpoint_that_is_not_on_disk_is_not_selected(folder: Path, select: Any) -> None:
    """The trainer evaluates more often than it saves, or has removed it."""
    for path in (folder / "checkpoints").glob("step=000040*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    status, out, _ = select(folder, *MAXIMISE)
    assert status == 0
    assert f"keep {folder / 'checkpoints' / 'step=000030.ckpt'}: reward is 0.6000" in out
    assert "not on disk: step 40, reward is 0.9000" in out
    found = json.loads(select(folder, *MAXIMISE, "--json")[1])
    assert (found["step"], found["value"]) == (30, 0.6)
    shutil.rmtree(folder / "checkpoints")  # a log alone
    found = json.loads(select(folder, *MAXIMISE, "--json")[1])
    assert (found["step"], found["checkpoint"]) == (40, None)


@pytest.mark.parametrize("bounds", [("acc>=0.9", "reward<=1"), ("acc>=0.9", AGAIN, "reward<=1")])
def test_nothing_meets_the_constraints(folder: Path, select: Any, bounds: tuple[str, ...]) -> None:
    status, out, _ = select(folder, *MAXIMISE, AGAIN, *bounds)
    assert status == 1
    assert "no checkpoint: no candidate among 5 validations" in out
    assert out.count("✗") == 5  # of acc


def test_pareto_front(folder: Path, select: Any) -> None:
    status, out, _ = select(folder, "--pareto", "reward:max,acc:max", "--json")
    content = json.loads(out)
    assert (status, content["front"], content["step"]) == (0, [20, 30, 40], 40)
    reason = "reward is 0.9000, acc is 0.2500 at step 40, the best reward of 3 on the front"
    assert f"step=000040.ckpt: {reason}" in select(folder, "--pareto", "reward:max,acc:max")[1]


def test_rows_of_training_do_not_count_as_validations(select: Any, tmp_path: Path) -> None:
    """A proxy logged at other steps has its last value; a held-out key logged less often waits."""
    rows = []
    for step in range(1, 13):
        row = {"step": step, "reward": 0.1 * step}
        if step % 3 == 0:
            row["acc"] = 1.0 - 0.05 * step
        rows.append(row)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, _ = select(path, "--maximise", "acc", "--guard", "reward:acc=max", "--json")
    content = json.loads(out)
    assert [each["step"] for each in content["validations"]] == [3, 6, 9, 12]
    assert content["validations"][-1]["alarm"]["untestable"]
    refused = ("--minimise", "acc", "--subject_to", "guard/alarm<=0", "--guard", "reward:acc=max")
    assert json.loads(select(path, *refused, "--json")[1])["step"] == 12  # a key of the guard


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--maximise", "rewrd"), "rewrd"),
        ((*MAXIMISE, "--subject_to", "acc>=high"), "high"),
        ((*MAXIMISE, "--stop", "patiance=2"), "patience"),
        ((*MAXIMISE, "--stop", "patience=0"), "patience"),
        ((*MAXIMISE, "--minimise", "loss"), "minimise"),
        ((), "--maximise"),
        (("--subject_to", "acc>=1", "--guard", "reward:acc"), "--subject-to"),
        ((*MAXIMISE, "--guard", "acc"), "--guard"),
        (("--pareto", "reward:up,acc:max"), "reward"),
        (("--guard", "reward:width"), "width=min"),
    ],
)
def test_mistakes(folder: Path, select: Any, options: tuple[str, ...], named: str) -> None:
    status, _, err = select(folder, *options)
    assert status == 2
    assert named in err


def test_a_declared_direction_is_not_contradicted(select: Any, tmp_path: Path) -> None:
    modes = {"scores": {"score": {"modes": {"score/pp": "min"}}}}
    state = {"log_history": [{"step": 3, "eval_score/pp": 0.5}],
             "stateful_callbacks": {"ProxyGuard": {"ctrlreward": modes}}}  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    status, _, err = select(tmp_path, "--maximise", "score/pp")
    assert status == 2
    assert "eval_score/pp is better when lower. Use --minimise score/pp" in err
    assert "step 3" in select(tmp_path, "--minimise", "score/pp")[1]


@pytest.mark.parametrize(
    ("key", "mode"),
    [("score/sim", "max"), ("eval_loss", "min"), ("rewards/perplexity_reward/mean", "max")],
)
def test_the_direction_of_a_guard(select: Any, tmp_path: Path, key: str, mode: str) -> None:
    """As the run declares it, or of a loss and of what TRL maximises; a given direction wins."""
    rows = [{"step": s, "reward": s, key: 20.0 + s} for s in range(1, 21)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "summary.json").write_text(json.dumps({"directions": {"score/sim": "max"}}))
    out = select(tmp_path, "--guard", f"reward:{key}")[1]
    assert f"reward=max against {key}={mode}" in out
    assert f"no alarm: {key} without scores by prompt" in out
    out = select(tmp_path, "--guard", f"reward:{key}=drift")[1]
    assert f"against {key}=drift" in out


@pytest.mark.parametrize("key", ["score/anti_toxicity", "no_repetition", "score/perplexity"])
def test_no_direction_is_guessed(select: Any, tmp_path: Path, key: str) -> None:
    rows = [{"step": s, "reward": s, key: s} for s in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for options, asked in (("--guard", f"{key}=min"), ("--pareto", f"{key}:min")):
        text = f"reward:{key}" if options == "--guard" else f"reward,{key}"
        status, _, err = select(tmp_path, options, text)
        assert status == 2
        assert asked in err
