"""Errors and warnings name the rows of the user, whoever has scored some of them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from ctrlreward import Reward, Samples, Similarity, WordVectors
from ctrlreward.scorers import Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores


class Picky(Scorer):
    specs: ClassVar = {"picky": ScoreSpec(higher_is_better=True, range=(0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        if "odd" in samples.texts:
            raise ValueError(f"texts[{samples.texts.index('odd')}] is odd")
        return {"picky": np.ones(len(samples))}


def test_rows_after_repeated_samples(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["soup", "soup", "soup", "", "odd"]  # a scorer gets distinct samples alone
    content = Similarity(WordVectors({"soup": [1, 0]}))
    Reward({"content": content})(texts[:-1], sources="soup")
    assert caplog.messages == ["texts[3] is empty: similarity is NaN"]
    with pytest.raises(ValueError, match=r"^texts\[4\] is odd$"):
        Reward({"picky": Picky()})(texts)
