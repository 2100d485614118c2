from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from ctrlreward import Reward, Samples
from ctrlreward.callbacks import GenerationScorer
from ctrlreward.placement import ScoringTimeout, Worker, overlap_on_cpu, shared_device
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
    ("devices", "kind", "ids", "ranks", "refused"),
    [
        (["cpu"], "cpu", [0], 1, False),
        (["cpu"], "cpu", [0, 1], 2, False),
        (["cuda:0"], "cuda", [0], 1, False),  # one device may be shared
        (["cuda"], "cuda", [0], 1, False),
        (["cpu"], "cuda", [0, 1], 2, False),
        (["cuda:2"], "cuda", [0, 1], 2, False),
        (["cuda:10"], "cuda", [0, 1], 2, False),
        (["cuda:1"], "cuda", [0], 4, False),  # four machines with two devices each
        ([], "cuda", [0, 1], 2, False),
        (["cuda:0"], "cuda", [0, 1], 2, True),
        (["cuda:1"], "cuda", [0, 1], 2, True),
        (["cuda"], "cuda", [2, 3], 2, True),
        (["cuda:2", "cuda:1"], "cuda", [0, 1], 2, True),
        (["cuda:0"], "cuda", [0], 4, True),
        (["cuda:0"], "cuda", [0, 1], 1, True),  # a strategy that drives several from one process
    ],
)
def test_a_scorer_on_one_of_several_devices_is_named(devices, kind, ids, ranks, refused) -> None:
    said = shared_device({"free": ["cpu"], "s": devices}, kind, ids, ranks)
    assert (said is not None) == refused
    if said is not None:
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


def test_generation_scorer_refuses_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several devices are more than the machine has."""
    scorer = CTRLEval(device="cuda:0")
    callback = GenerationScorer({"c": scorer["coherence"]}, Samples(texts=["a"]))
    trainer = pl.Trainer(accelerator="cpu", barebones=True)
    trainer.strategy._root_device = torch.device("cuda:0")
    for name, value in (("device_ids", [0, 1]), ("world_size", 2)):
        monkeypatch.setattr(pl.Trainer, name, value)
    module = SimpleNamespace(complete=lambda prompts: list(prompts))
    with pytest.raises(MisconfigurationException, match=r"CTRLEval of scores\['c'\] runs on"):
        callback.setup(trainer, module, "validate")


def test_overlap_on_the_cpu_that_trains_is_named() -> None:
    assert overlap_on_cpu(["cpu"], "cuda") is None
    assert overlap_on_cpu(["cuda:1"], "cpu") is None
    assert overlap_on_cpu([], "cpu") is None  # functions, and rewards of a server
    assert "Set overlap=False, or device= for" in str(overlap_on_cpu(["cuda:1", "cpu"], "cpu"))


def test_a_worker_runs_calls_in_order_and_closes_after_the_last() -> None:
    worker, seen = Worker(), []
    futures = [worker.submit(seen.append, i) for i in range(50)]
    worker.close()
    assert all(future.done() for future in futures)
    assert seen == [*range(50)]


def test_a_worker_hands_over_results_and_errors_and_cancels_what_has_not_started() -> None:
    before = set(threading.enumerate())
    worker, go, started = Worker(), threading.Event(), threading.Event()

    def hold() -> bool:
        started.set()
        return go.wait(30)

    held, later = worker.submit(hold), worker.submit(len, "abc")
    started.wait(30)
    closing = threading.Thread(target=worker.close, kwargs={"cancel": True})
    closing.start()
    while not later.cancelled():
        time.sleep(0.001)
    go.set()
    closing.join(30)
    assert held.result() is True
    assert worker.submit(len, "abc").result(30) == 3  # a new thread
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(30)
    copy = pickle.loads(pickle.dumps(worker))
    assert copy.submit(torch.is_grad_enabled).result(30) is False
    for each in (worker, copy):
        each.close()
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("ctrlreward")]


# Scorers that hang


answered = threading.Event()


@pytest.fixture
def ends() -> Iterator[None]:
    answered.clear()
    before = set(threading.enumerate())
    yield
    answered.set()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("ctrlreward"):
            thread.join(30)
            assert not thread.is_alive()


def waits(texts: list[str]) -> list[float]:
    if "ham" in texts:
        answered.wait(60)
    return [1.0] * len(texts)


def loops(texts: list[str]) -> list[float]:
    while "ham" in texts and not answered.is_set():
        pass
    return [1.0] * len(texts)


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("function", [waits, loops])
@pytest.mark.parametrize("submitted", [False, True])
def test_a_scorer_that_hangs_is_named_with_its_batch_and_its_line(
    function: Callable[[list[str]], list[float]], submitted: bool
) -> None:
    reward = Reward({"odd": function}, timeout=0.2)

    def call() -> object:
        future = reward.submit(["spam", "ham"]) if submitted else None
        return future.result() if future else reward(["spam", "ham"])

    assert reward(["soup"]).total.tolist() == [1.0]
    name, first = function.__name__, function.__code__.co_firstlineno
    with pytest.raises(ScoringTimeout) as raised:
        call()
    found = re.fullmatch(
        rf"scoring 2 texts \(the first is 'spam'\) by FunctionScorer \({name}\) did not end within "
        rf"timeout = 0\.2 s, it is at {re.escape(__file__)}:(\d+) in {name}. Fix or remove the "
        r"scorer that waits there, or set a longer timeout\.",
        str(raised.value),
    )
    assert found is not None, raised.value
    assert first < int(found[1]) <= first + 2
    # Its lock is held for good: a further call does not end either, and says where it waits.
    with pytest.raises(ScoringTimeout, match=r"sharing\.py:\d+ in locked. Fix"):
        call()
    reward.release()


def test_what_ends_in_time_is_as_without_a_limit() -> None:
    def fails(texts: list[str]) -> list[float]:
        raise TimeoutError("of its own")

    def counts(texts: list[str]) -> list[float]:
        assert not torch.is_grad_enabled()
        return [float(len(text)) for text in texts]

    reward = Reward(fails, timeout=30)
    with pytest.raises(TimeoutError, match=r"^of its own"):
        reward(["soup"])
    reward.release()
    with torch.no_grad():
        plain = Reward(counts)(["soup", "ham"]).total
    limited = Reward(counts, timeout=30)
    assert limited(["soup", "ham"]).total.tolist() == plain.tolist()
    limited.release()
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a positive number of seconds or None"):
            Reward(counts, timeout=wrong)


ENDING = """
import time
from pathlib import Path
from ctrlreward.placement import Worker

def write(name):
    time.sleep(0.3)
    Path({folder!r}, name).touch()

worker = Worker()
worker.submit(write, "running")
time.sleep(0.1)
worker.submit(write, "waiting")
"""


def test_a_process_ends_after_the_running_call(tmp_path: Path) -> None:
    """A thread that ended within PyTorch aborted it, such as that of `reward.submit(texts)`."""
    code = ENDING.format(folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert (tmp_path / "running").exists()
    assert not (tmp_path / "waiting").exists()
