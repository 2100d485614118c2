"""A judge on a tiny local model, and on a server of this test that speaks OpenAI's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from failed_rows import failures_of
from judge_server import Serve
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward import Criterion, Judge, Reward, Rubric, Samples
from ctrlreward.cli import main
from ctrlreward.models.tasks import TokenScores
from ctrlreward.scorers.judge import closed
from ctrlreward.scorers.rubric import read_answer

NAN = float("nan")
RATE = Rubric("How warm is this, 1 to 3? {text}\nAnswer:", [1, 2, 3], name="warmth")
WARM = Criterion("Is it warm:", [1, 2, 3], 3)
TEXTS = ["The soup was warm.", "A cold lake.", "Tea."]

pytestmark = pytest.mark.usefixtures("one_thread")


# A local model


def plain_chances(folder: str, context: str, answers: list[str], chat: bool = False) -> np.ndarray:
    """Probability of each answer after the context, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    sums = []
    for answer in answers:
        ids = tokenizer(context + answer, add_special_tokens=False).input_ids
        start = len(tokenizer(context, add_special_tokens=False).input_ids)
        # The library reads a start token if the model has one, and the template writes none.
        begin = [] if chat else [tokenizer.bos_token_id or tokenizer.eos_token_id]
        start -= chat
        with torch.inference_mode():
            logits = model(torch.tensor([begin + ids])).logits[0].log_softmax(-1)
        sums.append(sum(float(logits[i, ids[i + chat]]) for i in range(start, len(ids) - chat)))
    chances = np.exp(sums)
    return chances / chances.sum()


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
        ({"1": 1, "12": 12, "2": 2}, {"1": ["12"]}),
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


def test_a_rating_can_reach_the_top_of_its_range() -> None:
    certain, never = 0.0, -20.0
    ids, log_probs = [*range(1, 10), 1, 0], [certain, *[never] * 8, certain, certain]
    answers = TokenScores(np.array(ids), np.array(log_probs), np.array([*[1] * 9, 2]))
    chances = closed(answers)
    assert chances @ range(1, 11) / chances.sum() == pytest.approx(10, abs=1e-5)


def test_doubled_braces_are_text() -> None:
    rubric = Rubric("Say {{first}} or {{second}}: {text}", {"first": 1, "second": 0})
    assert rubric.columns == ("texts",)


def test_a_chat_template_is_used(folder: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}q: {{ m.content }}{% endfor %} a: "
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    rating = Judge(str(tmp_path), RATE)["warmth"](TEXTS)
    prompt = f"q: {RATE.prompt.format(text=TEXTS[0])} a: "
    chances = plain_chances(folder, prompt, ["1", "2", "3"], chat=True)
    assert rating[0] == pytest.approx(chances @ [1, 2, 3], abs=1e-4)


def test_criteria_of_a_local_model_have_a_prompt_each(folder: str) -> None:
    criteria = {"warm": WARM, "cold": Criterion("Cold:", [3, 1])}
    judge = Judge(folder, Rubric("Rate: {text}", criteria=criteria, reason=True))
    found = judge.score(TEXTS)
    for i, text in enumerate(TEXTS):
        warm, cold = "Is it warm:\nAnswer with one of 1, 2, 3:", "Cold:\nAnswer with one of 3, 1:"
        chances = plain_chances(folder, f"Rate: {text}\n\n{warm}", [" 1", " 2", " 3"])
        assert found["warm"][i] == pytest.approx(chances @ [1, 2, 3], abs=1e-4)
        chances = plain_chances(folder, f"Rate: {text}\n\n{cold}", [" 3", " 1"])
        assert found["cold"][i] == pytest.approx(chances @ [3, 1], abs=1e-4)
    np.testing.assert_allclose(found["rating"], (3 * found["warm"] + found["cold"]) / 4)


def test_empty_texts_fail(folder: str) -> None:
    assert np.isnan(Judge(folder, RATE).score(["", "Tea."])["warmth"]).tolist() == [True, False]


# A server


def test_ratings_of_a_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {TEXTS[0]: "3", TEXTS[1]: "**1**.", TEXTS[2]: "It is 1 or 2.", "None.": None}
    replies |= {"Thought.": "<think>\n1 or 2?\n</think>\n\n3", "Cut off.": "<think>It is not 1"}
    replies |= {"Opened by the template.": "Perhaps 2.\n</think>\n\n1"}
    server = serve(lambda prompt: next(r for text, r in replies.items() if text in prompt))
    monkeypatch.setenv("JUDGE_KEY", "secret")
    judge = Judge("big-judge", RATE, server.address, key_variable="JUDGE_KEY")
    batch = Reward({"warmth": judge})([*replies, ""])
    np.testing.assert_array_equal(batch.total, [3.0, 1.0, NAN, NAN, 3.0, NAN, 1.0, NAN])
    assert batch.statistics()["fail_rate"] == 4 / 8
    assert failures_of(judge, Samples([*replies, ""])).keys() == {2, 3, 5, 7}
    del server.requests[7:]
    assert len(server.requests) == 7  # the empty text is not sent
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer secret"
    assert body["model"] == "big-judge"
    assert (body["temperature"], body["max_tokens"]) == (0, 16)


def test_without_a_key_none_is_sent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(lambda prompt: "1")
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    Judge("m", RATE, server.address).score(["Tea."])
    assert "authorization" not in server.requests[0][1]


