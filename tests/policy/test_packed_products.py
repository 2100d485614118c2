from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from ctrlreward.policy import packing
from ctrlreward.policy.packing import pack

ROWS = 5


@pytest.mark.parametrize("amd", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_product_is_the_product(
    dtype: torch.dtype, amd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels of both vendors."""
    monkeypatch.setattr(
        packing, "_mkl_packs", lambda: torch.backends.mkl.is_available() and not amd
    )
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((ROWS, 24), (40, 24), (40,))
    )
    with torch.no_grad():
        product = pack(weight, ROWS)
        if product is None:
            assert dtype == torch.bfloat16
            assert not torch.ops.mkldnn._is_mkldnn_bf16_supported()
            return
        close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
        torch.testing.assert_close(product(hidden, bias), linear(hidden, weight, bias), **close)
        torch.testing.assert_close(product(hidden, None), linear(hidden, weight), **close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_types_are_not_packed(dtype: torch.dtype) -> None:
    assert pack(torch.ones(4, 4, dtype=dtype), ROWS) is None


def test_other_devices_are_not_packed() -> None:
    assert pack(torch.ones(4, 4, device="meta"), ROWS) is None
