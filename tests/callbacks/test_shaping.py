from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from lightning_choice import (
    LengthWindow,
    MisconfigurationException,
    Potential,
    RewardShaping,
    SoftOverlong,
    pl,
)
from torch.utils.data import DataLoader

from ctrlreward import Reward, Samples
from ctrlreward.policy import learner
from ctrlreward.scorers.base import Scorer, ScoreSpec

spec = importlib.util.spec_from_file_location(
    "tuned", Path(__file__).parents[1] / "policy" / "conftest.py"
)
assert spec is not None
assert spec.loader is not None
tuned = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tuned)
share, folder, tuner = tuned.share, tuned.folder, tuned.tuner

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = Samples(texts=["ab", "cd", "f"], sources=["abc", "def", "ffe"])


class Vowels(Scorer):
    """Scorer of the number of a and e in a text; NaN for an empty text."""

    def __init__(self) -> None:
        self.releases = 0

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"count": ScoreSpec(True, (0.0, math.inf))}

    def score_samples(self, samples: Samples) -> dict[str, Any]:
        return {"count": np.array([vowels(text) for text in samples.texts])}

    def release(self) -> None:
        self.releases += 1


def vowels(text: str) -> float:
    return float(text.count("a") + text.count("e")) if text else math.nan


class Watch(pl.Callback):
    """Seeds each step, and records the calls of the shaping and the log."""

    def __init__(self) -> None:
        self.calls: list[list[tuple]] = []
        self.baselines: list[bool] = []
        self.logged: list[dict[str, float]] = []
        self.betas: list[float] = []

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        shape = pl_module.shape_rewards

        def shaped(samples, scored, lengths, baseline):
            rewards = shape(samples, scored, lengths, baseline)
            self.calls[-1].append((samples, scored, lengths.numpy(), rewards))
            self.baselines.append(baseline)
            return rewards

        pl_module.shape_rewards = shaped

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self.calls.append([])
        self.betas.append(pl_module.beta)
        torch.manual_seed(trainer.global_step)

    def on_train_batch_end(self, trainer, *_: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        self.logged.append({n: v for n, v in metrics.items() if "/tokens_per" not in n})


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Watch]:
    """Return a function that trains on the same prompts at each step."""

    def run(
        module: pl.LightningModule,
        shaping: RewardShaping,
        steps: int,
        *others: pl.Callback,
        batch: Samples = BATCH,
        ckpt_path: Path | None = None,
    ) -> Watch:
        watch = Watch()
        torch.manual_seed(1)
        trainer = pl.Trainer(
            accelerator="cpu",
            callbacks=[shaping, watch, *others],
            default_root_dir=tmp_path,
            enable_checkpointing=bool(others),
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_steps=steps,
        )
        data = DataLoader([batch] * 50, batch_size=None)  # type: ignore[arg-type]
        trainer.fit(module, data, ckpt_path=ckpt_path)
        return watch

    return run


@pytest.fixture
def reward(share) -> Reward:
    return Reward({"share": share["share"], "length": (share["length"], -0.05)})


def everything() -> RewardShaping:
    return RewardShaping(
        weights={"share": [(1, 0.0), (3, 1.0)], "length": [(0, -0.05), (4, 0.0)]},
        potential=Potential(Vowels()["count"], 0.5, 0.9, "sources"),
        clip=(-1.0, 0.5),
        window=LengthWindow(2, 4, 0.1),
        overlong=SoftOverlong(6, 3, 0.5),
        normalise=True,
        kl_target=0.001,
        kl_horizon=5.0,
    )


# Values


