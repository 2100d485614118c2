"""Batches across requests: merged, never mixed, each as the process would score it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from letter_scorers import Letters, Rank, letters_reward

from ctrlreward import Reward, Samples
from ctrlreward.serving.contract import Refusal
from ctrlreward.serving.limits import QueueOptions, client
from ctrlreward.serving.request_queue import RequestQueue, tolerant_scores


def with_queue(
    reward: Reward,
    work: Callable[[RequestQueue], Coroutine[Any, Any, Any]],
    options: QueueOptions = QueueOptions(),  # noqa: B008 — it is frozen
) -> Any:
    """Run a coroutine with a queue that is ready, and drain it."""

    async def main() -> Any:
        queue = RequestQueue(reward, options)
        await queue.start()
        try:
            return await asyncio.wait_for(work(queue), 60)
        finally:
            await queue.drain()

    return asyncio.run(main())


def labelled(*texts: str, label: str = "o") -> Samples:
    return Samples(texts, labels=[label] * len(texts))


async def behind_a_held_one(
    queue: RequestQueue, letters: Letters, calls: list[Coroutine[Any, Any, Any]]
) -> list[Any]:
    """Let requests gather while another one is being scored; return their results or errors."""
    letters.go.clear()
    first = asyncio.create_task(queue.score(labelled("hold")))
    await asyncio.to_thread(letters.held.wait, 60)
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)  # all are in the queue
    letters.calls.clear()
    letters.go.set()
    await first
    return await asyncio.gather(*tasks, return_exceptions=True)


def gathered(
    reward: Reward,
    letters: Letters,
    *requests: Samples,
    options: QueueOptions = QueueOptions(),  # noqa: B008 — it is frozen
) -> list[Any]:
    """Results of requests that gather while another one is being scored."""

    async def work(queue: RequestQueue) -> list[Any]:
        return await behind_a_held_one(queue, letters, [queue.score(each) for each in requests])

    return with_queue(reward, work, options)  # type: ignore[no-any-return]


def test_a_lone_request_is_not_delayed(letters: Letters, reward: Reward) -> None:
    """With a window of an hour, only a request that doesn't wait for it is answered."""
    with_queue(reward, lambda queue: queue.score(labelled("soup")), QueueOptions(window=3600))
    assert letters.calls == [("soup",)]


def test_requests_gather_while_the_scorer_is_busy(letters: Letters, reward: Reward) -> None:
    texts = [f"soup {i}" for i in range(20)]
    results = gathered(reward, letters, *map(labelled, texts))
    assert letters.calls == [tuple(texts)]
    totals = np.concatenate([result.batch.total for result in results])
    np.testing.assert_array_equal(totals, letters_reward()(labelled(*texts)).total)


def test_identical_samples_of_several_clients_are_scored_once(
    letters: Letters, reward: Reward
) -> None:
    one, other = gathered(reward, letters, labelled("soup", "noon"), labelled("noon", "soup"))
    assert letters.calls == [("soup", "noon")]
    np.testing.assert_array_equal(one.batch.total, other.batch.total[::-1])


def test_a_batch_stays_in_its_budget(letters: Letters, reward: Reward) -> None:
    requests = [*(labelled(c * 9) for c in "abcdefg"), labelled("z" * 99)]  # a batch of its own
    gathered(reward, letters, *requests, options=QueueOptions(batch_characters=30))
    assert [len(call) for call in letters.calls] == [3, 3, 1, 1]


def test_requests_with_other_columns_are_other_batches(letters: Letters, reward: Reward) -> None:
    with_source = labelled("noon").replace(sources=["night"])
    gathered(reward, letters, labelled("soup"), with_source, labelled("moon"))
    assert letters.calls == [("soup", "moon"), ("noon",)]


rows = st.lists(
    st.tuples(st.text("ab", max_size=4), st.sampled_from(["a", "b", "unknown"])), max_size=5
)


@settings(max_examples=40)
@given(st.lists(rows, min_size=1, max_size=5))
def test_every_request_is_scored_as_if_it_were_alone(requests: list[Any]) -> None:
    """Against a twin that scores sample by sample, and the group on all that don't raise."""
    letters = Letters()
    reward = Reward({"letters": letters["letters"], "rank": Rank()})
    columns = [([t for t, _ in rows], [label for _, label in rows]) for rows in requests]
    asked = [Samples(texts, labels=labels) for texts, labels in columns]
    for samples, scored in zip(asked, gathered(reward, letters, *asked), strict=True):
        assert samples.labels is not None
        good = [i for i, label in enumerate(samples.labels) if label != "unknown"]
        assert sorted(scored.errors) == [i for i in range(len(samples)) if i not in good]
        expected = np.full(len(samples), np.nan)
        if good:
            expected[good] = reward(samples[good]).total
        np.testing.assert_array_equal(scored.batch.total, expected)
        np.testing.assert_array_equal(scored.batch.failed, np.isnan(expected))


def test_a_group_is_never_split_or_mixed(letters: Letters, group_reward: Reward) -> None:
    groups = [labelled("a", "bb", "ccc"), labelled("dddd", "e"), labelled("ff")]
    results = gathered(group_reward, letters, *groups)
    assert letters.calls == [("a", "bb", "ccc", "dddd", "e", "ff")]  # pointwise: merged
    ranks = [result.batch.components["rank"].tolist() for result in results]
    assert ranks == [[0.0, 1 / 3, 2 / 3], [0.5, 0.0], [0.0]]


