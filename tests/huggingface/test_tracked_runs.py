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


@pytest.mark.parametrize("step", ["below", "none"])
def test_tables_curves_and_one_alert_beside_the_rows_of_the_user(
    make_trainer: Callable[..., Trainer], tmp_path: Path, step: str
) -> None:
    """A user logs at each step beside the trainer's row of each evaluation. All of it is there."""

    class User(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = state.global_step
            at = now // 2 if step == "below" else None
            wandb.log({f"user/{now}": now}, step=at)

    def logged(run: Any) -> list[str]:
        keys = [key for row in run.rows for key in row]
        return sorted(key for key in keys if key.startswith("user/") or key == "eval/loss")

    settings: dict[str, Any] = {"max_steps": 3, "logging_steps": 100, "report_to": ["wandb"]}
    train(make_trainer(**settings), User())
    alone = logged(read_runs(tmp_path)[-1])
    trainer = make_trainer(**settings)
    scorer = Scripted(declining, trainer, "max")
    scores = {"a": scorer["a"], "b": scorer["b"]}
    held_out = GenerationScorer(trainer, scores, PROMPTS)
    train(trainer, held_out, ProxyGuard("score/b", "score/a"), User())
    run = read_runs(tmp_path)[-1]
    assert logged(run) == alone
    if step != "below":
        assert sum(key.startswith("user/") for key in alone) == 3
    tables = [row for row in run.rows if "score/samples" in row]
    assert [row["eval/score/scored_step"] for row in tables] == [1, 2, 3]
    assert run.curve("eval/score/scored_step", "eval/score/b") == pytest.approx(
        {1: 1.055, 2: 2.055, 3: 3.055}
    )
    assert run.curve("eval/guard/scored_step", "eval/guard/alarm") == {1: 0, 2: 1, 3: 1}
    assert run.definitions["eval/score/b"].step_metric == "eval/score/scored_step"
    shown = run.table(tables[1], "score/samples")
    assert shown["columns"] == ["prompt", "text", "a", "b"]
    assert shown["data"][0][2:] == [-2.0, 2.0]
    (alert,) = run.of("alert")
    assert (alert.level, alert.title) == ("WARN", "guard: possible reward hacking")
