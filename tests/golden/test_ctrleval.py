"""CTRLEval equals the published implementation on sentences of our own."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from ctrlreward.models.sentences import split_sentences
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import CTRLEval

FOLDER = Path(__file__).parent
MODEL = FOLDER / "pegasus-mini"
ROWS: dict[str, Any] = json.loads((FOLDER / "ctrleval_pegasus_mini_own.json").read_text("utf-8"))
ASPECTS = ("coherence", "consistency", "attribute_relevance")


def samples_of(rows: list[dict[str, Any]]) -> Samples:
    columns = {"texts": "text", "prefixes": "prefix", "labels": "label"}
    return Samples(**{name: [row[key] for row in rows] for name, key in columns.items()})


@cache
def scores(task: str, dtype: str) -> dict[str, Scores]:
    rows = ROWS[task]
    sentences = {row["text"]: row["sentences"] for row in rows}
    scorer = CTRLEval(
        str(MODEL),
        task=task,
        iwf=MODEL / "iwf.txt",
        sentence_splitter=sentences.__getitem__,
        dtype=dtype,
    )
    return scorer.score(samples_of(rows))


@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("task", ["sentiment", "topic"])
def test_equals_the_published_implementation(task: str, aspect: str) -> None:
    expected = np.array([row[aspect] for row in ROWS[task]])
    result = scores(task, "float32")[aspect]
    assert result.dtype == np.float64
    assert result.shape == (len(ROWS[task]),)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.01  # the texts differ in score


def test_equals_it_on_real_texts(shared_golden_dir: Path, data_dir: Path) -> None:
    """60 reviews of the paper's, on a PEGASUS with the real vocabulary and random weights."""
    text = (shared_golden_dir / "ctrleval_pegasus_tiny_senti60.json").read_text("utf-8")
    rows = json.loads(text)["rows"]
    sentences = {row["text"]: row["sentences"] for row in rows}
    result = CTRLEval(
        str(shared_golden_dir / "pegasus-tiny"),
        iwf=data_dir / "ctrleval" / "iwf_full.txt",
        sentence_splitter=sentences.__getitem__,
        dtype="float32",
    ).score(samples_of(rows))
    for aspect in ASPECTS:
        expected = [row[aspect] for row in rows]
        np.testing.assert_allclose(result[aspect], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("aspect", "bound"), [("coherence", 0.05), ("consistency", 0.05), ("attribute_relevance", 5e-3)]
)
def test_bfloat16_stays_near_it(aspect: str, bound: float) -> None:
    expected = np.array([row[aspect] for row in ROWS["sentiment"]])
    result = scores("sentiment", "bfloat16")[aspect]
    np.testing.assert_allclose(result, expected, rtol=0, atol=bound)
    assert np.abs(result - expected).max() > 1e-4  # it did run in another precision
    assert spearmanr(result, expected).statistic >= 0.95


def test_our_splitter_finds_the_published_sentences() -> None:
    rows = [row for task in ("sentiment", "topic") for row in ROWS[task]]

    assert [split_sentences(row["text"]) for row in rows] == [row["sentences"] for row in rows]
