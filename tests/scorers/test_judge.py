"""A judge on a tiny local model, and on a server of this test that speaks OpenAI's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failed_rows import failures_of
from judge_server import Refusal, Serve, started
from plain_models import PlainCausal

from ctrlreward import Criterion, Judge, Reward, RewardBatch, Rubric, Samples
from ctrlreward.callbacks.report import scored_texts
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.held_out import HeldOutScorer
from ctrlreward.scorers.records import read_scored_file, write_scored_samples
from ctrlreward.scorers.rubric import read_answer

NAN = float("nan")
RATE = Rubric("How warm is this, 1 to 3? {text}\nAnswer:", [1, 2, 3], name="warmth")
WARM = Criterion("Is it warm:", [1, 2, 3], 3)
TEXTS = ["The soup was warm.", "A cold lake.", "Tea."]

pytestmark = pytest.mark.usefixtures("one_thread")


# A local model


def plain_chances(folder: str, context: str, answers: list[str]) -> np.ndarray:
    """Probability of each answer after the context, by transformers alone."""
    plain = PlainCausal(folder)
    sums = []
    for answer in answers:
        ids, read = plain.tokens(context, answer)
        sums.append(plain.log_probs([0, *ids], read + 1).sum())
    return np.asarray(np.exp(sums) / np.exp(sums).sum())


@pytest.fixture
def folder(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(" \nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:123")


def test_a_rating_is_the_mean_over_the_answers(folder: str) -> None:
    judge = Judge(folder, RATE)
    found = judge.score(TEXTS)["warmth"]
    for text, rating in zip(TEXTS, found, strict=True):
        prompt = RATE.prompt.format(text=text)
        chances = plain_chances(folder, prompt, [" 1", " 2", " 3"])
        assert rating == pytest.approx(chances @ [1, 2, 3], abs=1e-4)
    assert judge.specs["warmth"].range == (1.0, 3.0)
    assert np.ptp(found) > 1e-4


@pytest.mark.parametrize(
    ("answers", "continued"),
    [
        (
            {"good": 1, "good enough": 2, "good enough to eat": 3, "bad": 0},
            {"good": ["good enough"], "good enough": ["good enough to eat"]},
        ),
        ({"a": 1, "ab": 2, "ac": 4}, {"a": ["ab", "ac"]}),
    ],
)
def test_an_answer_is_not_the_beginning_of_another(folder: str, answers, continued) -> None:
    rubric = Rubric("How warm is this? {text}\nAnswer:", answers, name="warmth")
    found = Judge(folder, rubric).score(TEXTS[:1])["warmth"]
    prompt = rubric.prompt.format(text=TEXTS[0])
    chances = plain_chances(folder, prompt, [f" {name}" for name in answers])
    opened = dict(zip(answers, chances, strict=True))
    exact = {n: opened[n] - sum(opened[each] for each in continued.get(n, ())) for n in answers}
    expected = sum(exact[n] * answers[n] for n in answers) / sum(exact.values())
    assert found[0] == pytest.approx(expected, rel=1e-4)


def test_criteria_of_a_local_model_have_a_prompt_each(folder: str) -> None:
    criteria = {"warm": WARM, "cold": Criterion("Cold:", [3, 1])}
    judge = Judge(folder, Rubric("Rate: {text}", criteria=criteria, reason=True))
    found = judge.score(TEXTS)
    for name, question, answers in (("warm", "Is it warm:", [1, 2, 3]), ("cold", "Cold:", [3, 1])):
        listed = f"{question}\nAnswer with one of {', '.join(map(str, answers))}:"
        for text, rating in zip(TEXTS, found[name], strict=True):
            context = f"Rate: {text}\n\n{listed}"
            chances = plain_chances(folder, context, [f" {answer}" for answer in answers])
            assert rating == pytest.approx(chances @ answers, abs=1e-4)
    np.testing.assert_allclose(found["rating"], (3 * found["warm"] + found["cold"]) / 4)


# A server


def test_ratings_of_a_server(serve: Serve) -> None:
    replies = {TEXTS[0]: "3", TEXTS[1]: "**1**.", TEXTS[2]: "It is 1 or 2.", "None.": None}
    replies |= {"Thought.": "<think>\n1 or 2?\n</think>\n\n3", "Cut off.": "<think>It is not 1"}
    replies |= {"Opened by the template.": "Perhaps 2.\n</think>\n\n1"}
    server = serve(lambda prompt: next(r for text, r in replies.items() if text in prompt))
    judge = Judge("big-judge", RATE, server.address)
    judge.load()  # no model here
    assert judge.devices == ()
    found = judge.score([*replies, ""])["warmth"]
    np.testing.assert_array_equal(found, [3.0, 1.0, NAN, NAN, 3.0, NAN, 1.0, NAN])
    assert len(server.requests) == 7  # the empty text is not sent
    assert failures_of(judge, Samples([*replies, ""])).keys() == {2, 3, 5, 7}
    path, _, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["model"] == "big-judge"
    assert (body["temperature"], body["max_tokens"]) == (0, 16)


# The mean is (3 · polite + 1 · short) / 4.
TWO = Rubric(
    "Rate this reply: {text}",
    criteria={
        "polite": Criterion("Is it polite?", [1, 2, 3], weight=3),
        "short": Criterion("Is it short?", {"yes": 1, "no": 0}),
    },
    reason=True,
)


def judgement(**scores: Any) -> str:
    return json.dumps({n: {"reason": f"{n} is {s}", "score": s} for n, s in scores.items()})


# Criteria


def test_all_criteria_are_asked_in_one_call(serve: Serve) -> None:
    server = serve(lambda _: judgement(polite=3, short="no"))
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
    "fenced": (f"```json\n{judgement(polite=2, short='yes')}\n```", WHOLE),
    "missing": (judgement(short="yes"), (NAN, NAN, 1.0)),
    "outside": (judgement(polite=4, short="yes"), (NAN, NAN, 1.0)),
    "none": (judgement(polite=None, short=True), FAILED),
    "flat": ('{"polite": 3, "short": "no"}', FAILED),
    "cut": (judgement(polite=2, short="yes")[:-20], FAILED),
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
    assert message.startswith("7 of 9 samples")


# Reasons


def test_reasons_are_stored_with_the_samples(serve: Serve, tmp_path: Path) -> None:
    polite = judgement(polite=3, short="no")
    server = serve(lambda message: polite if "Thank" in message else "words")
    judge = Judge("m", TWO, server.address)
    held_out = HeldOutScorer({"mean": judge["rating"], "tone": judge["polite"]}, Samples(["A"] * 3))
    samples = Samples(["Thank you.", "No.", "  "])
    path = tmp_path / "step=000001.jsonl"
    held_out.score_samples(samples, path)
    again, _, _, reasons, _ = read_scored_file(path)
    assert reasons == {
        "mean": ["polite: polite is 3\nshort: short is no", "", ""],
        "tone": ["polite is 3", "", ""],
    }
    assert again == samples
    kept = tmp_path / "before.jsonl"
    write_scored_samples(kept, samples, {})
    for name in ("polite", "short"):  # one after the other
        scored_texts(kept, {name: judge[name]}, 0, "folder")
    assert read_scored_file(kept).reasons == {
        "polite": ["polite is 3", "", ""],
        "short": ["short is no", "", ""],
    }


def test_reasons_of_a_reward(serve: Serve) -> None:
    server = serve(lambda _: judgement(polite=3, short="no"))
    reward = Reward({"tone": (Judge("m", TWO, server.address)["polite"], 1.0)})
    first, second = reward(["One.", "Two."]), reward(["Three."])
    assert first.reasons == {"tone": ["polite is 3"] * 2}
    both = RewardBatch.concat([first, replace(second, reasons={})])
    assert both.reasons == {"tone": ["polite is 3", "polite is 3", ""]}
    assert both[1:].reasons == {"tone": ["polite is 3", ""]}


# Outages


def test_a_rejected_text_is_nan_and_the_reason_is_told(serve: Serve) -> None:
    content = json.dumps({"error": {"message": "beyond 4096 tokens"}}).encode()
    server = serve(lambda message: Refusal(400, None, content) if "long" in message else "3")
    judge = Judge("m", RATE, server.address)
    np.testing.assert_array_equal(judge.score(["long", "short"])["warmth"], [NAN, 3.0])
    assert len(server.requests) == 2
    assert "beyond 4096 tokens" in failures_of(judge, Samples(["long"]))[0]


def test_a_mistake_in_the_request_is_an_error(serve: Serve) -> None:
    """With the server's words, where each of several texts is refused."""
    content = json.dumps({"error": {"message": "no model m"}}).encode()
    judge = Judge("m", RATE, serve(lambda _: Refusal(400, None, content)).address)
    with pytest.raises(ConnectionError, match="no model m"):
        judge.score(["long", "short"])
    assert np.isnan(judge.score(["long"])["warmth"]).all()


