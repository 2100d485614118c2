from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_choice import (
    MisconfigurationException,
    ReferenceReward,
    RewardShaping,
    SoftOverlong,
    UsefulRange,
    pl,
    quiet_trainer,
)
from module_files import load
from torch.utils.data import DataLoader

from ctrlreward import Distinct, Reward, Samples
from ctrlreward.scorers import FunctionScorer

tuned = load(Path(__file__).parents[1] / "policy" / "conftest.py")
share, folder, tuner = tuned.share, tuned.folder, tuned.tuner

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = Samples(texts=["ab", "cd", "f"], sources=["abc", "def", "ffe"])


class Watch(pl.Callback):
    """Seeds each step, and records the calls of the shaping and the log."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.logged: list[dict[str, float]] = []

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        shape = pl_module.shape_rewards

        def shaped(samples, scored, lengths):
            rewards = shape(samples, scored, lengths)
            self.calls.append((samples, scored, lengths.numpy(), rewards))
            return rewards

        pl_module.shape_rewards = shaped

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        torch.manual_seed(trainer.global_step)

    def on_train_batch_end(self, trainer, *_: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        self.logged.append({n: v for n, v in metrics.items() if "/tokens_per" not in n})

    @property
    def shaping(self) -> list[dict[str, float]]:
        """What the shaping logged at each step."""
        part = "shaping/"
        return [
            {n.removeprefix(part): v for n, v in log.items() if n.startswith(part)}
            for log in self.logged
        ]


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Watch]:
    """Return a function that trains on the same prompts at each step."""

    def run(
        module: pl.LightningModule,
        shaping: RewardShaping,
        steps: int,
        *others: pl.Callback,
        ckpt_path: Path | None = None,
    ) -> Watch:
        watch = Watch()
        torch.manual_seed(1)
        trainer = quiet_trainer(
            callbacks=[shaping, watch, *others],
            default_root_dir=tmp_path,
            enable_checkpointing=bool(others),
            max_steps=steps,
        )
        data = DataLoader([BATCH] * 50, batch_size=None)  # type: ignore[arg-type]
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return watch

    return run


def everything() -> RewardShaping:
    return RewardShaping(clip=(-0.1, 0.2), overlong=SoftOverlong(6, 3, 0.5))


def bounded(share, **others: Any) -> Reward:
    """The share of a, and the share of b, which is bounded and not rewarded."""
    b = FunctionScorer(lambda completions: [c.count("b") / max(len(c), 1) for c in completions])
    return Reward({"share": share["share"], "b": (b, 0.0), **others})


@pytest.mark.lightning
def test_each_step_shapes_as_the_formulas_say(tuner, share, fit) -> None:
    """Every transformation, sample by sample, and the logged mean after each."""
    reward = Reward({"share": share["share"], "length": (share["length"], -0.05)})
    watch = fit(tuner(reward=reward), everything(), 5)
    for (_, scored, lengths, shaped), logged, shaping in zip(
        watch.calls, watch.logged, watch.shaping, strict=True
    ):
        clipped = np.array([math.nan if t != t else min(max(t, -0.1), 0.2) for t in scored.total])
        costs = np.array([0.0 if n <= 3 else -0.5 * min((n - 3) / 3, 1.0) for n in lengths])
        valid = ~np.isnan(clipped)
        np.testing.assert_allclose(shaped, clipped + costs, atol=1e-6)
        assert shaping == pytest.approx(
            {
                "clipped": np.mean((clipped != scored.total)[valid]),
                "after_clip": np.nanmean(clipped),
                "length": np.mean(costs),
                "after_length": np.nanmean(shaped),
                "fail_rate": np.mean(~valid),
            },
            abs=1e-5,
        )
        assert logged["reward/total"] == pytest.approx(np.nanmean(scored.total), abs=1e-6)
        assert logged["reward/shaped"] == pytest.approx(np.nanmean(shaped), abs=1e-5)
        assert logged["reward/shaped_std"] == pytest.approx(np.nanstd(shaped), abs=1e-5)
    assert max(log["clipped"] for log in watch.shaping) > 0
    assert any(np.isnan(call[3]).any() for call in watch.calls)  # failed samples stay failed


def ranged() -> RewardShaping:
    ranges = {"b": UsefulRange(low=0.3), "share": UsefulRange(high=0.0, from_start=True)}
    return RewardShaping(ranges=ranges, length_alpha=0.2, clip=(0.0, 1.0))


@pytest.mark.parametrize("shaping", [everything, ranged])
def test_a_run_resumed_at_any_step_shapes_like_an_uninterrupted_one(
    tuner, share, fit, tmp_path, shaping: Callable[[], RewardShaping]
) -> None:
    def build() -> pl.LightningModule:
        reward = bounded(share, length=(share["length"], -0.05))
        return tuner(reward=reward, learning_rate=0.03)

    keeper = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    uncut = fit(build(), shaping(), 4, keeper)
    for step in (1, 2, 3):
        rest = fit(build(), shaping(), 4, ckpt_path=tmp_path / f"step={step}.ckpt")
        assert len(rest.logged) == 4 - step
        for logged, expected in zip(rest.logged, uncut.logged[step:], strict=True):
            for name in expected:
                if not name.startswith("time/"):
                    assert logged[name] == pytest.approx(expected[name], abs=1e-6), name
    if shaping is ranged:
        assert uncut.shaping[-1]["multiplier/b_low"] > 0


@pytest.mark.lightning
def test_the_module_is_restored(tuner, fit) -> None:
    released: list[int] = []

    class Released(FunctionScorer):
        def release(self) -> None:
            released.append(1)

    module, vowels = tuner(), Released(lambda texts: [text.count("a") for text in texts])
    shaping = RewardShaping(ranges={"vowels": UsefulRange(high=9.0, component=vowels)})
    fit(module, shaping, 1)
    assert (module.shape_rewards, len(released)) == (None, 1)
    module.on_train_batch_end = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fit(module, shaping, 1)
    assert (module.shape_rewards, len(released)) == (None, 2)


# Errors


def test_a_module_that_cannot_be_shaped_is_an_error(counter, tuner, share, fit) -> None:
    class Plain(counter):  # without a reference policy
        reward = Reward({"length": lambda texts: [*map(len, texts)]})
        shape_rewards = None

    shaped, negative = tuner(), Reward({"length": (share["length"], -1.0)})
    shaped.shape_rewards = other = lambda samples, scored, lengths: scored.total
    none = FunctionScorer(lambda texts: [None] * len(texts))
    distinct = UsefulRange(0.5, component=Distinct()["distinct_2"])
    long, clipped = RewardShaping(length_alpha=1.0), RewardShaping(clip=(0, 1))
    for module, shaping, error in (
        (counter(), clipped, "shape_rewards"),
        (shaped, clipped, "shape_rewards"),
        (Plain(), RewardShaping(reference=ReferenceReward()), "complete_as_reference"),
        (tuner(), RewardShaping(ranges={"shar": UsefulRange(high=1.0)}), "shar"),
        (tuner(), RewardShaping(ranges={"distinct_2": distinct}), "distinct_2"),
        (tuner(), RewardShaping(ranges={"none": UsefulRange(0.5, component=none)}), "12 samples"),
        (tuner(reward=negative), long, "length_alpha"),
    ):
        with pytest.raises((MisconfigurationException, ValueError, RuntimeError), match=error):
            fit(module, shaping, 1)
    assert shaped.shape_rewards is other
    fit(tuner(reward=negative), RewardShaping(length_alpha=1.0, reference=ReferenceReward()), 1)


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (lambda: RewardShaping(), "clip"),
        (lambda: RewardShaping(clip=1), "clip"),
        (lambda: RewardShaping(clip=(1.0, -1.0)), "clip"),
        (lambda: RewardShaping(clip=(None, None)), "clip"),
        (lambda: RewardShaping(length_alpha=0.0), "length_alpha"),
        (lambda: RewardShaping(ranges={}), "ranges"),
        (lambda: RewardShaping(ranges={"a": UsefulRange(0)}, range_rate=0), "range_rate"),
        (lambda: UsefulRange(), "low and high"),
        (lambda: UsefulRange(0.5, 0.1), "low"),
        (lambda: ReferenceReward(scale=0.0), "scale"),
        (lambda: SoftOverlong(10, 0), "cache"),
        (lambda: SoftOverlong(10, 5, -1.0), "weight"),
    ],
)
def test_bad_arguments(build: Callable[[], object], argument: str) -> None:
    with pytest.raises((TypeError, ValueError), match=argument):
        build()


# References, length factors, ranges


def share_of(letter: str, text: str, prefix: str) -> float:
    rest = text[len(prefix) :]
    return rest.count(letter) / len(rest) if rest else math.nan


def test_the_reference_policy_is_the_one_before_training(tuner, fit) -> None:
    module = tuner(learning_rate=0.05, eval_temperature=0.0)
    module.configure_model()
    first = module.complete(["ab", "cd", "f"])
    watch = fit(module, RewardShaping(reference=ReferenceReward(scale=0.1)), 4)
    assert module.complete_as_reference(["ab", "cd", "f"]) == first
    assert module.complete(["ab", "cd", "f"]) != first  # it has learned
    own = dict(zip(["ab", "cd", "f"], first, strict=True))
    for samples, scored, _, shaped in watch.calls:
        for prefix, total, value in zip(samples.prefixes, scored.total, shaped, strict=True):
            reference = share_of("a", prefix + own[prefix], prefix)
            expected = 1 / (1 + math.exp(-(total - reference) / 0.1))
            assert value == pytest.approx(expected, nan_ok=True)


def test_a_long_completion_is_worth_less_than_its_group(tuner, fit) -> None:
    watch = fit(tuner(), RewardShaping(length_alpha=0.5), 2)
    for (_, scored, lengths, shaped), logged in zip(watch.calls, watch.shaping, strict=True):
        factors = []
        for start in (0, 4, 8):
            group = slice(start, start + 4)
            valid = ~scored.failed[group]
            factor = 1 / (1 + 0.5 * lengths[group] / lengths[group][valid].mean())
            np.testing.assert_allclose(shaped[group], scored.total[group] * factor)
            factors += list(factor[valid])
        assert logged["length_factor"] == pytest.approx(np.mean(factors), abs=1e-6)
        assert logged["after_length_factor"] == pytest.approx(np.nanmean(shaped), abs=1e-6)


def test_multipliers_and_rewards_are_those_of_a_loop(tuner, share, fit) -> None:
    ranges = {"b": UsefulRange(low=0.3, high=0.32), "share": UsefulRange(high=0.05)}
    shaping = RewardShaping(ranges=ranges, range_rate=0.5)
    watch = fit(tuner(reward=bounded(share), learning_rate=0.03), shaping, 5)
    bounds = [("b_low", "b", 1, 0.3), ("b_high", "b", -1, 0.32), ("share_high", "share", -1, 0.05)]
    integrals = {side: 0.0 for side, *_ in bounds}
    multipliers = dict(integrals)
    seen: dict[str, list[float]] = {"total": [], "b": [], "share": []}
    for (_, scored, _, shaped), logged in zip(watch.calls, watch.shaping, strict=True):
        columns = {"total": scored.total, **scored.components}
        for name, values in columns.items():
            seen[name] += [v for v in values if not math.isnan(v)]
        unit = {name: np.std(values) for name, values in seen.items()}
        expected = scored.total.copy()
        for side, name, sign, bound in bounds:
            inside = sign * (scored.components[name] - bound)
            expected += multipliers[side] * inside * unit["total"] / unit[name]
        expected /= 1 + sum(multipliers.values())
        np.testing.assert_allclose(shaped, expected, rtol=1e-6)
        for side, name, sign, bound in bounds:
            assert logged[f"multiplier/{side}"] == pytest.approx(multipliers[side], abs=1e-6)
            mean = np.nanmean(scored.components[name])
            assert logged[f"range/{name}"] == pytest.approx(mean, abs=1e-6)
            excess = sign * (bound - mean) / unit[name]
            integrals[side] = max(0.0, integrals[side] + 0.5 * excess)
            multipliers[side] = max(0.0, integrals[side] + excess)
        assert logged["after_ranges"] == pytest.approx(np.nanmean(shaped), abs=1e-5)
    for side in ("b_low", "share_high"):
        assert max(log[f"multiplier/{side}"] for log in watch.shaping) > 0.3


def test_bounds_from_the_start_are_differences(tuner, share, fit) -> None:
    shaping = RewardShaping(ranges={"share": UsefulRange(high=0.0, from_start=True)})
    watch = fit(tuner(reward=bounded(share), learning_rate=0.03), shaping, 4)
    start = watch.logged[0]["reward/share"]
    assert shaping.ranges is not None
    assert shaping.ranges.starts == {"share": pytest.approx(start)}
    multipliers = [log["multiplier/share_high"] for log in watch.shaping]
    assert multipliers[:2] == [0, 0]  # the first mean is the bound
    rises = [log["reward/share"] > start for log in watch.logged[1:-1]]
    assert [after > before for before, after in pairwise(multipliers[1:])] == rises


def test_a_failed_score_is_a_failed_sample_and_counts_in_no_mean(tuner, fit) -> None:
    even = FunctionScorer(lambda texts: [len(t) if len(t) % 2 else None for t in texts])
    shaping = RewardShaping(ranges={"even": UsefulRange(high=3.0, component=even)})
    watch = fit(tuner(), shaping, 3)
    for (samples, scored, _, shaped), logged in zip(watch.calls, watch.shaping, strict=True):
        odd = np.array([len(text) % 2 == 1 for text in samples.texts])
        np.testing.assert_array_equal(np.isnan(shaped), ~odd | scored.failed)
        mean = np.mean([len(text) for text in samples.texts if len(text) % 2])
        assert logged["range/even"] == pytest.approx(mean)
