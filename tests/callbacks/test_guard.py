from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_choice import MisconfigurationException, ProxyGuard, RewardCheckpoint, pl

from ctrlreward import Samples
from ctrlreward.functional.sequential import level_of_test, rise_p_value
from ctrlreward.scorers.base import Scores

pytestmark = pytest.mark.filterwarnings("ignore:ProxyGuard")


def length(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def substance(texts: list[str]) -> list[float]:
    return [text.split().count("good") / len(text.split()) for text in texts]


@pytest.fixture
def writer(counter):
    """Return a policy of one weight that learns to write longer texts.

    The share of meaningful words rises for four steps and falls from then on.
    """

    class Writer(counter):
        def complete(self, prompts: Sequence[str]) -> list[str]:
            step = round(self.weight.item())
            random = np.random.default_rng([0, step])  # fresh noise at each validation
            share = min(0.9, 0.5 + 0.1 * step) if step < 4 else 0.9 - 0.04 * (step - 4)
            return [
                " " + " ".join(random.choice(["good", "very"], p=[share, 1 - share], size=size))
                for size in random.integers(10 + 2 * step, 16 + 2 * step, size=len(prompts))
            ]

    return Writer


@pytest.fixture
def scorer(watch):
    scores = {"length": length, "substance": substance}
    scores["padding"] = lambda texts: [1 - each for each in substance(texts)]
    return watch(scores, samples=Samples(["It"] * 24, prompts=[f"Say {i}: It" for i in range(24)]))


def guard(**changes: object) -> ProxyGuard:
    given = {"proxy": "score/length", "held_out": "score/substance", "held_out_mode": "max"}
    return ProxyGuard(**{**given, **changes})


class Record(pl.Callback):
    """Records all logged metrics at each validation."""

    def __init__(self, scorer: Any = None) -> None:
        self.rows: list[dict[str, float]] = []
        self.evidence: list[dict[str, Scores]] = []
        self.scorer = scorer

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rows.append({key: float(value) for key, value in trainer.callback_metrics.items()})
        if self.scorer is not None:
            self.evidence.append(self.scorer.evidence)


@pytest.mark.lightning
@pytest.mark.parametrize("sign", [1, -1])
def test_alarms_in_a_hacking_run_and_stops_it(sign: int, fit, counter, writer, scorer) -> None:
    key, mode = ("score/substance", "max") if sign == 1 else ("score/padding", "drift")
    watcher, record = guard(held_out=key, held_out_mode=mode, stop=True), Record(scorer)
    with pytest.warns(UserWarning, match=rf"score/length improved .* while {key} since step 1: "):
        trainer = fit(writer(), [scorer, watcher, record], max_steps=24)
    assert watcher.alarm_step == trainer.global_step < 24
    assert [row["guard/alarm"] for row in record.rows] == [0.0] * (len(record.rows) - 1) + [1.0]
    first = record.evidence[0]
    margin = 0.1 * first[key].std(ddof=1)
    for k, (row, now) in enumerate(zip(record.rows[1:], record.evidence[1:], strict=True), 1):
        rise = rise_p_value(first["score/length"], now["score/length"])
        falls = [rise_p_value(s * now[key], s * first[key], margin) for s in (1, -1)]
        fall = falls[0] if sign == 1 else 2 * min(falls)
        expected = min(1.0, max(rise, fall) / level_of_test(1.0, k))
        assert row["guard/p_value"] == pytest.approx(expected)
        assert (row["guard/alarm"] == 1) == (expected <= 0.05)


def test_a_constraint_excludes_checkpoints_under_alarm(fit, writer, scorer, tmp_path) -> None:
    """The proxy is best at the end of the run, under alarm."""
    record, bounds = Record(), {"guard/alarm": (None, 0)}
    steps = {}
    for name, constraints in (("any", {}), ("calm", bounds)):
        keeper = RewardCheckpoint(
            "score/length", "max", str(tmp_path / name), constraints=constraints
        )
        record.rows.clear()
        fit(writer(), [scorer, guard(), record, keeper], max_steps=20)
        steps[name] = keeper.selected_step
    calm = [step for step, row in enumerate(record.rows, 1) if row["guard/alarm"] == 0]
    assert steps == {"any": 20, "calm": calm[-1]}
    assert calm[-1] < 20


class Curves(pl.Callback):
    """Logs a proxy that rises and a held-out metric that falls, without scores by prompt."""

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.log_dict({"a": float(trainer.global_step), "b": -float(trainer.global_step)})


def test_without_scores_by_prompt_there_is_no_alarm_and_one_warning(fit, counter) -> None:
    watcher, record = ProxyGuard("a", "b", "max", "max", stop=True), Record()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(counter(), [Curves(), watcher, record], max_steps=20)
    assert (trainer.global_step, watcher.alarm_step) == (20, -1)
    assert sum("ProxyGuard" in str(w.message) for w in caught) == 1
    assert not any("guard/alarm" in row for row in record.rows)


def test_sanity_check_and_plain_validation_do_not_count(fit, writer, scorer) -> None:
    watcher = guard()
    module = writer()
    trainer = fit(module, [scorer, watcher], max_steps=2, num_sanity_val_steps=1)
    trainer.validate(module, verbose=False)
    assert watcher.state.tests == 1


def test_a_run_resumed_after_an_alarm_ends_at_once(fit, writer, scorer, tmp_path: Path) -> None:
    """Unless its new settings would not raise the alarm."""

    def run(ckpt_path: str | None, **options: Any) -> tuple[int, ProxyGuard]:
        keeper = RewardCheckpoint("score/substance", "max", str(tmp_path))
        watcher = guard(stop=True, **options)
        trainer = fit(
            writer(), [scorer, watcher, keeper], max_steps=24, ckpt_path=ckpt_path, min_steps=4
        )
        return trainer.global_step, watcher

    steps, watcher = run(None)
    assert steps == watcher.alarm_step < 24
    again, watcher = run("last")
    assert (again, watcher.alarm_step) == (steps, steps)
    later, _ = run("last", level=1e-6)
    assert later > steps


def test_two_guards_have_states_and_names_of_their_own(fit, writer, scorer) -> None:
    both = [guard(), guard(held_out="score/padding")]
    keys = {each.state_key for each in (*both, guard(name="second"))}
    assert len(keys) == 3
    with pytest.raises(MisconfigurationException, match="'guard'"):
        fit(writer(), [scorer, *both])  # the second one's alarm would be the only one in the log


@pytest.mark.parametrize(("key", "mode"), [("reward/total", None), ("reward/shaped", "min")])
def test_a_module_without_a_reward_may_log_its_total(fit, writer, scorer, key, mode) -> None:
    """Better when higher, as of `PolicyTuner`, unless the guard says otherwise."""

    class Rewarded(writer):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log(key, self.weight.item())

    watcher, best = guard(proxy=key, proxy_mode=mode), RewardCheckpoint(key, mode)
    fit(Rewarded(), [scorer, watcher, best], max_steps=24)
    # The total rises at each step, and the texts get worse.
    assert (watcher.alarm_step > 0) == (mode is None)
    assert best.selected_step == (24 if mode is None else 1)
