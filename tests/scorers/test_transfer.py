from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from word_classifiers import CountingWords

from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.transfer import TransferQuality

TEXTS = ["good food", "bad food", "", "good and fine food"]
SOURCES = ["bad food", "bad food", "bad", "slow food"]
SAMPLES = Samples(TEXTS, labels=["positive"] * 4, sources=SOURCES)


class EvenModel:
    """Language model with a perplexity of 30 plus the number of words."""

    tokenizer = None  # only long texts are tokenized
    max_tokens = 1024

    def answer(self, tasks: Sequence[Continuation]) -> list[TokenScores]:
        counts = [sum(len("".join(text).split()) for _, text in task.targets) for task in tasks]
        return [
            TokenScores(np.arange(n), np.full(n, -math.log(30 + n)), np.array([n])) for n in counts
        ]


class Overlap:
    """Encoder of unit vectors over a few words."""

    def embed(self, texts: Sequence[str]) -> Scores:
        words = "good bad fine slow and food food food food".split()
        table = np.array([[float(word in text) for word in words] for text in texts])
        table = table.reshape(-1, len(words))
        return table / np.linalg.norm(table, axis=1, keepdims=True)


@pytest.fixture
def quality() -> TransferQuality:
    perplexity = Perplexity()
    vars(perplexity)["loaded_model"] = EvenModel()
    judge = CountingWords(negative="bad", positive="good")
    return TransferQuality(Accuracy(judge), Similarity(Overlap()), perplexity)


def test_each_sample_gets_the_gm_of_its_own_sides(quality: TransferQuality) -> None:
    scores = quality.score(SAMPLES)
    np.testing.assert_allclose(scores["label_probability"], [0.75, 0.25, np.nan, 0.75])
    np.testing.assert_allclose(scores["similarity"], [0.8, 1, np.nan, 4 / math.sqrt(7 * 5)])
    np.testing.assert_allclose(scores["perplexity"], [32, 32, np.nan, 34])
    # (75 - 63) (80 - 71) min(97 - 32, 32 + 37) by hand; the last lacks similarity.
    np.testing.assert_allclose(scores["gm"], [(12 * 9 * 65) ** (1 / 3), 0, np.nan, 0])
    # 100 - 63, 100 - 71, and 67 on either side of a perplexity of 30.
    assert quality.specs["gm"].range == pytest.approx((0, (37 * 29 * 67) ** (1 / 3)))


def test_corpus_figures_are_those_of_the_papers_tables(quality: TransferQuality) -> None:
    figures = quality.corpus(SAMPLES)
    log_probs = [-math.log(32)] * 4 + [-math.log(34)] * 4
    assert figures["accuracy"] == pytest.approx(2 / 3)
    assert figures["similarity"] == pytest.approx((0.8 + 1 + 4 / math.sqrt(35)) / 3)
    assert figures["perplexity"] == pytest.approx(math.exp(-sum(log_probs) / 8))
    parts = (figures[name] for name in ("accuracy", "similarity", "perplexity"))
    assert figures["gm"] == pytest.approx(float(adjusted_gm(*parts)))
    assert figures["gm"] > 0
    means = quality.score(SAMPLES)
    for name in ("label_probability", "log_likelihood"):  # no fold
        assert figures[name] == pytest.approx(np.nanmean(means[name]))


def test_other_thresholds(quality: TransferQuality) -> None:
    parts = (quality.accuracy, quality.similarity, quality.perplexity)
    other = TransferQuality(*parts, (0.0, 0.0, 100.0, 0.0))
    scores = other.score(SAMPLES)
    assert scores["gm"][1] == pytest.approx((25 * 100 * 32) ** (1 / 3))
    assert other.specs["gm"].range == pytest.approx((0, (100 * 100 * 50) ** (1 / 3)))
    # The perplexities are 32 and 34; what lies below t4 earns nothing, and less near it.
    for t4, fluency in ((20.0, 12), (31.0, 1), (32.0, 0), (33.0, 0)):
        gm = TransferQuality(*parts, (63.0, 71.0, 97.0, t4)).score(SAMPLES)["gm"][0]
        assert gm == pytest.approx((12 * 9 * fluency) ** (1 / 3), abs=1e-9)
