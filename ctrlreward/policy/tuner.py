"""`PolicyTunerMixin`: a LightningModule that fine-tunes a language model on a `Reward`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import LoraConfig
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ctrlreward.arguments import check_type
from ctrlreward.completion import unclear_input
from ctrlreward.functional.advantages import decoupled_rewards, zero_signal
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    check_whole_model,
    misconfigured,
    package_of,
)
from ctrlreward.placement import shared_device
from ctrlreward.policy.adapted_module import AdaptedModuleMixin
from ctrlreward.policy.model import LoRA, check_config, keep_start, reference_policy
from ctrlreward.policy.objectives import (
    Objective,
    check_loss,
    check_objective,
    completion_advantages,
    loss_terms,
)
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.prompts import Prompt, check_beginnings, read_batch
from ctrlreward.policy.rollouts import Generation, Rollout, log_probs
from ctrlreward.ranks import fail_together, gather_values, on_every_rank
from ctrlreward.reward import AnyReward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import JSON_KEYS, Samples, shortened
from ctrlreward.scorers.base import Scores

_STEPS_WITHOUT_SIGNAL = 3  # before a warning


class ReleaseMixin(Callback):
    """Frees a reward when training fails: Lightning calls `on_exception` only on callbacks."""

    def __init__(self, reward: AnyReward) -> None:
        super().__init__()
        self.reward = reward

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Wait for the batch that is being scored, and drop batches that have not started."""
        self.reward.release()


