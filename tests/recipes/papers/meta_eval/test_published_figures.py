"""Figures of papers beside ours in `ctrlreward meta-eval`."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from ctrlreward.recipes.papers.meta_eval.published_figures import PUBLISHED, best_model, published

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
