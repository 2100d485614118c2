"""Plain means over all texts as reference, in one process, on two ranks and in Lightning."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightning_choice import quiet_trainer
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection

from ctrlreward import FunctionScorer, Samples
from ctrlreward.adapters.torchmetrics import FailRate, ScoreMean, ScoreOfAll

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(scope="module")
def values_by_rank(run_ranks) -> list[dict[str, dict[str, float]]]:
    return run_ranks(SCRIPT)


def check(metrics: dict[str, float], rows: list[int], texts: list[str]) -> None:
    """Compare with values computed from all rows, and from the distinct rows in order."""
    repeated = [texts[i] for i in rows]
    ordered = [texts[i] for i in sorted(set(rows))]
    scored = [text for text in repeated if "f" not in text]
    assert metrics["share"] == pytest.approx(np.mean([t.count("a") / len(t) for t in scored]))
    assert metrics["length"] == pytest.approx(np.mean([len(text) for text in repeated]))
    assert metrics["fail_rate"] == pytest.approx(1 - len(scored) / len(repeated))
    assert metrics["kinds"] == len(set(ordered)) / len(ordered)
    assert metrics["first"] == len(ordered[0])
    assert metrics["kinds without ids"] == len(set(repeated)) / len(repeated)


def test_two_ranks_with_uneven_shares_agree_on_all_texts(values_by_rank) -> None:
    script = runpy.run_path(str(SCRIPT))
    shares, texts = script["SHARES"], script["TEXTS"]
    rows = [i for share in shares for batch in share for i in batch]
    assert values_by_rank[0] == values_by_rank[1]
    check(values_by_rank[0]["both"], rows, texts)
    check(script["values"](shares[0] + shares[1]), rows, texts)
    check(values_by_rank[0]["one rank empty"], [i for batch in shares[0] for i in batch], texts)


def test_metrics_of_one_score_share_it_and_those_of_another_scorer_do_not(letters) -> None:
    class Others(type(letters)):  # type: ignore[misc]
        def score_samples(self, samples):
            return {name: np.floor(v) for name, v in super().score_samples(samples).items()}

    one, other = letters["share"], Others()["share"]
    metrics = MetricCollection(
        {"share": ScoreMean(one), "fail_rate": FailRate(one), "other": ScoreMean(other)}
    )
    for texts in (["a", "b"], ["ab"], ["b", "f"]):  # the first scores are equal
        letters.scored.clear()
        metrics.update(Samples(texts))
    assert len(letters.scored) == 1  # after the first update, the states are known to be equal
    values = {name: value.item() for name, value in metrics.compute().items()}
    assert values == pytest.approx({"share": 1.5 / 4, "fail_rate": 0.2, "other": 1 / 4})


def test_forward_returns_the_batch_value_and_accumulates(letters, kinds) -> None:
    mean, of_all = ScoreMean(letters["share"]), ScoreOfAll(kinds["kinds"])
    for metric in (mean, of_all):
        assert metric(Samples(["a", "a"])) == (1.0 if metric is mean else 0.5)
        assert metric(Samples(["b"])) == (0.0 if metric is mean else 1.0)
        assert metric.compute() == pytest.approx(2 / 3)
        metric.reset()
        metric.update(Samples(["f"]))
        assert math.isnan(metric.compute())


class Scored(pl.LightningModule):
    def __init__(self, letters, kinds) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.share = ScoreMean(letters["share"])
        self.both = MetricCollection(
            {"kinds": ScoreOfAll(kinds["kinds"]), "length": ScoreMean(letters["length"])}
        )

    def validation_step(self, batch: list[str], batch_idx: int) -> None:
        samples = Samples(batch)
        self.share.update(samples)
        self.log("share", self.share)
        self.both.update(samples)
        self.log_dict(self.both)


def test_lightning_logs_and_resets_each_epoch(letters, kinds, tmp_path) -> None:
    module = Scored(letters, kinds)
    assert list(module.state_dict()) == ["weight"]
    trainer = quiet_trainer(enable_checkpointing=True, default_root_dir=tmp_path)
    for texts in (["a", "ab", "f", "f", "bb"], ["a", "a", "b"]):
        (logged,) = trainer.validate(module, DataLoader(texts, batch_size=2), verbose=False)
        scored = [text for text in texts if text != "f"]
        assert logged["share"] == pytest.approx(np.mean([t.count("a") / len(t) for t in scored]))
        assert logged["length"] == pytest.approx(np.mean([len(text) for text in texts]))
        assert logged["kinds"] == pytest.approx(len(set(texts)) / len(texts))


def test_what_would_be_counted_wrong_is_an_error(letters, kinds) -> None:
    with pytest.raises(ValueError, match="ScoreOfAll"):
        ScoreMean(kinds["kinds"])
    with pytest.raises(ValueError, match="component"):
        ScoreMean(letters)
    metric = ScoreOfAll(kinds["kinds"])
    with pytest.raises(ValueError, match="ids"):
        metric.update(Samples(["a", "b"]), ids=[1])
    with pytest.raises(TypeError):  # update(preds, target) in torchmetrics
        metric.update(["a", "b"], ["c", "c"])
    metric.update(Samples(["a", "b"]), ids=[1, 2])
    metric.update(Samples(["a"]))
    with pytest.raises(ValueError, match="ids"):
        metric.compute()
    metric.reset()
    metric.update(Samples(["a"]))
    metric.update(Samples(["a"], labels=["x"]))
    with pytest.raises(ValueError, match="columns"):
        metric.compute()


def test_sums_stay_exact_in_a_bfloat16_module(letters) -> None:
    module = torch.nn.Module()
    module.metric = ScoreMean(letters["length"])
    module.to(torch.bfloat16)  # Lightning's precision="bf16-true"
    for _ in range(600):  # a bfloat16 sum of ones ends at 256
        module.metric.update(Samples(["a"]))
    assert module.metric.compute() == 1.0
    assert module.metric.to("meta").sums.device.type == "meta"


def test_directions(letters) -> None:
    metrics = ScoreMean(letters["length"]), FailRate(letters["share"]), ScoreOfAll(letters["share"])
    assert [metric.higher_is_better for metric in metrics] == [False, False, True]


@pytest.mark.parametrize("kind", [ScoreMean, FailRate, ScoreOfAll])
def test_a_module_that_has_a_metric_scripts(kind: type) -> None:
    module = torch.nn.Linear(1, 1)
    module.metric = kind(FunctionScorer(lambda texts: [1.0 for _ in texts], pointwise=True))
    scripted = torch.jit.script(module)
    assert torch.equal(scripted(torch.ones(1)), module(torch.ones(1)))
