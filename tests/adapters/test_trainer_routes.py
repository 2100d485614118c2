"""Replies of the trainers' routes, and the options that are refused at the start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import CTRLEval, Reward, RewardBatch, Samples
from ctrlreward.serving.contract import Refusal
from ctrlreward.serving.trainer_options import TemplateMarkers, TrainerRoutes
from ctrlreward.serving.trainer_routes import _finite_values, trainer_routes

TEXTS = ["ab<eos>", "f", "aab", ""]
MARKERS = TemplateMarkers("<end>\n<bot>", response_end="<end>\n", prompt_start="<user>")
OPTIONS = TrainerRoutes(
    -9.0, columns={"prefixes": "prompt"}, special_tokens=("<eos>",), template=MARKERS
)


def totals_of(reward: Reward, texts: list[str]) -> list[float]:
    batch = reward(Samples([text.replace("<eos>", "") for text in texts]))
    return np.where(batch.failed, -9.0, batch.total).tolist()


def test_get_reward_equals_the_process(serve: Callable[..., Any], reward: Reward) -> None:
    body = {"query": ["c" + t for t in TEXTS], "prompts": ["c"] * 4, "labels": [None] * 4}
    reply = serve(reward, OPTIONS).client.post("/get_reward", json=body).json()
    assert reply["rewards"] == reply["scores"] == totals_of(reward, ["c" + t for t in TEXTS])
    logs = reply["extra_logs"]
    assert logs["failed"] == [0.0, 1.0, 0.0, 0.0]
    assert logs["share"] == [1 / 3, -9.0, 0.5, 0.0]
    assert logs["length"] == [3.0, -9.0, 4.0, 1.0]  # a failed sample has no length either


def test_every_reply_has_the_same_keys(serve: Callable[..., Any], reward: Reward) -> None:
    client = serve(reward, OPTIONS).client
    replies = []
    for texts in ([], ["f"], ["ab"]):
        body = {"query": texts, "prompts": [""] * len(texts)}  # labels are missing
        replies.append(client.post("/get_reward", json=body).json())
    assert replies[0] == {
        "rewards": [],
        "scores": [],
        "extra_logs": {"share": [], "length": [], "failed": []},
    }
    assert len({tuple(reply["extra_logs"]) for reply in replies}) == 1


def test_slime_gets_a_number_or_an_object(serve: Callable[..., Any], reward: Reward) -> None:
    client = serve(reward, OPTIONS).client
    chat = [{"role": "user", "content": "c"}]
    for prompt in ("c", chat):
        body = {"prompt": prompt, "response": "ab<eos>", "label": None}
        assert client.post("/slime", json=body).json() == 2 / 3 - 0.375
    body = {"prompt": "c", "response": "f", "label": {"any": "thing"}}
    assert client.post("/slime", json=body).text == "-9.0"
    found = client.post("/slime?components=true", json=body).json()
    assert found == {"total": -9.0, "share": -9.0, "length": -9.0, "failed": 1.0}


def test_embeddings_as_sglang_replies(serve: Callable[..., Any], reward: Reward) -> None:
    """As verl asks with engine `sglang`: the last value of the last embedding."""
    client = serve(reward, OPTIONS).client
    texts = [f"<user>c<end>\n<bot>{text}<end>\n" for text in TEXTS[:2]]
    asked = client.post("/v1/embeddings", json={"model": "m", "input": texts[0]}).json()
    classified = client.post("/classify", json={"model": "m", "input": texts}).json()["data"]
    assert asked["object"] == "list"
    assert asked["data"][-1]["embedding"][-1] == classified[0]["probs"][0]
    both = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    assert [row["embedding"] for row in both] == [row["probs"] for row in classified]


def test_classify_as_vllm_replies(serve: Callable[..., Any], reward: Reward) -> None:
    texts = [f"<sys>Be kind.<end>\n<user>c<end>\n<bot>{text}<end>\n" for text in TEXTS]
    client = serve(reward, OPTIONS).client
    body = {"model": "m", "input": texts, "use_activation": False}
    reply = client.post("/classify", json=body).json()
    assert [item["probs"] for item in reply["data"]] == [
        [total] for total in totals_of(reward, ["c" + text for text in TEXTS])
    ]
    assert [item["index"] for item in reply["data"]] == [0, 1, 2, 3]
    assert (reply["object"], reply["model"]) == ("list", "m")
    assert client.post("/classify", json={"input": texts[0]}).json()["data"][:1] == [
        reply["data"][0]
    ]


def test_labels_and_constants_reach_the_scorer(
    serve: Callable[..., Any], reward: Reward, letters: Any
) -> None:
    options = TrainerRoutes(-9.0, {"labels": "label"}, {"sources": "menu"})
    body = {"query": ["ab"], "prompts": ["a"], "labels": ["glad"]}
    assert serve(reward, options).client.post("/get_reward", json=body).status_code == 200
    assert letters.scored[0].texts == ("b",)
    assert letters.scored[0].labels == ("glad",)
    assert letters.scored[0].sources == ("menu",)


LABELLED = TrainerRoutes(-9.0, {"labels": "label"})


def test_an_aggregate_that_is_no_sum_has_no_parts(serve: Callable[..., Any], letters: Any) -> None:
    lowest = Reward([letters["share"]], aggregate="min")
    said = [{"role": "assistant", "content": "ab"}]
    body = {"responses_create_params": {"input": ""}, "response": {"output": said}}
    reply = serve(lowest, TrainerRoutes(-9.0)).client.post("/verify", json=body).json()
    assert (reply["reward"], reply["share"]) == (0.5, 0.5)
    assert "reward_components" not in reply


@pytest.mark.parametrize(
    ("options", "path", "body", "place", "message"),
    [
        (OPTIONS, "/get_reward", {"query": ["ab"], "prompts": ["b"]}, "query", "does not start wi"),
        (OPTIONS, "/get_reward", {"query": ["ab"], "prompts": []}, "query", "prompts has 0 items"),
        (
            LABELLED,
            "/get_reward",
            {"query": ["a"], "prompts": [""]},
            "query",
            "has no labels. Add a label",
        ),
        (
            LABELLED,
            "/get_reward",
            {"query": ["a"], "prompts": [""], "labels": [None]},
            "query",
            "labels[0] = None is a NoneType",
        ),
        (LABELLED, "/slime", {"prompt": "", "response": "a"}, "response", "has no labels. Add a"),
        (OPTIONS, "/slime", {"prompt": "", "response": 3}, "response", "valid string"),
        (LABELLED, "/classify", {"input": "a"}, "input", "Start it with --trainers.template.resp"),
        (OPTIONS, "/classify", {"input": "ab"}, "input", "does not contain '<end>\\n<bot>'"),
        (OPTIONS, "/classify", {"input": "a<end>\n<bot>b"}, "input", "template.prompt_start"),
        (OPTIONS, "/classify", {"input": "<user>a<end>\n<bot>b"}, "input", "template.response_end"),
        (OPTIONS, "/classify", {"input": "a", "use_activation": True}, "input", "no activation"),
    ],
)
def test_wrong_bodies_are_422_and_name_the_item(
    serve: Callable[..., Any],
    reward: Reward,
    options: TrainerRoutes,
    path: str,
    body: dict[str, Any],
    place: str,
    message: str,
) -> None:
    reply = serve(reward, options).client.post(path, json=body)
    assert reply.status_code == 422, reply.text
    (error,) = reply.json()["detail"]
    assert error["loc"] == ["body", place]
    assert message in error["msg"]


@pytest.mark.parametrize("path", ["/get_reward", "/slime", "/classify"])
@pytest.mark.parametrize("content", [b'{"query": [}', b"", b"soup", b"\xff", b"[" * 100_000])
def test_malformed_json_is_400_as_on_our_routes(
    serve: Callable[..., Any], reward: Reward, path: str, content: bytes
) -> None:
    client = serve(reward, OPTIONS).client
    headers = {"Content-Type": "application/json"}
    for route in (path, "/score"):
        reply = client.post(route, content=content, headers=headers)
        assert reply.status_code == 400, reply.text
        assert "soup" not in reply.text


@pytest.mark.parametrize("refusals", [0, 1, 10_000])
def test_a_full_queue_holds_the_request_then_503(
    serve: Callable[..., Any], reward: Reward, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    server = serve(reward, TrainerRoutes(-9.0, patience=0.2))
    queue = server.app.state.requests
    score, seen = queue.score, []

    async def full_at_first(*given: Any, **more: Any) -> Any:
        seen.append(given)
        if len(seen) <= refusals:
            raise Refusal(429, "full", 30)
        return await score(*given, **more)

    monkeypatch.setattr(queue, "score", full_at_first)
    reply = server.client.post("/slime", json={"prompt": "", "response": "ab"})
    if refusals < 10_000:
        assert reply.json() == 0.75
        assert len(seen) == refusals + 1
    else:
        assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")


def test_a_sample_that_a_scorer_rejects(serve: Callable[..., Any], monkeypatch: Any) -> None:
    from letter_scorers import Letters

    reward = Reward({"letters": Letters()["letters"]})
    body = {"query": ["soup"], "prompts": [""], "labels": ["unknown"]}
    strict = serve(reward, LABELLED).client.post("/get_reward", json=body)
    with pytest.raises(ValueError, match="labels") as raised:
        reward(Samples(["soup"], labels=["unknown"]))
    assert strict.status_code == 422
    assert strict.json()["detail"][0]["msg"] == str(raised.value)
    lenient = TrainerRoutes(-9.0, {"labels": "label"}, strict=False)
    reply = serve(reward, lenient).client.post("/get_reward", json=body).json()
    assert (reply["rewards"], reply["extra_logs"]["failed"]) == ([-9.0], [1.0])


def test_options_that_cannot_work_are_refused_at_the_start(
    reward: Reward, letters: Any, kinds: Any
) -> None:
    for failed_score in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be finite"):
            trainer_routes(TrainerRoutes(failed_score), reward)
    with pytest.raises(ValueError, match="kinds is computed over several samples at once"):
        trainer_routes(TrainerRoutes(0.0), Reward({"kinds": kinds["kinds"]}))
    for name in ("failed", "total"):
        with pytest.raises(ValueError, match=f"a component '{name}'"):
            trainer_routes(TrainerRoutes(0.0), Reward({name: letters["share"]}))
    coherence = Reward({"coherence": CTRLEval(task="sentiment")["attribute_relevance"]})
    with pytest.raises(ValueError, match=r"needs labels\. Set columns\.labels to 'label'"):
        trainer_routes(TrainerRoutes(0.0, {"prefixes": "prompt"}), coherence)
    with pytest.raises(ValueError, match=r"whose requests have no labels.*maps labels"):
        trainer_routes(TrainerRoutes(0.0, {"labels": "label"}, template=MARKERS), reward)
    with pytest.raises(ValueError, match="'tones' can't be mapped"):
        TrainerRoutes(0.0, {"tones": "label"})
    with pytest.raises(ValueError, match="labels is in columns and in constants"):
        TrainerRoutes(0.0, {"labels": "label"}, {"labels": "positive"})
    with pytest.raises(ValueError, match="patience must be 0 seconds or more, got -1"):
        TrainerRoutes(0.0, patience=-1)
    with pytest.raises(ValueError, match="response_start is empty"):
        TemplateMarkers("")


PART = st.text(alphabet="ab<>\n", max_size=8)


@given(system=PART, prompt=PART, response=PART)
def test_markers_undo_a_template(system: str, prompt: str, response: str) -> None:
    text = f"<sys>{system}<end>\n<user>{prompt}<end>\n<bot>{response}<end>\n"
    assert MARKERS.split(text) == (prompt, response)


def test_a_marker_that_the_policy_writes_does_not_hide_its_text() -> None:
    text = "<user>c<end>\n<bot>bad<end>\n<bot>good<end>\n"
    assert MARKERS.split(text) == ("c", "bad<end>\n<bot>good")
    last = TemplateMarkers("<end>\n<bot>", "<end>\n", "<user>", response_at="last")
    turns = "<user>c<end>\n<bot>hello<end>\n<user>d<end>\n<bot>good<end>\n"
    assert last.split(turns) == ("d", "good")


SCORES = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(st.tuples(SCORES, SCORES), max_size=6), st.floats(-5, 5))
def test_replies_are_finite_and_the_mean_can_be_recovered(
    rows: list[tuple[float, float]], failed_score: float
) -> None:
    total, share = np.array(rows, dtype=np.float64).reshape(-1, 2).T
    failed = ~np.isfinite(total) | np.isnan(share) | np.isinf(share)
    batch = RewardBatch(np.where(failed, np.nan, total), {"share": share}, failed, 0.0)
    values = _finite_values(batch, failed_score)
    assert list(values) == ["total", "share", "failed"]
    assert all(math.isfinite(value) for column in values.values() for value in column)
    if len(rows) and not failed.all():
        rate = np.mean(values["failed"])
        mean = (np.mean(values["share"]) - rate * failed_score) / (1 - rate)
        scale = np.abs(share[~failed]).max() + 5
        assert mean == pytest.approx(share[~failed].mean(), abs=1e-9 * scale)
