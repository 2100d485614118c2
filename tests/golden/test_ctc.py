"""CTC's embedding alignment equals the package ctc_score 0.1.3 on sentences of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrlreward.samples import Samples
from ctrlreward.scorers.alignment import Alignment

FOLDER = Path(__file__).parent
TEXTS: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "ctc_texts.json").read_text("utf-8"))
SCORES: dict[str, list[dict[str, Any]]] = json.loads(
    (FOLDER / "ctc_scores.json").read_text("utf-8")
)


def column(kind: str, key: str) -> list[str]:
    return [row[key] for row in TEXTS[kind]]


def aligned(samples: Samples, *aspects: str, dtype: str = "float32") -> dict[str, np.ndarray]:
    scorer = Alignment(model="minilm-l6", aspects=aspects, dtype=dtype, batch_tokens=1024)
    return scorer.score(samples)


def transfers() -> Samples:
    return Samples(column("transfers", "output"), sources=column("transfers", "source"))


def test_preservation() -> None:
    result = aligned(transfers(), "preservation")
    # The package leaves the factor 2 of the harmonic mean out, as the paper's eq. 4 does.
    factors = {"preservation": 2, "preservation_output": 1, "preservation_source": 1}
    assert set(result) == set(factors)
    for name, factor in factors.items():
        expected = [factor * row[name] for row in SCORES["transfers"]]
        assert result[name].dtype == np.float64
        np.testing.assert_allclose(result[name], expected, rtol=0, atol=1e-5)


def test_dialog_aspects() -> None:
    samples = Samples(
        column("dialogs", "response"),
        contexts=column("dialogs", "fact"),
        histories=column("dialogs", "history"),
    )
    result = aligned(samples, "engagingness", "groundedness")
    for name, values in result.items():
        expected = [row[name] for row in SCORES["dialogs"]]
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("reference", [0, 1])
def test_consistency_and_relevance(reference: int) -> None:
    samples = Samples(
        column("summaries", "summary"),
        sources=column("summaries", "document"),
        references=[row["references"][reference] for row in TEXTS["summaries"]],
    )
    result = aligned(samples, "consistency", "relevance")
    consistency = [row["consistency"] for row in SCORES["summaries"]]
    relevance = [row["relevance"][reference] for row in SCORES["summaries"]]
    np.testing.assert_allclose(result["consistency"], consistency, rtol=0, atol=1e-5)
    np.testing.assert_allclose(result["relevance"], relevance, rtol=0, atol=1e-5)


def test_bfloat16_stays_near_it() -> None:
    result = aligned(transfers(), "preservation", dtype="bfloat16")["preservation_output"]
    expected = np.array([row["preservation_output"] for row in SCORES["transfers"]])
    np.testing.assert_allclose(result, expected, rtol=0, atol=0.01)
    assert np.abs(result - expected).max() > 1e-4  # it did run in another precision
