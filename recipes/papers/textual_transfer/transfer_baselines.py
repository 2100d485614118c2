"""Copies of the sources as a baseline, and the figures of a corpus."""

from __future__ import annotations

from dataclasses import dataclass

from ctrlreward.functional.transfer import SentenceScores, corpus_figures
from ctrlreward.samples import Samples
from ctrlreward.scorers import TransferQuality
from ctrlreward.scorers.base import Component, score


def copies(prompts: Samples) -> Samples:
    """Return each source as its own output."""
    return prompts.replace(texts=prompts.require("sources", "copies"))


def sentence_scores(quality: TransferQuality, samples: Samples) -> SentenceScores:
    """Score sentences as outputs of one system; see `SentenceScores`."""
    wanted = {name: Component(quality, name) for name in SentenceScores._fields}
    return SentenceScores(**score(wanted, samples).warned())


@dataclass(frozen=True)
class CorpusTransfer:
    """Scores of one system over a corpus, as in the paper's tables.

    Attributes:
        accuracy: Share of texts that the classifier assigns to the target label, 0 to 1.
        similarity: Mean cosine with the sources, -1 to 1.
        perplexity: Perplexity of all texts as one corpus, 1 or more; lower is better.
        gm: Adjusted geometric mean of these three; higher is better.
        failed: Number of samples without accuracy or similarity, left out of the means.
    """

    accuracy: float
    similarity: float
    perplexity: float
    gm: float
    failed: int


def corpus_transfer(
    scores: SentenceScores, thresholds: tuple[float, float, float, float]
) -> CorpusTransfer:
    """Return the scores of a corpus from the scores of its sentences; `thresholds` are t1 to t4.

    Sentences that failed are left out; NaN if none is left.
    """
    failed = int(scores.failed.sum())
    return CorpusTransfer(**corpus_figures(scores, thresholds), failed=failed)
