"""The papers' correlations beside ours are those of the list of published correlations."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from ctrlreward.recipes.papers import ctrleval
from ctrlreward.recipes.papers.ctc import rated as ctc


def test_the_figures_are_those_of_the_papers(papers_dir: Path) -> None:
    names = ("file", "score", "level", "model", "source", "statistic", "value")
    with open(papers_dir / "published_correlations.csv", encoding="utf-8", newline="") as opened:
        rows = [
            tuple(float(row[name]) if name == "value" else row[name] for name in names)
            for row in csv.DictReader(opened)
        ]
    ours = [tuple(getattr(figure, name) for name in names) for figure in ctc.published()]
    ours += [
        (file, aspect, "sample", model, table, statistic, value)
        for file in ("data_senti.txt", "data_topic.txt")
        for model, table, cells in ctrleval.published(file)
        for (aspect, statistic), value in cells.items()
    ]
    assert not Counter(rows) - Counter(ours)
    besides = Counter(ours) - Counter(rows)
    assert {(row[4], row[1], row[6]) for row in besides} == {
        ("CTC Table F.5", "groundedness", 0.5082),
        ("CTC Table F.5", "engagingness", 0.5323),
        ("CTC Table F.6", "word_length", -0.0525),
        ("CTC Table F.6", "word_length", -0.0342),
        ("CTC Table F.6", "word_length", 0.0901),
        ("CTC Table F.6", "word_length", 0.2526),
    }
