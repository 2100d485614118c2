"""Reward models on servers of this test, which answer as vLLM, SGLang and OpenRLHF document it."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ctrlreward import FunctionScorer, RemoteRewardModel, Reward, RewardModel, Samples

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["Was it good?", "How was it?", "Was the soup hot?"]
ANSWERS = ["It was.", "No. The soup was cold.", "Very! I would go back there."]
SAMPLES = Samples(ANSWERS, prompts=PROMPTS)
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

Values = Callable[[Any], list[Any]]


def as_vllm(rows: list[Any]) -> dict[str, Any]:
    """`POST /classify` of vLLM 0.18."""
    data = [
        {"index": i, "label": "LABEL_0", "probs": row, "num_classes": len(row)}
        for i, row in enumerate(rows)
    ]
    return {"id": "classify-1", "object": "list", "created": 1, "model": "m", "data": data}


def as_pooling(rows: list[Any]) -> dict[str, Any]:
    """`POST /pooling` of vLLM 0.18: one row of values, or a row for each token."""
    shaped = [row if i % 2 else [[0.0] * len(row), row] for i, row in enumerate(rows)]
    data = [{"index": i, "object": "pooling", "data": row} for i, row in enumerate(shaped)]
    return {"id": "pool-1", "object": "list", "created": 1, "model": "m", "data": data}


def as_sglang(rows: list[Any]) -> list[Any]:
    """`POST /classify` of SGLang."""
    return [{"embedding": row, "meta_info": {"id": str(i)}} for i, row in enumerate(rows)]


def as_openrlhf(rows: list[Any]) -> dict[str, Any]:
    """`POST /get_reward` of OpenRLHF 0.11.2."""
    rewards = [row[0] for row in rows]
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


CONTRACTS: dict[str, tuple[str, str, Callable[[list[Any]], Any]]] = {
    "vllm": ("/classify", "input", as_vllm),
    "vllm_pooling": ("/pooling", "input", as_pooling),
    "sglang": ("/classify", "input_ids", as_sglang),
    "openrlhf": ("/get_reward", "query", as_openrlhf),
}


class Server(ThreadingHTTPServer):
    """A server whose replies are a function of route and body, after some of other kinds."""

    daemon_threads = True

    def __init__(self, reply: Callable[[str, Any], Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = reply
        self.first: list[tuple[int, bytes]] = []  # replies before it: status and content
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, body, self.headers["Authorization"]))
        if self.server.first:
            status, content = self.server.first.pop(0)
        else:
            status, content = 200, json.dumps(self.server.reply(self.path, body)).encode()
        self.send_response(status)
        # A content that is cut off is shorter than its length says.
        self.send_header("Content-Length", str(len(content) + 9 * content.endswith(b"cut")))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(api: str = "vllm", values: Values = lambda text: [float(len(text))]) -> Server:
        route, key, reply = CONTRACTS[api]

        def answer(path: str, body: dict[str, Any]) -> Any:
            assert path == route, path
            texts = body.get(key, body.get("text"))
            return reply([values(text) for text in texts])

        servers.append(Server(answer))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def model(tiny_reward_model: str) -> str:
    """A reward model with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_reward_model)
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tiny_reward_model)
    return tiny_reward_model


@pytest.mark.parametrize("template", [None, "plain", "Q: {prompt} A: {completion}"])
@pytest.mark.parametrize("api", ["vllm", "vllm_pooling", "sglang"])
def test_a_served_model_scores_as_the_model_here(
    api: str, template: str | None, model: str, serve: Callable[..., Server]
) -> None:
    """The server computes the forward pass of the token ids that it gets, text by text."""
    served = AutoModelForSequenceClassification.from_pretrained(model).eval()

    def logit(ids: list[int]) -> list[float]:
        with torch.no_grad():
            return served(torch.tensor([ids])).logits[0].tolist()

    server = serve(api, logit)
    remote = RemoteRewardModel(
        server.address, api, "name", tokenizer=model, template=template, batch_texts=2
    )
    here = RewardModel(model, template=template)
    expected = here.score(SAMPLES)["reward"]
    np.testing.assert_allclose(remote.score(SAMPLES)["reward"], expected, rtol=0, atol=1e-5)
    assert len(np.unique(expected)) == 3
    assert len(server.requests) == 2
    assert all(body["model"] == "name" for _, body, _ in server.requests)
    if api == "vllm":
        assert all(body["use_activation"] is False for _, body, _ in server.requests)