@pytest.mark.lightning
def test_each_step_shapes_as_the_formulas_say(tuner, reward, fit) -> None:
    """Every transformation, sample by sample, and the logged mean after each."""
    watch = fit(tuner(reward=reward), everything(), 5)
    seen: list[float] = []
    for step, ((samples, scored, lengths, shaped),) in enumerate(watch.calls):
        share_weight = min(max((step - 1) / 2, 0.0), 1.0)
        length_weight = -0.05 * (1 - step / 4)
        stages = []
        for i, text in enumerate(samples.texts):
            total = share_weight * scored.components["share"][i]
            total += length_weight * scored.components["length"][i]
            term = 0.5 * (0.9 * vowels(text) - vowels(samples.sources[i]))
            clipped = min(max(total + term, -1.0), 0.5) if not math.isnan(total) else math.nan
            n = lengths[i]
            late = 0.0 if n <= 3 else -0.5 * min((n - 3) / 3, 1.0)
            cost = late - 0.1 * (max(2 - n, 0) + max(n - 4, 0))
            stages.append((total, total + term, clipped, clipped + cost, term, cost))
        weighted, with_potential, clipped, long, terms, costs = np.array(stages).T
        valid = ~np.isnan(long)
        seen += list(long[valid])
        expected = (long - np.mean(seen)) / np.std(seen)
        np.testing.assert_allclose(shaped, expected, atol=1e-6)

        logged = watch.logged[step]
        assert {n: logged[n] for n in logged if n.startswith("shaping/")} == pytest.approx(
            {
                "shaping/weight/share": share_weight,
                "shaping/weight/length": length_weight,
                "shaping/after_weights": np.nanmean(weighted),
                "shaping/potential": np.nanmean(terms),
                "shaping/after_potential": np.nanmean(with_potential),
                "shaping/clipped": np.mean((clipped != with_potential)[valid]),
                "shaping/after_clip": np.nanmean(clipped),
                "shaping/length": np.mean(costs),
                "shaping/after_length": np.nanmean(long),
                "shaping/running_mean": np.mean(seen),
                "shaping/running_std": np.std(seen),
                "shaping/beta": watch.betas[step],
                "shaping/fail_rate": np.mean(~valid),
            },
            abs=1e-5,
        )
        assert logged["reward/total"] == pytest.approx(np.nanmean(scored.total), abs=1e-6)
        assert logged["reward/shaped"] == pytest.approx(np.nanmean(shaped), abs=1e-5)
        assert logged["reward/shaped_std"] == pytest.approx(np.nanstd(shaped), abs=1e-5)
    assert max(log["shaping/clipped"] for log in watch.logged) > 0
    assert any(np.isnan(call[0][3]).any() for call in watch.calls)  # failed samples stay failed


def test_only_active_transformations_are_applied_and_logged(tuner, fit) -> None:
    watch = fit(tuner(), RewardShaping(clip=(None, 1e9)), 1)
    (((_, scored, _, shaped),),) = watch.calls
    np.testing.assert_array_equal(shaped, scored.total)
    names = {name for name in watch.logged[0] if name.startswith("shaping/")}
    assert names == {"shaping/clipped", "shaping/after_clip", "shaping/fail_rate"}
    assert watch.logged[0]["shaping/clipped"] == 0


def test_every_logged_name_is_documented(tuner, reward, fit) -> None:
    for name in fit(tuner(reward=reward), everything(), 1).logged[0]:
        start, _, end = name.partition("/")
        if start == "shaping":
            assert ("weight/<component>" if "weight/" in end else end) in RewardShaping.__doc__


def test_a_constant_schedule_of_the_given_weight_changes_nothing(tuner, reward, fit) -> None:
    watch = fit(tuner(reward=reward), RewardShaping(weights={"length": [(0, -0.05)]}), 2)
    for ((_, scored, _, shaped),) in watch.calls:
        np.testing.assert_array_equal(shaped, scored.total)


def test_a_start_that_the_potential_cannot_score_fails_its_samples(tuner, fit) -> None:
    shaping = RewardShaping(potential=Potential(Vowels()["count"], start="sources"))
    watch = fit(tuner(), shaping, 1, batch=BATCH.replace(sources=["abc", "", "ffe"]))
    (((_, scored, _, shaped),),) = watch.calls
    assert np.isnan(shaped[4:8]).all()
    np.testing.assert_array_equal(np.isnan(shaped[8:]), scored.failed[8:])
    assert watch.logged[0]["shaping/fail_rate"] == pytest.approx(np.isnan(shaped).mean())
    with pytest.raises(RuntimeError, match="all 12 samples of this step failed to get a shaped"):
        fit(tuner(), shaping, 1, batch=BATCH.replace(sources=["", "", ""]))


def test_the_default_start_of_the_potential_is_the_prefix(tuner, fit) -> None:
    shaping = RewardShaping(potential=Potential(Vowels()["count"], discount=0.0))
    (((_, scored, _, shaped),),) = fit(tuner(), shaping, 1).calls
    before = np.repeat([vowels(text) for text in BATCH.texts], 4)
    np.testing.assert_allclose(shaped, scored.total - before)


