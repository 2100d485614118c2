"""Command `report`: what it says of runs, and its page in a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlreward.commands import report

NOUNS = ("soup", "room", "film", "train", "band", "coat", "tour", "cake")
VERBS = ("pleased", "surprised", "tired", "charmed", "bored", "helped", "warmed", "lifted")
HOSTILE = (
    "<script>alert(1)</script>",
    "</template></script><!-- <b>",
    "שלום עולם, זה מרק טוב",
    "a" * 50_000,
    "before\0after\u2028line",
    "",
)


def write_run(
    folder: Path,
    texts: Callable[[int, int, np.random.Generator], str],
    scores: Callable[[int, str], dict[str, float]],
    steps: tuple[int, ...] = (10, 20, 30, 40),
    prompts: int = 24,
    summary: bool = False,
    name: str = "score",
) -> Path:
    """Write the log and the samples of a run; scores of a step and a text."""
    rng = np.random.default_rng(0)
    (folder / "samples" / name).mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as log:
        for place, step in enumerate(steps):
            rows = []
            for i in range(prompts):
                prefix = f"The {NOUNS[i % len(NOUNS)]} number {i}"
                text = f"{prefix} {texts(place, i, rng)}"
                rows.append({"text": text, "prefix": prefix, "label": ("good", "bad")[i % 2],
                             "scores": scores(place, text)})  # fmt: skip
            lines = [json.dumps(row).replace("NaN", "null") for row in rows]
            (folder / "samples" / name / f"step={step:06d}.jsonl").write_text("\n".join(lines) + "\n")
            means = {
                f"{name}/{key}": float(np.mean([row["scores"][key] for row in rows]))
                for key in rows[0]["scores"]
            }
            total = next(iter(means.values())) + 0.01 * place
            row = {"step": step, "reward/total": total, "policy/kl": 0.1 * place, **means}
            log.write(json.dumps(row) + "\n")
    if summary:
        directions = {f"{name}/{key}": "max" for key in scores(0, "a")}
        content = {"selection": {"monitor": f"{name}/sentiment", "constraints": {}},
                   "directions": directions, "steps": steps[-1], "stopped_by": "max_steps",
                   "seconds": {"train": 12.0}}  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(content))
    return folder


def varied(place: int, i: int, rng: np.random.Generator) -> str:
    first, second = (VERBS[j] for j in rng.choice(len(VERBS), 2, replace=False))
    return f"{first} my {NOUNS[rng.integers(8)]} and {second} each {NOUNS[rng.integers(8)]} of ours"


def gamed_run(folder: Path) -> Path:
    """The reward rises since the texts collapse to one phrase, which an accuracy does not like."""

    def texts(place: int, i: int, rng: np.random.Generator) -> str:
        honest = varied(place, i, rng)
        return "is very good, very good" if rng.random() < 0.33 * place else honest

    def scores(place: int, text: str) -> dict[str, float]:
        praised = "very good" in text
        noise = (len(text) * 7919 % 100) / 1000
        return {"sentiment": (0.9 if praised else 0.4) + noise,
                "accuracy": (0.3 if praised else 0.7) + noise}  # fmt: skip

    return write_run(folder, texts, scores, summary=True)


def honest_run(folder: Path) -> Path:
    def scores(place: int, text: str) -> dict[str, float]:
        noise = (len(text) * 7919 % 100) / 1000
        return {"sentiment": 0.4 + 0.1 * place + noise, "accuracy": 0.6 + 0.02 * place + noise}

    return write_run(folder, varied, scores, summary=True)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """Return a function of arguments: exit status, output, errors and the page."""

    def call(*arguments: Any) -> tuple[int, str, str, str]:
        status, page = 0, tmp_path / "page.html"
        try:
            report.run([*map(str, arguments), "-o", str(page)])
        except SystemExit as end:
            status = int(end.code or 0)
        captured = capsys.readouterr()
        html = page.read_text(encoding="utf-8") if page.exists() else ""
        return status, captured.out, captured.err, html

    return call


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def test_a_gamed_run_says_so_and_by_what(call: Any, tmp_path: Path) -> None:
    status, out, _, html = call(gamed_run(tmp_path / "run"))
    assert status == 0
    assert "the reward was probably gamed" in out
    verdict = html[html.index('class="verdict') : html.index("Scores at validation")]
    assert "probably gamed" in verdict
    assert "“very good”" in verdict or "very good" in verdict
    assert "score/accuracy went from" in verdict
    marks = data_of(html)["runs"][0]["marks"]
    assert [mark["kind"] for mark in marks].count("alarm") == 1


def test_an_honest_run_has_no_alarm(call: Any, tmp_path: Path) -> None:
    _, out, _, html = call(honest_run(tmp_path / "run"))
    assert "It worked, and no alarm was raised. Take step 40" in out
    assert "gamed" not in html[: html.index("<script")]
