from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning_choice import (
    AUC,
    BeforeAfter,
    HistoryLogger,
    MisconfigurationException,
    RewardCheckpoint,
    RewardEarlyStopping,
)

from ctrlreward import LexiconSentiment, Samples, Scorer, ScoreSpec
from ctrlreward.callbacks.judges import comparison
from ctrlreward.files import finite_or_none
from ctrlreward.functional import paired_auc_bootstrap, paired_bootstrap
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import read_scored_file

VALUES = [0.1, 0.2, 0.4, 0.6, 0.5, 0.3]  # best at step 3
TEST = Samples(
    texts=["The lake", "The house", "A cat", "One day"], labels=["positive", "negative"] * 2
)


class Noise(Scorer):
    """Judge that tells the labels apart once the policy is trained, and fails on some texts.

    The score is the random number of a text, plus the step for a text of the positive label.
    """

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.scored: list[Samples] = []

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"noise": ScoreSpec(True, (0.0, np.inf))}

    def required_columns(self, names: Collection[str] | None = None) -> list[str]:
        return ["labels"]

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        values = [self.value(*row) for row in zip(samples.texts, samples.labels, strict=True)]
        return {"noise": np.array(values)}

    def value(self, text: str, label: str) -> float:
        step, noise = text.split()[-2:]
        failed = text.startswith(self.failing)
        return np.nan if failed else float(noise) + int(step) * (label == "positive")


@pytest.fixture
def compare(fit, counter, curve, watch, tmp_path):
    """Function that trains with a report on four prompts, two completions each."""

    class Noisy(curve):
        """`Curve` times 1 + the random number in the text."""

        def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
            noise = np.array([float(text.split()[-1]) for text in samples.texts])
            return {n: v * (1 + noise) for n, v in super().score_samples(samples).items()}

    def run(*more, values=VALUES, module=None, judges=None, **options):
        scorer = Noisy(values)
        scores = {"v": scorer["value"], "l": scorer["loss"]}
        report = BeforeAfter(scores, TEST, 2, judges=judges)
        bounds = {"score/l": (None, 9.0)}  # which all meet
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"), constraints=bounds)
        module = module or counter()
        fit(module, [watch(scores), *more, keeper, report], **{"max_steps": 5, **options})
        return module, report

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_difference_is_over_the_prompts_that_both_have() -> None:
    """The mean of the valid scores rises since both texts of the hard prompts failed."""
    scores = {"v": LexiconSentiment()["polarity"]}
    samples = Samples([""] * 8, groups=[f"g{i // 2}" for i in range(8)])
    before = np.array([4.0, 4, 1, 1, 1, 1, 4, 4])
    after = np.array([3.5, np.nan, np.nan, np.nan, np.nan, np.nan, 3.0, 3.5])
    found = comparison(scores, {}, samples, {"before": {"v": before}, "after": {"v": after}})
    assert found["after"]["v"] > found["before"]["v"]
    assert found["difference"] == pytest.approx((3.5 + 3 + 3.5) / 3 - 4)
    assert found["difference_ci95"][1] < 0
    assert (found["before"]["fail_rate"], found["after"]["fail_rate"]) == (0.0, 5 / 8)


def read_summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text(), parse_constant=pytest.fail)


def counted_auc(records: list[dict[str, Any]], name: str) -> float:
    scored = [(r["label"], r["scores"][name]) for r in records if r["scores"][name] is not None]
    wanted, others = ([v for each, v in scored if each == label] for label in TEST.labels[:2])
    return float(np.mean([(a > b) + (a == b) / 2 for a in wanted for b in others] or [np.nan]))


