"""A judge whose server is busy, slow, wrong or down; its criteria and reasons."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failed_rows import failures_of
from judge_server import Refusal, Serve

from ctrlreward import Criterion, Judge, Reward, RewardBatch, Rubric, Samples
from ctrlreward.callbacks.report import scored_texts
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.held_out import HeldOutScorer
from ctrlreward.scorers.records import read_scored_file, sample_table, write_scored_samples

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

pytestmark = pytest.mark.usefixtures("one_thread")


def in_turn(*replies: Any) -> Callable[[str], Any]:
    """Return a reply to each request in turn, the last one forever."""
    left = [*replies]
    return lambda message: left.pop(0) if len(left) > 1 else left[0]


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
    found = Judge("m", TWO, server.address).score([*REPLIES])
    rated = np.stack([found[name] for name in ("rating", "polite", "short")], axis=1)
    np.testing.assert_array_equal(rated, [expected for _, expected in REPLIES.values()])
    (message,) = caplog.messages
    assert message.startswith("8 of 11 samples")


# Reasons


def test_reasons_are_stored_with_the_samples(serve: Serve, tmp_path: Path) -> None:
    polite = judgement(polite=3, short="no")
    server = serve(lambda message: polite if "Thank" in message else "words")
    judge = Judge("m", TWO, server.address)
    held_out = HeldOutScorer({"mean": judge["rating"], "tone": judge["polite"]}, Samples(["A"] * 3))
    samples = Samples(["Thank you.", "No.", "  "])
    path = tmp_path / "step=000001.jsonl"
    held_out.score_samples(samples, path)
    again, scores, _, reasons, _ = read_scored_file(path)
    assert reasons == {
        "mean": ["polite: polite is 3\nshort: short is no", "", ""],
        "tone": ["polite is 3", "", ""],
    }
    assert again == samples
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


def test_reasons_of_a_reward(serve: Serve) -> None:
    server = serve(in_turn(judgement(polite=3, short="no")))
    reward = Reward({"tone": (Judge("m", TWO, server.address)["polite"], 1.0)})
    first, second = reward(["One.", "Two."]), reward(["Three."])
    assert first.reasons == {"tone": ["polite is 3"] * 2}
    both = RewardBatch.concat([first, replace(second, reasons={})])
    assert both.reasons == {"tone": ["polite is 3", "polite is 3", ""]}
    assert both[1:].reasons == {"tone": ["polite is 3", ""]}


# Outages


def test_a_busy_server_is_waited_for_as_long_as_it_asks(serve: Serve) -> None:
    server = serve(in_turn(*[Refusal(503, "0.3")] * 2, *[Refusal(429, "0.3")] * 3, "3", "1"))
    judge = Judge("m", RATE, server.address, concurrency=1)
    started = time.monotonic()
    assert judge.score(["A", "B"])["warmth"].tolist() == [3.0, 1.0]
    assert time.monotonic() - started > 5 * 0.3
    assert len(server.requests) == 7


def test_a_server_that_stays_busy_is_an_error(serve: Serve) -> None:
    server = serve(lambda message: Refusal(503, "0.01"))
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1"):
        Judge("m", RATE, server.address, max_retries=3).score(["A"])
    assert len(server.requests) == 4


def test_a_server_that_is_down_is_an_error() -> None:
    judge = Judge("m", RATE, "http://127.0.0.1:9", max_retries=0)
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:9"):
        judge.score(["A"])


def test_a_rejected_text_is_nan_and_the_reason_is_told(serve: Serve) -> None:
    content = json.dumps({"error": {"message": "beyond 4096 tokens"}}).encode()
    server = serve(lambda message: Refusal(400, None, content) if "long" in message else "3")
    judge = Judge("m", RATE, server.address)
    np.testing.assert_array_equal(judge.score(["long", "short"])["warmth"], [NAN, 3.0])
    assert len(server.requests) == 2
    assert "beyond 4096 tokens" in failures_of(judge, Samples(["long"]))[0]


def test_a_rejected_request_is_an_error(serve: Serve) -> None:
    server = serve(lambda message: Refusal(404, None, b"no such model"))
    with pytest.raises(ConnectionError, match="404"):
        Judge("m", RATE, server.address).score(["A"])


def test_a_slow_server_is_an_error(serve: Serve) -> None:
    def reply(message: str) -> str:
        time.sleep(2)
        return "3"

    judge = Judge("m", RATE, serve(reply).address, timeout=0.2, max_retries=0)
    with pytest.raises(ConnectionError, match="timed out"):
        judge.score(["A"])


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
    max_retries: 100
"""
    )
    assert build_reward(reward)(Samples(["Thanks."])).total == [2.5]
    assert server.requests[0][2]["max_tokens"] == 4000