# Training


def test_the_policy_learns_from_the_shaped_reward(tuner, share, fit) -> None:
    """The reward favours the letter a, the shaping short texts."""
    lengths = {}
    for cost in (0.0, 1.0):
        module = tuner(learning_rate=0.03, num_generations=8, beta=0.0)
        shaping = RewardShaping({"share": [(0, 0.0)]}, window=LengthWindow(0, 2, cost))
        logged = fit(module, shaping, 15).logged
        lengths[cost] = [log["rollout/length"] for log in logged]
        assert logged[-1]["reward/share"] < 0.6
    assert lengths[1.0][-1] < 2.5 < lengths[0.0][-1]


def test_the_greedy_completion_is_shaped_alike_and_not_counted(tuner, fit, monkeypatch) -> None:
    advantages: list[torch.Tensor] = []
    loss_terms = learner.loss_terms
    spy = lambda c, p, e, *rest: advantages.append(e.advantages) or loss_terms(c, p, e, *rest)  # noqa: E731
    monkeypatch.setattr(learner, "loss_terms", spy)
    shaping = RewardShaping(window=LengthWindow(0, 0, 0.3), normalise=True)
    module = tuner(algorithm="self_critical")
    watch = fit(module, shaping, 3)
    raw: list[float] = []
    for calls, learned in zip(watch.calls, advantages, strict=True):
        (_, scored, lengths, shaped), (_, greedy_scored, greedy_lengths, greedy) = calls
        raw += [r for r in scored.total - 0.3 * lengths if not math.isnan(r)]
        alike = greedy_scored.total - 0.3 * greedy_lengths
        np.testing.assert_allclose(greedy, (alike - np.mean(raw)) / np.std(raw), atol=1e-6)
        expected = np.nan_to_num(shaped - np.repeat(greedy, 4))
        np.testing.assert_allclose(learned, expected, atol=1e-5)
    assert watch.baselines == [False, True] * 3
    assert shaping.moments.count == len(raw)


@pytest.mark.parametrize(("target", "rises"), [(1e-4, True), (10.0, False)])
def test_beta_follows_its_target(tuner, fit, target: float, rises: bool) -> None:
    module = tuner(learning_rate=0.03, beta=0.2)
    shaping = RewardShaping(kl_target=target, kl_horizon=4.0)
    watch = fit(module, shaping, 6)
    expected = 0.2
    for coef, logged in zip(watch.betas, watch.logged, strict=True):
        assert coef == pytest.approx(expected)
        assert logged["shaping/beta"] == pytest.approx(expected)
        error = min(max(logged["policy/kl"] / target - 1, -0.2), 0.2)
        expected *= 1 + error / 4
    assert shaping.beta == pytest.approx(expected)
    assert (watch.betas[-1] > 0.2) == rises
    assert module.beta == 0.2  # as it was given


# State


def test_a_run_resumed_at_any_step_shapes_like_an_uninterrupted_one(
    tuner, reward, fit, tmp_path
) -> None:
    keeper = pl.callbacks.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    uncut = fit(tuner(reward=reward, learning_rate=0.03), everything(), 4, keeper)
    for step in (1, 2, 3):
        path = tmp_path / f"step={step}.ckpt"
        (state,) = (
            s
            for key, s in torch.load(path, weights_only=True)["callbacks"].items()
            if "RewardShaping" in key
        )
        assert {type(value) for value in state.values()} == {int, float}
        module = tuner(reward=reward, learning_rate=0.03)
        rest = fit(module, everything(), 4, ckpt_path=path)
        assert len(rest.logged) == 4 - step
        for logged, expected in zip(rest.logged, uncut.logged[step:], strict=True):
            for name in expected:
                if not name.startswith("time/"):
                    assert logged[name] == pytest.approx(expected[name], abs=1e-6), name


@pytest.mark.lightning
def test_the_module_is_restored(tuner, fit) -> None:
    module, vowel = tuner(), Vowels()
    shaping = RewardShaping(potential=Potential(vowel["count"]), kl_target=0.1)
    fit(module, shaping, 1)
    assert module.shape_rewards is None
    assert vowel.releases == 1
    module.on_train_batch_end = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fit(module, shaping, 1)
    assert module.shape_rewards is None
    assert module.beta == 0.05
    assert vowel.releases == 2


# Errors