def test_another_server_is_an_error(serve: Serve) -> None:
    address = serve(lambda prompt: b'{"choices": []}').address
    with pytest.raises(ConnectionError, match="is not an OpenAI-compatible server"):
        Judge("m", RATE, address).score(["Tea."])


def test_a_judge_of_a_server_loads_nothing(serve: Serve) -> None:
    judge = Judge("no-such-model", RATE, serve(lambda prompt: "1").address)
    judge.load()
    assert judge.devices == ()
    judge.to("cpu")
    assert judge.score(["Tea."])["warmth"] == [1.0]


# Rubrics and replies


NUMBERS = {str(i): float(i) for i in range(1, 6)}


@pytest.mark.parametrize(
    ("scores", "replies"),
    [
        ({"yes": 1.0, "no": 0.0}, {"yes": 1.0, " YES!": 1.0, '"no"': 0.0, "No, it is not.": 0.0}),
        ({"yes": 1.0, "no": 0.0}, {"no\n\nno": 0.0, "Yes and no": NAN, "nothing": NAN}),
        ({"yes": 1.0, "no": 0.0}, {"yes-man": NAN, "": NAN}),
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


def test_a_rubric_shows_other_columns() -> None:
    rubric = Rubric("Is {text} a {label} version of {source}? yes or no:", {"yes": 1, "no": 0})
    assert rubric.columns == ("texts", "labels", "sources")
    with pytest.raises(ValueError, match="Judge needs the column 'labels'"):
        Judge("m", rubric, "http://127.0.0.1:9").score(["a"], sources=["b"])


ASKED = {"question": "b", "answers": [1, 2]}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"prompt": "{txt}"}, "prompt"),
        ({"prompt": "{text"}, "braces"),
        ({"prompt": "How?"}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"answers": {"good": "high", "bad": 0}}, "answers"),
        ({"answers": {True: 1, False: 0}}, "answers"),
        ({"answers": {"good": 1}}, "two"),
        ({"answers": {"good": 1, "bad": 1}}, "answers"),
        ({"reason": "yes"}, "reason"),
        ({"criteria": {"a": WARM}}, "criteria"),
        ({"answers": (), "criteria": {}}, "criteria"),
        ({"answers": (), "criteria": {"a": 3}}, "criteria"),
        ({"answers": (), "criteria": {1: 3}}, "criteria"),
        ({"answers": (), "criteria": {"rating": 3}}, "criteria"),
        ({"answers": (), "criteria": {"a": {"question": "b"}}}, "answers"),
        ({"answers": (), "criteria": {"a": {"question": "b", "answers": [1]}}}, "answers"),
        ({"answers": (), "criteria": {"a": {**ASKED, "question": " "}}}, "question"),
        ({"answers": (), "criteria": {"a": {**ASKED, "weight": 0}}}, "weight"),
    ],
)
def test_wrong_rubrics(given: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Rubric(**{"prompt": "Rate {text}", "answers": [1, 2], **given})


def test_a_rubric_file(tmp_path: Path) -> None:
    path = tmp_path / "warmth.yaml"
    path.write_text('prompt: "How warm? {text}"\nanswers: [1, 2, 3]\nname: warmth\n')
    assert Rubric.load(path) == Rubric("How warm? {text}", [1, 2, 3], "warmth")
    path.write_text('prompt: "How warm? {text}"\nanswers: {yes: 1, no: 0}\n')  # YAML's booleans
    with pytest.raises(ValueError, match=r"warmth\.yaml: answers: True is not text\. Write it in"):
        Rubric.load(path)
    path.write_text("promt: How warm?\n")
    with pytest.raises(ValueError, match="promt"):
        Rubric.load(path)


@pytest.mark.parametrize(
    "options",
    [
        {"rubric": "no-such.yaml"},
        {"address": "localhost:8000"},
        {"key_variable": "KEY", "address": None},
        {"concurrency": 0},
        {"timeout": 0},
        {"max_retries": -1},
        {"max_tokens": 0},
    ],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises((ValueError, OSError), match=next(iter(options))):
        Judge("m", **{"rubric": RATE, "address": "http://127.0.0.1:9", **options})


def test_meta_eval(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda prompt: "3" if "warm" in prompt.split("?")[1] else "1")
    rubric, rated = tmp_path / "warmth.yaml", tmp_path / "rated.jsonl"
    rubric.write_text('prompt: "How warm, 1 to 3? {text}"\nanswers: [1, 2, 3]\n')
    rows = [(f"It was {'warm' if i % 2 else 'cold'} {i}.", i % 2 + i / 9) for i in range(9)]
    rated.write_text("".join(json.dumps({"text": t, "overall": r}) + "\n" for t, r in rows))
    output = tmp_path / "found.json"
    main(
        [
            *("meta-eval", "rated", str(rated), "--ratings", "overall", "--scorers", "Judge"),
            *("--scorers.model=m", f"--scorers.rubric={rubric}"),
            *(f"--scorers.address={server.address}", f"--output={output}", "--resamples=20"),
            "--scorers.max_retries=3",
        ]
    )
    (row,) = (r for r in json.loads(output.read_text())["correlations"] if r["level"] == "sample")
    assert row["score"] == "rating"
    assert row["spearman"]["value"] > 0.7
