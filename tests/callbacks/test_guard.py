from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_choice import (
    GenerationScorer,
    MisconfigurationException,
    ProxyGuard,
    RewardCheckpoint,
    pl,
)

from ctrlreward import Samples
from ctrlreward.functional.sequential import level_of_test, rise_p_value
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec


class Reader(Scorer):
    """Scores the length of a text and the share of meaningful words."""

    pointwise = True

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            "length": ScoreSpec(True, (0.0, math.inf)),
            "substance": ScoreSpec(True, (0.0, 1.0)),
            "padding": ScoreSpec(False, (0.0, 1.0)),
        }

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        texts = [text.split() for text in samples.texts]
        substance = np.array([words.count("good") / len(words) for words in texts])
        length = np.array([float(len(words)) for words in texts])
        return {"length": length, "substance": substance, "padding": 1 - substance}


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
def prompts() -> Samples:
    return Samples(texts=["It"] * 24, prompts=[f"Say {i}: It" for i in range(24)])


def watch(prompts: Samples, every: int = 1) -> GenerationScorer:
    reader = Reader()
    return GenerationScorer({name: reader[name] for name in reader.specs}, prompts, every)


def guard(**changes: object) -> ProxyGuard:
    return ProxyGuard(**{"proxy": "score/length", "held_out": "score/substance", **changes})


class Record(pl.Callback):
    """Records all logged metrics at each validation."""

    def __init__(self, scorer: GenerationScorer | None = None) -> None:
        self.rows: list[dict[str, float]] = []
        self.evidence: list[dict[str, Scores]] = []
        self.scorer = scorer

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.rows.append({key: float(value) for key, value in trainer.callback_metrics.items()})
        if self.scorer is not None:
            self.evidence.append(self.scorer.evidence)


# Hacked runs


@pytest.mark.lightning
@pytest.mark.parametrize("held_out", [("score/substance", "max"), ("score/padding", "min")])
def test_alarms_in_a_hacking_run_and_stops_it(held_out, fit, writer, prompts) -> None:
    key, mode = held_out
    watcher, scorer = guard(held_out=key, held_out_mode=mode, stop=True), watch(prompts)
    record = Record(scorer)
    with pytest.warns(UserWarning, match=rf"score/length improved .* while {key} since step 1: "):
        trainer = fit(writer(), [scorer, watcher, record], max_steps=24)
    assert 11 < watcher.alarm_step == trainer.global_step < 24
    assert [row["guard/alarm"] for row in record.rows] == [0.0] * (len(record.rows) - 1) + [1.0]
    first = record.evidence[0]
    margin = 0.1 * first[key].std(ddof=1)
    sign = 1 if mode == "max" else -1
    for k, (row, now) in enumerate(zip(record.rows[1:], record.evidence[1:], strict=True), 1):
        rise = rise_p_value(first["score/length"], now["score/length"])
        fall = rise_p_value(sign * now[key], sign * first[key], margin)
        expected = min(1.0, max(rise, fall) / level_of_test(1.0, k))
        assert row["guard/p_value"] == pytest.approx(expected)
        assert (row["guard/alarm"] == 1) == (expected <= 0.05)


@pytest.mark.filterwarnings("ignore:ProxyGuard")
def test_a_constraint_excludes_checkpoints_under_alarm(fit, writer, prompts, tmp_path) -> None:
    """The proxy is best at the end of the run, under alarm."""

    def best(name: str, **arguments: object) -> tuple[str, Record]:
        record, folder = Record(), str(tmp_path / name)
        keeper = RewardCheckpoint("score/length", dirpath=folder, **arguments)
        callbacks = [watch(prompts), guard(), record, keeper]
        fit(writer(), callbacks, max_steps=20)
        return Path(keeper.best_model_path).name.split("-")[0], record

    chosen, record = best("any")
    calm = [step for step, row in enumerate(record.rows, 1) if row["guard/alarm"] == 0]
    assert chosen == "step=000020" > f"step={calm[-1]:06d}"
    assert best("calm", constraints={"guard/alarm": (None, 0)})[0] == f"step={calm[-1]:06d}"


# Validations that count


class Curves(pl.Callback):
    """Logs a proxy that rises and a held-out metric that falls, without scores by prompt."""

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.log("a", float(trainer.global_step))
        pl_module.log("b", -float(trainer.global_step))


def test_without_scores_by_prompt_there_is_no_alarm_and_one_warning(fit, counter) -> None:
    watcher, record = ProxyGuard("a", "b", "max", "max", stop=True), Record()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(counter(), [Curves(), watcher, record], max_steps=20)
    assert (trainer.global_step, watcher.alarm_step) == (20, -1)
    assert sum("ProxyGuard" in str(w.message) for w in caught) == 1
    assert not any("guard/alarm" in row for row in record.rows)


def test_sanity_check_and_plain_validation_do_not_count(fit, writer, prompts) -> None:
    watcher = guard()
    module = writer()
    trainer = fit(module, [watch(prompts), watcher], max_steps=2, num_sanity_val_steps=1)
    trainer.validate(module, verbose=False)
    assert watcher.state.tests == 1


# Resume


@pytest.mark.filterwarnings("ignore:ProxyGuard")
def test_a_resumed_run_ends_at_once_unless_stop_is_off(fit, writer, prompts, tmp_path) -> None:
    def run(ckpt_path: str | None, **changes: object) -> int:
        keeper = RewardCheckpoint("score/length", dirpath=str(tmp_path / "kept"))
        callbacks = [watch(prompts), guard(**changes), keeper]
        return fit(writer(), callbacks, max_steps=24, ckpt_path=ckpt_path).global_step

    stopped = run(None, stop=True)
    assert run("last", stop=True) == stopped < 24
    assert run("last", stop=False) == 24


def test_two_guards_have_separate_states() -> None:
    keys = {guard(**c).state_key for c in ({}, {"held_out": "score/padding"}, {"name": "second"})}
    assert len(keys) == 3


def test_two_guards_of_one_name(fit, writer, prompts) -> None:
    """The second one's alarm would be the only one in the log."""
    both = [guard(held_out="score/substance"), guard(held_out="score/padding")]
    with pytest.raises(MisconfigurationException, match="'guard'"):
        fit(writer(), [watch(prompts), *both])


@pytest.mark.parametrize(("key", "mode"), [("reward/total", None), ("reward/shaped", "min")])
@pytest.mark.filterwarnings("ignore:ProxyGuard")
def test_a_module_without_a_reward_may_log_its_total(fit, writer, prompts, key, mode) -> None:
    """Better when higher, as of `PolicyTuner`, unless the guard says otherwise."""

    class Rewarded(writer):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log(key, self.weight.item())

    watcher, best = guard(proxy=key, proxy_mode=mode), RewardCheckpoint(key, mode)
    fit(Rewarded(), [watch(prompts), watcher, best], max_steps=24)
    # The total rises at each step, and the texts get worse.
    assert (watcher.alarm_step > 0) == (mode is None)
    assert best.selected_step == (24 if mode is None else 1)
