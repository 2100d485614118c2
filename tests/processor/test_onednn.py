from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu
from transformers import AutoModelForSeq2SeqLM
from transformers.activations import ACT2FN, GELUActivation

from ctrlreward.processor import onednn
from ctrlreward.processor.onednn import Gelu, Linear, adapt, linear
from ctrlreward.weights.loading import load_frozen


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Takes oneDNN's product on any processor; the shapes that it was given."""
    seen: list[tuple[int, ...]] = []
    own = torch.ops.mkldnn._linear_pointwise

    def recorded(hidden: Tensor, *given: object) -> Tensor:
        seen.append(tuple(hidden.shape))
        product: Tensor = own(hidden, *given)
        return product

    monkeypatch.setattr(onednn, "_mkl_lacks_avx512", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", recorded)
    return seen


@pytest.mark.parametrize("shape", [(127, 24), (128, 24), (3, 70, 24), (2, 0, 24), (24,), (300, 24)])
@pytest.mark.parametrize("with_bias", [True, False])
@torch.no_grad()
def test_equals_pytorchs_own(
    multiplied: list[tuple[int, ...]], shape: tuple[int, ...], with_bias: bool
) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(shape), torch.randn(50, 24)
    bias = torch.randn(50) if with_bias else None
    found = linear(hidden, weight, bias)
    torch.testing.assert_close(
        found, torch.nn.functional.linear(hidden, weight, bias), atol=1e-5, rtol=1e-5
    )
    rows = hidden.numel() // 24
    assert multiplied == ([((rows + 127) // 128 * 128, 24)] if rows >= 128 else [])


@torch.no_grad()
def test_parts_of_larger_tensors(multiplied: list[tuple[int, ...]]) -> None:
    hidden, weight = torch.randn(40, 24, 5).transpose(1, 2), torch.randn(90, 24)
    for part in weight.split(35):
        expected = torch.nn.functional.linear(hidden, part)
        torch.testing.assert_close(linear(hidden, part), expected, atol=1e-5, rtol=1e-5)
    assert len(multiplied) == 3


@pytest.mark.parametrize("which", range(3))
def test_gradients_are_pytorchs_own(multiplied: list[tuple[int, ...]], which: int) -> None:
    given = [torch.randn(200, 24), torch.randn(50, 24), torch.randn(50)]
    given[which].requires_grad_()
    (found,) = torch.autograd.grad(linear(*given).square().sum(), given[which])
    plain = torch.nn.functional.linear(*given)
    (expected,) = torch.autograd.grad(plain.square().sum(), given[which])
    torch.testing.assert_close(found, expected)
    assert multiplied == []


@torch.no_grad()
def test_other_precisions_are_left_alone(multiplied: list[tuple[int, ...]]) -> None:
    hidden, weight = torch.randn(200, 24).bfloat16(), torch.randn(50, 24).bfloat16()
    assert linear(hidden, weight).dtype == torch.bfloat16
    assert multiplied == []


def test_a_models_layers_multiply_so(multiplied: list[tuple[int, ...]]) -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(24, 30), nn.Sequential(nn.GELU(), Own(30, 7)))
    hidden, names = torch.randn(200, 24), list(model.state_dict())
    with torch.inference_mode():
        expected = model(hidden)
        adapt(model)
        torch.testing.assert_close(model(hidden), expected, atol=1e-5, rtol=1e-5)
    assert isinstance(model[0], Linear)
    assert multiplied == [(256, 24)]
    assert list(model.state_dict()) == names


def test_a_loaded_model_computes_so(multiplied: list[tuple[int, ...]], tiny_bart: str) -> None:
    layers = {type(layer) for layer in load_frozen(AutoModelForSeq2SeqLM, tiny_bart).modules()}
    assert {Linear, Gelu} <= layers
    assert not {nn.Linear, GELUActivation} & layers


@pytest.mark.parametrize("shape", [(24,), (3, 24), (3, 0, 24), (128, 24), (5, 60, 24)])
@torch.no_grad()
def test_gelu_is_pytorchs_own(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(shape)
    assert Gelu()(hidden).equal(gelu(hidden))
    across = hidden.movedim(0, -1)
    assert Gelu()(across).equal(gelu(across))


def test_gelu_keeps_its_gradients() -> None:
    hidden = torch.randn(200, 24, requires_grad=True)
    (found,) = torch.autograd.grad(Gelu()(hidden).sum(), hidden)
    (expected,) = torch.autograd.grad(gelu(hidden).sum(), hidden)
    assert found.equal(expected)


def test_many_batches_give_gelu_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: set[tuple[int, ...]] = set()
    own = torch.ops.aten.gelu.out

    def recorded(part: Tensor, out: Tensor) -> Tensor:
        shapes.add(tuple(part.shape))
        return own(part, out=out)

    monkeypatch.setattr(torch.ops.aten.gelu, "out", recorded)
    with torch.no_grad():
        for texts in range(1, 30):
            for words in range(1, 60):
                Gelu()(torch.zeros(texts, words, 4))
    # Up to 127 rows, and a multiple of 128 up to the largest batch; a part may have no row.
    assert len(shapes - {(0, 4)}) <= 127 + 29 * 59 // 128


def test_of_gelus_only_the_plain_one_is_computed_in_parts() -> None:
    class Own(GELUActivation):
        pass

    model = nn.Sequential(ACT2FN["gelu"], ACT2FN["gelu_python"], ACT2FN["gelu_new"], Own())
    others = [type(layer) for layer in model[1:]]
    adapt(model)
    assert [type(layer) for layer in model] == [Gelu, *others]


@pytest.mark.parametrize(
    ("capability", "vendor", "expected"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX2", "AuthenticAMD", False),
    ],
)
def test_where_mkl_lacks_avx512(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: str, vendor: str, expected: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(onednn, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(onednn, "cpu_flags", onednn.cpu_flags.__wrapped__)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn._mkl_lacks_avx512.__wrapped__() is expected
