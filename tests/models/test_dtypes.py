from __future__ import annotations

import pytest
import torch

from ctrlreward.models.dtypes import pick_dtype


def test_dtype_on_the_cpu() -> None:
    assert pick_dtype(None, "cpu") == torch.float32
    assert pick_dtype("bfloat16", "cpu") == torch.bfloat16
    with pytest.raises(ValueError, match="dtype"):
        pick_dtype("fp8", "cpu")


@pytest.mark.parametrize(
    ("dtype", "capability", "expected"),
    [
        (None, (9, 0), torch.bfloat16),
        (None, (8, 0), torch.bfloat16),
        (None, (7, 5), torch.float16),
        ("float32", (7, 5), torch.float32),
        ("fastest", (9, 0), torch.bfloat16),
        ("fastest", (7, 5), torch.float16),
    ],
)
def test_dtype_on_cuda(
    dtype: str | None,
    capability: tuple[int, int],
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert pick_dtype(dtype, "cuda:1") == expected
