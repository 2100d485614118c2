"""Tables, curves and alerts in the offline run of W&B that a trainer reports to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb
from fakes import Scripted
from trainer_runs import train
from transformers import Trainer, TrainerCallback
from wandb_runs import read_runs

from ctrlreward.huggingface import GenerationScorer, ProxyGuard

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["ab", "cd"] * 6


def declining(key: str, step: int) -> list[float]:
    """Return scores of `b` that rise at each step, and of `a` that fall for each prompt."""
    return [step + i / 100 if key == "b" else -step + i * step / 100 for i in range(len(PROMPTS))]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))


def test_tables_and_one_alert(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer = make_trainer(max_steps=3, report_to=["wandb"])
    scorer = Scripted(declining, trainer, "max")
    scores = {"a": scorer["a"], "b": scorer["b"]}
    held_out = GenerationScorer(trainer, scores, PROMPTS, table_rows=2)
    train(trainer, held_out, ProxyGuard("score/b", "score/a"))
    trainer.evaluate()
    (run,) = read_runs(tmp_path)
    tables = [row for row in run.rows if "score/samples" in row]
    assert [row["eval/score/scored_step"] for row in tables] == [1, 2, 3, 3]
    assert run.curve("eval/score/scored_step", "eval/score/b") == pytest.approx(
        {1: 1.055, 2: 2.055, 3: 3.055}
    )
    assert run.curve("eval/guard/scored_step", "eval/guard/alarm") == {1: 0, 2: 1, 3: 1}
    assert run.definitions["eval/score/b"].step_metric == "eval/score/scored_step"
    shown = run.table(tables[1], "score/samples")
    assert shown["columns"] == ["prompt", "text", "a", "b"]
    assert [row[2:] for row in shown["data"]] == [[-2.0, 2.0], [-1.78, 2.11]]
    (alert,) = run.of("alert")
    assert alert.level == "WARN"
    assert alert.title == "guard: possible reward hacking"


@pytest.mark.parametrize("step", ["below", "none"])
def test_callbacks_advance_no_step_of_the_user(
    make_trainer: Callable[..., Trainer], tmp_path: Path, step: str
) -> None:
    """A user logs at each step beside the trainer's row of each evaluation. All of it is there."""

    class User(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = state.global_step
            at = now // 2 if step == "below" else None
            wandb.log({f"user/{now}": now}, step=at)

    def logged() -> list[str]:
        run = read_runs(tmp_path)[-1]
        keys = [key for row in run.rows for key in row]
        return sorted(key for key in keys if key.startswith("user/") or key == "eval/loss")

    settings: dict[str, Any] = {"max_steps": 6, "logging_steps": 100, "report_to": ["wandb"]}
    train(make_trainer(**settings), User())
    alone = logged()
    trainer = make_trainer(**settings)
    scorer = Scripted(declining, trainer, "max")
    held_out = GenerationScorer(trainer, {"a": scorer["a"], "b": scorer["b"]}, PROMPTS)
    train(trainer, held_out, ProxyGuard("score/b", "score/a"), User())
    assert logged() == alone
    if step != "below":
        assert sum(key.startswith("user/") for key in alone) == 6
    run = read_runs(tmp_path)[-1]
    validated = list(range(1, 7))
    assert [
        row["eval/score/scored_step"] for row in run.rows if "score/samples" in row
    ] == validated
    assert [*run.curve("eval/score/scored_step", "eval/score/a")] == validated
    assert [*run.curve("eval/guard/scored_step", "eval/guard/p_value")] == validated
