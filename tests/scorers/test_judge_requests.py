"""A judge whose server is limited, slow, wrong or down; its criteria, ranks, reasons and costs."""

from __future__ import annotations

import json
import logging
import multiprocessing
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import tenacity
from judge_server import Refusal, Serve

from ctrlreward import Criterion, Judge, Reward, RewardBatch, Rubric, Samples
from ctrlreward.adapters.openrlhf import as_reward_func
from ctrlreward.adapters.trl import as_component_funcs, as_reward_funcs
from ctrlreward.adapters.verl import as_batch_compute_score
from ctrlreward.callbacks.report import scored_texts
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.held_out import HeldOutScorer
from ctrlreward.runs.report_contents import _explanations
from ctrlreward.scorers import judge_requests
from ctrlreward.scorers.judge_requests import ReplyCache
from ctrlreward.scorers.model_servers import retry_after
from ctrlreward.scorers.records import read_scored_file, sample_table, write_scored_samples
from ctrlreward.serving.fingerprint import fingerprint

NAN = float("nan")
RATE = Rubric("How warm is this, 1 to 3? {text}", [1, 2, 3], name="warmth")
# The mean is (3 · polite + 1 · short) / 4.
TWO = Rubric(
    "Rate this reply: {text}",
    criteria={
        "polite": Criterion("Is it polite?", [1, 2, 3], weight=3),
        "short": Criterion("Is it short?", {"yes": 1, "no": 0}),
    },
    reason=True,
)
RANKED = Rubric("Rank by warmth:\n{texts}", reason=True)

pytestmark = pytest.mark.usefixtures("one_thread")


