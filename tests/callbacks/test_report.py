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

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        return {"labels": "Noise"}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        values = [self.value(*row) for row in zip(samples.texts, samples.labels, strict=True)]
        return {"noise": np.array(values)}

    def value(self, text: str, label: str) -> float:
        step, noise = text.split()[-2:]
        failed = text.startswith(self.failing)
        return np.nan if failed else float(noise) + int(step) * (label == "positive")


COPIES = TEST.replace(texts=[f"{text} at 1 0.5" for text in TEST.texts])


@pytest.fixture
def compare(fit, counter, curve, watch, tmp_path):
    """Function that trains with a report on four prompts, two completions each."""

    class Noisy(curve):
        """`Curve` times 1 + the random number in the text."""

        def score_samples(self, samples: Samples) -> dict[str, np.ndarray]:
            noise = np.array([float(text.split()[-1]) for text in samples.texts])
            return {n: v * (1 + noise) for n, v in super().score_samples(samples).items()}

    def run(*more, values=VALUES, module=None, judges=None, others=None, **options):
        scorer = Noisy(values)
        scores = {"v": scorer["value"], "l": scorer["loss"]}
        report = BeforeAfter(scores, TEST, 2, others=others, judges=judges)
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


@pytest.mark.lightning
def test_summary_compares_the_untuned_with_the_selected_policy(compare, tmp_path, capsys) -> None:
    module, callback = compare(logger=HistoryLogger(str(tmp_path)))
    report = read_summary(tmp_path)
    assert set(report) == set(
        "score before after difference difference_ci95 others judges intervals ranges selection "
        "directions steps stopped_by best_checkpoint constraints_met resolution seconds".split()
    )
    assert callback.components["v"].scorer.releases > 0
    before, after = rows(tmp_path / "before.jsonl"), rows(tmp_path / "after.jsonl")
    noise = [[row["text"].split()[-1] for row in records] for records in (before, after)]
    assert noise[0] == noise[1]  # of the same seed
    assert len(set(noise[0])) == 8
    for records, step, phase in ((before, 0, "before"), (after, 3, "after")):
        assert all(f" at {step} " in record["text"] for record in records)
        assert [r["prefix"] for r in records] == [t for t in TEST.texts for _ in range(2)]
        means = {n: np.mean([r["scores"][n] for r in records]) for n in ("v", "l")}
        assert report[phase] == pytest.approx({**means, "fail_rate": 0.0, "generations": 8})
    values = [[record["scores"]["v"] for record in records] for records in (before, after)]
    interval = paired_bootstrap(*values, [record["prefix"] for record in before])
    assert (report["score"], report["steps"], report["stopped_by"]) == ("v", 5, "max_steps")
    assert report["difference"] == pytest.approx(interval.value)
    assert report["difference_ci95"] == pytest.approx([interval.low, interval.high])
    assert 0.5 < interval.low < report["difference"] < interval.high < 1.0
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
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_resumed_run_keeps_the_texts_and_adds_what_is_missing(compare, tmp_path) -> None:
    compare(max_steps=2, others={"copies": COPIES})
    first, old = read_summary(tmp_path), read_scored_file(tmp_path / "before.jsonl")
    assert "step=000002-" in first["best_checkpoint"]
    module, _ = compare(
        ckpt_path="last", others={"copies": COPIES}, judges={"level": Noise("A cat")}
    )
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


def test_best_checkpoint_is_the_adapter_if_there_is_one(compare, tuned, tmp_path) -> None:
    compare(module=tuned())
    folder = Path(read_summary(tmp_path)["best_checkpoint"])
    assert folder.match("step=000003-v=*-adapter")
    assert json.loads((folder / "adapter.json").read_text()) == 3.0


