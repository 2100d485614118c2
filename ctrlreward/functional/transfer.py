"""Style transfer quality: accuracy, similarity and perplexity folded into one number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# t1 to t4 of Pang & Gimpel (2019), fitted to human preferences between transferred sentences.
GM_THRESHOLDS = (63.0, 71.0, 97.0, -37.0)


def adjusted_gm(
    accuracy: npt.ArrayLike,
    similarity: npt.ArrayLike,
    perplexity: npt.ArrayLike,
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
) -> npt.NDArray[np.float64]:
    """Return the adjusted geometric mean of style transfer quality; higher is better.

    Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, eq. 1, with [x]+ = max(x, 0):

        GM = ([100 Acc - t1]+ · [100 Sim - t2]+ · min([t3 - PP]+, [PP - t4]+)) ^ (1/3)

    The minimum penalizes a high perplexity and also an abnormally low one, which is typical of
    short and dull sentences. GM is 0 as soon as one of the three is at or beyond its threshold.

    Args:
        accuracy: Share of texts with the target style, or the probability of the target label,
            0 to 1.
        similarity: Cosine of text and source, -1 to 1.
        perplexity: Perplexity of the texts under a language model, 1 or more; may be infinite.
        thresholds: t1 to t4; t1 and t2 in per cent, t3 and t4 in units of perplexity.

    Returns:
        Float64 of the broadcast shape, 0 or more. NaN propagates.

    Raises:
        ValueError: A value is out of range.

    Examples:
        >>> round(float(adjusted_gm(0.9, 0.79, 70.0)), 3)  # (27 · 8 · 27) ^ (1/3)
        18.0
        >>> float(adjusted_gm(0.9, 0.79, 97.0))
        0.0
    """
    acc = _in_range("accuracy", accuracy, 0.0, 1.0, "give a share, not per cent")
    sim = _in_range("similarity", similarity, -1.0, 1.0, "give a cosine, not per cent")
    pp = _in_range("perplexity", perplexity, 1.0, np.inf, "give exp of the mean negative log-prob")
    t1, t2, t3, t4 = thresholds
    fluency = np.minimum(np.maximum(t3 - pp, 0.0), np.maximum(pp - t4, 0.0))
    product = np.maximum(100 * acc - t1, 0.0) * np.maximum(100 * sim - t2, 0.0) * fluency
    return np.asarray(np.cbrt(product))


def _in_range(
    name: str, values: npt.ArrayLike, low: float, high: float, advice: str
) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    outside = array[(array < low) | (array > high)]
    if outside.size:
        raise ValueError(f"{name} = {outside[0]:g} is outside {low:g} to {high:g}: {advice}")
    return array