@pytest.mark.lightning
def test_summary_compares_the_untuned_with_the_selected_policy(compare, tmp_path, capsys) -> None:
    noise = Noise("A cat")
    judges = {"ranking": AUC(noise, "positive"), "level": noise["noise"]}
    logger = HistoryLogger(str(tmp_path))
    module, callback = compare(judges=judges, logger=logger)
    report = read_summary(tmp_path)
    assert set(report) == set(
        "score before after difference difference_ci95 others judges intervals ranges selection "
        "directions steps stopped_by best_checkpoint constraints_met resolution seconds".split()
    )
    assert callback.components["v"].scorer.releases > 0
    # The judges see the texts of the report alone: before, after.
    assert [len(samples) for samples in noise.scored] == [8, 8]
    files = {name: rows(tmp_path / f"{name}.jsonl") for name in ("before", "after")}
    words = [[row["text"].split()[-1] for row in files[name]] for name in ("before", "after")]
    assert words[0] == words[1]  # of the same seed
    assert len(set(words[0])) == 8
    groups = [row["prefix"] for row in files["after"]]
    wanted = [row["label"] == "positive" for row in files["after"]]
    assert groups == [text for text in TEST.texts for _ in range(2)]
    scores = {
        name: {
            key: np.array([r["scores"][key] for r in records], float) for key in ("v", "l", *judges)
        }
        for name, records in files.items()
    }
    for phase, step in (("before", 0), ("after", 3)):
        assert all(f" at {step} " in record["text"] for record in files[phase])
        means = {key: scores[phase][key].mean() for key in "vl"}
        assert report[phase] == pytest.approx({**means, "fail_rate": 0.0, "generations": 8})

    def check(entry: dict[str, Any], key: str) -> None:
        """Compare the change with a bootstrap of the rows on disk."""
        sides = scores["before"][key], scores["after"][key]
        interval = paired_bootstrap(*sides, groups)
        if key == "ranking":
            interval = paired_auc_bootstrap(*sides, wanted, groups)
        assert entry["difference"] == pytest.approx(interval.value)
        ends = list(map(finite_or_none, interval[1:]))  # none if all draws are alike
        assert entry["difference_ci95"] == pytest.approx(ends)

    assert report["score"] == "v"
    check(report, "v")
    assert set(report["judges"]) == {"ranking", "level"}
    for key, entry in report["judges"].items():
        assert np.isnan(scores["after"][key]).tolist() == [False] * 4 + [True] * 2 + [False] * 2
        values = {
            name: counted_auc(records, key) if key == "ranking" else np.nanmean(scores[name][key])
            for name, records in files.items()
        }
        assert {side: entry[side] for side in files} == pytest.approx(values)
        assert entry["failed"] == {"before": 2, "after": 2}
        check(entry, key)
    assert report["judges"]["ranking"]["after"] == 1.0
    assert (report["steps"], report["stopped_by"]) == (5, "max_steps")
    (best,) = (tmp_path / "kept").glob("step=000003-v=*.ckpt")
    assert report["best_checkpoint"] == str(best)
    chosen = report["selection"]
    assert "at step 3" in chosen.pop("reason")
    assert chosen.pop("constraints") == {"score/l": [None, 9.0]}
    assert chosen == {"monitor": "score/v", "step": 3, "top_k": 1, "level": 0.05}
    assert report["constraints_met"]
    assert report["directions"]["score/l"] == "min"
    assert report["resolution"]["score/v"]["prompts"] == 4
    assert round(module.weight.item()) == 3  # the module keeps the selected weights
    seconds = report["seconds"]
    assert set(seconds) == {"start", "before", "train", "after", "total"}
    assert seconds["total"] == pytest.approx(sum(seconds.values()) / 2)
    assert f"v, after - before: {report['difference']:+.3f} (95 % i" in capsys.readouterr().out


