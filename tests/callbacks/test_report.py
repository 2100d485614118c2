from __future__ import annotations

import json
import math
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    HistoryLogger,
    MisconfigurationException,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)

from ctrlreward import Samples
from ctrlreward.functional.bootstrap import paired_bootstrap

VALUES = [0.1, 0.2, 0.4, 0.6, 0.5, 0.3]  # best at step 3
TEST = Samples(
    texts=["The lake", "The house", "A cat", "One day"], labels=["positive", "negative"] * 2
)


@pytest.fixture
def noisy(curve) -> type:
    """`Curve` times 1 + the random number in the text."""

    class Noisy(curve):
        def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
            noise = np.array([float(text.split()[-1]) for text in samples.texts])
            return {
                name: value * (1 + noise) for name, value in super().score_samples(samples).items()
            }

    return Noisy


@pytest.fixture
def compare(fit, counter, noisy, held_out, tmp_path):
    """Function that trains with a report on four prompts, two completions each."""

    def run(*more, values=VALUES, module=None, **options):
        scorer = noisy(values)
        report = BeforeAfter({"v": scorer["value"], "l": scorer["loss"]}, TEST, 2)
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
        watch = GenerationScorer({"v": scorer["value"], "l": scorer["loss"]}, held_out)
        module = module or counter()
        trainer = fit(module, [watch, *more, keeper, report], **{"max_steps": 5, **options})
        return trainer, module, report

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)


def test_summary_compares_the_untuned_with_the_selected_policy(compare, tmp_path, capsys) -> None:
    _, module, _ = compare()
    report = read_summary(tmp_path)
    assert set(report) == {
        "score",
        "before",
        "after",
        "difference",
        "difference_ci95",
        "others",
        "steps",
        "stopped_by",
        "best_checkpoint",
        "constraints_met",
        "seconds",
    }
    before, after = rows(tmp_path / "before.jsonl"), rows(tmp_path / "after.jsonl")
    for records, step, phase in ((before, 0, "before"), (after, 3, "after")):
        assert len(records) == 8
        assert all(f" at {step} " in record["text"] for record in records)
        assert [r["prefix"] for r in records] == [t for t in TEST.texts for _ in range(2)]
        means = {n: np.mean([r["scores"][n] for r in records]) for n in ("v", "l")}
        assert report[phase] == pytest.approx({**means, "fail_rate": 0.0, "generations": 8})
    values = [[record["scores"]["v"] for record in records] for records in (before, after)]
    interval = paired_bootstrap(*values, [record["prefix"] for record in before])
    assert report["score"] == "v"
    assert report["difference"] == pytest.approx(interval.value)
    assert report["difference_ci95"] == pytest.approx([interval.low, interval.high])
    assert 0.5 < interval.low < report["difference"] < interval.high < 1.0
    assert report["steps"] == 5
    assert report["stopped_by"] == "max_steps"
    (best,) = (tmp_path / "kept").glob("step=000003-v=*.ckpt")
    assert report["best_checkpoint"] == str(best)
    assert round(module.weight.item()) == 3  # the module keeps the selected weights
    seconds = report["seconds"]
    assert set(seconds) == {"start", "before", "train", "after", "total"}
    assert all(value >= 0 for value in seconds.values())
    parts = sum(value for phase, value in seconds.items() if phase != "total")
    assert seconds["total"] == pytest.approx(parts)
    printed = capsys.readouterr().out
    assert "5 steps in" in printed
    assert f"v, after - before: {report['difference']:+.3f} (95 % interval" in printed


def test_both_generations_use_the_same_seed(compare, tmp_path) -> None:
    compare()
    noise = [
        [row["text"].split()[-1] for row in rows(tmp_path / f"{phase}.jsonl")]
        for phase in ("before", "after")
    ]
    assert noise[0] == noise[1]
    assert len(set(noise[0])) == 8


def test_training_draws_the_same_random_numbers_without_it(fit, counter, compare) -> None:
    pl.seed_everything(3, verbose=False)
    _, compared, _ = compare()
    pl.seed_everything(3, verbose=False)
    alone = counter()
    fit(alone, [], max_steps=5)
    assert compared.draws == alone.draws
    assert all(not call["training"] and not call["gradients"] for call in compared.calls)


