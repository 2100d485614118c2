from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_choice import LoRA, PolicyTuner, pl
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
from tuner_records import BATCH, drift, logged, sampled, trained_weights, written_by

from ctrlreward.functional.advantages import batch_baseline_advantages, leave_one_out_advantages
from ctrlreward.functional.policy import kl_estimate
from ctrlreward.policy.rollouts import log_probs

# By the formulas alone, completion by completion.


def group_normalised_advantages(rewards: Tensor, groups: Tensor, epsilon: float = 1e-4) -> Tensor:
    """GRPO with outcome supervision (Shao et al. 2024); 0 for a failed or only sample."""
    advantages = torch.zeros_like(rewards)
    for group in groups.unique():
        valid = (groups == group) & ~rewards.isnan()
        if valid.sum() > 1:
            kept = rewards[valid]
            advantages[valid] = (kept - kept.mean()) / (kept.std() + epsilon)
    return advantages


def grpo_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean over completions of the mean over tokens of -ratio x advantage, at a ratio of 1."""
    loss = 0 * log_probs.sum()  # of completions without tokens
    for row, advantage, kept in zip(log_probs, advantages, mask.bool(), strict=True):
        if kept.any():
            loss = loss - (advantage * (row - row.detach()).exp()[kept]).mean()
    return loss / len(log_probs)


def reinforce_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Mean over completions of -advantage x log-probability of the completion (Williams 1992)."""
    rows = zip(log_probs, advantages, mask.bool(), strict=True)
    return -torch.stack([a * row[kept].sum() for row, a, kept in rows]).mean()


ALGORITHMS = {
    "grpo": (group_normalised_advantages, grpo_loss),
    "rloo": (leave_one_out_advantages, reinforce_loss),
    "reinforce": (batch_baseline_advantages, reinforce_loss),
}


def step(module: PolicyTuner) -> torch.Tensor:
    module.configure_model()
    torch.manual_seed(0)
    return module.training_step(BATCH, 0)


# One step


@pytest.mark.lightning
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_loss_and_gradient_are_those_of_the_formulas(tuner, algorithm: str) -> None:
    """Computed from the rollout alone, with a separately loaded base model as the reference."""
    module = tuner(algorithm=algorithm, beta=0.7, temperature=0.8)
    module.configure_model()
    drift(module, 9)
    values = logged(module)
    rollouts = sampled(module)
    loss = step(module)
    (rollout,) = rollouts
    rewards = torch.tensor([t.count("a") / len(t) if t else math.nan for t in rollout.completions])
    groups = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    base = AutoModelForCausalLM.from_pretrained(module.base_model).eval()
    current = log_probs(module.policy, rollout, 0.8)
    with torch.no_grad():
        reference = log_probs(base, rollout, 0.8)
    assert (current - reference).abs().max() > 0.1
    baseline, policy_loss = ALGORITHMS[algorithm]
    gain = policy_loss(current, baseline(rewards, groups), rollout.mask)
    lengths = rollout.mask.sum(dim=1)
    kl = (kl_estimate(current, reference).sum(dim=1) / lengths).mean()
    entropy = -(current.sum(dim=1) / lengths).mean()
    trained = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trained)
    expected = torch.autograd.grad(gain + 0.7 * kl, trained)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)
    assert values["policy/kl"] == pytest.approx(kl.item(), abs=1e-5)
    assert values["policy/entropy"] == pytest.approx(entropy.item(), abs=1e-5)
    assert values["policy/loss"] == pytest.approx(loss.item())
    assert values["rollout/length"] == pytest.approx(lengths.mean().item())
    assert values["reward/total"] == values["reward/share"]
    assert values["reward/total"] == pytest.approx(rewards.nanmean().item())
    assert values["rollout/tokens_per_second"] > 0
    assert {*values} == {
        *(f"reward/{name}{end}" for name in ("total", "share") for end in ("", "_std")),
        *("reward/fail_rate", "reward/zero_signal", "policy/kl", "policy/entropy", "policy/loss"),
        *(f"rollout/{name}" for name in ("length", "truncated", "tokens_per_second")),
        *("time/rollout_share", "time/reward_share"),
    }


def test_a_new_adapter_changes_nothing_and_alone_learns(tuner) -> None:
    module = tuner(dtype="bfloat16")
    values = logged(module)
    step(module).backward()
    assert values["policy/kl"] == 0
    touched = {name for name, p in module.named_parameters() if p.grad is not None}
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert touched == trained
    assert touched
    for name, parameter in module.named_parameters():
        assert ("lora_" in name) == parameter.requires_grad
        assert parameter.dtype == (torch.float32 if "lora_" in name else torch.bfloat16)


