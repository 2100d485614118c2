"""The served reward under a fuzzer of its OpenAPI schema, and under bodies of other kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from fakes import Letters
from schemathesis.engine import events, from_schema

from ctrlreward import Reward
from ctrlreward.serving.get_reward import GetReward

SECRET = "my secret "  # begins each text of a request, and must not be in a log


def start(live_server: Callable[..., Any], token: str | None = None) -> Any:
    """Return a server with all routes."""
    letters = Letters()
    reward = Reward({"letters": (letters["letters"], 0.3), "length": (letters["length"], 0.1)})
    return live_server(reward, token=token, get_reward=GetReward(-1.0, columns={"labels": "label"}))


def marked(value: Any) -> Any:
    """Return a body whose texts begin with the secret; a prefix stays the beginning of its text."""
    if isinstance(value, str):
        return SECRET + value
    if isinstance(value, list):
        return [marked(item) for item in value]
    return {k: marked(v) for k, v in value.items()} if isinstance(value, dict) else value


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    case.body = marked(case.body)


def test_no_request_of_the_fuzzer_breaks_the_schema(
    live_server: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = start(live_server, token="s3cret")
    settings: dict[str, Any] = {
        "generation": {"max-examples": 10, "deterministic": True, "no-shrink": True},
        "headers": {"Authorization": "Bearer s3cret"},
        "phases": {"stateful": {"enabled": False}},
        # The schema can't say that a prefix begins its text.
        "checks": {"positive_data_acceptance": {"enabled": False}},
    }
    config = schemathesis.Config.from_dict(settings)
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    routes, found, sent = set(), [], 0
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            found.append(repr(event))
        if isinstance(event, events.ScenarioFinished):
            routes.add(event.recorder.label)
            sent += len(event.recorder.cases)
            for each, checks in event.recorder.checks.items():
                case = event.recorder.cases[each].value
                failed = [check.failure_info for check in checks if check.failure_info]
                found += [f"{case.method} {case.path} {case.body}: {f.failure}" for f in failed]
    assert found == []
    assert sent > 100
    gets = {f"GET /{name}" for name in ("health", "ready", "metrics")}
    assert routes == {"POST /score", "POST /get_reward", *gets}
    assert any("POST /score" in line for line in caplog.messages)
    assert SECRET not in caplog.text


VALUES = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "open": '{"a":' * 100_000,
    "nested": "[" * 900 + "]" * 900,
    "object": '{"a":' * 300 + "1" + "}" * 300,
    "integer": "9" * 5000,
    "large": "-" + "9" * 4000,
    "nan": "NaN",
    "infinity": "-Infinity",
    "exponent": "1e999",
    "surrogate": r'"my secret \ud800"',
    "null": "null",
}
JSON = {"Content-Type": "application/json"}
BODIES = [
    ("/score", "%s"),
    ("/score", '{"samples": [{"text": %s, "label": "o", "reference": %s}]}'),
    ("/score", '{"samples": [{"text": "soup", "label": {"tone": %s}}]}'),
    ("/get_reward", '{"query": [%s], "prompts": ["x"], "labels": [%s]}'),
]


def test_no_json_breaks_a_route(
    live_server: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What is not JSON, more than a parser takes, or no text of ours, is an error of the client."""
    caplog.set_level("INFO")
    client = start(live_server).client
    for route in ("/score", "/get_reward"):
        for damaged in (b"", b"\xff", b'{"query": [}'):
            assert client.post(route, content=damaged, headers=JSON).status_code in (400, 422)
    for route, body in BODIES:
        for name, value in VALUES.items():
            content = body.replace("%s", value).encode()
            reply = client.post(route, content=content, headers=JSON)
            sent = f"{route} {body} {name}: {reply.status_code} {reply.text[:200]}"
            malformed = name in ("deep", "open", "integer")
            assert reply.status_code in ((400, 422) if malformed else (200, 422)), sent
            json.loads(reply.content, parse_constant=pytest.fail)
            is_text = '"text": %s' in body or route == "/get_reward"
            if is_text and reply.is_error:
                assert "my secret" not in reply.text, sent
    assert "my secret" not in caplog.text
