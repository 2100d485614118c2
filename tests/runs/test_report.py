"""Command `report`: what it says of runs, and its page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlreward.runs import report, report_contents
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.report_curves import drawing
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule

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
) -> Path:
    """Write the log and the samples of a run of four validations; scores of a place and a text."""
    rng = np.random.default_rng(0)
    (folder / "samples" / "score").mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as log:
        for place, step in enumerate((10, 20, 30, 40)):
            rows = []
            for i in range(24):
                prefix = f"The {NOUNS[i % len(NOUNS)]} number {i}"
                text = f"{prefix} {texts(place, i, rng)}"
                rows.append({"text": text, "prefix": prefix, "label": ("good", "bad")[i % 2],
                             "scores": scores(place, text)})  # fmt: skip
            lines = [json.dumps(row) + "\n" for row in rows]
            (folder / "samples" / "score" / f"step={step:06d}.jsonl").write_text("".join(lines))
            means = {
                f"score/{key}": float(np.mean([row["scores"][key] for row in rows]))
                for key in rows[0]["scores"]
            }
            total = next(iter(means.values())) + 0.01 * place
            row = {"step": step, "reward/total": total, "policy/kl": 0.1 * place, **means}
            log.write(json.dumps(row) + "\n")
    directions = {f"score/{key}": "max" for key in scores(0, "a")}
    rules: dict[str, Any] = {"BestRule": {"monitor": "score/sentiment"}}
    if "score/accuracy" in directions:
        rules["AlarmRule"] = asdict(AlarmRule("reward/total", {"score/accuracy": "max"}))
    noted = {"rules": rules, "directions": directions}
    (folder / "decisions.json").write_text(json.dumps(noted))
    content = {"steps": 40, "stopped_by": "max_steps", "seconds": {"train": 12.0}}
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

    return write_run(folder, texts, scores)


def honest_run(folder: Path) -> Path:
    def scores(place: int, text: str) -> dict[str, float]:
        noise = (len(text) * 7919 % 100) / 1000
        return {"sentiment": 0.4 + 0.1 * place + noise, "accuracy": 0.6 + 0.02 * place + noise}

    return write_run(folder, varied, scores)


@pytest.fixture
def call(called: Callable[..., tuple[int, str, str]], tmp_path: Path) -> Callable[..., Any]:
    """Return a function of arguments: exit status, output, errors and the page."""

    def call(*arguments: Any) -> tuple[int, str, str, str]:
        page = tmp_path / "page.html"
        said = called("report", *arguments, "-o", page)
        return (*said, page.read_text(encoding="utf-8") if page.exists() else "")

    return call


def found_in(run: Path, *options: str) -> dict[str, Any]:
    arguments = report.parser().parse_args([str(run), *options])
    return report_contents.contents(read_stored_run(run), arguments)


def test_a_gamed_run_says_so_and_by_what(call: Any, tmp_path: Path) -> None:
    status, out, _, html = call(gamed_run(tmp_path / "run"))
    assert status == 0
    assert "the reward was probably gamed" in out
    verdict = html[html.index('class="verdict') : html.index("<h2>")]
    for told in ("probably gamed", "very good", "score/accuracy"):
        assert told in verdict
    assert verdict.count("probably gamed") == 1
    assert "▲ alarm at step" in html


def test_an_honest_run_has_no_alarm(call: Any, tmp_path: Path) -> None:
    _, out, _, html = call(honest_run(tmp_path / "run"))
    assert "It worked, and no alarm was raised. Take step 40" in out
    assert "gamed" not in html


def test_the_alarm_that_the_run_logged_counts(call: Any, tmp_path: Path) -> None:
    """A run may know more than its files; its own alarm is not overruled."""
    run = honest_run(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[2] |= {"guard/alarm": 1.0, "guard/p_value": 0.003}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, _, html = call(run)
    assert "From step 30 on the reward was probably gamed" in out
    assert "the run logged guard/alarm = 1 (p = 0.003)" in html


def test_the_rules_are_those_that_the_callbacks_noted(call: Any, tmp_path: Path) -> None:
    run = gamed_run(tmp_path / "run")
    rules = [
        BestRule("score/sentiment", constraints={"score/accuracy": (0.65, None)}),
        StopRule("score/accuracy", patience=1),
        AlarmRule("score/sentiment", {"score/accuracy": "max"}),
        ParetoRule({"score/absent": "max", "score/accuracy": "max"}),
    ]
    noted = {"rules": {type(rule).__name__: asdict(rule) for rule in rules}}
    (run / "decisions.json").write_text(json.dumps(noted))
    found = found_in(run)
    assert found["origin"] == "rules of the run"
    assert found["decisions"]["step"] == 10
    checks = [each["constraints"]["score/accuracy"] for each in found["decisions"]["validations"]]
    assert [check["met"] for check in checks] == [True, False, False, False]
    kinds = {mark["kind"]: mark["step"] for mark in found["marks"]}
    assert (kinds["best"], kinds["stop"], kinds["alarm"]) == (10, 20, 20)
    assert any("score/absent" in what for what in found["missing"])
    _, out, _, _ = call(run)
    assert "Take step 10, which is not on disk, from before the alarm" in out
    # Options replace them.
    _, _, _, html = call(run, "--maximise", "score/accuracy")
    assert "By rules of the command line" in html


def test_a_report_says_what_is_missing(call: Any, tmp_path: Path) -> None:
    """Of a run that was killed while it wrote its log, and whose texts are gone."""
    run = gamed_run(tmp_path / "run")
    log = run / "metrics.jsonl"
    log.write_text(log.read_text()[:-40])
    (run / "summary.json").unlink()
    shutil.rmtree(run / "samples")
    status, _, _, html = call(run)
    assert status == 0
    assert "Missing from this report" in html
    assert "BeforeAfter" in html
    assert "samples/" in html


def test_a_mistake_in_a_report_is_named(fails: Any, tmp_path: Path) -> None:
    run = gamed_run(tmp_path / "run")
    assert "nowhere" in fails("report", tmp_path / "nowhere")
    assert "score/sentimnt" in fails("report", run, "--maximise", "score/sentimnt")
    assert not list(run.glob("*.html"))


@pytest.mark.parametrize(
    ("judges", "sentence"),
    [
        ({}, "It worked, and no held-out score was watched."),
        ({"fail_rate": 0.5}, "sentiment improved, but fail_rate got worse"),
        ({"fluency": 0.0}, "It worked."),
        ({"fluency": -0.2}, "sentiment improved, but fluency got worse."),
    ],
)
def test_the_verdict_on_texts_before_and_after(
    tmp_path: Path, judges: dict[str, float], sentence: str
) -> None:
    """The texts after training are of the last step, and the log selects the first."""
    falling = write_run(tmp_path / "run", varied, lambda place, _: {"sentiment": -place})
    log = falling / "metrics.jsonl"
    log.write_text(log.read_text().replace("reward/total", "policy/total"))

    def changed(by: float) -> dict[str, Any]:
        return {"difference": by, "difference_ci95": [by - 0.1, by + 0.1]}

    summary = json.loads((falling / "summary.json").read_text()) | {
        "best_checkpoint": "the last step",
        "before": {"sentiment": 0.5, "fail_rate": 0.0},
        "after": {"sentiment": 0.5, "fail_rate": judges.pop("fail_rate", 0.0)},
        "score": "sentiment",
        "judges": {name: changed(by) for name, by in judges.items()},
        **changed(0.2),
    }
    (falling / "summary.json").write_text(json.dumps(summary))
    verdict = found_in(falling)["verdict"]
    assert verdict["sentence"].startswith(sentence)
    assert verdict["sentence"].endswith(" Take step 10, which is not on disk.")
    assert verdict["details"][-1] == "The texts after training are of step 40, not of step 10."


def test_growth_of_phrases_agrees_with_a_plain_count(tmp_path: Path) -> None:
    run = gamed_run(tmp_path / "run")
    found = found_in(run)
    files = (run / "samples" / "score" / f"step=0000{step}.jsonl" for step in (10, 40))
    first, last = (
        [json.loads(line)["text"].lower() for line in file.read_text().splitlines()]
        for file in files
    )
    assert found["phrases"][0]["phrase"] == "is very good very good"
    for each in found["phrases"]:
        pattern = re.compile(r"\W+".join([rf"\b{word}\b" for word in each["phrase"].split()]))
        counts = [sum(bool(pattern.search(text)) for text in texts) for texts in (first, last)]
        assert each["first"] == pytest.approx(counts[0] / 24)
        assert each["last"] == pytest.approx(counts[1] / 24)


# The page


def hostile_run(folder: Path) -> Path:
    return write_run(
        folder,
        lambda place, i, rng: HOSTILE[(i + place) % len(HOSTILE)],
        lambda place, text: {"a<b": float(len(text) % 7)},
    )


def test_hostile_texts_are_only_text(call: Any, tmp_path: Path) -> None:
    """Without a script in the page, and as a parser of HTML reads it."""
    run = hostile_run(tmp_path / "run")
    file = run / "samples/score/step=000040.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    told = [{**row, "reasons": {"a<b": "Warm <b>words</b>."}} for row in rows]  # of a judge
    file.write_text("".join(json.dumps(row) + "\n" for row in told))
    read = PageText()
    read.feed(call(run)[3])
    assert not read.tags & {"script", "b", "template", "img", "link", "iframe", "a"}
    for text in ("<script>alert(1)</script>", "before\ufffdafter", "שלום עולם", "<b>words</b>."):
        assert any(part.endswith(text) or text in part for part in read.parts)
    assert max(map(len, read.parts)) < 6_000  # the style


class PageText(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def test_curves_are_inside_their_axes() -> None:
    """Also one point, one value, and a bound beyond the values, where nothing is shaded."""
    mark = {"step": 40, "kind": "best", "reason": "r"}
    for points in ([[10, 0.5]], [[10, 2.0, 1.0, 3.0], [20, None], [30, 2.0, 1.5, 2.5]]):
        svg = drawing({"points": points, "bounds": [-9.0, 2.2]}, [mark])
        xs, ys = zip(*((x, y) for x, y, _ in svg["dots"]), strict=True)
        assert len(xs) == sum(value is not None for _, value, *_ in points)
        assert all(46 <= x <= 348 for x in (*xs, svg["marks"][0][0]))
        assert all(22 <= y <= 178 for y in (*ys, *(y for y, _ in svg["y_ticks"])))
        assert 2 <= len(svg["y_ticks"]) <= 6
    (above, below) = svg["shaded"]
    assert above[0] < above[1]
    assert below[0] >= below[1]
    assert len(svg["band"].split()) == 4
    assert drawing({"points": [[1, None]], "bounds": []}, []) == {}
