from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ctrlreward.models import dtypes
from ctrlreward.models.dtypes import pick_dtype


def test_dtype_on_the_cpu() -> None:
    assert pick_dtype(None, "cpu") == torch.float32
    assert pick_dtype("bfloat16", "cpu") == torch.bfloat16
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16"):
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


def test_no_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device"):
        pick_dtype(None, "cuda:1")


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 avx512bw\n", torch.bfloat16),
        ("flags\t\t: fpu amx_bf16\n", torch.bfloat16),
        ("Features\t: fp asimd sve i8mm bf16\n", torch.bfloat16),
        ("flags\t\t: fpu avx2 avx512f\n", torch.float32),
        (None, torch.float32),
    ],
)
def test_the_fastest_on_the_cpu(
    cpuinfo: str | None, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(dtypes, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(dtypes, "_cpu_flags", dtypes._cpu_flags.__wrapped__)
    assert pick_dtype("fastest", "cpu") == expected