class PolicyTunerMixin(AdaptedModuleMixin):
    """Policy-gradient fine-tuning of a causal or encoder-decoder language model with LoRA.

    A batch is `Samples` of prompts (see `Samples.as_prompts`), or a DataLoader's batch of a list
    of strings, a list of dicts or a `datasets.Dataset`. The policy reads `prompts` and completes
    each `num_generations` times; the reward scores prefix + completion, with all other columns
    unchanged. Of a dict or a Dataset, the policy reads `prompt`, and the completion alone is
    scored, as in TRL; or else `prefix` or `text`, which the text that is scored begins with.
    Strings are beginnings of texts as well. Other columns that `Samples` does not have are ignored.

    In an encoder-decoder (T5, BART, PEGASUS) the encoder reads the prompt and the decoder generates
    the completion. With `generation.chat` an instruction-tuned model reads each prompt as a user's
    message; a prompt may also be a conversation (`[{"role": "user", "content": ...}]`), whose
    system message then takes the place of `generation.system`. In both cases, a batch of strings
    are prompts with the prefix `""`.

    Each rollout makes one update. The trainer's `accumulate_grad_batches` makes one update of
    several rollouts, and its `gradient_clip_val` bounds the gradient.

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
        objective: Algorithm and KL term.
        generation: How completions are sampled.
        optimizer: The optimizer and its learning rate.
        lora: The adapter, and the precision of the base weights; or peft's `LoraConfig`.

    Attributes:
        last_rollout: The texts of the last update and their scores; None before the first.
        beta: Weight of the KL term, `objective.beta` at first; may change during training.
        shape_rewards: Shapes the rewards (`callbacks.shaping`); None for the total reward.

    Raises:
        TypeError: An argument is of the wrong class.
        ValueError: `generation` or `reward` do not work with the objective.

    Example:
        >>> from ctrlreward import Distinct, Reward
        >>> from ctrlreward.policy import PolicyTuner  # building it loads no model
        >>> tuner = PolicyTuner("smollm2-135m", Reward({"diversity": Distinct()["distinct_2"]}))
        >>> tuner.objective.algorithm
        'grpo'
    """

    releasing: type[ReleaseMixin]  # of the package

    def __init__(
        self,
        model: str,
        reward: RewardLike,
        objective: Objective = Objective(),
        generation: Generation = Generation(),
        optimizer: OptimizerConfig = OptimizerConfig(),
        lora: LoRA | LoraConfig = LoRA(),
    ) -> None:
        for name, kind, value in (
            ("objective", Objective, objective),
            ("generation", Generation, generation),
            ("optimizer", OptimizerConfig, optimizer),
        ):
            check_type(name, kind, value)
        if isinstance(lora, LoraConfig):
            check_config(lora)
        else:
            check_type("lora", LoRA, lora)
        super().__init__(model, generation, optimizer, lora)
        self.reward = as_reward(reward)
        check_objective(objective, self.reward, generation.num_generations)
        self.objective = objective
        self.beta = objective.beta
        self.last_rollout: tuple[Samples, RewardBatch] | None = None
        self.shape_rewards: Callable[[Samples, RewardBatch, Tensor], Scores] | None = None
        self._ignored: set[str] = set()
        self._without_signal = 0  # steps in a row

    def configure_callbacks(self) -> list[Callback]:
        """Return a callback that frees the reward's models when training fails."""
        return [self.releasing(self.reward)]

    def setup(self, stage: str) -> None:
        """Check that the strategy keeps the model whole, and that no scorer shares a device."""
        check_whole_model(self.trainer)
        super().setup(stage)
        devices = {
            f"{type(c.scorer).__name__}, of the reward's component {name!r},": c.scorer.devices
            for name, c in self.reward.components.items()
        }
        trainer, kind = self.trainer, self.trainer.strategy.root_device.type
        clash = shared_device(devices, kind, trainer.device_ids, trainer.world_size)
        if clash is not None:
            raise misconfigured(self, clash)

    def _load(self) -> None:
        """Load the policy and the reference policy."""
        super()._load()
        trained = None if isinstance(self.lora, LoraConfig) else self.lora.adapter
        if trained is not None and self.objective.reference == "start":
            keep_start(self.policy, trained)

    def train_dataloader(self) -> Any:
        """Raise an error that says how to pass prompts; a trainer's dataloader comes first."""
        raise misconfigured(
            self,
            "there are no prompts to train on. Use trainer.fit(tuner, DataLoader(prompts, "
            "batch_size=8)), with a list of strings or a datasets.Dataset.",
        )

    def on_train_start(self) -> None:
        """Check that the trainer iterates over prompts, and that they suit the objective."""
        given = self.trainer.train_dataloader
        if any(isinstance(leaf, str) for leaf in tree_leaves(given)):
            raise misconfigured(
                self,
                f"the train_dataloaders {shortened(given)} contain strings, whose letters "
                "Lightning would take for batches. Use trainer.fit(tuner, DataLoader(prompts, "
                "batch_size=8)).",
            )
        if self.objective.decoupled and self.shape_rewards is not None:
            raise misconfigured(
                self,
                "RewardShaping shapes the total of a reward, and objective."
                "multi_objective_aggregation = 'normalize_then_sum' learns from its components. "
                "Use 'sum_then_normalize', or no RewardShaping.",
            )

    def training_step(self, batch: object, batch_idx: int) -> Tensor:
        """Sample completions, score them, and return the loss.

        Raises:
            RuntimeError: Every sample of the batch failed, or the loss is NaN or infinite.
        """
        started = time.perf_counter()
        self.configure_model()
        prompts, inputs = self._read(batch)
        rows = [i for i in range(len(inputs)) for _ in range(self.generation.num_generations)]
        sampling_started = time.perf_counter()
        rollout = self._sample([inputs[row] for row in rows])
        sampled = time.perf_counter()
        samples = prompts[rows].completed(rollout.completions)
        scored = fail_together(partial(self.reward, samples))
        of_all_ranks = RewardBatch.concat(on_every_rank(lambda: scored))
        waited = time.perf_counter() - sampled
        if of_all_ranks.failed.all():
            raise RuntimeError(
                f"all {len(of_all_ranks.total)} samples of this step got NaN as reward, so there "
                "is nothing to learn from. See the scorers' warnings for the reason."
            )
        self.last_rollout = (samples, scored)
        rewards = self._rewards(rollout)
        advantages = self._advantages(rewards)
        self._without_signal = 0 if advantages.any() else self._without_signal + 1
        terms = self._terms(rollout, advantages)
        fail_together(partial(check_loss, terms))
        seconds, sampling = time.perf_counter() - started, sampled - sampling_started
        metrics = {
            "time/rollout_share": sampling / seconds,
            "time/reward_share": waited / seconds,
            "rollout/tokens_per_second": float(rollout.mask.sum()) / sampling,
        }
        if (size := self.generation.num_generations) > 1:
            known = torch.from_numpy(np.where(scored.failed, np.nan, scored.total))
            equal = zero_signal(known, torch.arange(len(known)) // size)
            metrics["reward/zero_signal"] = float(equal[::size].float().mean())
        metrics |= {f"reward/{name}": each for name, each in of_all_ranks.statistics().items()}
        metrics |= {f"policy/{name}": float(value.detach()) for name, value in terms.items()}
        self._log_step(rollout, rewards, metrics)
        return terms["loss"]

    def _log_step(self, rollout: Rollout, rewards: Tensor, metrics: dict[str, float]) -> None:
        """Log the metrics of a step; warn once if several in a row had nothing to learn from."""
        if self._without_signal == _STEPS_WITHOUT_SIGNAL:
            package_of(self).load("utilities.rank_zero_warn")(
                f"all advantages of {_STEPS_WITHOUT_SIGNAL} steps in a row are 0, as all "
                "completions of a prompt have the same reward, so nothing is learned. While "
                "reward/zero_signal is 1, use a reward that distinguishes the completions of a "
                "prompt, sample more of them, or raise the temperature."
            )
        if self.shape_rewards is not None:
            shaped, _ = gather_values(rewards)
            valid = shaped[~shaped.isnan()]
            metrics["reward/shaped"] = float(valid.mean())
            deviation = float(valid.std(correction=0)) if len(valid) else math.nan
            metrics["reward/shaped_std"] = deviation
        metrics["rollout/length"] = float(rollout.mask.sum(dim=1).mean())
        metrics["rollout/truncated"] = 1 - float(rollout.ended.float().mean())
        for name, value in metrics.items():
            shown = name == "reward/total"
            self.log(name, value, batch_size=len(rewards), prog_bar=shown, sync_dist=True)

    def on_fit_end(self) -> None:
        """Stop the reward's worker and free its models."""
        self.reward.release()

    def _read(self, batch: object) -> tuple[Samples, Sequence[Prompt]]:
        """Return the prompts of a batch, as samples and as the policy reads them."""
        options, has_encoder = self.generation, self.policy.config.is_encoder_decoder
        samples, inputs, ignored = read_batch(batch, options.chat or has_encoder)
        if has_encoder and (error := unclear_input(self, samples)):
            raise ValueError(error)
        prompts = samples.as_prompts()
        if options.chat:
            check_beginnings(prompts)
        if not self._ignored.issuperset(ignored):  # warned once
            self._ignored.update(ignored)
            package_of(self).load("utilities.rank_zero_info")(
                f"PolicyTuner ignores the columns {', '.join(ignored)} of the batches: "
                f"rewards read {', '.join(JSON_KEYS.values())}"
            )
        return prompts, inputs

    def _rewards(self, rollout: Rollout) -> Tensor:
        """Return the rewards to learn from, float64, shape (n,); NaN if a sample failed."""
        assert self.last_rollout is not None
        samples, scored = self.last_rollout
        if self.objective.decoupled:
            weights: Mapping[str, float] = self.reward.weights or {}
            table = np.stack([scored.components[name] for name in weights], axis=1)
            table = np.where(scored.failed[:, None], np.nan, table)
            groups = torch.arange(len(table)) // self.generation.num_generations
            each = torch.tensor(list(weights.values()))
            return decoupled_rewards(torch.from_numpy(table), each, groups)
        total = scored.total
        if self.shape_rewards is not None:
            total = self.shape_rewards(samples, scored, rollout.mask.sum(dim=1))
        return torch.from_numpy(total).double()

    def _advantages(self, rewards: Tensor) -> Tensor:
        """Compute the advantages from rewards of shape (n,), NaN if a sample failed, float32.

        Statistics are over the completions of all ranks; those of one prompt are consecutive.
        Float64 keeps the squares of large rewards finite.
        """
        all_rewards, own = gather_values(rewards)
        groups = torch.arange(len(all_rewards)) // self.generation.num_generations
        return completion_advantages(self.objective.parts, all_rewards, groups)[own].float()

    @torch.no_grad()
    def _reference(self, rollout: Rollout) -> Tensor:
        """Compute the log-probabilities under the reference policy."""
        self.policy.eval()
        with reference_policy(self.policy):
            return log_probs(self.policy, rollout, self.generation.temperature)

    def _terms(self, rollout: Rollout, advantages: Tensor) -> dict[str, Tensor]:
        """Compute the `loss_terms` of the policy that sampled a rollout."""
        options, reference = self.generation, self._reference(rollout)
        self.policy.train()  # the adapter's dropout, and gradient checkpointing
        return loss_terms(
            self.objective.parts,
            log_probs(self.policy, rollout, options.temperature),
            reference,
            advantages.to(rollout.mask.device),
            rollout.mask,
            options.max_completion_length,
            self.beta,
        )
