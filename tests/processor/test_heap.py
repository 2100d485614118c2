from __future__ import annotations

import platform
import resource
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.engine.batching import run_batched
from ctrlreward.processor import heap

MIB = 2**20
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's heap")


def resident() -> int:
    return psutil.Process().memory_info().rss


def blocks(mebibytes: int) -> list[bytes]:
    return [bytes([1]) * 2**16 for _ in range(mebibytes * 16)]


@GLIBC
def test_free_pages_between_what_is_in_use_go_back_to_the_system() -> None:
    used = blocks(128)[::20]
    before = resident()
    heap.trim()
    assert before - resident() > 100e6  # of 134 MB, a twentieth of them in use
    assert len(used) == 103


@GLIBC
def test_a_process_is_trimmed_once_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    trim = heap.trim
    trim()
    monkeypatch.setattr(heap, "_least", sys.maxsize)  # earlier tests may have grown since theirs
    monkeypatch.setattr(heap, "_peak", None)
    heap.trim_if_grown()

    def counted() -> None:
        trims.append(resident())
        trim()

    monkeypatch.setattr(heap, "trim", counted)
    start = resident()
    kept = [blocks(30)]
    heap.trim_if_grown()
    assert trims == []
    kept.append(blocks(100)[::20])
    heap.trim_if_grown()
    assert len(trims) == 1
    assert trims[0] - start > 48 * MIB
    assert resident() - start < 48 * MIB  # 30 and 5 MiB are in use
    heap.trim_if_grown()
    assert len(trims) == 1
    assert kept


@given(st.lists(st.tuples(st.integers(0, 100 * MIB), st.integers(0, MIB)), max_size=60))
def test_holes_are_bounded_however_many_batches(batches: list[tuple[int, int]]) -> None:
    """Each batch leaves holes and memory that is in use; a trim takes the holes."""
    now = used = 1000 * MIB
    trims = 0

    def forward(batch: list[int]) -> list[int]:
        nonlocal now, used
        for i in batch:
            now += sum(batches[i])
            used += batches[i][1]
        assert now - used <= 48 * MIB + max(holes for holes, _ in batches)
        return batch

    def trim() -> None:
        nonlocal now, trims
        now, trims = used, trims + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap, "_least", sys.maxsize)
        patch.setattr(heap, "_peak", None)
        patch.setattr(heap, "_resident", lambda: now)
        patch.setattr(heap, "trim", trim)
        heap.trim_if_grown()
        run_batched([1] * len(batches), 1, forward, "holes")
    assert trims <= sum(map(sum, batches)) / (48 * MIB)


@GLIBC
def test_freed_memory_is_reused_in_training_and_returned_after_it() -> None:
    def fault_mebibytes() -> float:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytes([1]) * (64 * MIB)  # which glibc would map
        return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 256

    heap.trim()
    before = resident()
    heap.reuse_freed()
    try:
        fault_mebibytes()
        heap.trim_if_grown()  # nothing: no step has ended
        assert fault_mebibytes() < 1
        assert resident() - before > 60 * MIB
    finally:
        heap.return_freed()
    assert resident() - before < 32 * MIB
    assert fault_mebibytes() > 8  # 64, or fewer where a fault maps several pages


STEPS = st.lists(st.tuples(st.integers(0, 1000 * MIB), st.integers(0, 300 * MIB)), max_size=30)


@given(STEPS)
def test_memory_of_training_is_bounded_by_what_its_steps_need(steps: list[tuple[int, int]]) -> None:
    """Each step needs memory and leaves holes; a trim takes both."""
    used, free, needed, trimmed = 1000 * MIB, 0, 0, 0

    def trim() -> None:
        nonlocal free, trimmed
        free, trimmed = 0, trimmed + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap, "_resident", lambda: used + free)
        patch.setattr(heap, "trim", trim)
        patch.setattr(heap, "_mallopt", lambda option, value: None)
        heap.reuse_freed()
        for need, holes in steps:
            free = max(free, need) + holes
            needed = max(needed, used + need)
            heap.end_step()
            heap.trim_if_grown()
            assert used + free <= 1.25 * (needed + 2 * 300 * MIB)
        heap.return_freed()
    if len({need for need, _ in steps}) <= 1 and not any(holes for _, holes in steps):
        assert trimmed == 1  # the last one


def test_without_proc_nothing_is_trimmed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heap, "_STATM", tmp_path / "statm")
    monkeypatch.delattr(heap, "trim")
    heap.trim_if_grown()
