"""Information alignment (CTC): from token embeddings to the aspects of a text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import hmean

Values = npt.NDArray[np.float64]


def best_cosines(a: npt.ArrayLike, b: npt.ArrayLike) -> Values:
    """The largest cosine of each row of a with a row of b.

    Greedy matching of BERTScore (Zhang et al. 2020), https://arxiv.org/abs/1904.09675:

        align(a → b)_i = max_j cos(a_i, b_j)

    Args:
        a: Token embeddings, shape (m, width).
        b: Token embeddings, shape (n, width).

    Returns:
        Float64, shape (m,), -1 to 1; higher is better aligned. NaN where b has no rows, and
        where a row of zeros, which has no direction, takes part.
    """
    left, right = _unit(a), _unit(b)
    if not len(right):
        return np.full(len(left), np.nan)
    # Rounding can leave the cosine of equal vectors above 1 by a last digit.
    return np.asarray((left @ right.T).max(axis=1).clip(-1.0, 1.0))


def content_tokens(
    text: str, spans: Sequence[tuple[int, int]], stop_words: Collection[str]
) -> npt.NDArray[np.bool_]:
    """Which tokens of a text are no stop words.

    A token is compared as it stands in the text, in lower case and without white space around
    it. The later pieces of a word never are stop words (the s of `word|s`), its first may be
    one, as in Deng et al.'s package.

    Args:
        text: Any.
        spans: First character and the one after the last of each token.
        stop_words: In lower case.

    Returns:
        Shape (len(spans),).
    """
    content = []
    for start, end in spans:
        token = text[start:end].lstrip()
        before = text[: end - len(token)][-1:]
        content.append(before.isalnum() or token.rstrip().lower() not in stop_words)
    return np.array(content, dtype=np.bool_)


def mean_alignment(values: Values) -> float:
    """The mean of a text's token alignments; NaN without any."""
    return float(values.mean()) if values.size else float("nan")


def sum_alignment(values: Values) -> float:
    """The sum of a text's token alignments, which grows with what the text says; 0 of none."""
    return float(values.sum())


AGGREGATES = {"mean": mean_alignment, "sum": sum_alignment}


def preservation(output: npt.ArrayLike, source: npt.ArrayLike) -> Values:
    """How far text and source say the same: the harmonic mean of the two directions.

    Eq. 4 of Deng et al. (2021), https://arxiv.org/abs/2109.06379, with the factor 2 of a harmonic
    mean, which the equation lacks, so that equal texts have 1:

        2 · align(y → x) · align(x → y) / (align(y → x) + align(x → y))

    Args:
        output: Alignment of the text with the source, y → x.
        source: Alignment of the source with the text, x → y.

    Returns:
        Float64 of the broadcast shape, 0 to the larger of the two; higher is better. 0 where a
        direction is 0 or below, of which there is no harmonic mean. NaN stays NaN.
    """
    both = np.stack(np.broadcast_arrays(output, source)).astype(np.float64)
    return np.asarray(hmean(np.maximum(both, 0.0), axis=0))


def relevance(reference: npt.ArrayLike, output: npt.ArrayLike) -> Values:
    """How far a text holds what matters of its source: eq. 3 of Deng et al. (2021).

        align(r → y) · align(y → x)

    Args:
        reference: Alignment of the reference with the text, r → y. Of several references the
            paper's package takes the mean.
        output: Alignment of the text with the source, y → x.

    Returns:
        Float64 of the broadcast shape; higher is better. NaN stays NaN.
    """
    return np.asarray(np.multiply(reference, output, dtype=np.float64))


def _unit(rows: npt.ArrayLike) -> Values:
    array = np.asarray(rows, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(array / np.linalg.norm(array, axis=1, keepdims=True))