def test_an_aggregate_sees_one_request_only(letters: Letters) -> None:
    reward = Reward(
        {"length": letters["length"]}, aggregate=lambda s: s["length"] - s["length"].mean()
    )
    one, other = gathered(reward, letters, labelled("a", "bbb"), labelled("c" * 9))
    assert one.batch.total.tolist() == [-1.0, 1.0]
    assert other.batch.total.tolist() == [0.0]


def test_a_bad_request_fails_alone(letters: Letters, reward: Reward) -> None:
    async def work(queue: RequestQueue) -> list[Any]:
        calls = [
            queue.score(labelled("soup")),
            queue.score(Samples(["a", "b"], labels=["a", "sour"]), strict=True),
            queue.score(labelled("broken")),
            queue.score(labelled("noon")),
        ]
        return await behind_a_held_one(queue, letters, calls)

    soup, sour, broken, noon = with_queue(reward, work)
    assert soup.batch.total == letters_reward()(labelled("soup")).total
    assert noon.batch.total == letters_reward()(labelled("noon")).total
    assert (sour.status, sour.place) == (422, ["samples", 1, "label"])
    assert broken.status == 500


def test_a_broken_scorer_is_found_out_after_a_few_samples(letters: Letters) -> None:
    components = {"letters": letters["letters"]}
    with pytest.raises(RuntimeError, match="no memory"):
        tolerant_scores(components, labelled(*["broken"] * 1000))
    assert len(letters.calls) < 30


@given(st.lists(st.sampled_from(["a", "b", "unknown"]), max_size=20))
def test_every_sample_that_raises_is_found(labels: list[str]) -> None:
    letters = Letters()
    samples = Samples([str(i) for i in range(len(labels))], labels=labels)
    errors = tolerant_scores({"letters": letters["letters"]}, samples)[1]
    assert sorted(errors) == [i for i, label in enumerate(labels) if label == "unknown"]


def test_a_full_queue_refuses(letters: Letters, reward: Reward) -> None:
    options = QueueOptions(waiting_requests=3)
    *accepted, refused = gathered(reward, letters, *map(labelled, "abc"), options=options)
    assert refused.status == 429
    assert 1 <= (refused.retry_after or 0) <= 60
    assert not any(isinstance(each, Exception) for each in accepted)


def test_clients_take_turns(letters: Letters, reward: Reward) -> None:
    async def asked(queue: RequestQueue, name: str, text: str) -> None:
        client.set(name)
        await queue.score(labelled(text))

    async def work(queue: RequestQueue) -> None:
        names = [*["evaluation"] * 9, *["training"] * 2, "other"]
        calls = [asked(queue, name, f"{name} {i}") for i, name in enumerate(names)]
        await behind_a_held_one(queue, letters, calls)

    with_queue(reward, work, QueueOptions(batch_characters=1))
    order = [text.split()[0] for (text,) in letters.calls]
    assert order[:3] == ["evaluation", "training", "other"]
    assert order[3:5] == ["evaluation", "training"]
    assert order[5:] == ["evaluation"] * 7


def test_draining_finishes_what_is_held_and_refuses_the_rest(
    letters: Letters, reward: Reward
) -> None:
    async def main() -> tuple[list[Any], RequestQueue]:
        queue = RequestQueue(reward, QueueOptions())
        with pytest.raises(Refusal, match="loading"):
            await queue.score(labelled("early"))
        await queue.start()
        letters.go.clear()
        tasks = [asyncio.create_task(queue.score(labelled(text))) for text in ("hold", "soup")]
        await asyncio.to_thread(letters.held.wait, 60)
        draining = asyncio.create_task(queue.drain())
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="draining"):
            await queue.score(labelled("late"))
        letters.go.set()
        await draining
        return [task.result() for task in tasks], queue

    (hold, soup), queue = asyncio.run(main())
    assert not hold.batch.failed.any()
    assert soup.batch.total == letters_reward()(labelled("soup")).total
    assert queue.held_characters == 0


def test_scores_of_one_scorer(letters: Letters, group_reward: Reward) -> None:
    async def work(queue: RequestQueue) -> list[Any]:
        calls = [
            queue.score_with("0", labelled("soup"), ["letters", "length"]),
            queue.score_with("0", labelled("noon"), ["length", "letters"]),
            queue.score_with("1", labelled("a", "bb"), ["rank"]),
            queue.score_with("1", labelled("ccc"), ["rank"]),
            queue.score_with("0", labelled("x"), ["lenght"]),
            queue.score_with("0", Samples([]), ["length"]),
        ]
        return await behind_a_held_one(queue, letters, calls)

    soup, noon, group, alone, unknown, empty = with_queue(group_reward, work)
    assert letters.calls == [("soup", "noon")]
    assert (soup["letters"].tolist(), noon["letters"].tolist()) == ([1.0], [2.0])
    assert (group["rank"].tolist(), alone["rank"].tolist()) == ([0.0, 0.5], [0.0])
    assert unknown.status == 422
    assert "did you mean length" in str(unknown)
    assert empty["length"].shape == (0,)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_characters": 0},
        {"waiting_characters": -1},
        {"waiting_requests": 0},
        {"window": -0.1},
        {"window": float("nan")},
    ],
)
def test_sizes_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))} must be"):
        QueueOptions(**options)
