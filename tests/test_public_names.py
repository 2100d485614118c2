"""Public names that code outside the project uses."""

from __future__ import annotations

import inspect

from torchmetrics import Metric

import ctrlreward
from ctrlreward import callbacks, functional, policy, scorers
from ctrlreward.adapters import openrlhf, torchmetrics, trl, verl
from ctrlreward.scorers import CTRLEval


def test_public_names() -> None:
    assert {"Samples", "Reward"} <= set(ctrlreward.__all__)
    assert {"adjusted_gm", "distinct_n", "cv_star"} <= set(functional.__all__)
    assert {
        "CTRLEval",
        "Alignment",
        "AttributeClassifier",
        "Accuracy",
        "Similarity",
        "Perplexity",
        "TransferQuality",
        "Distinct",
    } <= set(scorers.__all__)
    assert {
        "GenerationScorer",
        "RewardEarlyStopping",
        "RewardCheckpoint",
        "ParetoCheckpoint",
        "ProxyGuard",
        "RewardShaping",
    } <= set(callbacks.__all__)
    assert "PolicyTuner" in policy.__all__
    for module in (ctrlreward, callbacks, functional, policy, scorers):
        assert all(hasattr(module, name) for name in module.__all__)


def test_adapters() -> None:
    assert callable(trl.as_reward_funcs)
    assert callable(verl.as_compute_score)
    assert callable(openrlhf.as_reward_func)
    assert issubclass(torchmetrics.ScoreMean, Metric)


def test_ctrleval_takes_the_documented_arguments() -> None:
    expected = ["model", "task", "aspects", "iwf", "sentence_splitter"]
    expected += ["device", "dtype", "batch_tokens", "weights", "evaluators", "seed"]
    assert list(inspect.signature(CTRLEval).parameters) == expected
