"""`PolicyTunerMixin`: a LightningModule that fine-tunes a language model on a `Reward`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from peft import LoraConfig
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ctrlreward.arguments import check_type
from ctrlreward.completion import with_answers
from ctrlreward.functional.advantages import decoupled_rewards, zero_signal
from ctrlreward.lightning_package import check_whole_model, misconfigured, package_of
from ctrlreward.policy.adapted_module import AdaptedModuleMixin
from ctrlreward.policy.model import LoRA, reference_policy
from ctrlreward.policy.objectives import (
    Aggregation,
    Baseline,
    Scale,
    check_objective,
    completion_advantages,
    loss_terms,
)
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.prompts import read_batch
from ctrlreward.policy.rollouts import Generation, Rollout, log_probs
from ctrlreward.ranks import gather_values, on_every_rank, rank_and_ranks
from ctrlreward.reward import RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scores

_STEPS_WITHOUT_SIGNAL = 3  # before a warning


class PolicyTunerMixin(AdaptedModuleMixin):
    """Policy-gradient fine-tuning of a causal or encoder-decoder language model with LoRA.

    A batch is `Samples` of prompts, or a DataLoader's batch of strings, dicts or a
    `datasets.Dataset`. The policy reads `prompts` and completes each `num_generations` times; the
    reward scores prefix + completion, with all other columns unchanged. Of a dict or a Dataset, the
    policy reads `prompt`, and the completion alone is scored, as in TRL; or else `prefix` or
    `text`, which the text that is scored begins with, like a string.

    In an encoder-decoder (T5, BART, PEGASUS) the encoder reads the prompt and the decoder generates
    the completion. With `generation.chat` an instruction-tuned model reads each prompt as a user's
    message, or a prompt is a conversation (`[{"role": "user", "content": ...}]`) with its own
    system message. In both cases, strings are prompts with the prefix `""`.

    Each rollout makes one update, so the ratio to the policy that sampled is 1, and no clip of PPO,
    GRPO or DAPO binds: each algorithm is REINFORCE with its baseline, scale and aggregation. The
    trainer's `accumulate_grad_batches` makes one update of several rollouts, and its
    `gradient_clip_val` bounds the gradient. The reward is scored in the background, on a device of
    its own, while the reference of the KL divergence is computed.

    Logs `reward/<name>` and `reward/<name>_std` of the total, of each component and, if
    `shape_rewards` is set, of the shaped reward (`shaped`); `reward/fail_rate`;
    `reward/zero_signal`, the share of prompts whose completions all have the same reward;
    `policy/loss`, `policy/kl` and `policy/entropy` (nats per token); `rollout/length` (tokens),
    `rollout/truncated` (share of completions without an end token), `rollout/tokens_per_second`;
    `time/rollout_share` and `time/reward_share`, the shares of the step's wall time spent on
    sampling and on waiting for rewards.

    Under several ranks each rank has its own prompts, the same number on each. Baselines,
    deviations and token means are computed over all ranks. A scorer's exception ends all ranks.

    Args:
        model: Local folder, Hugging Face id or short name of the model to tune.
        reward: The reward to maximise: a `Reward`, or its components, such as a function.
        baseline: Subtracted from the reward: the mean reward of the `"group"` (the completions of
            the same prompt), of the other completions of the group (`"leave_one_out"`), or of the
            `"batch"`.
        scale: Advantages are divided by the standard deviation of the rewards in the `"group"` or
            the `"batch"`, or by nothing (`"none"`). `"components"` normalises each weighted
            component in the group before their sum, and the sum over the batch (GDPO, Liu et al.
            2026, eqs. 4 to 6; TRL's `normalize_then_sum`).
        aggregation: The loss is the mean over completions of the mean over tokens (`"sequence"`),
            the mean over all tokens (`"token"`), or the mean over completions of the sum over
            tokens, divided by `max_completion_length` (`"constant"`) or by nothing (`"sum"`).
        beta: Weight of the KL divergence (k3) from the policy before training, per token, in the
            loss, ≥ 0; TRL's default is 0.
        generation: How completions are sampled.
        lora: The adapter, and the precision of the base weights; or peft's `LoraConfig`.
        optimizer: The optimizer and its learning rate.

    Attributes:
        last_rollout: The texts of the last update and their scores; None before the first.
        beta: May change during training.
        shape_rewards: Shapes the rewards (`callbacks.shaping`); None for the total reward.

    Example:
        >>> from ctrlreward import Distinct, Reward
        >>> from ctrlreward.policy import PolicyTuner  # building it loads no model
        >>> reward = Reward({"diversity": Distinct()["distinct_2"]})
        >>> PolicyTuner("smollm2-135m", reward, baseline="leave_one_out", scale="none").beta
        0.05
    """

    def __init__(
        self,
        model: str,
        reward: RewardLike,
        baseline: Baseline = "group",
        scale: Scale = "group",
        aggregation: Aggregation = "sequence",
        beta: float = 0.05,
        generation: Generation = Generation(),
        lora: LoRA | LoraConfig = LoRA(),
        optimizer: OptimizerConfig = OptimizerConfig(),
    ) -> None:
        check_type("generation", Generation, generation)
        check_type("optimizer", OptimizerConfig, optimizer)
        if not isinstance(lora, LoraConfig):
            check_type("lora", LoRA, lora)
        super().__init__(model, generation, optimizer, lora)
        self.reward = as_reward(reward)
        check_objective(baseline, scale, aggregation, beta, self.reward, generation.num_generations)
        self.baseline, self.scale, self.aggregation, self.beta = baseline, scale, aggregation, beta
        self.last_rollout: tuple[Samples, RewardBatch] | None = None
        self.shape_rewards: Callable[[Samples, RewardBatch, Tensor], Scores] | None = None
        self._without_signal = 0  # steps in a row

    def setup(self, stage: str) -> None:
        check_whole_model(self.trainer)
        super().setup(stage)

    def on_train_start(self) -> None:
        """Check that the trainer iterates over prompts, and that the rewards can be shaped."""
        given = self.trainer.train_dataloader
        if any(isinstance(leaf, str) for leaf in tree_leaves(given)):
            raise misconfigured(
                self,
                f"the train_dataloaders {shortened(given)} contain strings, whose letters "
                "Lightning would take for batches. Use trainer.fit(tuner, DataLoader(prompts, "
                "batch_size=8)).",
            )
        if self.scale == "components" and self.shape_rewards is not None:
            raise misconfigured(
                self,
                "RewardShaping shapes the total of a reward, and scale = 'components' learns from "
                "its components. Use another scale, or no RewardShaping.",
            )

    def training_step(self, batch: object, batch_idx: int) -> Tensor:
        """Sample completions, score them, and return the loss.

        A RuntimeError says that every sample failed, or that the loss is NaN or infinite.
        """
        try:
            return self._step(batch)
        except Exception:  # after which Lightning calls no hook of a module
            self.reward.release()
            raise

    def _step(self, batch: object) -> Tensor:
        started = time.perf_counter()
        self.configure_model()
        options, size = self.generation, self.generation.num_generations
        prompts = read_batch(batch, options.chat or self.policy.config.is_encoder_decoder)
        prompts = prompts[[i for i in range(len(prompts)) for _ in range(size)]]
        sampling = time.perf_counter()
        rollout = self.rollout(prompts.prompts or ())
        sampling = time.perf_counter() - sampling
        samples = with_answers(prompts.completed(rollout.completions), self.tokenizer)
        scoring = self.reward.submit(samples)
        with torch.no_grad(), reference_policy(self.policy):  # in eval mode since the rollout
            reference = log_probs(self.policy, rollout, options.temperature)
        waiting = time.perf_counter()
        by_rank = on_every_rank(scoring.result)
        waiting = time.perf_counter() - waiting
        scored, of_all_ranks = by_rank[rank_and_ranks()[0]], RewardBatch.concat(by_rank)
        if of_all_ranks.failed.all():
            raise RuntimeError(
                f"all {len(of_all_ranks.total)} samples of this step got NaN as reward, so there "
                "is nothing to learn from. See the scorers' warnings for the reason."
            )
        self.last_rollout = (samples, scored)
        # Statistics are over the completions of all ranks; a prompt's are consecutive.
        all_rewards, own = gather_values(self._rewards(samples, scored, rollout))
        groups = torch.arange(len(all_rewards)) // size
        advantages = completion_advantages(self.baseline, self.scale, all_rewards, groups)[own]
        self.policy.train()  # the adapter's dropout, and gradient checkpointing
        terms = loss_terms(
            self.aggregation,
            log_probs(self.policy, rollout, options.temperature),
            reference,
            advantages.float().to(rollout.mask.device),
            rollout.mask,
            options.max_completion_length,
            self.beta,
        )
        values = {f"policy/{name}": float(value.detach()) for name, value in terms.items()}
        if not all(on_every_rank(lambda: math.isfinite(values["policy/loss"]))):
            raise RuntimeError(  # an update would make all weights NaN
                f"the loss of this step is not finite ({values}), and the policy was not updated. "
                "Resume from the last checkpoint with a lower optimizer.learning_rate, with "
                "Trainer(gradient_clip_val=1.0), or in float32. If a reward is extreme, bound it."
            )
        seconds = time.perf_counter() - started
        values |= {"time/rollout_share": sampling / seconds, "time/reward_share": waiting / seconds}
        values["rollout/tokens_per_second"] = float(rollout.mask.sum()) / sampling
        values |= self._reward_metrics(scored, of_all_ranks, all_rewards)
        self._log_step(values, rollout, bool(advantages.any()))
        return terms["loss"]

    def _rewards(self, samples: Samples, scored: RewardBatch, rollout: Rollout) -> Tensor:
        """Return the rewards to learn from, shape (n,), NaN of failed samples.

        In float64, in which the squares of large ones are finite.
        """
        if self.scale != "components":
            shape, lengths = self.shape_rewards, rollout.mask.sum(dim=1)
            total = scored.total if shape is None else shape(samples, scored, lengths)
            return torch.from_numpy(total).double()
        weights = self.reward.weights or {}
        table = np.stack([scored.components[name] for name in weights], axis=1)
        table = np.where(scored.failed[:, None], np.nan, table)
        groups = torch.arange(len(table)) // self.generation.num_generations
        each = torch.tensor(list(weights.values()))
        return decoupled_rewards(torch.from_numpy(table), each, groups)

    def _reward_metrics(
        self, scored: RewardBatch, of_all_ranks: RewardBatch, learned: Tensor
    ) -> dict[str, float]:
        """Return the statistics of rewards; `learned` are those to learn from, of all ranks."""
        size = self.generation.num_generations
        metrics = {f"reward/{name}": each for name, each in of_all_ranks.statistics().items()}
        if size > 1:
            known = torch.from_numpy(np.where(scored.failed, np.nan, scored.total))
            equal = zero_signal(known, torch.arange(len(known)) // size)
            metrics["reward/zero_signal"] = float(equal[::size].float().mean())
        if self.shape_rewards is not None:
            valid = learned[~learned.isnan()]
            metrics["reward/shaped"] = float(valid.mean())
            deviation = float(valid.std(correction=0)) if len(valid) else math.nan
            metrics["reward/shaped_std"] = deviation
        return metrics

    def _log_step(self, metrics: dict[str, float], rollout: Rollout, has_signal: bool) -> None:
        """Log the metrics of a step; warn once if several in a row had nothing to learn from."""
        metrics["rollout/length"] = float(rollout.mask.sum(dim=1).mean())
        metrics["rollout/truncated"] = 1 - float(rollout.ended.float().mean())
        for name, value in metrics.items():
            shown, size = name == "reward/total", len(rollout.completions)
            self.log(name, value, batch_size=size, prog_bar=shown, sync_dist=True)
        self._without_signal = 0 if has_signal else self._without_signal + 1
        if self._without_signal == _STEPS_WITHOUT_SIGNAL:
            package_of(self).load("utilities.rank_zero_warn")(
                f"all advantages of {_STEPS_WITHOUT_SIGNAL} steps in a row are 0, as all "
                "completions of a prompt have the same reward, so nothing is learned. While "
                "reward/zero_signal is 1, use a reward that distinguishes the completions of a "
                "prompt, sample more of them, or raise the temperature."
            )

    def on_fit_end(self) -> None:
        """Stop the reward's worker and free its models."""
        self.reward.release()