def test_a_resumed_run_keeps_the_before_phase_and_adds_its_seconds(compare, tmp_path) -> None:
    compare(max_steps=2)
    before = (tmp_path / "before.jsonl").stat()
    first = read_summary(tmp_path)
    assert "step=000002-" in first["best_checkpoint"]
    _, module, _ = compare(ckpt_path="last")
    after = (tmp_path / "before.jsonl").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert len(module.draws) == 3
    second = read_summary(tmp_path)
    assert second["steps"] == 5
    assert second["before"] == first["before"]
    assert "step=000003-" in second["best_checkpoint"]
    assert set(second["seconds"]) == set(first["seconds"])
    for phase in ("start", "before"):
        assert second["seconds"][phase] == first["seconds"][phase]
    assert second["seconds"]["train"] > first["seconds"]["train"] / 2


def test_best_checkpoint_is_the_adapter_if_there_is_one(compare, counter, tmp_path) -> None:
    class Tuned(counter):
        def export_adapter(self, folder: str) -> None:
            (Path(folder) / "adapter.json").write_text(json.dumps(self.weight.item()))

    compare(module=Tuned())
    folder = Path(read_summary(tmp_path)["best_checkpoint"])
    assert folder.name.startswith("step=000003-v=")
    assert folder.name.endswith("-adapter")
    assert json.loads((folder / "adapter.json").read_text()) == 3.0


@pytest.mark.parametrize(
    ("stopper", "options", "expected"),
    [
        (True, {}, "RewardEarlyStopping: score/v has not improved by more than 0.0 in the last 2"),
        (False, {"max_time": timedelta(microseconds=1)}, "max_time"),
        (False, {"max_steps": -1, "max_epochs": 1}, "end of the data"),
    ],
)
def test_stopped_by(compare, tmp_path, stopper, options, expected: str) -> None:
    more = [RewardEarlyStopping("score/v", patience=2)] if stopper else []
    compare(*more, **{"max_steps": 50, **options})
    report = read_summary(tmp_path)
    assert report["stopped_by"].startswith(expected)
    assert report["steps"] == {"max_time": 1, "end of the data": 8}.get(expected, 5)


def test_without_a_finite_score_the_last_policy_is_evaluated(compare, tmp_path) -> None:
    with pytest.raises(ValueError, match="after has no valid score"):
        compare(values=[0.1] + [math.nan] * 5)
    (text, *_) = rows(tmp_path / "after.jsonl")
    assert " at 5 " in text["text"]


def test_a_score_without_valid_samples_is_null(fit, counter, noisy, held_out, tmp_path) -> None:
    """The second score; the differences need a valid first one."""
    good, bad = noisy(VALUES), noisy([math.nan] * 6)
    scores = {"v": good["value"], "l": bad["loss"]}
    keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
    callbacks = [GenerationScorer(scores, held_out), keeper, BeforeAfter(scores, TEST)]
    fit(counter(), callbacks, max_steps=2, logger=HistoryLogger(str(tmp_path)))
    report = read_summary(tmp_path)
    assert report["after"]["l"] is None
    assert report["after"]["fail_rate"] == 1.0
    assert (tmp_path / "curves.png").exists()


def test_fast_dev_run_writes_nothing(compare, tmp_path) -> None:
    compare(fast_dev_run=2, max_steps=-1)
    assert list(tmp_path.iterdir()) == []


def test_needs_a_reward_checkpoint(fit, counter, noisy, held_out) -> None:
    scores = {"v": noisy(VALUES)["value"]}
    with pytest.raises(MisconfigurationException, match="add RewardCheckpoint to its callbacks"):
        fit(counter(), [GenerationScorer(scores, held_out), BeforeAfter(scores, TEST)])


def test_models_are_released(compare) -> None:
    *_, report = compare(max_steps=1)
    assert report.scores["v"].scorer.releases > 0


@pytest.mark.parametrize("scores", [{}, {"v": "value"}])
def test_bad_scores_are_rejected(scores) -> None:
    with pytest.raises((ValueError, TypeError), match="scores"):
        BeforeAfter(scores, TEST)


# The figure


def png_size(path: Path) -> tuple[int, int]:
    start = path.read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", start[16:24])


def test_the_curves_are_drawn(compare, tmp_path, monkeypatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[list[float], list[float]]] = []
    plot = Axes.plot

    def spy(self, x, y, *more, **options):
        drawn.append((list(x), list(y)))
        return plot(self, x, y, *more, **options)

    monkeypatch.setattr(Axes, "plot", spy)
    compare(logger=HistoryLogger(str(tmp_path)), log_every_n_steps=1)
    width, height = png_size(tmp_path / "curves.png")
    assert 1200 <= width <= 3000
    assert 400 <= height <= 2000
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    steps, values = drawn[0]  # the first panel: the score at each validation
    assert steps == [0, 1, 2, 3, 4]
    assert np.divide(values, values[0]) == pytest.approx(np.divide(VALUES[1:], VALUES[1]), rel=1e-5)