def test_a_model_that_takes_other_arguments() -> None:
    def answer(path: str, body: Any) -> Any:
        for name in ("max_tokens", "temperature"):
            if name in body:
                error = {"message": f"Unsupported: {name}", "param": name}
                return Refusal(400, None, json.dumps({"error": error}).encode())
        return {"choices": [{"message": {"content": "3"}}]}

    with started(answer) as server:
        judge = Judge("m", RATE, server.address)
        assert judge.score(["a", "b"])["warmth"].tolist() == [3.0, 3.0]
        assert server.requests[-1][2]["max_completion_tokens"] == 16


# Rubrics and replies

NUMBERS = {str(i): float(i) for i in range(1, 6)}
YES = {"yes": 1.0, "no": 0.0}


@pytest.mark.parametrize(
    ("scores", "replies"),
    [
        (YES, {"yes": 1.0, " YES!": 1.0, '"no"': 0.0, "No, it is not.": 0.0, "no\n\nno": 0.0}),
        (YES, {"Yes and no": NAN, "nothing": NAN, "yes-man": NAN, "": NAN}),
        (NUMBERS, {"4": 4.0, "Rating: 4.": 4.0, "4.5": NAN, "-4": NAN, "14": NAN, "41": NAN}),
        (NUMBERS, {"4.0": 4.0, "4/5": 4.0, "**4 / 5**": 4.0, "5/5": 5.0, "4/10": NAN, "4/50": NAN}),
        (NUMBERS, {"4 or 5": NAN, "4.05": NAN, "4.0.": 4.0}),
        ({"A": 1.0, "a": 0.0}, {"A": 1.0}),  # capitals count where answers differ by them
        ({"good": 1.0, "very good": 2.0}, {"very good": 2.0}),
    ],
)
def test_replies(scores: dict[str, float], replies: dict[str, float]) -> None:
    for reply, score in replies.items():
        assert read_answer(reply, scores) == pytest.approx(score, nan_ok=True), reply


