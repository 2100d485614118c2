"""`ctrlreward meta-eval li2018`, with judges that read their scores from the texts."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.papers.li2018.metric_validity import style_match
from ctrlreward.recipes.papers.meta_eval.rated_files import read_li2018
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.tables.columns import number_column
from ctrlreward.tables.rows import read_rows

MODULE = "ctrlreward.recipes.papers.li2018.rated_li2018"
SCORES = {
    "preservation": ("preservation",),
    "Accuracy": ("accuracy", "label_probability"),
    "Similarity": ("similarity",),
    "Perplexity": ("perplexity", "log_likelihood"),
}


def judged(text: str) -> tuple[float, float, float]:
    """Return probability, similarity and perplexity as a text states them: `0.9 0.8 50`."""
    probability, similarity, perplexity = map(float, text.split())
    return probability, similarity, perplexity


Rows = list[dict[str, Any]]


class RatedJudge(Scorer):
    """A scorer of one component."""

    def __init__(self, kind: str, score_end: bool = False) -> None:
        self.kind = kind
        self.end = 2.0 if score_end else 1.0  # factor of the perplexity

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        better = self.kind != "Perplexity"
        return {name: ScoreSpec(better, (-np.inf, np.inf)) for name in SCORES[self.kind]}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        probability, similarity, perplexity = np.array([*map(judged, samples.texts)]).T
        perplexity = self.end * perplexity
        values = {
            "accuracy": (probability > 0.5).astype(float),
            "label_probability": probability,
            "similarity": similarity,
            "perplexity": perplexity,
            "log_likelihood": -np.log(perplexity),
            "preservation": similarity,
            "tokens": np.ones(len(samples)),
        }
        return {name: values[name] for name in SCORES[self.kind]} | {"tokens": values["tokens"]}


def transfers() -> Rows:
    """Return 24 items by four systems, rated by a noisy GM."""
    random = np.random.default_rng(3)
    rows = []
    for i in range(96):
        probability, similarity = random.uniform(0.3, 1.0, 2).round(2)
        perplexity = random.integers(20, 120)
        gm = adjusted_gm(probability, similarity, perplexity, (20, 10, 200, -40))
        rating = float(gm + 8 * random.normal())
        target = ("negative", "positive")[i // 4 % 2]
        row = {"item": i // 4, "target": target, "system": "abcd"[i % 4]}
        row["source"] = f"0.1 1.0 {40 + i // 4}"
        row["output"] = f"{probability} {similarity} {perplexity}"
        rows.append({**row, "grammaticality": rating, "sentiment": 1 + i % 5, "topic": rating})
    return rows


def place(folder: Path, patch: pytest.MonkeyPatch) -> Rows:
    """Write a file in the format of Li et al. to an empty folder, and replace the scorers."""
    patch.chdir(folder)
    for name in ("Accuracy", "Similarity", "Perplexity"):
        patch.setattr(f"{MODULE}.{name}", lambda *_, kind=name, **given: RatedJudge(kind, **given))
    patch.setattr(f"{MODULE}.Alignment", lambda *_: RatedJudge("preservation"))
    rows = transfers()
    write(rows)
    return rows


def write(rows: Rows) -> None:
    with open("rated.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def rated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    return place(tmp_path, monkeypatch)


def run(*options: str) -> dict[str, Any]:
    """Run the command with a classifier, and return the JSON file."""
    given = ["--classifier=folder", "--output=found.json", "--resamples=20", *options]
    main(["meta-eval", "li2018", "rated.csv", *given])
    return json.loads(Path("found.json").read_text())


def correlation(record: dict[str, Any], score: str, rating: str, level: str = "sample") -> Any:
    rows = {(row["score"], row["rating"], row["level"]): row for row in record["correlations"]}
    return rows[score, rating, level]


def test_without_a_classifier_only_preservation_is_evaluated(rated: Rows) -> None:
    main(["meta-eval", "li2018", "rated.csv", "--output=found.json", "--resamples=20"])
    record = json.loads(Path("found.json").read_text())
    assert {row["score"] for row in record["correlations"]} == {"preservation"}
    similarity = [judged(row["output"])[1] for row in rated]
    mean = [(row["topic"] + row["sentiment"] + row["grammaticality"]) / 3 for row in rated]
    value = correlation(record, "preservation", "mean")["pearson"]["value"]
    assert value == pytest.approx(stats.pearsonr(similarity, mean)[0])


def test_gm_of_sentences_takes_the_probability(rated: Rows) -> None:
    run("--scores=rows.jsonl")
    expected = adjusted_gm(*np.array([judged(row["output"]) for row in rated]).T)
    np.testing.assert_allclose(number_column(read_rows(Path("rows.jsonl")), "score/gm"), expected)
    assert (expected > 0).mean() > 0


def test_the_end_of_a_sentence_can_count(rated: Rows) -> None:
    run("--score-end", "--scores=rows.jsonl")
    stated = [judged(row["output"])[2] for row in rated]
    scored = number_column(read_rows(Path("rows.jsonl")), "score/perplexity")
    np.testing.assert_allclose(scored, 2 * np.array(stated))


# Table 5


def test_table_5_equals_a_plain_computation(
    rated: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    table = run()["table_5"]
    clear = [row for row in rated if row["sentiment"] != 3]
    judgements = [(judged(row["output"])[0] > 0.5) == (row["sentiment"] > 3) for row in clear]
    _, similarity, perplexity = np.array([judged(row["output"]) for row in rated]).T
    topic = [row["topic"] for row in rated]
    share = sum(judgements) / len(judgements)
    assert table["accuracy"] == {
        "value": pytest.approx(share), "n": len(judgements), "published": 0.94,
        "published_literature": 0.84,
    }  # fmt: skip
    assert table["similarity"]["value"] == pytest.approx(stats.spearmanr(similarity, topic)[0])
    fluency = -stats.spearmanr(perplexity, topic)[0]  # the two ratings are the same here
    assert table["perplexity"]["value"] == pytest.approx(fluency)
    assert (table["similarity"]["published"], table["perplexity"]["published"]) == (0.79, 0.81)
    printed = capsys.readouterr().out
    assert re.search(rf"Acc matches .* {len(judgements)} +{share:.1%} +94.0%", printed)
    assert re.search(rf"-PP with fluency .* 96 +{fluency:.3f} +0.810", printed)


decisions = st.sampled_from([0.0, 1.0, float("nan")])
likert = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, float("nan")])


@given(st.lists(st.tuples(decisions, likert), min_size=1, max_size=12))
def test_style_match_equals_counting(rows: list[tuple[float, float]]) -> None:
    judgeable = [row for row in rows if row[0] == row[0] and row[1] in (1, 2, 4, 5)]
    counted = [bool(decision) == (rating in (4, 5)) for decision, rating in judgeable]
    share, judged = style_match(*(np.array(column) for column in zip(*rows, strict=True)))
    assert judged == len(counted)
    assert np.isnan(share) if not counted else share == sum(counted) / len(counted)


# Fitted thresholds


def pairs_of(rows: Rows) -> list[tuple[int, int]]:
    """Return the places of all pairs of the same item."""
    places = range(len(rows))
    return [(i, j) for i in places for j in places if rows[i]["item"] == rows[j]["item"]]


def test_thresholds_are_fitted_to_the_preferences(
    rated: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    gm = run("--fit-gm")["gm"]
    file = read_li2018(Path("rated.csv"))
    inputs, mean = np.array([judged(text) for text in file.samples.texts]), file.ratings["mean"]
    pairs = [(i, j) for i, j in pairs_of(rated) if mean[i] > mean[j]]
    assert (gm["pairs"], gm["published_agreement"]) == (len(pairs), 0.86)
    assert list(gm["agreement"]) == ["paper", *gm["fits"]] == ["paper", "t2", "all"]
    fits = {"paper": {"thresholds": GM_THRESHOLDS}, **gm["fits"]}
    for name, fit in fits.items():
        value = adjusted_gm(*inputs.T, fit["thresholds"])
        gains = np.array([value[i] - value[j] for i, j in pairs])
        assert gm["agreement"][name]["agreed"] == pytest.approx((gains > 0).mean())
        assert gm["agreement"][name]["tied"] == pytest.approx((gains == 0).mean())
        if name != "paper":
            scaled = np.maximum(0, 1 - fit["scale"] * gains).sum()
            assert fit["loss"] == pytest.approx(scaled)
    t1, t2, t3, t4 = fits["t2"]["thresholds"]
    assert (t1, t3, t4) == (63, 97, -37)
    assert t2 != 71
    assert fits["all"]["loss"] < fits["t2"]["loss"]
    assert gm["agreement"]["all"]["agreed"] > gm["agreement"]["paper"]["agreed"]
    agreed = gm["agreement"]["all"]["agreed"]
    assert re.search(rf"all \(.*\) +{agreed:.1%} ", capsys.readouterr().out)
