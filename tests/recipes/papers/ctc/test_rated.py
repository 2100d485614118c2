"""CTC's tables on small files in the formats in which the paper's were published."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny_models import save_bert
from transformers import BertModel

from ctrlreward import Samples
from ctrlreward.functional.alignment import preservation
from ctrlreward.ratings.rated_files import read_rated
from ctrlreward.recipes.papers.ctc.rated import correlate_ratings, main, published, word_length
from ctrlreward.scorers.alignment import Alignment
from ctrlreward.scorers.base import Scores

HISTORIES = ["do you have a boat ?", "hi . what do you bake ?"]
RESPONSES = ["i sail every day", "yes", "bread , and my boat smells of it", "no idea , you ?"]
DIALOGS = [
    {
        "model": "abc"[i % 3],
        "response": f"{response}\n",
        "dialog_history": history,
        "fact": "your persona: i sail.\nyour persona: i bake bread.",
        "overall": str(1 + i % 5),
        "understandable": str(i % 2) + ".0",
        "natural": "2.3333333333",
        "maintains_context": i % 3,
        "engaging": 3 - i % 3,
        "uses_knowledge": i % 4 // 2,
    }
    for i, (history, response) in enumerate(product(HISTORIES, RESPONSES))
]
TRANSFERS = [
    {"model": model, "input_sent": source, "output_sent": text, "preservation": rating}
    for model, source, text, rating in [
        ("first", "the soup was cold .", "the soup was warm .", 4.333333333333333),
        ("second", "the soup was cold .", "great place .", 1.0),
        ("first", "nobody came to help .", "nobody came to harm .", 3.0),
        ("second", "nobody came to help .", "everybody came to help .", 4.0),
        ("third", "nobody came to help .", "i love the lake .", 1.6666666666666667),
        ("third", "the soup was cold .", "the soup .", 3.0),
    ]
]
DOCUMENTS = ["The mill burnt down on Friday. Nobody was hurt.", "The pool opens again in May."]
SUMMARIES = [
    {
        "system": f"M{i % 3}",
        "document": document,
        "summary": summary,
        "references": [f"{document[:i]} again.", "A mill burnt.", "Swimmers return in May."],
        "consistency": float(1 + i % 4),
        "relevance": 5 - i * 2 % 5,
        "fluency": 5.0,
    }
    for i, (document, summary) in enumerate(
        product(DOCUMENTS, ["A mill burnt down.", "The pool opens.", "Nobody came to the mill."]), 4
    )
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("bert"), BertModel, initializer_range=0.3)


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated(name: str, rows: list[dict[str, Any]], encoder: str, *options: str) -> dict[str, Any]:
    Path(name).write_text(json.dumps(rows))
    main([name, f"--model={encoder}", "--json=found.json", *options])
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


def ablation_rows(found: dict[str, Any], table: str) -> dict[str, dict[str, Any]]:
    return {row["variant"]: row for row in found["ablations"] if row["table"] == table}


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def ratings(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


def pearson(scores: Scores, values: list[float]) -> float:
    return float(stats.pearsonr(scores, values).statistic)


def consistency(model: str, texts: Sequence[str], sources: Sequence[str]) -> Scores:
    return Alignment(model, "consistency").score(texts, sources=sources)["consistency"]


def assert_relevance(
    found: dict[str, Any], reference: Scores, output: Scores
) -> dict[str, dict[str, Any]]:
    """Compare the ablations of relevance and of its two directions; return their rows."""
    rows = ablation_rows(found, "1")
    for variant, scores in {
        "r → y": reference,
        "y → x": output,
        "r → y + y → x": reference + output,
        "r → y × y → x": reference * output,
    }.items():
        expected = pearson(scores, ratings(SUMMARIES, "relevance"))
        assert rows[variant]["pearson"] == pytest.approx(expected, abs=1e-5)
    return rows


def test_every_rating_and_sum_beside_mean(encoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.txt").write_text("i\nsail\n")
    found = evaluated("topical_chat.json", DIALOGS, encoder, "--stop-words=words.txt")
    printed = capsys.readouterr().out
    samples = Samples(
        column(DIALOGS, "response"),
        histories=column(DIALOGS, "dialog_history"),
        contexts=column(DIALOGS, "fact"),
    )
    aspects = ("engagingness", "groundedness")
    options: dict[str, Any] = {"stop_words": "words.txt"}
    scores = dict(Alignment(encoder, aspects, **options).score(samples))
    means = Alignment(encoder, aspects, aggregate="mean", **options).score(samples)
    scores |= {f"{name}_mean": values for name, values in means.items()}
    scores["word_length"] = np.array([len(row["response"].split()) for row in DIALOGS], float)
    rows = {(row["rating"], row["score"]): row for row in found["ratings"]}
    assert len(rows) == 6 * 5
    for rating, (name, values) in product([*DIALOGS[0]][4:], scores.items()):
        if rating == "natural":  # one value in all rows
            assert rows[rating, name]["pearson"] is None
        else:
            expected = pearson(values, ratings(DIALOGS, rating))
            assert rows[rating, name]["pearson"] == pytest.approx(expected, abs=1e-5)
            assert f"{expected:.4f}" in printed
    ablated = {(r["table"], r["rating"], r["variant"]): r["pearson"] for r in found["ablations"]}
    names = {
        ("3", "engaging", "sum"): "engagingness",
        ("3", "engaging", "mean"): "engagingness_mean",
        ("F.5", "engaging", "eq. 5"): "engagingness",
        ("F.5", "engaging", "eq. 6"): "groundedness",
        ("F.5", "uses_knowledge", "eq. 6"): "groundedness",
        ("F.5", "uses_knowledge", "eq. 5"): "engagingness",
    }
    assert ablated.keys() == names.keys()
    for (table, rating, variant), name in names.items():
        expected = pearson(scores[name], ratings(DIALOGS, rating))
        assert ablated[table, rating, variant] == pytest.approx(expected, abs=1e-5)
        assert f"Table {table}: Pearson r, {rating}" in printed
    # CTC's Table 3 for TopicalChat, and its best model of each kind in Table F.3.
    table_3 = ablation_rows(found, "3")
    assert table_3["mean"]["published"] == {"CTC E": 0.3184, "CTC D": 0.3223, "CTC R": -0.0191}
    assert table_3["sum"]["published"] == {"CTC E": 0.4937, "CTC D": 0.5163, "CTC R": 0.4653}
    assert {row["rating"] for row in found["correlations"]} == {"engaging", "uses_knowledge"}


def test_word_length_has_the_papers_figures(data_dir: Path) -> None:
    """All that Tables F.1, F.2 and F.6 print of it, by scipy and by our baseline."""
    rows = json.loads((data_dir / "ctc" / "persona_chat.json").read_text("utf-8"))
    rated = read_rated(data_dir / "ctc" / "persona_chat.json")
    lengths = word_length(rated.samples)
    assert lengths.tolist() == [len(row["response"].split()) for row in rows]
    measures = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    figures = [f for f in published("persona_chat.json") if "word length" in f.model]
    counts = Counter(figure.source for figure in figures)
    assert counts == {"CTC Table F.1": 3, "CTC Table F.2": 3, "CTC Table F.6": 4}
    for figure in figures:
        measured = measures[figure.statistic](lengths, ratings(rows, figure.rating)).statistic
        assert f"{measured:.4f}" == f"{figure.value:.4f}", figure
    found = {r["rating"]: r for r in correlate_ratings(rated, {"word_length": lengths})}
    for rating, row in found.items():
        assert row["pearson"] == pytest.approx(row["published"], abs=5e-5), rating
    assert len(found) == 6


def test_transfers_in_one_direction_and_both(encoder: str) -> None:
    found = evaluated("yelp.json", TRANSFERS, encoder)
    sides = column(TRANSFERS, "output_sent"), column(TRANSFERS, "input_sent")
    directions = [consistency(encoder, *sides), consistency(encoder, *reversed(sides))]
    rows = ablation_rows(found, "2")
    for variant, scores in zip(
        ("y → x", "x → y", "both"), [*directions, preservation(*directions)], strict=True
    ):
        expected = pearson(scores, ratings(TRANSFERS, "preservation"))
        assert rows[variant]["pearson"] == pytest.approx(expected, abs=1e-5)
    assert rows["both"]["published"] == {"CTC E": 0.5216, "CTC D": 0.4974, "CTC R": 0.506}
    assert rows["x → y"]["published"] == {"CTC E": 0.5078, "CTC D": 0.4608, "CTC R": 0.4823}
    system = [row for row in found["correlations"] if row["level"] == "system"]
    assert {row["n"] for row in system} == {3}
    assert found["clusters"] == 2


@pytest.mark.parametrize("count", [None, 1, 2])
def test_relevance_by_several_references_is_that_of_their_mean(
    encoder: str, count: int | None
) -> None:
    options = [] if count is None else [f"--references={count}"]
    found = evaluated("summeval.json", SUMMARIES, encoder, *options)
    texts = column(SUMMARIES, "summary")
    output = consistency(encoder, texts, column(SUMMARIES, "document"))
    references = zip(*column(SUMMARIES, "references"), strict=True)
    each = [consistency(encoder, side, texts) for side in [*references][: count or 3]]
    reference = np.mean(each, axis=0)
    variants = assert_relevance(found, reference, output)
    rows = {(r["score"], r["rating"], r["level"]): r for r in found["correlations"]}
    expected = pearson(reference * output, ratings(SUMMARIES, "relevance"))
    value = rows["relevance", "relevance", "sample"]["pearson"]["value"]
    assert value == pytest.approx(expected, abs=1e-5)
    # CTC's Table D.2 with one reference; the paper has none for two or three.
    best = {"CTC E": 0.4985, "CTC D": 0.3824, "CTC R": 0.3733}
    assert variants["r → y × y → x"]["published"] == (best if count == 1 else dict.fromkeys(best))


def test_relevance_by_an_aligner_a_direction(encoder: str, tmp_path: Path) -> None:
    """The file's other aspects are left out, since they have no aligner."""
    other = save_bert(tmp_path / "other", BertModel, initializer_range=0.6)
    models = json.dumps({"relevance_reference": other, "relevance_output": encoder})
    found = evaluated("summeval.json", SUMMARIES, models, "--references=1")
    texts = column(SUMMARIES, "summary")
    references = [row["references"][0] for row in SUMMARIES]
    assert_relevance(
        found,
        reference=consistency(other, references, texts),
        output=consistency(encoder, texts, column(SUMMARIES, "document")),
    )
    assert {row["score"] for row in found["correlations"]} >= {"relevance"}
    assert "consistency" not in {row["score"] for row in found["correlations"]}