def test_columns_of_a_rubric() -> None:
    rubric = Rubric("Is {text} a {label} version of {source}? {{x}}:", {"yes": 1, "no": 0})
    assert rubric.columns == ("texts", "labels", "sources")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"prompt": "{txt}"}, "prompt"),
        ({"prompt": "How?"}, "prompt"),
        ({"answers": {True: 1, False: 0}}, "answers"),
        ({"answers": {"good": 1, "bad": 1}}, "answers"),
        ({"answers": {"good": 1, "bad": float("nan")}}, "answers"),
        ({"criteria": {"a": WARM}}, "criteria"),
        ({"answers": (), "criteria": {"rating": WARM}}, "criteria"),
        ({"answers": (), "criteria": {"a": {"question": "b", "answers": [1]}}}, "answers"),
    ],
)
def test_wrong_rubrics(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Rubric(**{"prompt": "Rate {text}", "answers": [1, 2], **given})


def test_a_rubric_file_in_a_reward(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda _: judgement(polite=3, short="yes"))
    rubric, reward = tmp_path / "tone.yaml", tmp_path / "reward.yaml"
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
    judge = {"scorer": "Judge", "model": "m", "rubric": str(rubric), "score": "rating"}
    judge |= {"address": server.address, "max_tokens": 4000, "max_retries": 100}
    reward.write_text(json.dumps({"components": {"tone": judge}}))
    assert build_reward(reward)(Samples(["Thanks."])).total == [2.5]
    assert server.requests[0][2]["max_tokens"] == 4000
    rubric.write_text('prompt: "How warm? {text}"\nanswers: {yes: 1, no: 0}\n')  # YAML's booleans
    with pytest.raises(ValueError, match="answers"):
        Rubric.load(rubric)
