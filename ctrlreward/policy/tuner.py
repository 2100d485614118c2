"""`PolicyTuner`: fine-tunes a causal language model on a `Reward` with LoRA."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from ctrlreward.functional import policy as formulas
from ctrlreward.models.dtypes import pick_dtype
from ctrlreward.models.head import keep_contiguous
from ctrlreward.models.weights import load_tokenizer, resolve
from ctrlreward.policy.rollouts import Rollout, log_probs, sample
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples

ADVANTAGES = {
    "grpo": formulas.group_normalised_advantages,
    "rloo": formulas.leave_one_out_advantages,
    "reinforce": formulas.batch_baseline_advantages,
}
LOSSES = {
    "grpo": formulas.grpo_loss,
    "rloo": formulas.reinforce_loss,
    "reinforce": formulas.reinforce_loss,
}


# Prompts completed together where nothing is learned from them.
_PROMPTS_AT_ONCE = 64


class PolicyTuner(pl.LightningModule):
    """Policy-gradient fine-tuning of a causal language model, one update per rollout.

    A batch is `Samples` of prompts (see `Samples.as_prompts`): the policy reads `prompts`, and the
    beginning with the completion is the text that is scored. Other columns go to the reward as
    they are. Each prompt is completed `group_size` times.

    Logs `reward/<name>` and `reward/<name>_std` of the total and of each component,
    `reward/fail_rate`, `policy/kl` and `policy/entropy` (nats per token), `policy/loss`,
    `rollout/length` (tokens), `rollout/tokens_per_second`, and `time/rollout_share` and
    `time/reward_share`: how much of the wall time up to the backward pass sampling and scoring
    took.

    Args:
        model: Local folder, hub id or short name of the model to be tuned.
        reward: What is to be maximised.
        algorithm: `"grpo"`, `"rloo"`, or `"reinforce"` (baseline: the batch's mean).
        group_size: Completions per prompt.
        max_new_tokens: Longest completion, in tokens.
        temperature: Of sampling, in rollouts and in `complete`.
        kl_coef: Weight of the KL divergence from the untuned model, per token, in the loss.
        learning_rate: Of AdamW.
        warmup_steps: Steps over which the learning rate rises to its value.
        lora_rank: Rank of the adapter on all linear layers; its alpha is twice that.
        dtype: Of the frozen weights; None picks by device. The adapter is float32.
    """

    def __init__(
        self,
        model: str,
        reward: Reward,
        algorithm: Literal["grpo", "rloo", "reinforce"] = "grpo",
        group_size: int = 8,
        max_new_tokens: int = 32,
        temperature: float = 1.0,
        kl_coef: float = 0.05,
        learning_rate: float = 1e-4,
        warmup_steps: int = 5,
        lora_rank: int = 16,
        dtype: str | None = None,
    ) -> None:
        super().__init__()
        if algorithm not in ADVANTAGES:
            raise ValueError(f"algorithm = {algorithm!r}: give one of {', '.join(ADVANTAGES)}")
        if group_size < 2 and algorithm != "reinforce":
            raise ValueError(f"group_size = {group_size}: {algorithm} compares 2 or more")
        self.base_model = model
        self.reward = reward
        self.algorithm = algorithm
        self.group_size = group_size
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.kl_coef = kl_coef
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.lora_rank = lora_rank
        self.dtype_name = dtype
        self.policy: PeftModel  # from configure_model on
        # A checkpoint holds the adapter only: the base model is what `model` names.
        self.strict_loading = False

    def configure_model(self) -> None:
        """Loads the base model and puts a new adapter on it, once."""
        if "policy" in dict(self.named_children()):
            return
        self.tokenizer = load_tokenizer(self.base_model)
        # Lightning calls this before it moves the module to where it will run.
        device = self.device if self._trainer is None else self.trainer.strategy.root_device
        base = AutoModelForCausalLM.from_pretrained(
            resolve(self.base_model),
            dtype=pick_dtype(self.dtype_name, device.type),
            use_safetensors=True,
        )
        # What a model's makers advise (a repetition penalty, say) draws from a distribution that
        # is not the one being trained.
        base.generation_config = GenerationConfig(eos_token_id=base.generation_config.eos_token_id)
        keep_contiguous(base)
        lora = LoraConfig(
            r=self.lora_rank,
            lora_alpha=2 * self.lora_rank,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
            # What a plain peft user needs to find the base model again.
            base_model_name_or_path=resolve(self.base_model),
        )
        self.policy = get_peft_model(base, lora).train()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW on the adapter, with a linear warm-up."""
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.learning_rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / max(1, self.warmup_steps))
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def transfer_batch_to_device(self, batch: Samples, device: torch.device, _: int) -> Samples:
        """Text stays where it is."""
        return batch

    def training_step(self, batch: Samples, batch_idx: int) -> Tensor:
        """Samples completions, scores them, and returns the loss of the update.

        Raises:
            RuntimeError: Every sample of the batch failed to get a reward.
        """
        started = time.perf_counter()
        prompts = batch.as_prompts()[[i for i in range(len(batch)) for _ in range(self.group_size)]]
        rollout = self._sample(prompts.require("prompts", "PolicyTuner"))
        sampled = time.perf_counter()
        scored = self.reward(prompts.completed(rollout.completions))
        if scored.failed.all():
            raise RuntimeError(
                f"all {len(prompts)} samples of this step got NaN as reward: see the warnings of "
                "the scorers; nothing can be learned from it"
            )
        groups = torch.arange(len(batch)).repeat_interleave(self.group_size)
        rewards = torch.from_numpy(scored.total).float()
        advantages = ADVANTAGES[self.algorithm](rewards, groups).to(self.device)

        self.policy.eval()  # dropout would part the update from what was sampled
        with torch.no_grad(), self.policy.disable_adapter():
            reference = log_probs(self.policy, rollout, self.temperature)
        current = log_probs(self.policy, rollout, self.temperature)
        gain = LOSSES[self.algorithm](current, advantages, rollout.mask)
        kl = formulas.sequence_mean(formulas.kl_estimate(current, reference), rollout.mask).mean()
        loss = gain + self.kl_coef * kl

        seconds = time.perf_counter() - started
        self._log_step(
            {
                **{f"reward/{name}": value for name, value in scored.statistics().items()},
                "policy/kl": kl.detach(),
                "policy/entropy": -formulas.sequence_mean(current.detach(), rollout.mask).mean(),
                "policy/loss": loss.detach(),
                "rollout/length": rollout.mask.sum(dim=1).mean(),
                "rollout/tokens_per_second": rollout.mask.sum() / (sampled - started),
                "time/rollout_share": (sampled - started) / seconds,
                "time/reward_share": scored.seconds / seconds,
            },
            len(prompts),
        )
        return loss

    def validation_step(self, batch: Samples, batch_idx: int) -> None:
        """Nothing: `GenerationScorer` scores held-out generations at each validation."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """What the policy writes behind each prompt, sampled as in training."""
        return [
            completion
            for start in range(0, len(prompts), _PROMPTS_AT_ONCE)
            for completion in self._sample(prompts[start : start + _PROMPTS_AT_ONCE]).completions
        ]

    def export_adapter(self, folder: str | PathLike[str]) -> None:
        """Writes the adapter as plain peft files, for `PeftModel.from_pretrained`."""
        self.configure_model()
        self.policy.save_pretrained(str(folder))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the adapter and leaves out the frozen base model."""
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name in trained
        }

    def on_fit_end(self) -> None:
        """Ends the reward's worker and frees its models."""
        self.reward.release()

    def _sample(self, prompts: Sequence[str]) -> Rollout:
        self.configure_model()
        self.policy.eval()
        return sample(self.policy, self.tokenizer, prompts, self.max_new_tokens, self.temperature)

    def _log_step(self, values: Mapping[str, Any], batch_size: int) -> None:
        for name, value in values.items():
            self.log(name, float(value), batch_size=batch_size, prog_bar=name == "reward/total")