def test_a_resumed_run_keeps_the_texts_and_adds_what_is_missing(compare, tmp_path) -> None:
    compare(max_steps=2)
    first, old = read_summary(tmp_path), read_scored_file(tmp_path / "before.jsonl")
    assert "step=000002-" in first["best_checkpoint"]
    module, _ = compare(ckpt_path="last", judges={"level": Noise("A cat")})
    assert len(module.draws) == 3
    second = read_summary(tmp_path)
    assert (second["steps"], second["before"]) == (5, first["before"])
    assert "step=000003-" in second["best_checkpoint"]
    for phase in ("start", "before"):
        assert second["seconds"][phase] == first["seconds"][phase]
    assert second["seconds"]["train"] > first["seconds"]["train"] / 2
    texts, scores, *_ = read_scored_file(tmp_path / "before.jsonl")
    assert texts == old[0]
    assert scores["v"].tolist() == old[1]["v"].tolist()
    numbers = [np.nan if "cat" in text else float(text.split()[-1]) for text in texts.texts]
    assert scores["level"].tolist() == pytest.approx(numbers, nan_ok=True)
    assert second["judges"]["level"]["before"] == pytest.approx(np.nanmean(numbers))
    (tmp_path / "before.jsonl").unlink()
    module = type(module)()
    with pytest.raises(FileNotFoundError, match=r"before\.jsonl"):
        compare(ckpt_path="last", module=module)
    assert module.draws == []


@pytest.mark.parametrize(
    ("stopper", "options", "reason", "steps"),
    [
        (True, {}, "RewardEarlyStopping: score/v", 5),
        (False, {"max_time": timedelta(microseconds=1)}, "max_time", 1),
        (False, {"max_steps": -1, "max_epochs": 1}, "end of the data", 8),
    ],
)
def test_stopped_by(compare, tuned, tmp_path, stopper, options, reason: str, steps: int) -> None:
    """And the best checkpoint is the adapter if there is one."""
    more = [RewardEarlyStopping("score/v", patience=2)] if stopper else []
    compare(*more, module=tuned(), **{"max_steps": 50, **options})
    report = read_summary(tmp_path)
    assert report["stopped_by"].startswith(reason)
    assert report["steps"] == steps
    adapter = Path(report["best_checkpoint"]) / "adapter.json"
    assert json.loads(adapter.read_text()) == min(steps, 3)


def test_without_a_finite_score_the_last_policy_is_evaluated(compare, tmp_path) -> None:
    judge = Noise("The", "A", "One")
    judges = {"ranking": AUC(judge, "positive"), "level": judge}
    logger = HistoryLogger(str(tmp_path))
    compare(values=[0.1] + [math.nan] * 5, judges=judges, logger=logger)
    (text, *_) = rows(tmp_path / "after.jsonl")
    assert " at 5 " in text["text"]
    summary = read_summary(tmp_path)
    assert summary["after"]["v"] is summary["difference"] is None
    assert summary["difference_ci95"] == [None, None]
    assert summary["after"]["fail_rate"] == 1.0
    assert not summary["constraints_met"]
    for entry in summary["judges"].values():
        assert entry["before"] is entry["after"] is entry["difference"] is None
        assert entry["failed"] == {"before": 8, "after": 8}


def test_texts_stay_where_a_judge_raises(compare, tmp_path) -> None:
    class Broken(Noise):
        def value(self, text: str, label: str) -> float:
            raise RuntimeError("broken judge")

    with pytest.raises(RuntimeError, match="broken judge"):
        compare(judges={"level": Broken()})
    assert [row["scores"] for row in rows(tmp_path / "before.jsonl")] == [{}] * 8


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"scores": {}}, "scores"),
        ({"judges": {"v": Noise()}}, "'v'"),
        ({"judges": {"level": LexiconSentiment()}}, r"judges\['level'\]"),
    ],
)
def test_bad_arguments_are_named(changes, argument: str) -> None:
    with pytest.raises((TypeError, ValueError), match=argument):
        BeforeAfter(**{"scores": {"v": Noise()}, "samples": TEST, **changes})


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"labels": None}, "labels"),
        ({"labels": ["good", "bad"] * 2}, "'positive'"),
        ({"groups": ["a"] * 4}, "group"),
        ({}, "RewardCheckpoint"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused_before_training(
    fit, counter, curve, watch, columns, named: str
) -> None:
    judges = {"ranking": AUC(Noise(), "positive")}
    report = BeforeAfter({"v": curve(VALUES)["value"]}, TEST.replace(**columns), judges=judges)
    module, keeper = counter(), [RewardCheckpoint("score/v")] * bool(columns)
    with pytest.raises((MisconfigurationException, ValueError), match=named):
        fit(module, [watch(VALUES), *keeper, report])
    assert module.calls == []
