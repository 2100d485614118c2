from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ctrlreward.models import products
from ctrlreward.models.products import Linear, linear, speed_up


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Takes oneDNN's product on any processor; the shapes that it was given."""
    seen: list[tuple[int, ...]] = []
    own = torch.ops.mkldnn._linear_pointwise

    def recorded(hidden: Tensor, *given: object) -> Tensor:
        seen.append(tuple(hidden.shape))
        product: Tensor = own(hidden, *given)
        return product

    monkeypatch.setattr(products, "_mkl_holds_back", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", recorded)
    return seen


@pytest.mark.parametrize("shape", [(127, 24), (128, 24), (3, 70, 24), (2, 0, 24), (24,), (300, 24)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_pytorchs_own(
    onednn: list[tuple[int, ...]], shape: tuple[int, ...], with_bias: bool
) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(shape), torch.randn(50, 24)
    bias = torch.randn(50) if with_bias else None
    found = linear(hidden, weight, bias)
    torch.testing.assert_close(
        found, torch.nn.functional.linear(hidden, weight, bias), atol=1e-5, rtol=1e-5
    )
    rows = hidden.numel() // 24
    assert onednn == ([((rows + 127) // 128 * 128, 24)] if rows >= 128 else [])


def test_parts_of_larger_tensors(onednn: list[tuple[int, ...]]) -> None:
    hidden, weight = torch.randn(40, 24, 5).transpose(1, 2), torch.randn(90, 24)
    for part in weight.split(35):
        expected = torch.nn.functional.linear(hidden, part)
        torch.testing.assert_close(linear(hidden, part), expected, atol=1e-5, rtol=1e-5)
    assert len(onednn) == 3


@pytest.mark.parametrize("which", range(3))
def test_gradients_are_pytorchs_own(onednn: list[tuple[int, ...]], which: int) -> None:
    given = [torch.randn(200, 24), torch.randn(50, 24), torch.randn(50)]
    given[which].requires_grad_()
    (found,) = torch.autograd.grad(linear(*given).square().sum(), given[which])
    plain = torch.nn.functional.linear(*given)
    (expected,) = torch.autograd.grad(plain.square().sum(), given[which])
    torch.testing.assert_close(found, expected)
    assert onednn == []


def test_other_precisions_are_left_alone(onednn: list[tuple[int, ...]]) -> None:
    hidden, weight = torch.randn(200, 24).bfloat16(), torch.randn(50, 24).bfloat16()
    assert linear(hidden, weight).dtype == torch.bfloat16
    assert onednn == []


def test_a_models_layers_multiply_so(onednn: list[tuple[int, ...]]) -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(24, 30), nn.Sequential(nn.GELU(), Own(30, 7)))
    hidden, names = torch.randn(200, 24), list(model.state_dict())
    with torch.inference_mode():
        expected = model(hidden)
        speed_up(model)
        torch.testing.assert_close(model(hidden), expected, atol=1e-5, rtol=1e-5)
    assert isinstance(model[0], Linear)
    assert onednn == [(256, 24)]
    assert list(model.state_dict()) == names


@pytest.mark.parametrize(
    ("capability", "vendor", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_where_mkl_holds_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: str, vendor: str, expected: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(products, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products._mkl_holds_back.__wrapped__() is expected
