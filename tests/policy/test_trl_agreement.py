"""Comparison with the loss of TRL 1.16 on the same tensors, where the definitions agree.

`GRPOTrainer._compute_loss` is called with a namespace as the trainer and with given
log-probabilities. Not compared: `beta` with aggregations other than `sequence`, since TRL
aggregates its KL term like the loss; and DAPO over several updates per rollout, where TRL divides
each update by their mean number of tokens.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from ctrlreward.policy.objectives import AlgorithmParts, Experience, loss_terms, loss_weights
from ctrlreward.policy.rollouts import Rollout

pytest.importorskip("trl")

LONGEST = 9
AGGREGATIONS = {"grpo": "sequence", "dr_grpo": "constant", "bnpo": "token", "dapo": "token"}


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """Six completions of up to five tokens, with ratios beyond both bounds of both clips."""
    generator = torch.Generator().manual_seed(0)

    def drawn(scale: float, *shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    current = -drawn(1.0, 6, 5).abs()
    lengths = torch.tensor([5, 1, 3, 4, 2, 5])
    return {
        "current": current,
        "old": current + drawn(0.3, 6, 5),
        "reference": current + drawn(0.5, 6, 5),
        "advantages": drawn(1.0, 6),
        "mask": (torch.arange(5) < lengths[:, None]).double(),
    }


def theirs(
    tensors: dict[str, Tensor], loss_type: str, level: str, clip: tuple[float, float], beta: float
) -> tuple[float, Tensor]:
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
        epsilon_high=clip[1],
        epsilon_low=clip[0],
        importance_sampling_level=level,
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
        "old_per_token_logps": tensors["old"],
        "prompt_ids": torch.zeros(6, 1),
        "prompt_mask": torch.ones(6, 1),
        "ref_per_token_logps": tensors["reference"],
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    (gradient,) = torch.autograd.grad(loss, current)
    return loss.item(), gradient


def ours(
    tensors: dict[str, Tensor], loss_type: str, level: str, clip: tuple[float, float], beta: float
) -> tuple[float, Tensor]:
    current = tensors["current"].clone().requires_grad_()
    mask = tensors["mask"]
    choices = AlgorithmParts("group", "none", level, clip, AGGREGATIONS[loss_type])
    rollout = Rollout([""] * 6, mask, mask, mask, torch.ones(6, dtype=torch.bool))
    experience = Experience(
        rollout, tensors["advantages"], mask, tensors["reference"], tensors["old"]
    )
    weights = loss_weights(choices, experience, LONGEST)
    terms = loss_terms(choices, current, experience, weights, beta)
    (gradient,) = torch.autograd.grad(terms["loss"], current)
    return terms["loss"].item(), gradient


@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.28)])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("loss_type", "beta"),
    [("grpo", 0.0), ("grpo", 0.1), ("dr_grpo", 0.0), ("bnpo", 0.0), ("dapo", 0.0)],
)
def test_loss_and_gradient_are_trls(tensors, loss_type, beta, level, clip) -> None:
    loss, gradient = theirs(tensors, loss_type, level, clip, beta)
    own_loss, own_gradient = ours(tensors, loss_type, level, clip, beta)
    assert own_loss == pytest.approx(loss, abs=1e-9)
    torch.testing.assert_close(own_gradient, gradient, rtol=0, atol=1e-9)
    assert gradient.abs().max() > 1e-3


def test_the_two_clips_differ(tensors) -> None:
    """Otherwise the agreement above would not test clipping."""
    losses = {ours(tensors, "grpo", "token", clip, 0.0)[0] for clip in [(0.2, 0.2), (0.2, 0.28)]}
    assert len(losses) == 2