class Simulated:
    """A time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    simulated = Simulated()
    for module in (judge_requests, tenacity.nap):
        monkeypatch.setattr(module, "time", simulated)
    return simulated


def in_turn(*replies: Any) -> Callable[[str], Any]:
    """Return a reply to each request in turn, the last one forever."""
    left = [*replies]
    return lambda message: left.pop(0) if len(left) > 1 else left[0]


def costly(serve: Serve, rubric: Rubric, reply: str) -> Judge:
    """Return a judge whose requests cost (100 · 2 + 50 · 8) / 10⁶ each."""
    server = serve(lambda message: reply)
    server.usage = {"prompt_tokens": 100, "completion_tokens": 50}
    return Judge("m", rubric, server.address, prompt_cost=2.0, completion_cost=8.0)


def judgement(**scores: Any) -> str:
    return json.dumps({n: {"reason": f"{n} is {s}", "score": s} for n, s in scores.items()})


# Criteria


def test_all_criteria_are_asked_in_one_call(serve: Serve) -> None:
    server = serve(in_turn(judgement(polite=3, short="no")))
    judge = Judge("m", TWO, server.address)
    found = judge.score(["Thank you."])
    # (3 · 3 + 1 · 0) / 4
    assert {n: v.tolist() for n, v in found.items()} == {
        "rating": [2.25],
        "polite": [3],
        "short": [0],
    }
    # (3 · 1 + 0) / 4 and (3 · 3 + 1) / 4
    ranges = {"rating": (0.75, 2.5), "polite": (1.0, 3.0), "short": (0.0, 1.0)}
    assert {name: spec.range for name, spec in judge.specs.items()} == ranges
    ((_, _, body),) = server.requests
    assert body["response_format"]["type"] == "json_schema"
    schema = body["response_format"]["json_schema"]["schema"]
    assert (schema["required"], schema["additionalProperties"]) == (["polite", "short"], False)
    polite, short = (schema["properties"][name]["properties"] for name in ("polite", "short"))
    assert list(polite) == ["reason", "score"]
    assert polite["score"]["enum"] == [1, 2, 3]
    assert short["score"]["enum"] == ["yes", "no"]
    message = body["messages"][0]["content"]
    assert message.startswith("Rate this reply: Thank you.")
    assert "- short: Is it short? One of yes, no." in message
    assert body["max_tokens"] > 2 * 256  # two reasons


WHOLE = (1.75, 2.0, 1.0)  # (3 · 2 + 1) / 4
FAILED = (NAN, NAN, NAN)
REPLIES: dict[str, tuple[str | None, tuple[float, ...]]] = {
    "whole": (judgement(polite=2, short="yes"), WHOLE),
    "thought": (f"<think>{{2}}</think>{judgement(polite=2, short='yes')}", WHOLE),
    "fenced": (f"```json\n{judgement(polite=2, short='yes')}\n```", WHOLE),
    "missing": (judgement(short="yes"), (NAN, NAN, 1.0)),
    "outside": (judgement(polite=4, short="yes"), (NAN, NAN, 1.0)),
    "none": (judgement(polite=None, short=True), FAILED),
    "flat": ('{"polite": 3, "short": "no"}', FAILED),
    "cut": (judgement(polite=2, short="yes")[:-20], FAILED),
    "list": ("[1, 2]", FAILED),
    "words": ("It is very polite.", FAILED),
    "empty": (None, FAILED),
}


def test_a_wrong_criterion_is_nan_and_counted(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda message: REPLIES[message.split("reply: ")[1].split("\n")[0]][0])
    with caplog.at_level(logging.WARNING):
        found = Judge("m", TWO, server.address).score([*REPLIES])
    rated = np.stack([found[name] for name in ("rating", "polite", "short")], axis=1)
    np.testing.assert_array_equal(rated, [expected for _, expected in REPLIES.values()])
    assert "8 of 11 replies of the judge lack a valid score" in caplog.text
    assert "(polite 8, short 6)" in caplog.text
    assert caplog.text.count("WARNING") == 1


# Reasons


def test_reasons_are_stored_with_the_samples(serve: Serve, tmp_path: Path) -> None:
    polite = judgement(polite=3, short="no")
    server = serve(lambda message: polite if "Thank" in message else "words")
    judge = Judge("m", TWO, server.address)
    held_out = HeldOutScorer({"mean": judge["rating"], "tone": judge["polite"]}, Samples(["A"] * 3))
    samples = Samples(["Thank you.", "No.", "  "])
    path = tmp_path / "step=000001.jsonl"
    held_out.score_samples(samples, path)
    again, scores, _, reasons = read_scored_file(path)
    assert reasons == {
        "mean": ["polite: polite is 3\nshort: short is no", "", ""],
        "tone": ["polite is 3", "", ""],
    }
    assert again == samples
    assert _explanations(path, 3) == {
        0: {
            "mean": {"score": 2.25, "reason": "polite: polite is 3\nshort: short is no"},
            "tone": {"score": 3.0, "reason": "polite is 3"},
        }
    }
    header, rows = sample_table(samples, scores, 3, reasons)
    assert header == ["text", "mean", "tone", "mean_reason", "tone_reason"]
    assert rows[0] == ["Thank you.", 2.25, 3.0, *(each[0] for each in reasons.values())]
    kept = tmp_path / "before.jsonl"
    write_scored_samples(kept, samples, {})
    for name in ("polite", "short"):  # one after the other
        scored_texts(kept, {name: judge[name]}, 0, "folder")
    assert read_scored_file(kept).reasons == {
        "polite": ["polite is 3", "", ""],
        "short": ["short is no", "", ""],
    }
    assert pickle.loads(pickle.dumps(judge)).reasons(samples, ["polite"]) == {"polite": [""] * 3}


def test_reasons_and_costs_of_a_reward(serve: Serve) -> None:
    judge = costly(serve, TWO, judgement(polite=3, short="no"))
    reward = Reward({"tone": (judge["polite"], 1.0)})
    first, second = reward(["One.", "Two."]), reward(["Three."])
    assert first.reasons == {"tone": ["polite is 3"] * 2}
    assert first.counters["judge/cost"] == pytest.approx(0.0012)
    assert second.counters["judge/cost"] == pytest.approx(0.0006)
    assert second.statistics()["judge/requests"] == 1
    both = RewardBatch.concat([first, replace(second, reasons={})])
    assert both.reasons == {"tone": ["polite is 3", "polite is 3", ""]}
    assert both.counters["judge/tokens"] == 450
    assert both[1:].reasons == {"tone": ["polite is 3", ""]}
    logged: list[tuple[str, float]] = []
    (function,) = as_reward_funcs(reward, name="judged")
    function(prompts=["A"], completions=["B"], log_metric=lambda *pair: logged.append(pair))
    assert dict(logged)["judged/judge/cost"] == pytest.approx(0.0006)


def test_costs_in_the_logs_of_trainers(serve: Serve) -> None:
    """A batch of two texts costs the same in each."""
    judge = costly(serve, TWO, judgement(polite=3, short="no"))
    reward = Reward({"tone": judge["polite"], "length": judge["short"]})
    logged: list[tuple[str, float]] = []
    for function in as_component_funcs(reward).functions:
        function(["A"] * 2, ["B", "C"], log_metric=lambda *pair: logged.append(pair))
    assert [value for key, value in logged if key == "judge/cost"] == [pytest.approx(0.0012)]
    of_verl = as_batch_compute_score(reward, -1.0)(["d"] * 2, ["D", "E"], [""] * 2, [None] * 2)
    assert [row["judge/cost"] for row in of_verl] == [pytest.approx(0.0006)] * 2
    of_openrlhf = as_reward_func(reward, [], -1.0)(["pF", "pG"], ["p", "p"], ["", ""])
    assert of_openrlhf["extra_logs"]["judge/cost"].tolist() == [pytest.approx(0.0006)] * 2


def test_a_thread_does_not_count_the_requests_of_another(serve: Serve) -> None:
    server = serve(in_turn("3"))
    reward = Reward({"warm": Judge("m", RATE, server.address)})
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(reward, [["A"], ["B"], ["C"], ["D"]]))
    assert [batch.counters["judge/requests"] for batch in batches] == [1.0] * 4


def test_costs_of_a_validation(serve: Serve) -> None:
    held_out = HeldOutScorer({"warm": costly(serve, RATE, "3")}, Samples(["A", "B"]))
    for _ in range(2):  # each has its own
        metrics = held_out.evaluate(lambda prompts: [" soup"] * len(prompts))
        assert metrics == {
            **{"score/warm": 3.0, "score/fail_rate": 0.0, "score/judge/requests": 2.0},
            **{"score/judge/tokens": 300.0, "score/judge/cost": pytest.approx(0.0012)},
        }


# Ranks


def test_a_group_is_ranked_in_both_orders(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    orders = {
        "[1]\nA\n": [2, 1, 3],  # B, A, C
        "[1]\nC\n": [3, 1, 2],  # of C, B, A: A, C, B
        "[1]\nX\n": [1, 2],  # always the first one
        "[1]\nY\n": [1, 2],
        "[1]\nP\n": [1, 1],
        "[1]\nQ\n": [1, 2],
    }

    def reply(message: str) -> str:
        order = next(order for start, order in orders.items() if start in message)
        return json.dumps({"reason": "so", "order": order})

    server = serve(reply)
    judge = Judge("m", RANKED, server.address, concurrency=1)
    texts, groups = ["A", "X", "B", "C", "Y", "alone", "P", "Q", ""], [*"121123441"]
    with caplog.at_level(logging.WARNING):
        found = judge.score(texts, groups=groups)
    # A: (0.5 + 1) / 2, B: (1 + 0) / 2, C: (0 + 0.5) / 2; of three pairs, A before C stays.
    np.testing.assert_allclose(found["rank"], [0.75, 0.5, 0.5, 0.25, 0.5, NAN, NAN, NAN, NAN])
    third = 1 / 3
    np.testing.assert_allclose(found["consistent"], [third, 0, third, third, 0, *[NAN] * 4])
    assert "1 of 8 texts are alone in their group: rank is NaN" in caplog.text
    assert "1 of 6 replies of the judge lack a valid score, and are NaN there (ra" in caplog.text
    assert len(server.requests) == 6
    schema = server.requests[0][2]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["order"]["items"]["enum"] == [1, 2, 3]
    told = judge.reasons(Samples(texts, groups=groups), ["rank", "consistent"])
    assert told == {"rank": ["so", "so", "so", "so", "so", "", "so", "so", ""]}


def test_a_ranking_needs_one_prompt_by_group() -> None:
    judge = Judge("m", Rubric("Rank replies to {prompt}: {texts}"), "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"prompts\[1\] = 'b' must be the same as prompts\[0\]"):
        judge.score(["A", "B"], prompts=["a", "b"], groups=["g", "g"])


# Limits


def test_requests_per_minute(serve: Serve, clock: Simulated) -> None:
    times: list[float] = []
    server = serve(lambda message: times.append(clock.time) or "2")
    server.usage = {"prompt_tokens": 50, "completion_tokens": 1}
    judge = Judge(
        *("m", RATE, server.address),
        **{"concurrency": 1, "requests_per_minute": 60, "prompt_cost": 2.0},
    )
    found = judge.score([f"Text {i}." for i in range(130)])["warmth"]
    assert found.tolist() == [2.0] * 130  # no request lost
    assert times == [0.0] * 60 + [60.0] * 60 + [120.0] * 10
    assert (judge.usage.requests, judge.usage.prompt_tokens) == (130, 6500)
    assert judge.usage.cost == pytest.approx(0.013)  # 6,500 · 2 / 10⁶


def test_tokens_per_minute(serve: Serve, clock: Simulated) -> None:
    times: list[float] = []
    server = serve(lambda message: times.append(clock.time) or "2")
    server.usage = {"prompt_tokens": 50, "completion_tokens": 10}
    # A prompt of 40 bytes and a reply are estimated as 10 + 40 tokens, and are 60.
    judge = Judge(
        *("m", Rubric(f"{'x' * 39}{{text}}", [1, 2, 3]), server.address),
        **{"concurrency": 1, "max_tokens": 40, "tokens_per_minute": 150},
    )
    judge.score([*"abcde"])
    assert times == [0.0, 0.0, 60.0, 60.0, 120.0]  # 60 + 60 + 50 are too many


def test_a_limited_server_is_waited_for(serve: Serve, clock: Simulated) -> None:
    server = serve(in_turn(Refusal(503), *[Refusal(429, "7")] * 5, "3", "1"))
    judge = Judge("m", RATE, server.address, concurrency=1)
    assert judge.score(["A", "B"])["warmth"].tolist() == [3.0, 1.0]
    assert clock.waits == [0.2, *[7.0] * 5]  # more than the tries of an outage
    assert judge.usage.requests == 8


def test_retry_after() -> None:
    def seconds(given: str) -> float | None:
        return retry_after(httpx2.Response(503, headers={"Retry-After": given}))

    given = ["3", "0.5", "-1", "soon", "", "Wed, 21 Oct 2015 07:28:00 GMT"]
    given.append("Wed, 21 Oct 99999999999999999999 07:28:00 GMT")
    assert [*map(seconds, given)] == [3, 0.5, 0, None, None, 0, None]
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))
    assert 3500 < (seconds(later) or 0) <= 3600


# Outages


def test_an_outage_is_waited_for(
    serve: Serve, clock: Simulated, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(in_turn(*[Refusal(503)] * 10, "3"))
    with caplog.at_level(logging.WARNING):
        judge = Judge("m", RATE, server.address, outage="wait", concurrency=1)
        assert judge.score(["A"])["warmth"] == [3.0]
    np.testing.assert_allclose(clock.waits, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10])
    assert caplog.text.count("trying again for up to 600 s") == 1


@pytest.mark.parametrize(
    ("outage", "seconds"),
    [
        ("raise", 1.4),  # 0.2 + 0.4 + 0.8
        ("wait", 22.6),  # 0.2 + … + 6.4 + 10; ten more seconds are too many
    ],
)
def test_a_server_that_is_down_is_an_error(outage: Any, seconds: float, clock: Simulated) -> None:
    judge = Judge("m", RATE, "http://127.0.0.1:9", outage=outage, outage_budget=30, concurrency=1)
    with pytest.raises(ConnectionError, match=r"the judge at http://127\.0\.0\.1:9 does not"):
        judge.score(["A"])
    assert clock.time == pytest.approx(seconds)


def test_an_outage_as_nan(serve: Serve, clock: Simulated, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(in_turn(*[Refusal(503)] * 6, "3", Refusal(503, "60"), "3"))
    judge = Judge("m", RATE, server.address, outage="nan", outage_budget=1.5, concurrency=1)
    with caplog.at_level(logging.WARNING):
        found = judge.score(["A", "B", "C", "D"])["warmth"]
    # Four tries until 1.4 s; one for each of the others, as the next is beyond 1.5 s.
    np.testing.assert_array_equal(found, [NAN, NAN, NAN, 3.0])
    assert "3 of 4 requests to the judge have no reply, and are NaN" in caplog.text
    assert (judge.usage.requests, judge.usage.failed) == (7, 3)
    np.testing.assert_array_equal(judge.score(["A", "B"])["warmth"], [NAN, 3.0])


def test_nothing_is_asked_after_the_budget(serve: Serve, clock: Simulated) -> None:
    def reply(message: str) -> Refusal:
        clock.time += 5
        return Refusal(503)

    server = serve(reply)
    judge = Judge("m", RATE, server.address, outage="nan", outage_budget=7, concurrency=1)
    assert np.isnan(judge.score([*"ABCDEF"])["warmth"]).all()
    # Errors at 5 s, the start, and 10.2 s, with a pause until 10.6 s; the third at 15.6 s.
    assert len(server.requests) == 3
    assert judge.usage.failed == 6


def test_a_rejected_text(serve: Serve) -> None:
    address = serve(lambda message: Refusal(400) if "long" in message else "3").address
    with pytest.raises(ConnectionError, match="/v1: 400"):
        Judge("m", RATE, address).score(["A", "long"])
    found = Judge("m", RATE, address, outage="nan").score(["A", "long"])["warmth"]
    np.testing.assert_array_equal(found, [3.0, NAN])


def test_a_slow_server(serve: Serve, clock: Simulated) -> None:
    def reply(message: str) -> str:
        if "slow" in message:
            time.sleep(0.2)
        return "3"

    judge = Judge("m", RATE, serve(reply).address, outage="nan", timeout=0.05, concurrency=1)
    np.testing.assert_array_equal(judge.score(["slow", "A"])["warmth"], [NAN, 3.0])
    assert judge.usage.requests == 4 + 1
    np.testing.assert_allclose(clock.waits, [0.2, 0.4, 0.8])


# Replies on disk


def test_valid_replies_are_kept(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda message: "3" if "A" in message else "words")
    judge = Judge("m", RATE, server.address, cache=tmp_path / "replies")
    same_reward = fingerprint({"judge": judge}, None)
    for _ in range(2):
        np.testing.assert_array_equal(judge.score(["A", "B"])["warmth"], [3.0, NAN])
    assert len(server.requests) == 3  # the invalid one is asked for again
    assert (judge.usage.requests, judge.usage.cached) == (3, 1)
    assert fingerprint({"judge": judge}, None) == same_reward
    other = pickle.loads(pickle.dumps(judge))
    other.score(["A"])
    assert (other.usage.requests, other.usage.cached) == (0, 1)
    for changed in (
        Judge("m2", RATE, server.address, cache=tmp_path / "replies"),
        Judge("m", replace(RATE, prompt="A? {text}"), server.address, cache=tmp_path / "replies"),
    ):
        changed.score(["A"])
        assert (changed.usage.requests, changed.usage.cached) == (1, 0)


def write_replies(folder: str, writer: int) -> None:
    cache = ReplyCache(folder)
    for i in range(8):
        cache.put(f"{writer}-{i}", "é")
        cache.put(f"both-{i}", str(i))


def test_two_processes_share_replies(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(write_replies, [(str(tmp_path / "new"), i) for i in range(2)], chunksize=1)
    cache = ReplyCache(tmp_path / "new")
    assert {cache.get(f"{writer}-{i}") for writer in range(2) for i in range(8)} == {"é"}
    assert [cache.get(f"both-{i}") for i in range(8)] == [str(i) for i in range(8)]
    assert cache.get("0-8") is None


def test_a_file_that_is_not_a_cache(tmp_path: Path) -> None:
    (tmp_path / "replies.sqlite3").write_text("words" * 1000)
    with pytest.raises(OSError, match=r"the cache .*replies\.sqlite3 can't be used: file is not a"):
        ReplyCache(tmp_path).get("key")


def test_options_in_yaml(serve: Serve, tmp_path: Path) -> None:
    server = serve(in_turn(judgement(polite=3, short="yes")))
    rubric = tmp_path / "tone.yaml"
    rubric.write_text(
        """
prompt: "Rate this reply: {text}"
reason: true
criteria:
  polite: {question: "Is it polite?", answers: [1, 2, 3], weight: 3}
  short: {question: "Is it short?", answers: {"yes": 1, "no": 0}}
"""
    )
    assert Rubric.load(rubric) == TWO
    reward = tmp_path / "reward.yaml"
    reward.write_text(
        f"""
components:
  tone:
    scorer: Judge
    model: m
    rubric: {rubric}
    score: rating
    address: {server.address}
    max_tokens: 4000
    requests_per_minute: 60
    tokens_per_minute: 100000
    prompt_cost: 0.5
    completion_cost: 1.5
    cache: {tmp_path / "replies"}
    outage: wait
    outage_budget: 3600
"""
    )
    assert build_reward(reward)(Samples(["Thanks."])).total == [2.5]
    assert server.requests[0][2]["max_tokens"] == 4000
    assert (tmp_path / "replies" / "replies.sqlite3").is_file()
