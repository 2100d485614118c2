from __future__ import annotations

import pytest
import torch

from ctrlreward.models import accelerators
from ctrlreward.placement import shared_device
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
    ("devices", "kind", "ids", "ranks", "refused"),
    [
        (["cpu"], "cpu", [0, 1], 2, False),
        (["cuda:0"], "cuda", [0], 1, False),  # one device may be shared
        (["cpu"], "cuda", [0, 1], 2, False),
        (["cuda:1"], "cuda", [0], 4, False),  # four machines with two devices each
        (["cuda:1"], "cuda", [0, 1], 2, True),
        (["cuda"], "cuda", [2, 3], 2, True),
        (["cuda:0"], "cuda", [0], 4, True),
        (["cuda:0"], "cuda", [0, 1], 1, True),  # a strategy that drives several from one process
    ],
)
def test_a_scorer_on_one_of_several_devices_is_named(devices, kind, ids, ranks, refused) -> None:
    said = shared_device({"free": ["cpu"], "s": devices}, kind, ids, ranks)
    assert (said is not None) == refused


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
