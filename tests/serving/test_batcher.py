"""Batches across requests: merged, never mixed, each as the process would score it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from fakes import Letters, Rank, letters_reward
from fastapi import HTTPException
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrlreward import Reward, Samples
from ctrlreward.serving.batcher import Batcher


def with_batcher(
    reward: Reward, work: Callable[[Batcher], Coroutine[Any, Any, Any]], most: int = 100
) -> Any:
    """Run a coroutine with a batcher that is ready, and drain it."""

    async def main() -> Any:
        batcher = Batcher(reward, most)
        await batcher.load()
        try:
            return await asyncio.wait_for(work(batcher), 60)
        finally:
            await batcher.drain()

    return asyncio.run(main())


def labelled(*texts: str, label: str = "o") -> Samples:
    return Samples(texts, labels=[label] * len(texts))


def gathered(reward: Reward, letters: Letters, *requests: Samples, most: int = 100) -> list[Any]:
    """Results or errors of requests that gather while another one is being scored."""

    async def work(batcher: Batcher) -> list[Any]:
        letters.go.clear()
        first = asyncio.create_task(batcher.score(labelled("hold")))
        await asyncio.to_thread(letters.held.wait, 60)
        tasks = [asyncio.create_task(batcher.score(request)) for request in requests]
        await asyncio.sleep(0)  # all are waiting
        letters.calls.clear()
        letters.go.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    return with_batcher(reward, work, most)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("requests", "batches"),
    [
        ([labelled(f"soup {i}") for i in range(20)], [20]),
        (
            [labelled("a"), labelled(*map(str, range(300))), labelled("b"), labelled("c")],
            [1, 300, 2],
        ),
        ([labelled("a"), labelled("b").replace(sources=["c"]), labelled("d")], [2, 1]),
    ],
)
def test_requests_of_equal_columns_gather_while_the_scorer_is_busy(
    letters: Letters, reward: Reward, requests: list[Samples], batches: list[int]
) -> None:
    gathered(reward, letters, *requests)
    assert [len(call) for call in letters.calls] == batches


rows = st.lists(
    st.tuples(st.text("ab", max_size=4), st.sampled_from(["a", "b", "a", "b", "unknown"])),
    max_size=5,
)


@settings(max_examples=40)
@given(st.lists(rows, min_size=1, max_size=5))
def test_every_request_is_scored_as_if_it_were_alone(requests: list[Any]) -> None:
    """Against the reward in this thread; one with an unknown label fails, and no other does."""
    letters = Letters()
    reward = Reward({"letters": letters["letters"], "rank": Rank()})
    columns = [([t for t, _ in rows], [label for _, label in rows]) for rows in requests]
    asked = [Samples(texts, labels=labels) for texts, labels in columns]
    for samples, found in zip(asked, gathered(reward, letters, *asked), strict=True):
        read = zip(samples.texts, samples.labels or (), strict=True)
        if "unknown" in [label for text, label in read if text]:
            assert isinstance(found, HTTPException)
            assert found.status_code == 422
            continue
        if len(samples):
            np.testing.assert_array_equal(found.total, reward(samples).total)
        assert len(found.total) == len(samples)
        np.testing.assert_array_equal(found.failed, np.isnan(found.total))


def test_an_aggregate_sees_one_request_only(letters: Letters) -> None:
    reward = Reward(
        {"length": letters["length"]}, aggregate=lambda s: s["length"] - s["length"].mean()
    )
    one, other = gathered(reward, letters, labelled("a", "bbb"), labelled("c" * 9))
    assert one.total.tolist() == [-1.0, 1.0]
    assert other.total.tolist() == [0.0]


def test_a_bad_request_fails_alone(letters: Letters, reward: Reward) -> None:
    requests = labelled("soup"), labelled("x", label="sour"), labelled("broken"), labelled("noon")
    soup, sour, broken, noon = gathered(reward, letters, *requests)
    assert soup.total == letters_reward()(labelled("soup")).total
    assert noon.total == letters_reward()(labelled("noon")).total
    assert (sour.status_code, broken.status_code) == (422, 500)
    assert "'sour' is unknown" in sour.detail


def test_an_error_outside_of_the_scorers_is_answered(
    letters: Letters, reward: Reward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one request, and of a whole batch: no client waits forever, and later ones are scored."""

    def as_read(samples: Samples) -> Samples:
        if "odd" in samples.texts:
            raise RuntimeError("odd")
        return samples

    monkeypatch.setattr(reward, "as_read", as_read)
    odd, soup = gathered(reward, letters, labelled("odd"), labelled("soup"))
    assert (odd.status_code, soup.total.tolist()) == (500, [0.7])

    async def work(batcher: Batcher) -> list[Any]:
        with monkeypatch.context() as patched:
            patched.setattr(batcher.metrics, "batch", None)
            failed = await asyncio.gather(
                *(batcher.score(labelled(text)) for text in "ab"), return_exceptions=True
            )
        return [*failed, await batcher.score(labelled("soup"))]

    *failed, soup = with_batcher(reward, work)
    assert [error.status_code for error in failed] == [500, 500]
    assert soup.total.tolist() == [0.7]


def test_requests_beyond_the_most_are_refused(letters: Letters, reward: Reward) -> None:
    *accepted, refused = gathered(reward, letters, *map(labelled, "abcd"), most=3)
    assert (refused.status_code, refused.headers) == (503, {"Retry-After": "1"})
    assert not any(isinstance(each, Exception) for each in accepted)


def test_draining_finishes_what_is_held_and_refuses_the_rest(
    letters: Letters, reward: Reward
) -> None:
    async def main() -> tuple[list[Any], Batcher]:
        batcher = Batcher(reward)
        with pytest.raises(HTTPException) as early:
            await batcher.score(labelled("early"))
        await batcher.load()
        letters.go.clear()
        tasks = [asyncio.create_task(batcher.score(labelled("hold")))]
        await asyncio.to_thread(letters.held.wait, 60)
        tasks.append(asyncio.create_task(batcher.score(labelled("soup"))))
        await asyncio.sleep(0)
        draining = asyncio.create_task(batcher.drain())
        await asyncio.sleep(0)
        with pytest.raises(HTTPException) as late:
            await batcher.score(labelled("late"))
        assert early.value.status_code == late.value.status_code == 503
        letters.go.set()
        await draining
        return [task.result() for task in tasks], batcher

    (hold, soup), batcher = asyncio.run(main())
    assert not hold.failed.any()
    assert soup.total == letters_reward()(labelled("soup")).total
    assert (batcher.waiting, letters.calls) == ([], [("hold",), ("soup",)])
