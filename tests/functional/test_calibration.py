from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ctrlreward.functional.calibration import label_bias
from ctrlreward.functional.ctrleval import label_probabilities

LOG_PROBS = st.floats(-30, 0)
TEXTS, EVALUATORS, LABELS = (st.shared(st.integers(1, 4), key=key) for key in "ijk")
REFERENCES = npst.arrays(
    np.float64, st.tuples(TEXTS, EVALUATORS, LABELS), elements=LOG_PROBS, fill=st.nothing()
)
TEXT = npst.arrays(np.float64, st.tuples(EVALUATORS, LABELS), elements=LOG_PROBS)


@given(REFERENCES)
def test_the_bias_is_the_mean_over_texts_from_which_the_mean_over_labels_is_taken(
    references: np.ndarray,
) -> None:
    bias = label_bias(references)
    texts, evaluators, labels = references.shape
    for j in range(evaluators):
        means = [sum(references[i, j, k] for i in range(texts)) / texts for k in range(labels)]
        expected = [mean - sum(means) / labels for mean in means]
        np.testing.assert_allclose(bias[j], expected, atol=1e-12)


@given(REFERENCES, TEXT, st.data())
def test_a_constant_that_favours_a_word_cancels_out(references, text, data) -> None:
    bonus = data.draw(npst.arrays(np.float64, text.shape, elements=st.floats(-10, 10)))
    plain, favoured = (
        label_probabilities(text + added - label_bias(references + added), "mean")
        for added in (0.0, bonus)
    )
    np.testing.assert_allclose(favoured, plain, atol=1e-9)
