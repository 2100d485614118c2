"""Style transfer quality: accuracy, similarity and perplexity folded into one number."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]

# t1 to t4 of Pang & Gimpel (2019), fitted to human preferences between transferred sentences.
GM_THRESHOLDS = (63.0, 71.0, 97.0, -37.0)


def adjusted_gm(
    accuracy: npt.ArrayLike,
    similarity: npt.ArrayLike,
    perplexity: npt.ArrayLike,
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
) -> npt.NDArray[np.float64]:
    """Return the adjusted geometric mean of style transfer quality, ≥ 0; higher is better.

    Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, eq. 1, with [x]+ = max(x, 0):

        GM = ([100 Acc - t1]+ · [100 Sim - t2]+ · min([t3 - PP]+, [PP - t4]+)) ^ (1/3)

    Below a perplexity of (t3 + t4) / 2, GM rises with perplexity: the paper's t4 marks down its
    models' too simple sentences. With t4 ≤ 2 - t3 it only falls, as for other models it should.

    Args:
        accuracy: Share of texts with the target style, or the probability of the target label, 0 to
            1. Arrays are broadcast, and NaN propagates.
        similarity: Cosine of text and source, -1 to 1.
        perplexity: Perplexity of the texts under a language model, 1 or more; may be infinite.
        thresholds: t1 to t4; t1 and t2 in per cent, t3 and t4 in units of perplexity.

    Examples:
        >>> round(float(adjusted_gm(0.9, 0.79, 70.0)), 3)  # (27 · 8 · 27) ^ (1/3)
        18.0
        >>> adjusted_gm(1.0, 0.8, [50, 144, 900], (50, 0, 1000, -998)).round(1)  # fluent first
        array([156. , 150.7,  73.7])
    """
    acc = _in_range("accuracy", accuracy, 0.0, 1.0, "a share, not per cent")
    sim = _in_range("similarity", similarity, -1.0, 1.0, "a cosine, not per cent")
    pp = _in_range("perplexity", perplexity, 1.0, np.inf, "exp of the mean negative log-prob")
    t1, t2, t3, t4 = thresholds
    fluency = np.minimum(np.maximum(t3 - pp, 0.0), np.maximum(pp - t4, 0.0))
    product = np.maximum(100 * acc - t1, 0.0) * np.maximum(100 * sim - t2, 0.0) * fluency
    return np.asarray(np.cbrt(product))


def checked_thresholds(thresholds: Sequence[float]) -> tuple[float, float, float, float]:
    """Return t1 to t4, or raise a ValueError if there are not four, or GM would always be 0."""
    values = tuple(float(value) for value in thresholds)
    if len(values) != 4 or not np.isfinite(values).all() or values[2] <= values[3]:
        must = "must be four finite numbers, t1 to t4, with t3 above t4"
        raise ValueError(f"thresholds {must}, got {values}")
    return values


def gm_of(
    names: Sequence[str],
    thresholds: tuple[float, float, float, float],
    scores: Mapping[str, npt.ArrayLike],
) -> Floats:
    """Return `adjusted_gm` of the scores named accuracy, similarity and perplexity, in this order.

    Warns once if most of the perplexities are where GM rises with them.
    """
    accuracy, similarity, perplexity = (scores[name] for name in names)
    _, _, t3, t4 = thresholds
    if 2 * np.sum(np.asarray(perplexity) < (t3 + t4) / 2) > np.size(perplexity):
        _warn_of_rise(t3, t4)
    return adjusted_gm(accuracy, similarity, perplexity, thresholds)


@cache  # once
def _warn_of_rise(t3: float, t4: float) -> None:
    log.warning(
        "most texts of a batch have a perplexity below %g, where GM is higher for less fluent ones "
        "(t3 = %g, t4 = %g); with t4 = %g it falls with perplexity",
        *((t3 + t4) / 2, t3, t4, 2 - t3),
    )


class SentenceScores(NamedTuple):
    """Scores of n sentences, from which the figures of their corpus are computed.

    Attributes:
        accuracy: 1 for a sentence with the target style, 0 for another, shape (n,); NaN if failed.
        similarity: Cosine with the source, shape (n,), -1 to 1; NaN if failed.
        log_likelihood: Mean token log-probability, shape (n,), 0 or less.
        tokens: Number of tokens, shape (n,); a sentence of 0 or NaN tokens has failed.
    """

    accuracy: Floats
    similarity: Floats
    log_likelihood: Floats
    tokens: Floats

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """True for the sentences that are left out of corpus figures, shape (n,)."""
        return np.isnan(self.accuracy) | np.isnan(self.similarity) | ~(self.tokens > 0)


def corpus_figures(
    scores: SentenceScores, thresholds: tuple[float, float, float, float] = GM_THRESHOLDS
) -> dict[str, float]:
    """Return accuracy, similarity, perplexity and GM of a corpus, as in the paper's tables.

    Accuracy and similarity are means over sentences, perplexity is over all tokens, and GM combines
    these three (Pang & Gimpel 2019, §3 and eq. 1). Failed sentences are left out; NaN without a
    valid one.
    """
    if scores.failed.all():
        return dict.fromkeys(("accuracy", "similarity", "perplexity", "gm"), float("nan"))
    accuracy, similarity, log_likelihood, tokens = (x[~scores.failed] for x in scores)
    acc = accuracy.mean()
    sim = min(similarity.mean(), 1.0)  # a sum of 1s may be rounded up
    pp = np.exp(-(log_likelihood @ tokens) / tokens.sum())
    gm = adjusted_gm(acc, sim, pp, thresholds)
    return {
        "accuracy": float(acc),
        "similarity": float(sim),
        "perplexity": float(pp),
        "gm": float(gm),
    }


def _in_range(
    name: str, values: npt.ArrayLike, low: float, high: float, kind: str
) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    outside = array[(array < low) | (array > high)]
    if outside.size:
        raise ValueError(f"{name} must be {low:g} to {high:g}, {kind}, got {outside[0]:g}")
    return array
