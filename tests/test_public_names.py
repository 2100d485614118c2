"""Public names that code outside the project uses."""

from __future__ import annotations

import inspect

import pytest
from torchmetrics import Metric

import ctrlreward
from ctrlreward import callbacks, functional, policy, scorers
from ctrlreward.adapters import openrlhf, torchmetrics, trl, verl
from ctrlreward.scorers import (
    Accuracy,
    Alignment,
    CTRLEval,
    Distinct,
    Perplexity,
    Similarity,
)


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
    own = ["model", "task", "aspects", "iwf", "sentence_splitter", "weights", "evaluators", "seed"]
    assert list(inspect.signature(CTRLEval).parameters) == [
        *own,
        "max_tokens",
        "calibration",
        "options",
    ]
    scorer = CTRLEval(
        model="any",
        task="topic",
        aspects="coherence",
        iwf=None,
        sentence_splitter="rules",
        evaluators=3,
        device="cpu",
        dtype="float32",
        batch_tokens=512,
    )
    assert (scorer.model, scorer.device, scorer.dtype) == ("any", "cpu", "float32")
    alignment = Alignment(model="any", aspects="relevance", stop_words=["the"], device="cuda:1")
    assert (alignment.aspects, alignment.device) == (("relevance",), "cuda:1")


@pytest.mark.parametrize(
    "scorer", [Accuracy, Alignment, CTRLEval, Distinct, Perplexity, Similarity]
)
def test_model_comes_first(scorer: type) -> None:
    assert next(iter(inspect.signature(scorer).parameters)) == "model"
