"""Figures of papers beside ours in `ctrlreward meta-eval`."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ctrlreward.cli import main
from ctrlreward.recipes.papers.meta_eval.published_figures import (
    PUBLISHED,
    best_model,
    lacking,
    published,
)

# Tables of which the list of published correlations has nothing.
BESIDES = ("CTC Table F.5", "CTC Table F.6")


def test_the_figures_are_those_of_the_papers(papers_dir: Path) -> None:
    path = papers_dir / "published_correlations.csv"
    names = ("file", "score", "level", "model", "source", "statistic", "value")
    with open(path, encoding="utf-8", newline="") as opened:
        rows = [
            tuple(float(row[name]) if name == "value" else row[name] for name in names)
            for row in csv.DictReader(opened)
        ]
    ours = [tuple(getattr(figure, name) for name in names) for figure in PUBLISHED]
    assert len(ours) == 423
    assert not Counter(rows) - Counter(ours)
    besides = {(f.source, f.score, f.rating, f.value) for f in PUBLISHED if f.source in BESIDES}
    assert Counter(ours).total() - len(rows) == len(besides)
    assert besides == {
        ("CTC Table F.5", "groundedness", "engaging", 0.5082),
        ("CTC Table F.5", "engagingness", "uses_knowledge", 0.5323),
        ("CTC Table F.6", "word_length", "understandable", -0.0525),
        ("CTC Table F.6", "word_length", "natural", -0.0342),
        ("CTC Table F.6", "word_length", "maintains_context", 0.0901),
        ("CTC Table F.6", "word_length", "overall", 0.2526),
    }


def test_the_best_model_of_a_kind_is_no_baseline_and_no_ablation() -> None:
    senti = published("data_senti.txt", "coherence")
    assert best_model(senti) == "CTRLEval PEGASUS-568M"
    assert best_model(published("data_topic.txt", "attribute_relevance")) == best_model(senti)
    chat = published("persona_chat.json", "engagingness", "engaging", "sample")
    own = {f.model: f.value for f in chat if f.statistic == "pearson" and "CTC" in f.model}
    assert best_model(chat) == max(own, key=own.__getitem__)
    for kind in ("CTC E", "CTC D", "CTC R"):
        alike = {model: value for model, value in own.items() if model.startswith(kind)}
        assert best_model(chat, kind) == max(alike, key=alike.__getitem__)
    assert best_model(chat, "no such kind") == best_model(chat)
    baselines = [f for f in chat if "baseline" in f.model]
    assert best_model(baselines) == "word length (baseline)"
    assert best_model(baselines, "CTC E", strict=True) is None


def test_a_figure_is_there_or_named_as_lacking() -> None:
    """Of the topics' baselines, and of Table F.5, none is there that is said to be lacking."""
    (topics,) = lacking("data_topic.txt")
    assert "63" in topics
    assert {f.model.partition(" ")[0] for f in published("data_topic.txt")} == {"CTRLEval"}
    (chat,) = lacking("elsewhere/persona_chat.json")
    assert "of the 12 figures of Table F.5 all except E's two" in chat
    assert [f.model for f in published("persona_chat.json") if "F.5" in f.source] == ["CTC E"] * 2
    assert lacking("human_ratings_yelp.csv") == lacking("yelp.json") != ()
    assert lacking("data_senti.txt") == lacking("mine.jsonl") == ()


def test_li2018_stands_beside_transfers_of_other_texts() -> None:
    figures = published("human_ratings_yelp.csv", "preservation", "topic", "system")
    assert {figure.file for figure in figures} == {"mir2019 yelp"}
    assert len(figures) == 15
    assert published("mine.jsonl") == ()


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that evaluates a column of a file with the name of a published one."""
    monkeypatch.chdir(tmp_path)
    rows = [{"engagingness": i * 7 % 11, "engaging": i % 4, "by": "abc"[i % 3]} for i in range(12)]
    Path("persona_chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["meta-eval", "rated", "persona_chat.jsonl", "--ratings=[engaging]"]
    return [*command, "--metrics=[engagingness]", "--system=by", "--resamples=20"]


def of_level(printed: str, level: str) -> str:
    """Return the table of one level."""
    return printed.split(f"{level} level")[1].split("system level")[0]


def test_the_best_or_all_models_are_printed(
    chat: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*chat, "--output=found.json"])
    best = capsys.readouterr().out
    main([*chat, "--published=all"])
    everything = capsys.readouterr().out
    assert "--published all shows all of its figures that the package has" in best
    assert "--published all" not in everything
    assert "not in this package: the baselines of Tables F.1 and F.2" in everything
    assert "not in this package" not in best
    for level in ("sample", "system"):
        figures = published("persona_chat.json", "engagingness", "engaging", level)
        shown = best_model(figures)
        table, every = (of_level(printed, level) for printed in (best, everything))
        for figure in figures:
            assert f"{figure.value:.4f}" in every
            assert figure.model in every
            assert (figure.model in table) == (figure.model == shown), figure
        rows = json.loads(Path("found.json").read_text())["correlations"]
        (row,) = (row for row in rows if row["level"] == level)
        assert [figure["value"] for figure in row["published"]] == [f.value for f in figures]


def test_an_unknown_choice_names_the_known(chat: list[str], fails: Callable[..., str]) -> None:
    assert "best" in fails(*chat, "--published=most")
