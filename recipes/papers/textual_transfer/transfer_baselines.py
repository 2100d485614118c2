"""Outputs that need no training, which a good measure of style transfer ranks low."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.transfer import SentenceScores, weighted_transfer
from ctrlreward.samples import Samples
from ctrlreward.scorers import TransferQuality
from ctrlreward.scorers.base import Component, score

_CANDIDATES = 200
_SOURCES = 50


def copies(prompts: Samples) -> Samples:
    """Return each source as its own output."""
    return prompts.replace(texts=prompts.require("sources", "copies"))


def constants(prompts: Samples, sentences: Mapping[str, str]) -> Samples:
    """Return the same output for all sources of a target style.

    Args:
        prompts: Sources with their target styles as `labels`.
        sentences: Style → its sentence.
    """
    labels = prompts.require("labels", "constants")
    return prompts.replace(texts=[sentences[label] for label in labels])


def best_constants(
    quality: TransferQuality, sentences: Mapping[str, Sequence[str]], seed: int = 0
) -> dict[str, str]:
    """Choose the training sentence of each style that is the best constant output by GM.

    A fluent sentence that has the style gets a perfect Acc and a low PP whatever the source is, so
    constants differ mainly in their mean Sim with the sources; GM weighs all three. This is the
    strongest baseline of its kind: a weaker one would favour the models. If every GM is 0, as
    under the paper's thresholds, the sentence with the highest Sim that has the style is chosen.

    Args:
        quality: Judges, with the thresholds of GM.
        sentences: Style → training sentences; 200 of a style are tried, on 50 of the other style.
        seed: Seed of both draws.

    Returns:
        Style → sentence.

    Raises:
        ValueError: `sentences` does not have two styles, or one is empty.
    """
    if len(sentences) != 2 or not all(sentences.values()):
        found = ", ".join(f"{style}: {len(texts)}" for style, texts in sentences.items())
        raise ValueError(f"sentences must have two styles, got {found or 'none'}")
    drawn = {
        style: random.Random(seed).sample(list(texts), min(_CANDIDATES, len(texts)))
        for style, texts in sentences.items()
    }
    return {
        style: _best_constant(quality, drawn[style], drawn[other][:_SOURCES], style)
        for style, other in zip(drawn, reversed(drawn), strict=True)
    }


def sentence_scores(quality: TransferQuality, samples: Samples) -> SentenceScores:
    """Score sentences as outputs of one system; see `SentenceScores`."""
    wanted = {name: Component(quality, name) for name in SentenceScores._fields}
    return SentenceScores(**score(wanted, samples))


def _best_constant(
    quality: TransferQuality, candidates: Sequence[str], sources: Sequence[str], style: str
) -> str:
    # Style and fluency do not depend on the source, so they are judged once a candidate.
    own = Samples(candidates, sources=candidates, labels=[style] * len(candidates))
    judged = sentence_scores(quality, own)
    pairs = Samples(
        [text for text in candidates for _ in sources], sources=[*sources] * len(candidates)
    )
    cosines = quality.similarity.score(pairs)["similarity"].reshape(len(candidates), -1)
    similarity = np.array([valid_mean(row) for row in cosines])
    judged = judged._replace(similarity=similarity)
    gm = weighted_transfer(judged, np.eye(len(candidates)), quality.thresholds)["gm"]
    worst = ((gm, -1.0), (judged.accuracy, 0.0), (similarity, -2.0))
    ranks = zip(*(np.nan_to_num(values, nan=value) for values, value in worst), strict=True)
    return max(zip(ranks, candidates, strict=True), key=lambda pair: pair[0])[1]


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
    figures = weighted_transfer(scores, np.ones((1, len(scores.accuracy))), thresholds)
    values = {name: value.item() for name, value in figures.items()}
    return CorpusTransfer(**values, failed=int(scores.failed.sum()))
