"""A reward on a server gives what the same reward gives in this process, or an error."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tenacity
from fakes import Letters
from judge_server import Refusal, Server, started

from ctrlreward import MeanMinusDeviation, Reward, RewardBatch, Samples
from ctrlreward.adapters import trl
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.samples import MissingColumn
from ctrlreward.scorers.base import score
from ctrlreward.serving import RemoteReward, application, remote_reward
from ctrlreward.serving.application import served_app
from ctrlreward.serving.description import describe

SAMPLES = Samples(
    ["soup", "", "broth and soup", "soup", "\ud800 soup"], labels=["o", "o", "b", "o", "o"]
)


def assert_equal(found: RewardBatch, expected: RewardBatch) -> None:
    np.testing.assert_array_equal(found.total, expected.total)
    np.testing.assert_array_equal(found.failed, expected.failed)
    assert list(found.components) == list(expected.components)
    for name, values in expected.components.items():
        np.testing.assert_array_equal(found.components[name], values)


@pytest.fixture
def served(live_server: Callable[..., Any], group_reward: Reward) -> Iterator[RemoteReward]:
    remote = RemoteReward(live_server(group_reward).url + "/")
    yield remote
    remote.release()


def test_answers_are_those_of_this_process(live_server: Callable[..., Any]) -> None:
    texts = ["Hm</think> a soup", "Hm"]
    for options in ({}, {"answer_after": "</think>", "unfinished": "fail"}):
        here = Reward({"letters": Letters()["letters"]}, **options)
        remote = RemoteReward(live_server(here).url)
        columns: dict[str, Any] = {"labels": "o", "answer_after": "</think>", "unfinished": "score"}
        assert_equal(remote(texts, **columns), here(texts, **columns))
        assert here(texts, **columns).failed.tolist() == [False, bool(options)]
        remote.release()


def test_rewards_are_those_of_this_process(served: RemoteReward, group_reward: Reward) -> None:
    here = group_reward(SAMPLES)
    assert_equal(served(SAMPLES), here)
    assert_equal(served.submit(SAMPLES).result(), here)
    assert_equal(served(list(SAMPLES.texts), labels=SAMPLES.labels), here)
    assert here.failed.tolist() == [False, True, False, False, True]
    assert served(SAMPLES).seconds > 0
    assert served(Samples([], labels=[])).total.shape == (0,)
    (function,) = trl.as_reward_funcs(served, {"labels": "letter"})
    assert function(["say"] * 2, ["soup", ""], letter=["o", "o"])[1] is None
    assert served.weights == group_reward.weights
    assert list(served.components) == list(group_reward.components)
    for name, component in group_reward.components.items():
        assert served[name].spec == component.spec
        assert served[name].scorer.required_columns() == ["labels"]
        assert served[name].scorer.pointwise == component.scorer.pointwise


def test_errors_of_a_scorer_are_those_of_this_process(
    served: RemoteReward, group_reward: Reward
) -> None:
    wrong = SAMPLES.replace(labels=["o", "o", "bread", "o", "o"])
    for reward in (group_reward, served):
        with pytest.raises(ValueError, match=r"labels\[\d\] = 'bread' is unknown"):
            reward(wrong)
        with pytest.raises(MissingColumn, match="labels"):
            reward(["soup"])
    with pytest.raises(RuntimeError, match="500"):
        served(["broken"], labels="o")


def test_copies_in_other_processes_and_threads_share_the_server(served: RemoteReward) -> None:
    """As DDP ranks do: after a fork, which copies open connections, and pickled for each call."""
    expected = served(SAMPLES).total
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        batches = [pool.submit(served, SAMPLES) for _ in range(4)]
        for batch in batches:
            np.testing.assert_array_equal(batch.result(timeout=300).total, expected)
    with ThreadPoolExecutor(8) as threads:
        for batch in threads.map(served, [SAMPLES] * 8):
            np.testing.assert_array_equal(batch.total, expected)


def test_components_of_one_scorer_are_one_request(
    live_server: Callable[..., Any], reward: Reward, letters: Letters
) -> None:
    remote = RemoteReward(live_server(reward).url)
    assert remote["letters"].scorer is remote["length"].scorer
    found = score(remote.components, Samples(["soup", "soup", ""], labels=["o", "o", "o"])).scores
    np.testing.assert_array_equal(found["letters"], [1, 1, np.nan])
    np.testing.assert_array_equal(found["length"], [4, 4, np.nan])
    assert letters.calls == [("soup",)]  # once, and the repeated text not again
    remote.release()


def test_what_is_longer_than_a_body_is_sent_in_parts(
    live_server: Callable[..., Any],
    reward: Reward,
    group_reward: Reward,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In order; not where a component needs all samples, nor a text that is too long by itself."""
    samples = Samples(["o" * i for i in range(50)], labels=["o"] * 50)
    monkeypatch.setattr(application, "MOST_BYTES", 700)
    monkeypatch.setattr(remote_reward, "MOST_BYTES", 700)
    remote = RemoteReward(live_server(reward).url)
    assert_equal(remote(samples), reward(samples))
    with pytest.raises(RuntimeError, match="413"):
        remote(["o" * 1000], labels="o")
    with pytest.raises(RuntimeError, match="413"):
        RemoteReward(live_server(group_reward).url)(samples)


