"""Comparison with the loss of TRL 1.16 on the same tensors, where the definitions agree.

`GRPOTrainer._compute_loss` is called with a namespace as the trainer and with given
log-probabilities. The policy is the one that sampled, as in the only update of a rollout. Not
compared: `beta` with aggregations other than `sequence`, since TRL aggregates its KL term like the
loss.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ctrlreward.policy.objectives import Aggregation, loss_terms

pytest.importorskip("trl")

LONGEST = 9
AGGREGATIONS: dict[str, Aggregation] = {
    "grpo": "sequence",
    "dr_grpo": "constant",
    "bnpo": "token",
    "dapo": "token",
}


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """Six completions of up to five tokens."""
    generator = torch.Generator().manual_seed(0)

    def drawn(scale: float, *shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    current = -drawn(1.0, 6, 5).abs()
    lengths = torch.tensor([5, 1, 3, 4, 2, 5])
    return {
        "current": current,
        "reference": current + drawn(0.5, 6, 5),
        "advantages": drawn(1.0, 6),
        "mask": (torch.arange(5) < lengths[:, None]).double(),
    }


def theirs(tensors: dict[str, Tensor], loss_type: str, beta: float) -> Tensor:
    from trl import GRPOTrainer  # seconds to import

    current = tensors["current"].clone().requires_grad_()
    trainer = SimpleNamespace(
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (current, -current.detach(), None),
        _metrics={"train": defaultdict(list)},
        accelerator=SimpleNamespace(
            gather=lambda value: value, num_processes=1, reduce=lambda value, reduction: value
        ),
        args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False),
        aux_loss_enabled=False,
        beta=beta,
        current_gradient_accumulation_steps=1,
        epsilon_high=0.28,
        epsilon_low=0.2,
        importance_sampling_level="token",
        loss_type=loss_type,
        max_completion_length=LONGEST,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
    )
    mask = tensors["mask"]
    inputs = {
        "advantages": tensors["advantages"],
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "num_items_in_batch": mask.sum(),
        "old_per_token_logps": current.detach(),
        "prompt_ids": torch.zeros(6, 1),
        "prompt_mask": torch.ones(6, 1),
        "ref_per_token_logps": tensors["reference"],
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    (gradient,) = torch.autograd.grad(loss, current)
    return gradient


def ours(tensors: dict[str, Tensor], loss_type: str, beta: float) -> Tensor:
    current = tensors["current"].clone().requires_grad_()
    rest = (tensors[name] for name in ("reference", "advantages", "mask"))
    loss = loss_terms(AGGREGATIONS[loss_type], current, *rest, LONGEST, beta)["loss"]
    (gradient,) = torch.autograd.grad(loss, current)
    return gradient


@pytest.mark.parametrize(
    ("loss_type", "beta"),
    [("grpo", 0.0), ("grpo", 0.1), ("dr_grpo", 0.0), ("bnpo", 0.0), ("dapo", 0.0)],
)
def test_the_gradient_is_trls(tensors, loss_type, beta) -> None:
    expected = theirs(tensors, loss_type, beta)
    torch.testing.assert_close(ours(tensors, loss_type, beta), expected, rtol=0, atol=1e-9)
    assert expected.abs().max() > 1e-3