def test_dropout_of_the_adapter_is_on_in_the_loss_alone(tuner) -> None:
    module = tuner(lora_dropout=0.5)
    module.configure_model()
    modes: list[bool] = []
    layer = next(m for n, m in module.named_modules() if n.endswith("lora_dropout.default"))
    layer.register_forward_hook(lambda layer, *_: modes.append(layer.training))
    step(module)
    assert module.complete(["ab"] * 3)
    assert sum(modes) == 1
    assert not modes[0]
    assert not modes[-1]


def test_the_reference_is_computed_while_the_reward_is_scored(tuner) -> None:
    asked, computed = threading.Event(), threading.Event()

    def waiting(texts: list[str]) -> list[float]:
        asked.set()
        assert computed.wait(60)
        return [float(text.count("a")) for text in texts]

    module = tuner(reward=waiting)
    module.configure_model()
    module.policy.register_forward_hook(lambda *_: asked.wait(60) and computed.set())
    rollout = module.rollout
    module.rollout = lambda *a: (asked.set(), rollout(*a), asked.clear(), computed.clear())[1]
    assert torch.isfinite(step(module))


def test_a_batch_in_which_all_samples_failed_is_an_error(tuner, share) -> None:
    share.score_samples = lambda samples: {"share": [math.nan] * len(samples)}
    with pytest.raises(RuntimeError, match="all 12 samples"):
        step(tuner())


def test_a_stop_token_ends_completions_and_is_removed(tuner) -> None:
    module = tuner(stop="c")
    torch.manual_seed(0)
    rollout = module.rollout(["ab"] * 200)
    letter = module.tokenizer.convert_tokens_to_ids("c")
    rows = written_by(rollout)
    for row, text in zip(rows, rollout.completions, strict=True):
        assert letter not in row[:-1]
        before = [i for i in row if i != letter]
        assert text == module.tokenizer.decode(before, skip_special_tokens=True)
    stopped = sum(row[-1] == letter for row in rows)  # which is learned
    assert 20 < stopped < rollout.ended.sum()
    with pytest.raises(ValueError, match="stop"):
        tuner(stop="cd").configure_model()


# Whole runs


def on(*modules: str, **options: Any) -> LoRA:
    return LoRA(r=2, target_modules=modules, **options)


@pytest.mark.parametrize(
    ("saved", "loaded", "named"),
    [
        (on("q_proj", "v_proj"), on("q_proj"), "v_proj"),
        (on("q_proj"), on("q_proj", "v_proj"), "v_proj"),
        (on("q_proj"), on("q_proj", lora_alpha=16), "lora_alpha"),
    ],
)
def test_a_checkpoint_of_another_adapter(tuner, fit, tmp_path, saved, loaded, named) -> None:
    """Its other weights were ignored, or stayed untrained or had another scale, without a word."""
    path = tmp_path / "saved.ckpt"
    fit(tuner(lora=saved), 1).save_checkpoint(path)
    other = tuner(lora=loaded)
    with pytest.raises(RuntimeError, match=named):
        fit(other, 2, ckpt_path=path)
    options = {"model": other.base_model, "reward": other.reward, "lora": other.lora}
    with pytest.raises(RuntimeError, match=named):
        type(other).load_from_checkpoint(path, **options)


@pytest.mark.lightning
def test_a_resumed_run_repeats_an_uncut_one_without_being_asked_to(
    tuner, tmp_path: Path, recwarn
) -> None:
    """Neither a callback nor `seed_everything`: the checkpoint has the seed and the adapter."""

    def fit(seed: int, **options: object) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        saver = pl.callbacks.ModelCheckpoint(
            tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1
        )
        trainer = pl.Trainer(accelerator="cpu", max_steps=5, logger=False, callbacks=[saver],
                             enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
        module = tuner(learning_rate=0.1, lr_scheduler_type="cosine", warmup_steps=2)
        trainer.fit(module, DataLoader([BATCH] * 9, batch_size=None), **options)
        return trained_weights(module)

    uncut = fit(1)
    saved = torch.load(tmp_path / "step=5.ckpt", weights_only=True)["state_dict"]
    assert all("lora_" in name for name in uncut)
    torch.testing.assert_close(saved, uncut)
    module = tuner()
    options = {"model": module.base_model, "reward": module.reward, "lora": module.lora}
    alone = type(module).load_from_checkpoint(str(tmp_path / "step=5.ckpt"), **options)
    assert not [w for w in recwarn if "not in the checkpoint" in str(w.message)]
    torch.testing.assert_close(trained_weights(alone), uncut)
    resumed = fit(2, ckpt_path=str(tmp_path / "step=3.ckpt"))
    torch.testing.assert_close(resumed, uncut)
    other = fit(2)
    assert any((uncut[name] - other[name]).abs().max() > 0.01 for name in uncut)