FILE = """
components: {letters: {scorer: fakes.Letters, score: letters, weight: %s}}
"""


def test_what_is_expected_is_compared(serve_app: Callable[..., Any], tmp_path: Path) -> None:
    """The file that is served, or its digest."""
    file, other = tmp_path / "reward.yaml", tmp_path / "other.yaml"
    file.write_text(FILE % 0.3)
    other.write_text(FILE % 0.4)
    url = serve_app(served_app(read_reward(file))).url
    for expect in (file, str(file), RemoteReward(url).description["fingerprint_id"]):
        RemoteReward(url, expect=expect).load()
    for wrong in (other, "f" * 64):
        with pytest.raises(RuntimeError, match=f"{url}.*fingerprint_id"):
            RemoteReward(url, expect=wrong)(SAMPLES)
    with pytest.raises(OSError, match="none"):
        RemoteReward(url, expect=tmp_path / "none.yaml")


def test_a_token(
    live_server: Callable[..., Any], reward: Reward, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = live_server(reward, token="opensesame").url
    with pytest.raises(RuntimeError, match="token"):
        RemoteReward(url).load()
    assert not RemoteReward(url, token="opensesame")(["soup"], labels="o").failed[0]
    monkeypatch.setenv("CTRLREWARD_TOKEN", "opensesame")
    assert not RemoteReward(url)(["soup"], labels="o").failed[0]


@pytest.mark.parametrize("ensemble", [False, True])
def test_conditions_and_ensembles_are_those_of_the_server(
    live_server: Callable[..., Any], letters: Letters, ensemble: bool
) -> None:
    components = {"letters": letters["letters"], "length": letters["length"]}
    scales = {"letters": (1.0, 1.0), "length": (5.0, 3.0)}
    here = (
        Reward(components, MeanMinusDeviation(scales))
        if ensemble
        else Reward(components, given={"length": ("letters", 1.0)})
    )
    remote = RemoteReward(live_server(here).url, expect=describe(here)["fingerprint_id"])
    texts, groups = ["soup", "", "tea", "foo", "tea"], ["a", "a", "a", "b", "b"]
    samples = Samples(texts, labels=["o"] * 5, groups=groups)
    assert_equal(remote(samples), here(samples))
    lengths = remote["length"](samples)
    np.testing.assert_array_equal(lengths, here(samples).components["length"])
    assert (remote.derived, remote.given) == (here.derived, here.given)
    with pytest.raises(RuntimeError, match="must be"):
        RemoteReward(remote.url, expect=describe(Reward(components))["fingerprint_id"])(samples)
    remote.release()


# Faults


class Scripted:
    """A server that gives the replies of a script, then those of a reward of one component."""

    server: Server

    def __init__(self, reward: Reward) -> None:
        self.described = describe(reward)
        self.script: list[Any] = []  # None hangs up

    def answer(self, path: str, body: Any) -> Any:
        if body is None:
            return self.described
        return self.script.pop(0) if self.script else self.reply()

    def reply(self, **changed: Any) -> dict[str, Any]:
        """The reply of one sample, with changes."""
        result = {"total": 1.0, "components": {"letters": 1.0}, "failed": False}
        fingerprint = self.described["fingerprint_id"]
        return {"results": [result], "seconds": 0.5, "fingerprint": fingerprint, **changed}


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    scripted = Scripted(Reward({"letters": Letters()["letters"]}))
    with started(scripted.answer) as server:
        scripted.server = server
        yield scripted


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the pauses between attempts, which are not slept."""
    waited: list[float] = []
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=waited.append))
    return waited


FULL = Refusal(503, "7", b'{"detail": "full"}')
HALF, PLAIN = Refusal(503, "0.5", b"<html>"), Refusal(503)
# What is sent again: the replies, and the pauses.
AGAIN = {
    "full": ([FULL, FULL._replace(again="soon"), HALF], [7.0, 0.2, 0.5]),
    "hangs up": ([None, PLAIN, None, Refusal(200, None, b"half", "gzip"), PLAIN],
                 [0.1 * 2**n for n in range(5)]),
    **{f"proxy {n}": ([Refusal(n, None, b"<html>")] * 2, [0.1, 0.2]) for n in (404, 500, 502)},
}  # fmt: skip


@pytest.mark.parametrize("case", AGAIN)
def test_a_request_that_was_not_scored_is_sent_again(
    scripted: Scripted, pauses: list[float], case: str
) -> None:
    """After what the server says, or growing pauses; no random number is drawn."""
    remote, state = RemoteReward(scripted.server.url), random.getstate()
    remote.load()
    replies, expected = AGAIN[case]
    scripted.script = [*replies]
    batch = remote(["soup"], labels="o")
    assert (batch.total.tolist(), batch.seconds) == ([1.0], 0.5)
    assert pauses == pytest.approx(expected)
    assert len(scripted.server.requests) == len(replies) + 1
    assert random.getstate() == state


def test_a_server_that_stays_full_or_ends_is_lost_when_patience_ends(scripted: Scripted) -> None:
    scripted.script = [FULL] * 5
    with pytest.raises(ConnectionError, match=rf"{scripted.server.url} was lost: full"):
        RemoteReward(scripted.server.url, patience=3.0)(["soup"], labels="o")
    assert len(scripted.server.requests) == 1  # seven seconds are more than three
    scripted.script = []
    remote = RemoteReward(scripted.server.url, patience=0.5)
    remote(["soup"], labels="o")
    scripted.server.shutdown()
    scripted.server.server_close()
    remote.release()
    for ask in (remote, lambda *a, **b: remote.submit(*a, **b).result()):
        with pytest.raises(ConnectionError, match=scripted.server.url):
            ask(["soup"], labels="o")


def test_a_server_that_is_not_there_is_lost_after_the_patience(scripted: Scripted) -> None:
    scripted.server.shutdown()
    scripted.server.server_close()
    with pytest.raises(ConnectionError, match=scripted.server.url):
        RemoteReward(scripted.server.url, patience=0.5).load()


def test_a_server_that_loads_its_models_is_waited_for(
    live_server: Callable[..., Any], letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters.go.clear()
    monkeypatch.setattr(letters, "load", lambda: letters.go.wait(60))
    server = live_server(Reward({"letters": letters["letters"]}), wait=False)
    waits = SimpleNamespace(sleep=lambda seconds: letters.go.set())
    try:
        monkeypatch.setattr(tenacity.nap, "time", waits)
        remote = RemoteReward(server.url)
        assert [*remote.components] == ["letters"]
        remote.release()
    finally:
        letters.go.set()


@pytest.mark.parametrize(
    ("status", "body", "error", "named"),
    [
        *((n, {"detail": "no soup"}, RuntimeError, f"{n}.*soup") for n in (400, 404, 413, 500)),
        (422, {"detail": "labels[0] = 'x'"}, ValueError, r"^labels\[0\] = 'x'$"),
        (200, b"<html>", RuntimeError, "200"),
        (200, {"results": []}, ValueError, "0 results"),
        (200, {"results": [{"total": 1.0, "failed": False}]}, ValueError, "components"),
        (200, {"fingerprint": "other"}, RuntimeError, "other"),  # of another replica
    ],
)
def test_a_wrong_reply_is_an_error_at_once_and_never_a_score(
    scripted: Scripted, status: int, body: Any, error: type[Exception], named: str
) -> None:
    if status == 200 and isinstance(body, dict):
        body = scripted.reply(**body)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    scripted.script = [Refusal(status, None, content)] * 2
    with pytest.raises(error, match=named):
        RemoteReward(scripted.server.url)(["soup"], labels="o")
    assert len(scripted.server.requests) == 1


def test_no_reply_in_time_is_an_error_and_not_repeated(
    live_server: Callable[..., Any], reward: Reward, letters: Letters
) -> None:
    remote = RemoteReward(live_server(reward).url, timeout=1.5)
    remote.load()
    letters.go.clear()
    try:
        with pytest.raises(ConnectionError, match="timeout"):
            remote(["hold"], labels="o")
    finally:
        letters.go.set()


def test_another_reward_behind_the_same_url_is_an_error(scripted: Scripted) -> None:
    remote = RemoteReward(scripted.server.url)
    assert remote(["soup"], labels="o").total.tolist() == [1.0]
    scripted.described = describe(Reward({"letters": (Letters()["letters"], 0.5)}))
    for reward in (remote, pickle.loads(pickle.dumps(remote))):
        with pytest.raises(RuntimeError, match=r"weights .*letters"):
            reward(["soup"], labels="o")
    with pytest.raises(RuntimeError, match="must be"):
        remote.load()
    assert RemoteReward(scripted.server.url).weights == {"letters": 0.5}
