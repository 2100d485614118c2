from __future__ import annotations

import math
from collections.abc import Callable
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


def bounded(share, **others: Any) -> Reward:
    """The share of a, and the share of b, which is bounded and not rewarded."""
    b = FunctionScorer(lambda completions: [c.count("b") / max(len(c), 1) for c in completions])
    return Reward({"share": share["share"], "b": (b, 0.0), **others})


def test_each_step_shapes_as_the_formulas_say(tuner, share, fit) -> None:
    """All transformations in their order, sample by sample, and what is logged after each."""
    ending = FunctionScorer(lambda texts: [None if t[-1] == "f" else len(t) for t in texts])
    ranges = {
        "b": UsefulRange(low=0.3, high=0.32),
        "share": UsefulRange(high=0.0, from_start=True),
        "ending": UsefulRange(high=3.0, component=ending),
    }
    reward = bounded(share)
    module = tuner(reward=reward, learning_rate=0.03, eval_temperature=0.0)
    torch.manual_seed(0)
    module.configure_model()
    untuned = dict(zip(BATCH.texts, module.complete(BATCH.texts), strict=True))
    overlong, reference = SoftOverlong(6, 3, 0.5), ReferenceReward(scale=0.1)
    shaping = RewardShaping((0.2, 0.8), overlong, reference, 0.5, ranges, range_rate=0.5)
    watch = fit(module, shaping, 4)
    assert module.complete_as_reference(BATCH.texts) == [*untuned.values()]
    assert module.complete(BATCH.texts) != [*untuned.values()]  # it has learned

    seen: dict[str, list[float]] = {name: [] for name in ("reward", *ranges)}
    multipliers = dict.fromkeys(("b_low", "b_high", "share_high", "ending_high"), 0.0)
    integrals, start = dict(multipliers), math.nan
    steps = zip(watch.calls, watch.logged, watch.shaping, strict=True)
    for (samples, scored, lengths, shaped), logged, found in steps:
        means = {f"multiplier/{side}": each for side, each in multipliers.items()}
        totals = reward(samples.replace(texts=[p + untuned[p] for p in samples.prompts])).total
        rewards = 1 / (1 + np.exp(-(scored.total - totals) / 0.1))
        means |= {"reference": np.nanmean(totals), "after_reference": np.nanmean(rewards)}
        clipped = np.array([r if math.isnan(r) else min(max(r, 0.2), 0.8) for r in rewards])
        changed = (clipped != rewards)[~np.isnan(rewards)]
        means |= {"clipped": np.mean(changed), "after_clip": np.nanmean(clipped)}
        valid = np.where(np.isnan(clipped), np.nan, lengths)
        factor = 1 / (1 + 0.5 * lengths / np.repeat(np.nanmean(valid.reshape(3, 4), axis=1), 4))
        rewards = clipped * factor
        means["length_factor"] = np.mean(factor[~np.isnan(clipped)])
        means["after_length_factor"] = np.nanmean(rewards)
        endings = [math.nan if t[-1] == "f" else len(t) for t in samples.texts]
        columns = {"reward": rewards, **scored.components, "ending": np.array(endings, float)}
        for name, values in columns.items():
            seen[name] += [value for value in values if not math.isnan(value)]
        unit = {name: np.std(values) for name, values in seen.items()}
        step = {name: np.nanmean(columns[name]) for name in ranges}
        start = step["share"] if math.isnan(start) else start
        bounds = [("b_low", "b", 1, 0.3), ("b_high", "b", -1, 0.32)]
        bounds += [("share_high", "share", -1, start), ("ending_high", "ending", -1, 3.0)]
        weights = 1 + sum(multipliers.values())
        for side, name, sign, bound in bounds:
            inside = sign * (columns[name] - bound)
            rewards = rewards + multipliers[side] * inside * unit["reward"] / unit[name]
            excess = sign * (bound - step[name]) / unit[name]
            integrals[side] = max(0.0, integrals[side] + 0.5 * excess)
            multipliers[side] = max(0.0, integrals[side] + excess)
        rewards = rewards / weights
        means |= {f"range/{name}": mean for name, mean in step.items()}
        means["after_ranges"] = np.nanmean(rewards)
        costs = np.array([0.0 if n <= 3 else -0.5 * min((n - 3) / 3, 1.0) for n in lengths])
        rewards = rewards + costs
        means |= {"length": np.mean(costs), "after_length": np.nanmean(rewards)}
        means["fail_rate"] = np.mean(np.isnan(rewards))
        np.testing.assert_allclose(shaped, rewards, rtol=1e-5, atol=1e-6)
        assert found == pytest.approx(means, abs=1e-5)
        assert logged["reward/total"] == pytest.approx(np.nanmean(scored.total), abs=1e-6)
        assert logged["reward/shaped"] == pytest.approx(np.nanmean(shaped), abs=1e-5)
        assert logged["reward/shaped_std"] == pytest.approx(np.nanstd(shaped), abs=1e-5)
    assert 0 < max(log["fail_rate"] for log in watch.shaping) < 1
    for name in ("clipped", "multiplier/b_low", "multiplier/ending_high"):
        assert max(log[name] for log in watch.shaping) > 0


def test_a_resumed_run_shapes_like_an_uninterrupted_one(tuner, share, fit, tmp_path) -> None:
    def build() -> tuple[pl.LightningModule, RewardShaping]:
        ranges = {"b": UsefulRange(low=0.3), "share": UsefulRange(high=0.0, from_start=True)}
        module = tuner(reward=bounded(share), learning_rate=0.03)
        return module, RewardShaping(ranges=ranges, length_alpha=0.2, clip=(0.0, 1.0))

    keeper = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    uncut = fit(*build(), 4, keeper)
    rest = fit(*build(), 4, ckpt_path=tmp_path / "step=2.ckpt")
    assert len(rest.logged) == 2
    for logged, expected in zip(rest.shaping, uncut.shaping[2:], strict=True):
        assert logged == pytest.approx(expected, abs=1e-6)
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
        (lambda: RewardShaping(clip=(None, None)), "clip"),
        (lambda: RewardShaping(length_alpha=0.0), "length_alpha"),
        (lambda: RewardShaping(ranges={}), "ranges"),
        (lambda: RewardShaping(ranges={"a": {"high": 1.0}}), "ranges"),
        (lambda: RewardShaping(reference={"scale": 1.0}), "reference"),
        (lambda: RewardShaping(overlong={"longest": 8, "cache": 2}), "overlong"),
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
