from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from decision_cases import ByPrompt
from lightning_choice import (
    CSVLogger,
    MisconfigurationException,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)

pytestmark = pytest.mark.filterwarnings("ignore:ProxyGuard")

FALLS = ByPrompt("88333333", 0, None, 0, 0)  # while the proxy rises: an alarm at step 3


class Record(pl.Callback):
    """Records the log at each validation."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rows.append({key: float(value) for key, value in trainer.callback_metrics.items()})


@pytest.fixture
def scorer(by_prompt, tmp_path: Path):
    return by_prompt(FALLS, tmp_path)[0]


@pytest.mark.parametrize("mode", ["max", "drift"])
def test_alarms_in_a_hacking_run_and_stops_it(mode: str, fit, counter, scorer) -> None:
    guard, record = ProxyGuard("score/b", {"score/a": mode}, stop=True), Record()
    with pytest.warns(UserWarning, match="score/b improved .* while score/a since step 1: "):
        trainer = fit(counter(), [scorer, guard, record])
    assert guard.alarm_step == trainer.global_step == 3
    assert [row["guard/alarm"] for row in record.rows[1:]] == [0.0, 1.0]
    first, second = (row["guard/p_value"] for row in record.rows[1:])
    # All twelve prompts fall, and rise by the proxy; the second test has a level of 6 / (2π)².
    sides = 1 if mode == "max" else 2
    assert first > 0.05
    assert second == pytest.approx(sides * 2.0**-12 * (2 * math.pi) ** 2 / 6)


def test_the_row_is_on_disk_before_a_checkpoint_has_the_decision(
    fit, counter, scorer, tmp_path: Path
) -> None:
    """A run that was killed after its checkpoint, and resumed, had no row of this validation."""

    class Read(pl.Callback):
        on_disk: tuple[float, ...] = ()

        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            text = Path(trainer.log_dir, "metrics.csv").read_text()
            rows = csv.DictReader(text.splitlines())
            self.on_disk += (sum(bool(row.get("guard/p_value")) for row in rows),)

    read, logger = Read(), CSVLogger(tmp_path, flush_logs_every_n_steps=100)
    fit(counter(), [scorer, ProxyGuard("score/b", "score/a"), read], logger=logger)
    assert read.on_disk == tuple(range(1, 9))


def test_a_rule_that_reads_a_guard_is_listed_after_it(fit, counter, scorer) -> None:
    module = counter()
    stop, guard = RewardEarlyStopping("guard/p_value", "min"), ProxyGuard("score/b", "score/a")
    with pytest.raises(MisconfigurationException, match=r"guard/p_value.*ProxyGuard first"):
        fit(module, [scorer, stop, guard])
    assert module.trainer.global_step == 0


def test_a_constraint_excludes_checkpoints_under_alarm(fit, counter, scorer, tmp_path) -> None:
    """The proxy is best at the end of the run, under alarm."""
    selected = {}
    for name, bounds in (("any", {}), ("calm", {"guard/alarm": (None, 0)})):
        keeper = RewardCheckpoint("score/b", dirpath=str(tmp_path / name), constraints=bounds)
        fit(counter(), [scorer, ProxyGuard("score/b", "score/a"), keeper])
        selected[name] = keeper.selected_step
    assert selected == {"any": 8, "calm": 2}


def test_without_scores_by_prompt_there_is_no_alarm_and_one_warning(fit, counter, tmp_path) -> None:
    """Of a total, which is better when higher, like that of a `PolicyTuner`."""

    class Logging(counter):
        def on_validation_epoch_end(self) -> None:
            step = float(self.global_step)
            self.log_dict({"reward/total": step, "reward/shaped": step, "b": -step})

    guard, record = ProxyGuard("reward/total", {"b": "max"}, stop=True), Record()
    best, worst = (
        RewardCheckpoint("reward/total"),
        RewardCheckpoint("reward/shaped", "min", str(tmp_path)),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(Logging(), [guard, record, best, worst])
    assert (trainer.global_step, guard.alarm_step) == (8, -1)
    assert (best.selected_step, worst.selected_step) == (8, 1)
    assert sum("ProxyGuard" in str(w.message) for w in caught) == 1
    assert not any("guard/alarm" in row for row in record.rows)


def test_a_run_resumed_after_an_alarm_ends_at_once(fit, counter, scorer, tmp_path: Path) -> None:
    """Unless its new settings would not raise the alarm; nor before the trainer's `min_steps`."""

    def run(ckpt_path: str | None, **settings: Any) -> tuple[int, int]:
        keeper = RewardCheckpoint("score/a", dirpath=str(tmp_path))
        guard = ProxyGuard("score/b", "score/a", stop=True, **settings)
        options = {"min_epochs": 0, "min_steps": 4, "ckpt_path": ckpt_path}
        trainer = fit(counter(), [scorer, guard, keeper], **options)
        return trainer.global_step, guard.alarm_step

    assert run(None) == (4, 3)
    assert run("last") == (4, 3)
    assert run("last", level=1e-6)[0] == 8


def test_two_guards_have_names_of_their_own(fit, counter, scorer) -> None:
    both = [ProxyGuard("score/b", key) for key in ("score/a", "score/fail_rate")]
    other = ProxyGuard("score/b", "score/a", name="other")
    assert len({each.state_key for each in (*both, other)}) == 3
    with pytest.raises(MisconfigurationException, match="'guard'"):
        fit(counter(), [scorer, *both])  # the second one's alarm would be the only one in the log
