"""`ctrlreward serve` as a process, and its errors."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fakes import lengths, letters_reward
from warm_python import WarmProcess

from ctrlreward import CTRLEval, Distinct, FunctionScorer, Perplexity, RemoteReward, Reward
from ctrlreward.cli import main
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.serving.application import create_app

BARE = "class_path: fakes.letters_reward\ninit_args: {seconds: %s}\n"
RECIPE = "model: {init_args: {reward: {class_path: fakes.letters_reward}}}"
JSON = {"Content-Type": "application/json"}


class Server:
    """A server process."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.output, self.errors = folder / "out", folder / "err"
        command = ["-m", "ctrlreward", "serve", *arguments, "--port", "0"]
        self.process = WarmProcess(command, self.output, self.errors)

    def ready(self) -> str:
        """Wait until the models are loaded; return the address."""
        while not (found := re.search(r"^serving on (\S+)\nready$", self.printed(), re.MULTILINE)):
            assert self.process.wait(0.05) is None, self.errors.read_text()
        return found[1]

    def printed(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def end(self, signal_: int = signal.SIGTERM) -> tuple[int | None, str]:
        self.process.end(signal_)
        return self.process.wait(120), self.errors.read_text()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*arguments: object) -> Server:
        servers.append(Server(tmp_path, *arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.end(signal.SIGKILL)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Function that writes the file of a reward."""

    def write(content: str) -> Path:
        path = tmp_path / "reward.yaml"
        path.write_text(content)
        return path

    return write


@pytest.fixture
def bare(written: Callable[[str], Path]) -> Path:
    return written(BARE % 0.02)


def ask(url: str, i: int) -> Any:
    """Ask for the reward of a text of its own; return None if the connection fails."""
    try:
        body = {"samples": [{"text": "soup" * (i + 1), "label": "o"}]}
        with httpx2.Client(timeout=60, verify=False) as client:  # loads no certificates
            return client.post(f"{url}/score", json=body)
    except httpx2.TransportError:
        return None


def total(i: int) -> float:
    return float(letters_reward()(["soup" * (i + 1)], labels="o").total[0])


@pytest.mark.parametrize("content", [BARE % 0.0, RECIPE])
def test_the_reward_is_found_in_the_file(written: Callable[[str], Path], content: str) -> None:
    reward = build_reward(written(content))
    assert list(reward.components) == ["letters", "length"]
    assert reward(["soup"], labels="o").total == letters_reward()(["soup"], labels="o").total


SHORT = """
components:
  relevance: {scorer: CTRLEval, score: attribute_relevance, weight: 2, model: %s, task: sentiment}
  fluency: {scorer: Perplexity, score: log_likelihood, weight: 0.5, options: {model: %s}}
  diversity: {scorer: Distinct, score: distinct_2}
  length: {function: fakes.lengths, pointwise: true}
given: {diversity: [relevance, 0.1]}
aggregate: weighted
"""


def test_components_as_a_reader_of_the_page_writes_them(
    written: Callable[[str], Path], tiny_llama: Callable[[str], str]
) -> None:
    model = tiny_llama(" abcdefghijklmnopqrstuvwxyz.")
    ctrleval, perplexity = CTRLEval(model, "sentiment"), Perplexity(model)
    expected = Reward(
        {
            "relevance": (ctrleval["attribute_relevance"], 2.0),
            "fluency": (perplexity["log_likelihood"], 0.5),
            "diversity": Distinct()["distinct_2"],
            "length": FunctionScorer(lengths, pointwise=True),
        },
        given={"diversity": ("relevance", 0.1)},
    )
    texts = {"texts": ["good soup.", "a bad room"], "labels": ["positive", "negative"]}
    reward = build_reward(written(SHORT % (model, model)))
    assert reward(texts).total.tolist() == expected(texts).total.tolist()


@pytest.mark.parametrize("component", ["%s", "{scorer: %s}", "{class_path: %s}", "[%s, 1.0]"])
def test_a_scorer_is_a_class_of_scorers(
    written: Callable[[str], Path], tmp_path: Path, component: str
) -> None:
    """No other function is called."""
    for function in ("fakes.lengths", "os.getcwd"):
        with pytest.raises(ValueError, match="x"):
            build_reward(written(f"components: {{x: {component % function}}}"))


GPT2 = SHORT % ("gpt2", "gpt2")
WRONG = [
    ("soup: 3\n", [], "components"),
    ("class_path: ctrlreward.scorers.Distinct\n", [], "Distinct"),
    (BARE % 0, ["--waiting", "0"], "waiting"),
    (GPT2.replace("aggregate:", "agregate:"), [], "agregate"),
    (GPT2.replace("weight: 2", "wieght: 2"), [], "wieght"),
]


@pytest.mark.parametrize(("content", "options", "message"), WRONG)
def test_a_mistake_is_an_error(
    written: Callable[[str], Path],
    fails: Callable[..., str],
    content: str,
    options: list[str],
    message: str,
) -> None:
    printed = fails("serve", written(content), "--port", "0", *options)
    assert "error: " in printed
    assert message in printed


def test_a_port_that_can_not_be_had_is_told(bare: Path, fails: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 70000, -1):
            assert str(port) in fails("serve", bare, f"--port={port}")
    assert "error" in fails("serve", bare, "--host", "nowhere.invalid")


def test_a_function_of_the_working_folder_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    Path("brief_words.py").write_text("def brevity(texts):\n    return [-len(t) for t in texts]\n")
    Path("own.yaml").write_text("components: {brevity: {function: brief_words.brevity}}")
    assert build_reward(Path("own.yaml"))(["abc", "d"]).total.tolist() == [-3, -1]


def test_a_reward_that_can_not_be_loaded_ends_the_server(
    written: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = written("class_path: fakes.unloadable_reward\n")
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(path), "--port", "0"])
    assert ended.value.code == 1
    assert "No such folder: models/rater" in caplog.text


def test_sigterm_finishes_what_was_accepted_and_logs_hold_no_text(
    bare: Path, serve: Callable[..., Server]
) -> None:
    server = serve(bare, "--get_reward.failed_score=-1.0", "--get_reward.columns.labels=label")
    url = server.ready()
    secret = "Rosamund's diagnosis"
    samples: list[dict[str, str]] = [
        {"text": secret, "label": "o"},
        {"text": secret, "label": secret},
        {"text": "broken", "label": secret},
        {"text": f"{secret}\ud800", "label": "o"},
        {"text": secret, "prefix": "soup", "label": "o"},
        {"text": secret, secret: "o"},
    ]
    for sample in samples:
        # httpx encodes as UTF-8, which has no unpaired surrogate.
        content = json.dumps({"samples": [sample]})
        httpx2.post(f"{url}/score", content=content, headers=JSON, timeout=60, verify=False)
    httpx2.post(f"{url}/score", content=secret, headers=JSON)
    for label in ("o", secret):
        queries = [f"{secret}soup", ""]
        body = {"query": queries, "prompts": [secret, ""], "labels": [label, "o"]}
        reply = httpx2.post(f"{url}/get_reward", json=body)
        if label == "o":
            assert reply.json()["rewards"] == [total(0), -1.0]
    with ThreadPoolExecutor(32) as threads:
        replies = [threads.submit(ask, url, i) for i in range(160)]
        replies[20].result()
        status, errors = server.end(signal.SIGTERM)
    assert status in (0, -signal.SIGTERM)
    answered = {i: r.result() for i, r in enumerate(replies) if r.result() is not None}
    assert len(answered) >= 21
    for i, reply in answered.items():
        if reply.status_code != 503:  # which came on a connection that was open
            assert reply.json()["results"][0]["total"] == total(i)
    for word in ("broken", "soup", *secret.split()):
        assert word not in errors


def test_sigterm_ends_a_server_whose_scorer_hangs(
    written: Callable[[str], Path], serve: Callable[..., Server]
) -> None:
    server = serve(written("class_path: fakes.hanging_reward\n"), "--grace", "1")
    url = server.ready()
    content = json.dumps({"samples": [{"text": "hold", "label": "o"}]})
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(
            httpx2.post, f"{url}/score", content=content, headers=JSON, timeout=30
        )
        while "ctrlreward_pending_requests 1.0" not in httpx2.get(f"{url}/metrics").text:
            assert not held.done(), held.result().text
        status, errors = server.end(signal.SIGTERM)
        assert held.exception() or held.result().status_code == 500
    assert status
    assert "hold" not in errors


def test_other_machines_need_a_token(
    bare: Path,
    serve: Callable[..., Server],
    fails: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for host in ("0.0.0.0", "::"):
        assert "CTRLREWARD_TOKEN" in fails("serve", bare, "--host", host, "--port", "0")
    monkeypatch.setenv("CTRLREWARD_TOKEN", "s3cret")
    url = serve(bare, "--host", "0.0.0.0").ready()
    assert httpx2.get(f"{url}/metrics", verify=False).status_code == 401


@pytest.mark.skipif(not socket.has_ipv6, reason="the machine has no IPv6")
def test_this_machine_needs_none_by_ipv6(bare: Path, serve: Callable[..., Server]) -> None:
    url = serve(bare, "--host", "::1").ready()
    assert httpx2.get(f"{url}/metrics", verify=False).status_code == 200


@pytest.mark.parametrize("token", ["", "t\u00f6k", "a b", "a\nb", "a\x00b"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        create_app(letters_reward(), token=token)
    if token:  # the client's default
        with pytest.raises(ValueError, match="token"):
            RemoteReward("http://127.0.0.1:9", token).load()
