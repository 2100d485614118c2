"""`PolicyTuner`: fine-tunes a language model on a `Reward` with LoRA."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from os import PathLike
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from peft import PeftModel
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from ctrlreward.placement import reserve_core, shared_device
from ctrlreward.policy.across_ranks import pooled, scored_on_all
from ctrlreward.policy.adapter import load_with_adapter
from ctrlreward.policy.collecting import Collected, Written
from ctrlreward.policy.experience import Experience, Updates
from ctrlreward.policy.learning import Learner
from ctrlreward.policy.objectives import (
    Aggregation,
    Algorithm,
    Baseline,
    KLEstimator,
    Ratio,
    Scale,
    check_sampling,
    objective_of,
)
from ctrlreward.policy.optimizer import adamw, step
from ctrlreward.policy.reading import Reader
from ctrlreward.policy.release import ReleaseOnException
from ctrlreward.policy.rollouts import Rollout, sample, stop_at
from ctrlreward.policy.value import Critic, ValueHead
from ctrlreward.ranks import rank_and_ranks, unless_one_fails
from ctrlreward.reward import Reward, RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.weights.loading import load_tokenizer

# Prompts completed together where nothing is learned from them.
_PROMPTS_AT_ONCE = 64


class PolicyTuner(pl.LightningModule):
    """Policy-gradient fine-tuning of a causal or encoder-decoder language model.

    A batch is `Samples` of prompts (see `Samples.as_prompts`): the policy reads `prompts`, and the
    beginning with the completion is the text that is scored. Other columns go to the reward as
    they are. Each prompt is completed `group_size` times. Of an encoder-decoder (T5, BART,
    PEGASUS) the encoder reads the prompt and the decoder writes the completion; where that is the
    whole text, as in transfer, beginnings are `""`.

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
    per token); with a value head `policy/value_loss` and `policy/explained_variance` (of the
    returns by the values, at most 1); `rollout/length` (tokens), `rollout/truncated` (share of
    completions without an end), `rollout/tokens_per_second`, and `time/rollout_share` and
    `time/reward_share`: how much of the wall time up to Lightning's backward pass, or to the end of
    the last update made here, sampling took and waiting for scores did. What several updates of a
    rollout have is logged as their mean.

    Under several ranks each writes and scores completions of its own prompts, which have to be as
    many on each, and all learn from the mean gradient; baselines, deviations and means over tokens
    are those of all ranks. A rank whose scorer raises ends all of them.

    Args:
        model: Local folder, hub id or short name of the model to be tuned.
        reward: What is to be maximised.
        algorithm: `"grpo"`, `"dr_grpo"`, `"dapo"` (clip-higher, mean over tokens), `"gspo"`
            (ratios of completions), `"rloo"`, `"reinforce"` (baseline: the batch's mean),
            `"reinforce++"` (scaled by the batch's deviation too), `"self_critical"` (baseline:
            the greedy completion), or `"ppo"` (baseline: a value head on the policy's states).
        group_size: Completions per prompt.
        max_new_tokens: Longest completion, in tokens.
        temperature: Of sampling, in rollouts and in `complete`.
        stop: Ends a completion beside the model's end tokens, and is no part of the text: one
            token, such as a newline.
        kl_coef: Weight of the KL divergence from the untuned model, per token, in the loss.
        learning_rate: Of AdamW.
        warmup_steps: Steps over which the learning rate rises to its value.
        lora_rank: Rank of the adapter on all linear layers; its alpha is twice that.
        dtype: Of the frozen weights; None picks by device. The adapter is float32.
        baseline: `"group"`, `"leave_one_out"`, `"batch"`, `"greedy"` or `"value"`; None, here and
            below: the algorithm's.
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
        gamma: This and the next three are for the baseline `"value"` alone. How much a reward one
            token later is worth.
        gae_lambda: Of generalised advantage estimation; 1 trusts rewards only, 0 the next value.
        value_coef: Weight of the values' loss, whose gradient reaches the adapter too.
        value_clip: How far an update may take a value from what it was at sampling, in units of
            the reward; None: any.
        overlap: Scores a rollout while the one before it is learned from, which the ratio takes
            into account.

    Attributes:
        last_rollout: The texts that were last learned from, and their scores.
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
        stop: str | None = None,
        gamma: float = 1.0,
        gae_lambda: float = 0.95,
        value_coef: float = 0.1,
        value_clip: float | None = 0.2,
        overlap: bool = False,
    ) -> None:
        super().__init__()
        choices = (baseline, scale, ratio, clip, aggregation, kl_estimator)
        self.objective = objective_of(algorithm, *choices)
        self.updates = Updates(epochs, minibatches, microbatch_size, gradient_clip, overlap)
        check_sampling(self.objective, algorithm, group_size, self.updates)
        self.critic = Critic(gamma, gae_lambda, value_coef, value_clip)
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
        self.stop = stop
        self.automatic_optimization = self.updates.are_lightnings
        self.last_rollout: tuple[Samples, RewardBatch] | None = None
        self.shape_rewards: Callable[[Samples, RewardBatch, Tensor], Scores] | None = None
        self._waiting: Collected | None = None
        self.policy: PeftModel  # from configure_model on
        self.value_head: ValueHead | None = None  # from configure_model on, where values are used
        # A checkpoint holds the adapter only: the base model is what `model` names.
        self.strict_loading = False

    def configure_callbacks(self) -> list[pl.Callback]:
        """What frees the reward where training is cut off."""
        return [ReleaseOnException(self.reward)]

    def setup(self, stage: str) -> None:
        """Makes sure that the reward has a device of its own.

        Raises:
            MisconfigurationException: It shares one of several devices of training.
        """
        devices = {
            f"{type(c.scorer).__name__}, of the reward's component {name!r},": c.scorer.devices
            for name, c in self.reward.components.items()
        }
        strategy, trainer = self.trainer.strategy, self.trainer
        kind, ranks = strategy.root_device.type, trainer.world_size
        clash = shared_device(devices, kind, trainer.device_ids, ranks)
        if clash is not None:
            raise MisconfigurationException(clash)

    def configure_model(self) -> None:
        """Loads the base model and puts a new adapter on it, and a value head beside it, once."""
        if "policy" in dict(self.named_children()):
            return
        self.tokenizer = load_tokenizer(self.base_model)
        # Lightning calls this before it moves the module to where it will run.
        device = self.device if self._trainer is None else self.trainer.strategy.root_device
        name, rank = self.base_model, self.lora_rank
        self.policy = load_with_adapter(name, rank, self.dtype_name, device.type)
        if self.stop is not None:
            stop_at(self.policy, self.tokenizer, self.stop)
        if self.objective.baseline == "value":
            self.value_head = ValueHead(self.policy.get_output_embeddings().weight.shape[1])

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW on all that learns, with a linear warm-up."""
        return adamw(self.parameters(), self.learning_rate, self.warmup_steps)

    def transfer_batch_to_device(self, batch: Samples, device: torch.device, _: int) -> Samples:
        """Text stays where it is."""
        return batch

    def training_step(self, batch: Samples, batch_idx: int) -> Tensor | None:
        """Samples completions, scores them, and returns the loss, or has updated the policy.

        With overlap what is learned from are the completions of the step before; the first step
        has none, and returns None.

        Raises:
            RuntimeError: Every sample of the batch failed to get a reward.
        """
        started = time.perf_counter()
        due: Collected | None = self._collect(batch)
        if self.updates.overlap:
            due, self._waiting = self._waiting, due
        if due is None:
            return None
        asked = time.perf_counter()
        scored, together = scored_on_all(due.written.scored)
        waited = time.perf_counter() - asked
        self.last_rollout = (due.written.samples, scored)
        rewards = self._shaped(due.written, scored)
        greedy = None if due.likeliest is None else self._greedy_rewards(due.likeliest)
        experience = self._learner.experience(due.written.rollout, rewards, greedy, due.reading)
        terms = self._learn(experience)
        self._log_rewards(together, rewards)
        self._log_step(due.written, terms, waited, time.perf_counter() - started)
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
        """Keeps what learns and leaves out the frozen base model."""
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name in trained
        }

    def on_fit_start(self) -> None:
        """Has each rank draw differently, and loads what will be at work beside training."""
        rank, _ = rank_and_ranks()
        if rank > 0:
            torch.manual_seed(torch.initial_seed() + rank)
        if self.updates.overlap:
            if self.device.type == "cpu":
                self.reward.yield_cpu()
            with torch.random.fork_rng(devices=[]):
                self.reward.load()

    def on_fit_end(self) -> None:
        """Ends the reward's worker and frees its models."""
        self._waiting = None
        self.reward.release()

    def _sample(self, prompts: Sequence[str], temperature: float | None = None) -> Rollout:
        self.configure_model()
        self.policy.eval()  # dropout would part the update from what was sampled
        heat = self.temperature if temperature is None else temperature
        beside = self.updates.overlap and self.device.type == "cpu"
        with reserve_core() if beside else nullcontext():
            return sample(self.policy, self.tokenizer, prompts, self.max_new_tokens, heat)

    def _collect(self, batch: Samples) -> Collected:
        """Completions of a batch, whose rewards are on their way."""
        prompts = batch.as_prompts()
        rows = [i for i in range(len(batch)) for _ in range(self.group_size)]
        written = self._write(prompts[rows], self._sample)
        likeliest = None
        if self.objective.baseline == "greedy":
            likeliest = self._write(prompts, partial(self._sample, temperature=0.0))
        reading = None
        if self.updates.overlap:  # the policy will have moved on when the rewards are there
            with torch.no_grad():
                reading = self._learner.reader.read_in_parts(written.rollout, self.updates)
        return Collected(written, likeliest, reading)

    def _write(self, prompts: Samples, draw: Callable[[Sequence[str]], Rollout]) -> Written:
        started = time.perf_counter()
        rollout = draw(prompts.require("prompts", "PolicyTuner"))
        seconds = time.perf_counter() - started
        samples = prompts.completed(rollout.completions)
        if self.updates.overlap:
            return Written(samples, rollout, self.reward.submit(samples).result, seconds)
        return Written(samples, rollout, partial(self.reward, samples), seconds)

    def _shaped(self, written: Written, scored: RewardBatch) -> Tensor:
        total = scored.total
        if self.shape_rewards is not None:
            lengths = written.rollout.mask.sum(dim=1)
            total = self.shape_rewards(written.samples, scored, lengths)
        return torch.from_numpy(total).float()

    def _greedy_rewards(self, likeliest: Written) -> Tensor:
        return self._shaped(likeliest, unless_one_fails(likeliest.scored))

    def _learn(self, experience: Experience) -> dict[str, Tensor]:
        """Makes the updates, or the loss of the one that Lightning makes; gives what is logged."""
        if self.automatic_optimization:
            terms = self._learner.terms(experience, self._learner.weights(experience))
        else:
            made = [
                self._update(experience[places]) for places in self.updates.deal(len(experience))
            ]
            terms = {name: torch.stack([t[name] for t in made]).mean() for name in made[0]}
        if experience.estimates is not None:
            terms["explained_variance"] = experience.estimates.explained_variance
        return terms

    @property
    def _learner(self) -> Learner:
        return Learner(
            Reader(self.policy, self.value_head, self.temperature),
            self.objective,
            self.critic,
            self.updates,
            self.group_size,
            self.max_new_tokens,
            self.mask_truncated,
            self.kl_coef,
        )

    def _update(self, experience: Experience) -> dict[str, Tensor]:
        """One step of the optimizer, with the gradients of its parts added up."""
        learner = self._learner
        weights = learner.weights(experience)
        parts = (
            partial(learner.terms, experience[places], {n: w[places] for n, w in weights.items()})
            for places in self.updates.parts(len(experience))
        )
        return step(self, parts, self.updates.gradient_clip)

    def _log_rewards(self, scored: RewardBatch, rewards: Tensor) -> None:
        """Those of all ranks, and what was learned from where it is something else."""
        values = {f"reward/{name}": value for name, value in scored.statistics().items()}
        if self.shape_rewards is not None:
            everyones, _ = pooled(rewards)
            valid = everyones[~everyones.isnan()]
            deviation = valid.std(correction=0)
            values |= {"reward/shaped": float(valid.mean()), "reward/shaped_std": float(deviation)}
        self._log_all(values, len(rewards))

    def _log_step(
        self, written: Written, terms: Mapping[str, Tensor], waited: float, seconds: float
    ) -> None:
        mask = written.rollout.mask
        values = {f"policy/{name}": float(value.detach()) for name, value in terms.items()} | {
            "rollout/length": float(mask.sum(dim=1).mean()),
            "rollout/truncated": 1 - float(written.rollout.ended.float().mean()),
            "rollout/tokens_per_second": float(mask.sum()) / written.seconds,
            "time/rollout_share": written.seconds / seconds,
            "time/reward_share": waited / seconds,
        }
        self._log_all(values, len(mask))

    def _log_all(self, values: Mapping[str, float], batch_size: int) -> None:
        for name, value in values.items():
            shown = name == "reward/total"
            self.log(name, value, batch_size=batch_size, prog_bar=shown, sync_dist=True)
