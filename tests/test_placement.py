from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TypeVar

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from ctrlreward import Samples
from ctrlreward.callbacks import GenerationScorer
from ctrlreward.placement import Worker, reserve_core, shared_device
from ctrlreward.scorers import (
    Accuracy,
    AttributeClassifier,
    CTRLEval,
    Distinct,
    Perplexity,
    Similarity,
    TransferQuality,
)

T = TypeVar("T")


@pytest.mark.parametrize(
    ("devices", "kind", "ids", "ranks"),
    [
        (["cpu"], "cpu", [0], 1),
        (["cpu"], "cpu", [0, 1], 2),
        (["cuda:0"], "cuda", [0], 1),  # one device may be shared
        (["cuda"], "cuda", [0], 1),
        (["cpu"], "cuda", [0, 1], 2),
        (["cuda:2"], "cuda", [0, 1], 2),
        (["cuda:10"], "cuda", [0, 1], 2),
        (["cuda:1"], "cuda", [0], 4),  # four machines with two devices each
        ([], "cuda", [0, 1], 2),
    ],
)
def test_a_scorer_may_run_apart_from_training_or_on_its_only_device(
    devices, kind, ids, ranks
) -> None:
    assert shared_device({"s": devices}, kind, ids, ranks) is None


@pytest.mark.parametrize(
    ("devices", "ids", "ranks"),
    [
        (["cuda:0"], [0, 1], 2),
        (["cuda:1"], [0, 1], 2),
        (["cuda"], [2, 3], 2),
        (["cuda:2", "cuda:1"], [0, 1], 2),
        (["cuda:0"], [0], 4),
        (["cuda:0"], [0, 1], 1),  # a strategy that drives several from one process
    ],
)
def test_a_scorer_on_one_of_several_devices_is_named(devices, ids, ranks) -> None:
    said = shared_device({"free": ["cpu"], "s": devices}, "cuda", ids, ranks)
    assert said is not None
    assert said.startswith(f"s runs on {devices[-1]!r}")
    assert ", ".join(f"cuda:{i}" for i in ids) in said
    assert f"'cuda:{max(ids) + 1}'" in said


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


def test_generation_scorer_refuses_before_training() -> None:
    """Several devices are more than the machine has, so the trainer is what `setup` reads of it."""
    scorer = CTRLEval(device="cuda:0")
    callback = GenerationScorer({"c": scorer["coherence"]}, Samples(texts=["a"]))

    class Connector:
        def log_metrics(self, metrics: object, step: object = None) -> None: ...

    class Trainer(pl.Trainer):
        def __init__(self, **read: object) -> None:
            vars(self).update(read)

        enable_validation = strategy = device_ids = world_size = None

    trainer = Trainer(
        enable_validation=True,
        strategy=SimpleNamespace(root_device=torch.device("cuda:0")),
        device_ids=[0, 1],
        world_size=2,
        _logger_connector=Connector(),
        _loggers=[],
    )
    module = SimpleNamespace(complete=lambda prompts: list(prompts))
    with pytest.raises(MisconfigurationException, match=r"CTRLEval of scores\['c'\] runs on"):
        callback.setup(trainer, module, "fit")


def in_a_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(work).result(timeout=30)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_worker_that_yields_the_cpu_leaves_other_threads_alone() -> None:
    def settings() -> tuple[int, int]:
        return torch.get_num_threads(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    worker = Worker()
    worker.yield_cpu()
    threads, priority = worker.submit(settings).result(timeout=30)
    worker.close()
    assert threads == 1
    assert priority == (19 if sys.platform == "linux" else os.getpriority(os.PRIO_PROCESS, 0))
    assert torch.get_num_threads() == 3
    assert in_a_thread(torch.get_num_threads) == 3  # of a thread that came later
    assert os.getpriority(os.PRIO_PROCESS, 0) < 19


@pytest.mark.usefixtures("three_threads")
def test_one_core_is_left_while_it_lasts_where_there_is_more_than_one() -> None:
    with reserve_core():
        assert torch.get_num_threads() == 2
        with reserve_core(), reserve_core():
            assert torch.get_num_threads() == 1
    with pytest.raises(ValueError, match="halfway"), reserve_core():
        raise ValueError("halfway")
    assert torch.get_num_threads() == 3