@pytest.mark.parametrize(
    ("stopper", "options", "reason", "steps"),
    [
        (True, {}, "RewardEarlyStopping: score/v", 5),
        (False, {"max_time": timedelta(microseconds=1)}, "max_time", 1),
        (False, {"max_steps": -1, "max_epochs": 1}, "end of the data", 8),
    ],
)
def test_stopped_by(compare, tmp_path, stopper, options, reason: str, steps: int) -> None:
    more = [RewardEarlyStopping("score/v", patience=2)] if stopper else []
    compare(*more, **{"max_steps": 50, **options})
    report = read_summary(tmp_path)
    assert report["stopped_by"].startswith(reason)
    assert report["steps"] == steps


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
    assert (tmp_path / "curves.png").exists()


# Judges


def counted_auc(records: list[dict[str, Any]], name: str) -> float:
    scored = [(r["label"], r["scores"][name]) for r in records if r["scores"][name] is not None]
    wanted, others = ([v for each, v in scored if each == label] for label in TEST.labels[:2])
    return float(np.mean([(a > b) + (a == b) / 2 for a in wanted for b in others] or [np.nan]))


def test_judges_see_the_texts_of_the_report_alone(compare, tmp_path) -> None:
    noise = Noise("A cat")
    judges = {"ranking": AUC(noise, "positive"), "level": noise["noise"]}
    compare(judges=judges, others={"copies": COPIES})
    assert [len(samples) for samples in noise.scored] == [8, 4, 8]  # before, distinct copies, after
    files = {n: rows(tmp_path / f"{n}.jsonl") for n in ("before", "copies", "after")}
    groups = [row["prefix"] for row in files["after"]]
    wanted = [row["label"] == "positive" for row in files["after"]]
    summary = read_summary(tmp_path)
    assert list(summary["before"]) == ["v", "l", "fail_rate", "generations"]
    assert summary["before"]["fail_rate"] == 0  # of the scores
    assert set(summary["judges"]) == {"ranking", "level"}
    for name, entry in summary["judges"].items():
        ranks = name == "ranking"
        per_file = {
            n: np.array([r["scores"][name] for r in records], float) for n, records in files.items()
        }
        assert np.isnan(per_file["after"]).tolist() == [False] * 4 + [True] * 2 + [False] * 2
        values = {
            n: counted_auc(files[n], name) if ranks else np.nanmean(v) for n, v in per_file.items()
        }
        assert [entry["before"], entry["after"]] == pytest.approx(
            [values["before"], values["after"]]
        )
        assert entry["failed"] == {"before": 2, "after": 2, "copies": 2}
        assert entry["others"]["copies"]["value"] == pytest.approx(values["copies"])
        for other, change in {"before": entry, **entry["others"]}.items():
            sides = per_file[other], per_file["after"]
            interval = (
                paired_auc_bootstrap(*sides, wanted, groups)
                if ranks
                else paired_bootstrap(*sides, groups)
            )
            assert change["difference"] == pytest.approx(interval.value)
            assert change["difference"] == pytest.approx(values["after"] - values[other])
            ends = list(map(finite_or_none, interval[1:]))  # none if all draws are alike
            assert change["difference_ci95"] == pytest.approx(ends)
    assert summary["judges"]["ranking"]["after"] == 1.0


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
        ({"scores": {"v": "value"}}, r"scores\['v'\]"),
        ({"judges": {"level": "noise"}}, r"judges\['level'\]"),
        ({"judges": {"v": Noise()}}, "'v'"),
        ({"judges": {"fail_rate": Noise()}}, "'fail_rate'"),
        ({"judges": {"level": LexiconSentiment()}}, r"judges\['level'\]"),
        ({"others": {"before": TEST}}, "'before'"),
        ({"others": {"copy": ["a"]}}, r"others\['copy'\]"),
    ],
)
def test_bad_arguments_are_named(changes, argument: str) -> None:
    with pytest.raises((TypeError, ValueError), match=argument):
        BeforeAfter(**{"scores": {"v": Noise()}, "samples": TEST, **changes})


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"labels": None}, "labels"),
        ({"labels": ["positive"] * 4}, "label"),
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
