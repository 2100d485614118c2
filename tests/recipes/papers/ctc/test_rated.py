"""CTC's tables on small files in the formats in which the paper's were published."""

from __future__ import annotations

import json
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


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated(name: str, rows: list[dict[str, Any]], encoder: str, *options: str) -> dict[str, Any]:
    Path(name).write_text(json.dumps(rows))
    main([name, f"--model={encoder}", "--json=found.json", *options])
    found: dict[str, Any] = json.loads(Path("found.json").read_text())
    return found


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def pearson(scores: Scores, rows: list[dict[str, Any]], rating: str) -> float:
    return float(stats.pearsonr(scores, [float(row[rating]) for row in rows]).statistic)


def consistency(model: str, texts: Sequence[str], sources: Sequence[str]) -> Scores:
    return Alignment(model, "consistency").score(texts, sources=sources)["consistency"]


def assert_ablation(
    found: dict[str, Any], rows: list[dict[str, Any]], rating: str, variants: dict[str, Scores]
) -> dict[str, Any]:
    """Compare the variants of a rating with plain computations; return the paper's figures."""
    ablated = {row["variant"]: row for row in found["ablations"] if row["rating"] == rating}
    for variant, scores in variants.items():
        assert ablated[variant]["pearson"] == pytest.approx(pearson(scores, rows, rating), abs=1e-5)
    return {variant: ablated[variant]["published"] for variant in variants}


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
    options: dict[str, Any] = {"stop_words": "words.txt", "calibration": False}
    scores = dict(Alignment(encoder, aspects, **options).score(samples))
    explained = Alignment(encoder, aspects, **options).explain(samples)
    for name in aspects:
        lengths = [sum(token.counted for token in row[name].tokens) for row in explained]
        scores[f"{name}_mean"] = scores[name] / lengths
    scores["word_length"] = np.array([len(row["response"].split()) for row in DIALOGS], float)
    rows = {(row["rating"], row["score"]): row for row in found["ratings"]}
    assert len(rows) == 6 * 5
    for rating, (name, values) in product([*DIALOGS[0]][4:], scores.items()):
        if rating == "natural":  # one value in all rows
            assert rows[rating, name]["pearson"] is None
        else:
            expected = pearson(values, DIALOGS, rating)
            assert rows[rating, name]["pearson"] == pytest.approx(expected, abs=1e-5)
            assert f"{expected:.4f}" in printed
    engaging, grounded = (scores[name] for name in aspects)
    variants = {"sum": engaging, "mean": scores["engagingness_mean"]}
    theirs = assert_ablation(
        found, DIALOGS, "engaging", {**variants, "eq. 5": engaging, "eq. 6": grounded}
    )
    exchanged = {"eq. 6": grounded, "eq. 5": engaging}
    assert_ablation(found, DIALOGS, "uses_knowledge", exchanged)
    # CTC's Table 3 for TopicalChat, and its best model of each kind in Table F.3.
    assert theirs["mean"] == {"CTC E": 0.3184, "CTC D": 0.3223, "CTC R": -0.0191}
    assert theirs["sum"] == {"CTC E": 0.4937, "CTC D": 0.5163, "CTC R": 0.4653}


def test_word_length_has_the_papers_figures(data_dir: Path) -> None:
    """All that Tables F.1, F.2 and F.6 print of it."""
    rows = json.loads((data_dir / "ctc" / "persona_chat.json").read_text("utf-8"))
    rated = read_rated(data_dir / "ctc" / "persona_chat.json")
    lengths = word_length(rated.samples)
    measures = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}
    figures = [f for f in published("persona_chat.json") if "word length" in f.model]
    assert len(figures) == 10
    for figure in figures:
        ratings = [float(row[figure.rating]) for row in rows]
        measured = measures[figure.statistic](lengths, ratings).statistic
        assert f"{measured:.4f}" == f"{figure.value:.4f}", figure
    found = {r["rating"]: r for r in correlate_ratings(rated, {"word_length": lengths})}
    for rating, row in found.items():
        assert row["pearson"] == pytest.approx(row["published"], abs=5e-5), rating


def test_transfers_in_one_direction_and_both(encoder: str) -> None:
    found = evaluated("yelp.json", TRANSFERS, encoder)
    sides = column(TRANSFERS, "output_sent"), column(TRANSFERS, "input_sent")
    first, second = consistency(encoder, *sides), consistency(encoder, *reversed(sides))
    variants = {"y → x": first, "x → y": second, "both": preservation(first, second)}
    theirs = assert_ablation(found, TRANSFERS, "preservation", variants)
    assert theirs["both"] == {"CTC E": 0.5216, "CTC D": 0.4974, "CTC R": 0.506}
    assert theirs["x → y"] == {"CTC E": 0.5078, "CTC D": 0.4608, "CTC R": 0.4823}
    system = [row for row in found["correlations"] if row["level"] == "system"]
    assert {row["n"] for row in system} == {3}
    assert found["clusters"] == 2


@pytest.mark.parametrize(("count", "models"), [(None, 1), (1, 1), (1, 2)])
def test_relevance_by_references_and_by_an_aligner_a_direction(
    encoder: str, tmp_path: Path, count: int | None, models: int
) -> None:
    other, model = encoder, encoder
    if models == 2:
        other = save_bert(tmp_path / "other", BertModel, initializer_range=0.6)
        model = json.dumps({"relevance_reference": other, "relevance_output": encoder})
    options = [] if count is None else [f"--references={count}"]
    found = evaluated("summeval.json", SUMMARIES, model, *options)
    texts = column(SUMMARIES, "summary")
    output = consistency(encoder, texts, column(SUMMARIES, "document"))
    references = zip(*column(SUMMARIES, "references"), strict=True)
    each = [consistency(other, side, texts) for side in [*references][: count or 3]]
    reference = np.mean(each, axis=0)
    variants = {
        "r → y": reference,
        "y → x": output,
        "r → y + y → x": reference + output,
        "r → y × y → x": reference * output,
    }
    theirs = assert_ablation(found, SUMMARIES, "relevance", variants)
    # CTC's Table D.2 with one reference; the paper has none for three.
    best = {"CTC E": 0.4985, "CTC D": 0.3824, "CTC R": 0.3733}
    assert theirs["r → y × y → x"] == (best if count == 1 else dict.fromkeys(best))
    # Without an aligner for it, the other aspect is left out.
    assert ("consistency" in {row["score"] for row in found["correlations"]}) == (models == 1)