@pytest.mark.parametrize("api", CONTRACTS)
def test_strings_are_prompt_and_completion(api: str, serve: Callable[..., Server]) -> None:
    server = serve(api)
    found = RemoteRewardModel(server.address, api, concurrency=1).score(SAMPLES)["reward"]
    expected = [len(p) + len(a) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    assert found.tolist() == expected
    ((_, body, _),) = server.requests
    if api == "openrlhf":
        assert body["prompts"] == PROMPTS
        assert body["query"] == [p + a for p, a in zip(PROMPTS, ANSWERS, strict=True)]


def test_it_is_asked_as_openrlhf_asks_our_own_server(tmp_path: Path) -> None:
    """Both sides of `/get_reward` are ours, and were written after OpenRLHF's."""
    from serving.conftest import running

    from ctrlreward.serving.application import create_app
    from ctrlreward.serving.limits import ServeOptions
    from ctrlreward.serving.trainer_options import TrainerRoutes
    from ctrlreward.serving.trainer_routes import trainer_routes

    def length(completions: list[str]) -> list[float]:
        return [float(len(text)) for text in completions]

    reward = Reward({"length": FunctionScorer(length, pointwise=True)})
    app = create_app(reward, ServeOptions(), [trainer_routes(TrainerRoutes(-1.0), reward)])
    with running(app) as server:
        found = RemoteRewardModel(server.url, "openrlhf").score(SAMPLES)["reward"]
    assert found.tolist() == [len(answer) for answer in ANSWERS]


def test_several_outputs_in_a_reward(serve: Callable[..., Server]) -> None:
    server = serve("vllm", lambda text: [float(len(text)), 1.0])
    remote = RemoteRewardModel(server.address, outputs=("helpful", "verbose"))
    reward = Reward({"h": (remote["helpful"], 1.0), "v": (remote["verbose"], 2.0)})
    assert reward(ANSWERS).total.tolist() == [len(answer) + 2.0 for answer in ANSWERS]
    assert len(server.requests) == 1  # for both scores
    weights = {"helpful": 1.0, "verbose": -2.0}
    one = RemoteRewardModel(server.address, outputs=("helpful", "verbose"), weights=weights)
    assert one["reward"](ANSWERS).tolist() == [len(answer) - 2.0 for answer in ANSWERS]


def test_texts_without_a_value_are_nan(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = serve("vllm", lambda text: [None if "cold" in text else 1.0])
    scored = RemoteRewardModel(server.address).score([*ANSWERS, " "])["reward"]
    assert np.isnan(scored).tolist() == [False, True, False, True]
    assert f"texts[1] got no value of {server.address}, it is NaN" in caplog.text
    ((_, body, _),) = server.requests
    assert len(body["input"]) == 3  # the empty text is not sent


def test_the_key_is_of_the_environment(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    remote = RemoteRewardModel(server.address, key_variable="RM_KEY")
    with pytest.raises(ValueError, match="RM_KEY does not contain an API key"):
        remote.score(ANSWERS)
    monkeypatch.setenv("RM_KEY", "secret")
    remote.score(ANSWERS)
    assert server.requests[0][2] == "Bearer secret"
    assert b"secret" not in pickle.dumps(remote)


@pytest.mark.parametrize("first", [(503, b""), (429, b"slow"), (200, b'{"data": cut')])
def test_a_busy_server_is_asked_again(first: Any, serve: Callable[..., Server]) -> None:
    server = serve()
    server.first = [first, first]
    assert RemoteRewardModel(server.address).score(ANSWERS)["reward"].tolist() == [
        len(answer) for answer in ANSWERS
    ]
    assert len(server.requests) == 3


def test_a_server_that_is_down_is_given_up(serve: Callable[..., Server]) -> None:
    server = serve()
    address = server.address
    server.shutdown()
    server.server_close()
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=rf"the reward model at {address} does not answer"):
        RemoteRewardModel(address, patience=0.5).score(ANSWERS)
    assert time.monotonic() - started < 10


def test_a_slow_reply_is_a_timeout(serve: Callable[..., Server]) -> None:
    server = serve("vllm", lambda text: time.sleep(1) or [1.0])
    with pytest.raises(ConnectionError, match="ReadTimeout"):
        RemoteRewardModel(server.address, timeout=0.2, patience=0).score(ANSWERS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "the reply is not JSON: <html>"),
        (b'{"data": [{"probs": [1.0]}]}', r"1 rows of \[1\] values, must be 3 rows of 1"),
        (b'{"data": [{"probs": [1.0, 2.0]}]}', r"1 rows of \[2\] values"),
        (b'{"data": [{"embedding": [1.0]}]}', "is not one of api = 'vllm'"),
        (b'{"data": [{"probs": ["high"]}]}', "is not one of api = 'vllm'"),
        (b"[]", "is not one of api = 'vllm'"),
    ],
)
def test_another_reply_is_an_error(
    content: bytes, message: str, serve: Callable[..., Server]
) -> None:
    server = serve()
    server.first = [(200, content)]
    with pytest.raises(ConnectionError, match=message):
        RemoteRewardModel(server.address).score(ANSWERS)
    assert len(server.requests) == 1


def test_a_rejected_request_is_not_repeated(serve: Callable[..., Server]) -> None:
    server = serve()
    server.first = [(400, b'{"message": "the model has no pooler"}')]
    with pytest.raises(ConnectionError, match=r"400, .*the model has no pooler"):
        RemoteRewardModel(server.address).score(ANSWERS)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "host:8000"}, "address must be a URL such as 'http://127.0.0.1:8000'"),
        ({"api": "tgi"}, "api must be one of vllm, vllm_pooling, sglang, openrlhf, got 'tgi'"),
        ({"template": "chat"}, "is rendered by the model's tokenizer, but tokenizer is None"),
        ({"api": "openrlhf", "tokenizer": "t"}, "/get_reward takes strings"),
        ({"weights": {"help": 1.0}}, "each key of weights must be one of reward, got 'help'"),
        ({"outputs": ()}, "outputs must be one or more distinct names"),
        ({"patience": -1}, "patience must be 0 seconds or more, got -1"),
        ({"batch_texts": 0}, "batch_texts must be positive, got 0"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RemoteRewardModel(**{"address": "http://127.0.0.1:9", **options})
