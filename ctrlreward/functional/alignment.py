"""Information alignment (CTC): token alignments folded into the aspects of a text.

Deng et al. (2021), "Compression, Transduction, and Creation: A Unified Framework for Evaluating
Natural Language Generation", https://arxiv.org/abs/2109.06379.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.means import valid_mean

Values = npt.NDArray[np.float64]


def best_cosines(a: npt.ArrayLike, b: npt.ArrayLike) -> Values:
    """Return the largest cosine of each row of a, shape (m, width), with any row of b, (n, width).

    Greedy matching of BERTScore (Zhang et al. 2020), https://arxiv.org/abs/1904.09675:

        align(a → b)_i = max_j cos(a_i, b_j)

    Float64, shape (m,), -1 to 1; higher is better aligned. All NaN if b has no rows. A row of zeros
    makes its own value NaN in a, and all values NaN in b.

    Examples:
        >>> best_cosines([[3, 4], [5, 0]], [[1, 0], [0, 1]])
        array([0.8, 1. ])
    """
    left, right = _unit_rows(a), _unit_rows(b)
    if not len(right):
        return np.full(len(left), np.nan)
    # Rounding can leave the cosine of equal vectors just above 1.
    return np.asarray((left @ right.T).max(axis=1).clip(-1.0, 1.0))


def content_tokens(
    text: str, spans: Sequence[tuple[int, int]], stop_words: Collection[str]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the tokens that are not stop words, shape (len(spans),).

    Tokens are compared in lower case and without surrounding white space. As in the package
    released with the paper, only the first piece of a word can be a stop word: the `s` of `word|s`
    never is. `spans` have start and end offset of each token in the text.

    Examples:
        >>> content_tokens("the dogs", [(0, 3), (3, 7), (7, 8)], {"the", "s"})
        array([False,  True,  True])
    """
    content = []
    for start, end in spans:
        token = text[start:end].lstrip()
        before = text[: end - len(token)][-1:]
        content.append(before.isalnum() or token.rstrip().lower() not in stop_words)
    return np.array(content, dtype=np.bool_)


# Folds of the token alignments of a text, shape (tokens,). A sum grows with its length.
AGGREGATES: Mapping[str, Callable[[Values], float]] = {"mean": valid_mean, "sum": np.sum}


def preservation(output: npt.ArrayLike, source: npt.ArrayLike) -> Values:
    """Return how much of the content text and source share, as the mean of both directions.

    Deng et al. (2021), eq. 4, as a harmonic mean:

        2 · align(y → x) · align(x → y) / (align(y → x) + align(x → y))

    The printed equation and the package ctc_score 0.1.3 leave the factor 2 out; texts are ordered
    alike. `output` is y → x, of text and source; `source` is x → y.

    Float64 of the broadcast shape, 0 to the larger of the two; higher is better. 0 where a
    direction is 0 or negative. NaN propagates.

    Examples:
        >>> preservation([1.0, 0.5, -0.1], [0.6, 0.5, 0.9])
        array([0.75, 0.5 , 0.  ])
    """
    from scipy.stats import hmean  # takes half a second

    both = np.stack(np.broadcast_arrays(output, source)).astype(np.float64)
    return np.asarray(hmean(np.maximum(both, 0.0), axis=0))


def relevance(reference: npt.ArrayLike, output: npt.ArrayLike) -> Values:
    """Return align(r → y) · align(y → x), how much of the source's important content a text keeps.

    Deng et al. (2021), eq. 3. `reference` is r → y (for several references the released package
    takes their mean), `output` is y → x. Float64 of the broadcast shape; higher is better. NaN
    propagates.
    """
    return np.asarray(np.multiply(reference, output, dtype=np.float64))


def _unit_rows(rows: npt.ArrayLike) -> Values:
    array = np.asarray(rows, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(array / np.linalg.norm(array, axis=1, keepdims=True))
