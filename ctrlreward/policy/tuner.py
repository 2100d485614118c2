"""`PolicyTuner`: fine-tunes a causal language model on a `Reward` with LoRA."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from peft import PeftModel
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from ctrlreward.models.weights import load_tokenizer
from ctrlreward.policy.adapter import load_with_adapter
from ctrlreward.policy.experience import Experience, Updates
from ctrlreward.policy.objectives import (
    Aggregation,
    Algorithm,
    Baseline,
    KLEstimator,
    Ratio,
    Scale,
    advantages_of,
    objective_of,
    terms_of,
    weigh,
)
from ctrlreward.policy.rollouts import Rollout, log_probs, sample
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores

# Prompts completed together where nothing is learned from them.
_PROMPTS_AT_ONCE = 64


class PolicyTuner(pl.LightningModule):
    """Policy-gradient fine-tuning of a causal language model.

    A batch is `Samples` of prompts (see `Samples.as_prompts`): the policy reads `prompts`, and the
    beginning with the completion is the text that is scored. Other columns go to the reward as
    they are. Each prompt is completed `group_size` times.

    An algorithm is a name for six choices, of which any can be made otherwise (`Objective` says
    what each means). As they are, each rollout makes one update, which is Lightning's to do, with
    the trainer's `gradient_clip_val` and `accumulate_grad_batches`. With `epochs`, `minibatches`,
    `microbatch_size` or `gradient_clip` this module makes the updates (manual optimisation): leave
    those two arguments of the trainer out; `global_step` then counts updates, and `max_steps` is
    looked at after each rollout.

    Logs `reward/<name>` and `reward/<name>_std` of the total, of each component and, where
    `shape_rewards` is set, of what it made (`shaped`); `reward/fail_rate`, `policy/kl` and
    `policy/entropy` (nats per token), `policy/loss`, `policy/ratio` to the policy that sampled,
    `policy/clip_fraction` (share of tokens), `policy/update_kl` from the policy that sampled (nats
    per token), `rollout/length` (tokens), `rollout/truncated` (share of completions without an
    end), `rollout/tokens_per_second`, and `time/rollout_share` and `time/reward_share`: how much of
    the wall time up to Lightning's backward pass, or to the end of the last update made here,
    sampling and scoring took. What
    several updates of a rollout have is logged as their mean.

    Args:
        model: Local folder, hub id or short name of the model to be tuned.
        reward: What is to be maximised.
        algorithm: `"grpo"`, `"dr_grpo"`, `"dapo"` (clip-higher, mean over tokens), `"gspo"`
            (ratios of completions), `"rloo"`, `"reinforce"` (baseline: the batch's mean),
            `"reinforce++"` (scaled by the batch's deviation too), or `"self_critical"` (baseline:
            the greedy completion).
        group_size: Completions per prompt.
        max_new_tokens: Longest completion, in tokens.
        temperature: Of sampling, in rollouts and in `complete`.
        kl_coef: Weight of the KL divergence from the untuned model, per token, in the loss.
        learning_rate: Of AdamW.
        warmup_steps: Steps over which the learning rate rises to its value.
        lora_rank: Rank of the adapter on all linear layers; its alpha is twice that.
        dtype: Of the frozen weights; None picks by device. The adapter is float32.
        baseline: `"group"`, `"leave_one_out"`, `"batch"` or `"greedy"`; None, here and below:
            the algorithm's.
        scale: Advantages are divided by the rewards' deviation in the `"group"`, the `"batch"`,
            or by `"none"`.
        ratio: `"token"`, `"sequence"` or `"none"`.
        clip: How far below and above 1 the ratio still earns anything.
        aggregation: `"sequence"`, `"token"`, `"constant"` or `"sum"`.
        kl_estimator: `"k1"`, `"k2"` or `"k3"`; the value of k1 comes with the gradient of k2,
            since its own has the mean 0.
        mask_truncated: Learns nothing from completions that were cut off by their length; their
            rewards count in the baselines.
        epochs: How often a rollout is learned from.
        minibatches: Updates that an epoch deals the completions to.
        microbatch_size: Completions per backward pass; an update adds up the gradients of as many
            as it needs, to the same sum. None: all at once.
        gradient_clip: Longest gradient of an update (norm); None: any.

    Attributes:
        last_rollout: The last step's texts and their scores.
        shape_rewards: Makes what advantages are computed from of samples, their scores and the
            lengths of the completions (tokens, shape (n,)): float64, shape (n,), where NaN stays
            NaN. A step calls it first with the samples that are learned from, then with greedy
            completions, if they are the baseline. None: the totals as they are.

    Raises:
        ValueError: An unknown algorithm, choices that don't go together, or a number out of range.
    """

    def __init__(
        self,
        model: str,
        reward: Reward,
        algorithm: Algorithm = "grpo",
        group_size: int = 8,
        max_new_tokens: int = 32,
        temperature: float = 1.0,
        kl_coef: float = 0.05,
        learning_rate: float = 1e-4,
        warmup_steps: int = 5,
        lora_rank: int = 16,
        dtype: str | None = None,
        baseline: Baseline | None = None,
        scale: Scale | None = None,
        ratio: Ratio | None = None,
        clip: tuple[float, float] | None = None,
        aggregation: Aggregation | None = None,
        kl_estimator: KLEstimator | None = None,
        mask_truncated: bool = False,
        epochs: int = 1,
        minibatches: int = 1,
        microbatch_size: int | None = None,
        gradient_clip: float | None = None,
    ) -> None:
        super().__init__()
        choices = (baseline, scale, ratio, clip, aggregation, kl_estimator)
        self.objective = objective_of(algorithm, *choices)
        if group_size < 2 and self.objective.baseline in ("group", "leave_one_out"):
            raise ValueError(f"group_size = {group_size}: {algorithm} compares 2 or more")
        self.updates = Updates(epochs, minibatches, microbatch_size, gradient_clip)
        if self.objective.ratio == "none" and self.updates.per_rollout > 1:
            raise ValueError(
                f"{self.updates.per_rollout} updates per rollout need a ratio to the policy that "
                "sampled: give ratio = 'token' or 'sequence', or one epoch and one minibatch"
            )
        self.base_model = model
        self.reward = reward
        self.group_size = group_size
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.kl_coef = kl_coef
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.lora_rank = lora_rank
        self.dtype_name = dtype
        self.mask_truncated = mask_truncated
        self.automatic_optimization = self.updates.are_lightnings
        self.last_rollout: tuple[Samples, RewardBatch] | None = None
        self.shape_rewards: Callable[[Samples, RewardBatch, Tensor], Scores] | None = None
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
        name, rank = self.base_model, self.lora_rank
        self.policy = load_with_adapter(name, rank, self.dtype_name, device.type)

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
        """Samples completions, scores them, and returns the loss, or has updated the policy.

        Raises:
            RuntimeError: Every sample of the batch failed to get a reward.
        """
        started = time.perf_counter()
        prompts = batch.as_prompts()[[i for i in range(len(batch)) for _ in range(self.group_size)]]
        rollout = self._sample(prompts.require("prompts", "PolicyTuner"))
        sampled = time.perf_counter()
        samples = prompts.completed(rollout.completions)
        scored = self.reward(samples)
        if scored.failed.all():
            raise RuntimeError(
                f"all {len(prompts)} samples of this step got NaN as reward: see the warnings of "
                "the scorers; nothing can be learned from it"
            )
        self.last_rollout = (samples, scored)
        rewards = self._shaped(samples, scored, rollout)
        experience = self._experience(rollout, self._advantages(batch, rewards))
        if self.automatic_optimization:
            terms = self._terms(experience, self._weights(experience))
        else:
            made = [
                self._update(experience[places]) for places in self.updates.deal(len(experience))
            ]
            terms = {name: torch.stack([t[name] for t in made]).mean() for name in made[0]}

        seconds = time.perf_counter() - started
        self._log_step(
            {
                **{f"reward/{name}": value for name, value in scored.statistics().items()},
                **{f"policy/{name}": value.detach() for name, value in terms.items()},
                "rollout/length": rollout.mask.sum(dim=1).mean(),
                "rollout/truncated": 1 - rollout.ended.float().mean(),
                "rollout/tokens_per_second": rollout.mask.sum() / (sampled - started),
                "time/rollout_share": (sampled - started) / seconds,
                "time/reward_share": scored.seconds / seconds,
            },
            len(prompts),
        )
        if self.shape_rewards is not None:
            mean, deviation = np.nanmean(rewards), np.nanstd(rewards)
            shaped = {"reward/shaped": mean, "reward/shaped_std": deviation}
            self._log_step(shaped, len(prompts))
        return terms["loss"]

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
        self.policy.eval()  # dropout would part the update from what was sampled
        return sample(self.policy, self.tokenizer, prompts, self.max_new_tokens, self.temperature)

    def _shaped(self, samples: Samples, scored: RewardBatch, rollout: Rollout) -> Scores:
        if self.shape_rewards is None:
            return scored.total
        return self.shape_rewards(samples, scored, rollout.mask.sum(dim=1))

    def _advantages(self, batch: Samples, shaped: Scores) -> Tensor:
        greedy = None
        if self.objective.baseline == "greedy":
            prompts = batch.as_prompts()
            read = prompts.require("prompts", "PolicyTuner")
            likeliest = sample(self.policy, self.tokenizer, read, self.max_new_tokens, 0.0)
            samples = prompts.completed(likeliest.completions)
            total = self._shaped(samples, self.reward(samples), likeliest)
            greedy = torch.from_numpy(total).float()
        groups = torch.arange(len(batch)).repeat_interleave(self.group_size)
        rewards = torch.from_numpy(shaped).float()
        return advantages_of(self.objective, rewards, groups, greedy).to(self.device)

    def _experience(self, rollout: Rollout, advantages: Tensor) -> Experience:
        with torch.no_grad():
            with self.policy.disable_adapter():
                reference = self._log_probs(rollout)
            old = self._log_probs(rollout) if self.updates.per_rollout > 1 else None
        mask = rollout.mask * rollout.ended[:, None] if self.mask_truncated else rollout.mask
        return Experience(rollout, advantages, mask, reference, old)

    def _log_probs(self, rollout: Rollout) -> Tensor:
        places = self.updates.parts(len(rollout.completions))
        return torch.cat([log_probs(self.policy, rollout[p], self.temperature) for p in places])

    def _weights(self, experience: Experience) -> dict[str, Tensor]:
        return weigh(self.objective, experience.mask, self.max_new_tokens)

    def _terms(self, experience: Experience, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        current = log_probs(self.policy, experience.rollout, self.temperature)
        return terms_of(self.objective, current, experience, weights, self.kl_coef)

    def _update(self, experience: Experience) -> dict[str, Tensor]:
        """One step of the optimizer, with the gradients of its parts added up."""
        optimizer: Any = self.optimizers()  # one of each, as configured
        schedule: Any = self.lr_schedulers()
        optimizer.zero_grad()
        weights = self._weights(experience)
        made = []
        for places in self.updates.parts(len(experience)):
            terms = self._terms(experience[places], {n: w[places] for n, w in weights.items()})
            self.manual_backward(terms["loss"])
            made.append({name: value.detach() for name, value in terms.items()})
        self.clip_gradients(optimizer, self.updates.gradient_clip, "norm")
        optimizer.step()
        schedule.step()
        return {name: torch.stack([t[name] for t in made]).sum() for name in made[0]}

    def _log_step(self, values: Mapping[str, Any], batch_size: int) -> None:
        for name, value in values.items():
            self.log(name, float(value), batch_size=batch_size, prog_bar=name == "reward/total")
