from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward import Samples
from ctrlreward.scorers.records import read_scored_file, sample_table, write_scored_samples


def test_scored_samples_are_read_back_with_nan(tmp_path: Path) -> None:
    path = tmp_path / "new" / "texts.jsonl"
    samples = Samples(texts=["one\u2028line", "é"], labels=["a", "b"])
    write_scored_samples(path, samples, {"v": np.array([0.5, np.nan])})
    again, scores, *_ = read_scored_file(path)
    assert again == samples
    np.testing.assert_array_equal(scores["v"], [0.5, np.nan])


@given(st.integers(1, 40))
def test_table_rows_are_spread_and_distinct(n: int) -> None:
    samples = Samples(texts=[str(i) for i in range(n)])
    header, body = sample_table(samples, {"v": np.arange(n, dtype=float)}, {})
    assert header == ["text", "v"]
    shown = [int(str(row[0])) for row in body]
    assert len(shown) == min(n, 16)
    assert shown == sorted(set(shown))
    assert shown[0] == 0
    assert [row[1] for row in body] == shown
    if len(shown) > 1:
        assert shown[-1] == n - 1
