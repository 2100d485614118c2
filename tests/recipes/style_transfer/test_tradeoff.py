from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.recipes.style_transfer.tradeoff import transfer_path

curves = st.dictionaries(st.integers(0, 6), st.floats(0, 1) | st.just(math.nan), max_size=5)


@given(curves, curves, curves)
def test_a_path_has_the_steps_of_all_three(
    accuracy: dict[int, float], similarity: dict[int, float], perplexity: dict[int, float]
) -> None:
    path = transfer_path(accuracy, similarity, perplexity)
    expected = [
        (step, accuracy[step], similarity[step], perplexity[step])
        for step in range(7)
        if all(not math.isnan(c.get(step, math.nan)) for c in (accuracy, similarity, perplexity))
    ]
    assert path == expected
