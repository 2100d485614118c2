"""CTC's embedding alignment equals the package ctc_score 0.1.3 on sentences of our own."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import islice
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


def aligned(samples: Samples, *aspects: str, **options: Any) -> dict[str, np.ndarray]:
    options = {"dtype": "float32", "batch_tokens": 1024, "calibration": False, **options}
    return Alignment(model="minilm-l6", aspects=aspects, **options).score(samples)


def assert_recorded(
    found: Mapping[str, Sequence[float]], rows: Sequence[dict[str, float]], atol: float
) -> None:
    """Compare scores with those that are recorded by row."""
    for name, values in found.items():
        np.testing.assert_allclose(values, [row[name] for row in rows], rtol=0, atol=atol)


def transfers() -> Samples:
    return Samples(column("transfers", "output"), sources=column("transfers", "source"))


def test_preservation() -> None:
    result = aligned(transfers(), "preservation")
    # The package leaves the factor 2 of the harmonic mean out, as the paper's eq. 4 does.
    factors = {"preservation": 2, "preservation_output": 1, "preservation_source": 1}
    assert set(result) == set(factors)
    assert {values.dtype for values in result.values()} == {np.dtype(np.float64)}
    rows = [{name: factors[name] * row[name] for name in factors} for row in SCORES["transfers"]]
    assert_recorded(result, rows, 1e-5)


def test_dialog_aspects() -> None:
    samples = Samples(
        column("dialogs", "response"),
        contexts=column("dialogs", "fact"),
        histories=column("dialogs", "history"),
    )
    assert_recorded(aligned(samples, "engagingness", "groundedness"), SCORES["dialogs"], 1e-4)


@pytest.mark.parametrize("reference", [0, 1])
def test_consistency_and_relevance(reference: int) -> None:
    samples = Samples(
        column("summaries", "summary"),
        sources=column("summaries", "document"),
        references=[row["references"][reference] for row in TEXTS["summaries"]],
    )
    result = aligned(samples, "consistency", "relevance")
    rows = [{**row, "relevance": row["relevance"][reference]} for row in SCORES["summaries"]]
    found = {name: result[name] for name in ("consistency", "relevance")}
    assert_recorded(found, rows, 1e-5)


@pytest.mark.parametrize("summaries", [16, pytest.param(40, marks=pytest.mark.soak)])
def test_equals_it_on_real_texts(summaries: int, shared_golden_dir: Path, data_dir: Path) -> None:
    """60 rewritten reviews, 40 dialogs, and summaries of published data sets."""
    text = (shared_golden_dir / "ctc_embedding_minilm.json").read_text("utf-8")
    golden = json.loads(text)
    with open(data_dir / "li2018" / "human_ratings_yelp.csv", encoding="utf-8", newline="") as file:
        rows = list(islice(csv.DictReader(file), 60))
    outputs = Samples([row["output"] for row in rows], sources=[row["source"] for row in rows])
    rows = json.loads((data_dir / "ctc" / "persona_chat.json").read_text("utf-8"))[:40]
    responses = Samples(
        [row["response"] for row in rows],
        contexts=[row["fact"] for row in rows],
        histories=[row["dialog_history"] for row in rows],
    )
    rows = json.loads((data_dir / "ctc" / "qags_xsum.json").read_text("utf-8"))[:summaries]
    pairs = Samples([r["summary"] for r in rows], sources=[r["document"] for r in rows])
    stop_words = str(data_dir / "stopwords_english.txt")

    result = aligned(outputs, "preservation")
    keys = ("preservation", "hyp_to_source", "source_to_hyp")
    names = ("preservation", "preservation_output", "preservation_source")
    found = {key: result[name] for key, name in zip(keys, names, strict=True)}
    assert_recorded(found, golden["li2018_yelp"], 1e-4)
    result = aligned(responses, "engagingness", "groundedness", stop_words=stop_words)
    assert_recorded(result, golden["persona_chat"], 1e-4)
    consistency = aligned(pairs, "consistency")["consistency"]
    np.testing.assert_allclose(consistency, golden["qags_xsum"][:summaries], rtol=0, atol=1e-4)
