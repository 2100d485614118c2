from __future__ import annotations

import pytest
import torch

from ctrlreward import Reward
from ctrlreward.models import accelerators
from ctrlreward.scorers import (
    Accuracy,
    AttributeClassifier,
    CTRLEval,
    Distinct,
    Perplexity,
    Similarity,
    TransferQuality,
)


@pytest.mark.parametrize(
    ("count", "ranks", "current", "expected"),
    [
        (0, 1, 0, "cpu"),
        (1, 1, 0, "cuda"),  # shared with training
        (2, 1, 0, "cuda:1"),
        (2, 1, 1, "cuda:0"),
        (4, 3, 0, "cuda:3"),
        (4, 4, 0, "cpu"),
    ],
)
def test_a_scorer_without_a_device_leaves_those_of_training(
    count: int, ranks: int, current: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = torch.device("cuda") if count else None
    stand_ins = {
        "current_accelerator": lambda check_available: found,
        "device_count": lambda: count,
        "current_device_index": lambda: current,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.accelerator, name, stand_in)
    monkeypatch.setattr(accelerators, "rank_and_ranks", lambda: (0, ranks))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert accelerators.scoring_device(None) == expected
    assert accelerators.scoring_device("cuda:1") == "cuda:1"


def test_scorers_say_where_their_models_run() -> None:
    ctrleval = CTRLEval(device="cuda:1")
    parts = Accuracy(ctrleval), Similarity(device="cuda:2"), Perplexity(device="cuda:3")
    assert TransferQuality(*parts).devices == ("cuda:1", "cuda:2", "cuda:3")
    assert AttributeClassifier({"a": "x", "b": ctrleval}, device="cuda:4").devices == (
        "cuda:4",
        "cuda:1",
    )
    ctrleval.to("cpu")
    assert parts[0].devices == ("cpu",)
    assert Distinct().devices == ()


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_an_error_of_the_argument(device: str) -> None:
    scorer = Perplexity(device=device)
    for use in (scorer.load, lambda: Reward(len, device=device)(["soup"])):
        with pytest.raises(ValueError, match=f"device .*{device}"):
            use()
    scorer.to("cpu")
    assert scorer.devices == ("cpu",)