def test_a_module_that_cannot_be_shaped_is_an_error(counter, tuner, fit) -> None:
    with pytest.raises(MisconfigurationException, match=r"Counter: define self\.reward, a Reward"):
        fit(counter(), RewardShaping(normalise=True), 1)
    module = tuner()
    module.shape_rewards = other = lambda samples, scored, lengths, baseline: scored.total
    with pytest.raises(MisconfigurationException, match="PolicyTuner are already shaped by"):
        fit(module, RewardShaping(normalise=True), 1)
    assert module.shape_rewards is other
    with pytest.raises(MisconfigurationException, match="scales the beta of PolicyTuner, which"):
        fit(tuner(beta=0.0), RewardShaping(kl_target=0.1), 1)


@pytest.mark.parametrize(
    ("weights", "aggregate", "message"),
    [
        (
            {"fun": [(0, 1.0)]},
            "weighted",
            r"weights\['fun'\]: the reward has no such component, only share, length",
        ),
        (
            {"share": [(0, 1.0), (9, -0.5)]},
            "weighted",
            r"share is better when higher, .* give 0\.5",
        ),
        ({"share": [(0, 1.0)]}, lambda scores: scores["share"], "build it with aggregate='weight"),
    ],
)
def test_weights_that_do_not_fit_the_reward(
    tuner, share, fit, weights, aggregate, message: str
) -> None:
    given = Reward({"share": share["share"], "length": share["length"]}, aggregate)
    with pytest.raises(ValueError, match=message):
        fit(tuner(reward=given), RewardShaping(weights), 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RewardShaping(), "nothing to shape: give at least one of weights, clip"),
        (lambda: RewardShaping({"a": []}), r"weights\['a'\] = \[\]: give pairs"),
        (lambda: RewardShaping({"a": [(5, 1.0), (5, 2.0)]}), "by increasing step"),
        (lambda: RewardShaping(clip=(1.0, -1.0)), r"clip = \(1\.0, -1\.0\): give the smaller"),
        (lambda: RewardShaping(kl_target=0.0), r"kl_target = 0\.0: give nats per token"),
        (lambda: RewardShaping(kl_target=1.0, kl_horizon=0.5), r"kl_horizon = 0\.5: give 1 batch"),
        (lambda: LengthWindow(5, 4, 0.1), "low = 5, high = 4: give 0 <= low <= high"),
        (lambda: LengthWindow(0, 4, -0.1), r"cost = -0\.1 would be a bonus: give 0\.1"),
        (lambda: SoftOverlong(10, 0), "cache = 0: give 1 to longest = 10 tokens"),
        (lambda: SoftOverlong(10, 5, -1.0), r"weight = -1\.0 would be a bonus: give 1\.0"),
        (
            lambda: Potential(Vowels()["count"], discount=1.5),
            r"discount = 1\.5: give a number in \[0, 1\]",
        ),
        (lambda: Potential(Vowels()["count"], -1.0), r"count is better when higher, .* give 1\.0"),
    ],
)
def test_bad_arguments(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


# From a file

FILE = f"""
shaping:
  class_path: {RewardShaping.__module__}.RewardShaping
  init_args:
    weights:
      similarity: [[0, 0.2], [100, 1.0]]
    potential:
      component:
        scorer: {{class_path: ctrlreward.scorers.Perplexity, init_args: {{model: smollm2-135m}}}}
        name: log_likelihood
      weight: 0.3
      start: sources
    clip: [null, 2.0]
    window: {{low: 4, high: 40, cost: 0.01}}
    overlong: {{longest: 64, cache: 16}}
    normalise: true
    kl_target: 0.05
"""


def test_all_options_from_yaml() -> None:
    parser = ArgumentParser()
    parser.add_argument("--shaping", type=pl.Callback)
    shaping = parser.instantiate_classes(parser.parse_string(FILE)).shaping
    assert shaping.schedules.at(50) == {"similarity": pytest.approx(0.6)}
    assert shaping.potential.component.name == "log_likelihood"
    assert (shaping.potential.weight, shaping.potential.start) == (0.3, "sources")
    assert shaping.bounds == (-math.inf, 2.0)
    assert shaping.window == LengthWindow(4, 40, 0.01)
    assert shaping.overlong == SoftOverlong(64, 16)
    assert (shaping.normalise, shaping.kl_target, shaping.kl_horizon) == (True, 0.05, 10.0)
