"""`PolicyTunerMixin`: a LightningModule that fine-tunes a language model on a `Reward`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ctrlreward.arguments import checked_keywords
from ctrlreward.callbacks.completion import unclear_input
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    check_strategy,
    misconfigured,
    mixed,
    package_of,
)
from ctrlreward.placement import shared_device
from ctrlreward.policy.adapted_module import AdaptedModuleMixin
from ctrlreward.policy.assembly import check_types, instead, load_with_tokenizer
from ctrlreward.policy.chat import check_beginnings
from ctrlreward.policy.distributed import gather_rewards, gather_values
from ctrlreward.policy.experience import Experience, PendingExperience, PendingRollout
from ctrlreward.policy.learner import Learner
from ctrlreward.policy.model import LoRA
from ctrlreward.policy.objectives import Objective, check_sampling
from ctrlreward.policy.optimizer import OptimizerConfig, adamw, number_of_updates, step_optimizer
from ctrlreward.policy.prompt_batches import read_batch
from ctrlreward.policy.rollouts import Generation
from ctrlreward.policy.value import Critic, ValueHead
from ctrlreward.ranks import fail_together
from ctrlreward.reward import Reward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import JSON_KEYS, Samples, shortened
from ctrlreward.scorers.base import Scores


class _ReleaseMixin(Callback):
    """Frees a reward when training fails: Lightning calls `on_exception` of callbacks alone."""

    def __init__(self, reward: Reward) -> None:
        super().__init__()
        self.reward = reward

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Wait for the batch that is being scored, and drop those that have not started."""
        self.reward.release()


@checked_keywords(**instead())
class PolicyTunerMixin(AdaptedModuleMixin):
    """Policy-gradient fine-tuning of a causal or encoder-decoder language model with LoRA.

    A batch is `Samples` of prompts (see `Samples.as_prompts`), or what a DataLoader makes of a list
    of strings, a list of dicts or a `datasets.Dataset`. The policy reads `prompts` and completes
    each `num_generations` times; the reward scores prefix + completion, with all other columns as
    they are. Of a dict or a Dataset, the policy reads `prompt`, and the completion alone is scored,
    as in TRL; or else `prefix` or `text`, which the text that is scored begins with. Strings are
    beginnings of texts, too. Other columns that `Samples` does not have are ignored.

    In an encoder-decoder (T5, BART, PEGASUS) the encoder reads the prompt and the decoder generates
    the completion; if that is the whole text, as in style transfer, use `""` as prefix. With
    `generation.chat` an instruction-tuned model reads each prompt as a user's message; a prompt may
    also be a conversation (`[{"role": "user", "content": ...}]`), whose system message then takes
    the place of `generation.system`. For both, a batch of strings is one of prompts with the prefix
    `""`.

    By default each rollout makes one update, by Lightning's automatic optimisation. Under manual
    optimisation (see `OptimizerConfig`) leave out the trainer's `gradient_clip_val` and
    `accumulate_grad_batches`; `global_step` counts updates, and `max_steps` is checked after each
    rollout.

    Logs `reward/<name>` and `reward/<name>_std` of the total, of each component and, if
    `shape_rewards` is set, of the shaped reward (`shaped`); `reward/fail_rate`; `policy/loss`,
    `policy/kl` and `policy/entropy` (nats per token), `policy/ratio` to the policy that sampled,
    `policy/clip_fraction` (share of tokens), `policy/update_kl` from the policy that sampled (nats
    per token); with a value head `policy/value_loss` and `policy/explained_variance` (at most 1);
    `rollout/length` (tokens), `rollout/truncated` (share of completions without an end token),
    `rollout/tokens_per_second`; `time/rollout_share` and `time/reward_share`, the shares of the
    step's wall time (up to Lightning's backward pass or the last manual update) spent on sampling
    and on waiting for rewards. Policy metrics are means over the updates of a rollout.

    Under several ranks each rank has its own prompts, the same number on each. Baselines,
    deviations and token means are computed over all ranks. A scorer's exception ends all ranks.

    Args:
        model: Local folder, Hugging Face id or short name of the model to tune. Lightning loads it
            on each rank, so a loaded model is refused.
        reward: The reward to maximise: a `Reward`, or what it takes for its components, such as a
            function.
        objective: Algorithm, changes to it, and the KL term.
        generation: How completions are sampled.
        optimizer: Updates per rollout and the optimizer.
        critic: Advantage estimation and value loss of the baseline `"value"`.
        lora: The adapter, and the precision of the base weights; or peft's `LoraConfig`.

    Attributes:
        last_rollout: The texts of the last update and their scores; None before the first.
        beta: Weight of the KL term, `objective.beta` at first; may change during training.
        shape_rewards: Shapes the rewards (`callbacks.shaping`); None for the total reward.

    Raises:
        TypeError: An argument is not of the class that it has to be.
        ValueError: `generation` or `optimizer` do not work with the objective.

    Example:
        >>> from ctrlreward import Distinct, Reward
        >>> from ctrlreward.policy import PolicyTuner  # building it loads no model
        >>> tuner = PolicyTuner("smollm2-135m", Reward({"diversity": Distinct()["distinct_2"]}))
        >>> tuner.objective.algorithm, tuner.automatic_optimization
        ('grpo', True)
    """

    def __init__(
        self,
        model: str,
        reward: RewardLike,
        objective: Objective = Objective(),
        generation: Generation = Generation(),
        optimizer: OptimizerConfig = OptimizerConfig(),
        critic: Critic = Critic(),
        lora: LoRA | LoraConfig = LoRA(),
    ) -> None:
        check_types(
            objective=objective,
            generation=generation,
            optimizer=optimizer,
            critic=critic,
            lora=lora,
        )
        check_sampling(objective, generation.num_generations, optimizer)
        super().__init__(model, generation, optimizer, lora)
        self.reward = as_reward(reward)
        self.objective = objective
        self.critic = critic
        self.beta = objective.beta
        self.automatic_optimization = optimizer.automatic
        self.last_rollout: tuple[Samples, RewardBatch] | None = None
        self.shape_rewards: Callable[[Samples, RewardBatch, Tensor, bool], Scores] | None = None
        self._ignored: set[str] = set()
        self._waiting: PendingExperience | None = None
        self._training_device: torch.device | None = None  # of training
        self.learner: Learner  # set by configure_model, as the next one
        self.value_head: ValueHead | None = None

    def configure_callbacks(self) -> list[Callback]:
        """Return a callback that frees the reward's models when training fails."""
        return [mixed(_ReleaseMixin, package_of(self), "callbacks.Callback")(self.reward)]

    def setup(self, stage: str) -> None:
        """Check the strategy and the devices.

        Raises:
            MisconfigurationException: The strategy shards the weights, or a scorer shares one of
                several training devices.
        """
        check_strategy(self.trainer)
        # configure_model runs before Lightning moves the module there.
        self._training_device = self.trainer.strategy.root_device
        devices = {
            f"{type(c.scorer).__name__}, of the reward's component {name!r},": c.scorer.devices
            for name, c in self.reward.components.items()
        }
        placed = (self._training_device.type, self.trainer.device_ids, self.trainer.world_size)
        clash = shared_device(devices, *placed)
        if clash is not None:
            raise misconfigured(self, clash)

    def configure_model(self) -> None:
        """Load the base model with its adapter and, if needed, a value head; only once.

        Raises:
            ValueError: An option does not fit the model; see `LoRA` and `Generation`.
            ImportError: The base weights are to be quantised, without bitsandbytes.
        """
        if "policy" in dict(self.named_children()):
            return
        device = str(self._training_device or self.device)
        groups = (self.objective, self.generation, self.optimizer, self.lora)
        self.policy, self.tokenizer = load_with_tokenizer(self.base_model, device, *groups)
        if self.objective.choices.baseline == "value":
            self.value_head = ValueHead(self.policy.get_output_embeddings().weight.shape[1])
        options = (self.objective, self.critic, self.optimizer, self.generation)
        self.learner = Learner(self.policy, self.value_head, *options)

    def train_dataloader(self) -> Any:
        """Raise an error that says how to give prompts; a trainer's dataloader comes first.

        Raises:
            MisconfigurationException: Always.
        """
        raise misconfigured(
            self,
            "there are no prompts to train on: use trainer.fit(tuner, DataLoader(prompts, "
            "batch_size=8)), with a list of strings or a datasets.Dataset",
        )

    def on_train_start(self) -> None:
        """Check that the trainer iterates over prompts, not over the letters of one.

        Raises:
            MisconfigurationException: It was given strings in place of a dataloader.
        """
        given = self.trainer.train_dataloader
        if any(isinstance(leaf, str) for leaf in tree_leaves(given)):
            raise misconfigured(
                self,
                f"the train_dataloaders {shortened(given)} hold strings, whose letters Lightning "
                "would take for batches: use trainer.fit(tuner, DataLoader(prompts, batch_size=8))",
            )

    def configure_optimizers(self) -> Any:
        """Return AdamW on the adapter and the value head, with its learning-rate schedule.

        Raises:
            MisconfigurationException: The schedule needs a number of steps that is unknown.
        """
        return adamw(self.parameters(), self.optimizer, number_of_updates(self, self.optimizer))

    def training_step(self, batch: object, batch_idx: int) -> Tensor | None:
        """Sample completions, score them, and return the loss or update the policy.

        With `optimizer.overlap` the step learns from the completions of the previous step. The
        first step has none and returns None.

        Raises:
            RuntimeError: Every sample of the batch failed.
        """
        started = time.perf_counter()
        pending: PendingExperience | None = self._collect(batch)
        if self.optimizer.overlap:
            pending, self._waiting = self._waiting, pending
        if pending is None:
            return None
        sampled, wait_started = pending.sampled, time.perf_counter()
        scored, all_scored = gather_rewards(sampled.wait_for_scores)
        waited = time.perf_counter() - wait_started
        self.last_rollout = (sampled.samples, scored)
        rewards = self._shape(sampled, scored, baseline=False)
        greedy = None
        if pending.greedy is not None:
            greedy_scored = fail_together(pending.greedy.wait_for_scores)
            greedy = self._shape(pending.greedy, greedy_scored, baseline=True)
        experience = self.learner.experience(sampled.rollout, rewards, greedy, pending.output)
        terms = self._learn(experience)
        self._log_rewards(all_scored, rewards)
        self._log_step(sampled, terms, waited, time.perf_counter() - started)
        return terms["loss"]

    def on_fit_start(self) -> None:
        """Take the seed of the run, and load the scorers if they run beside training."""
        super().on_fit_start()
        if self.optimizer.overlap:
            if self.device.type == "cpu":
                self.reward.yield_cpu()
            with torch.random.fork_rng(devices=[]):
                self.reward.load()

    def on_fit_end(self) -> None:
        """Stop the reward's worker and free its models."""
        self._waiting = None
        self.reward.release()

    def _collect(self, batch: object) -> PendingExperience:
        """Sample completions of a batch and start scoring them."""
        self.configure_model()
        seq2seq: bool = self.policy.config.is_encoder_decoder
        read = read_batch(batch, answers=self.generation.chat or seq2seq)
        error = unclear_input(self, read.samples)
        if error:
            raise ValueError(error)
        prompts, inputs = read.samples.as_prompts(), read.inputs
        if self.generation.chat:
            check_beginnings(prompts)
        self._say_ignored(read.ignored)
        rows = [i for i in range(len(prompts)) for _ in range(self.generation.num_generations)]
        start = partial(PendingRollout.start, reward=self.reward, overlap=self.optimizer.overlap)
        sampled = start(prompts[rows], [inputs[row] for row in rows], self._sample)
        greedy = None
        if self.objective.choices.baseline == "greedy":
            greedy = start(prompts, inputs, partial(self._sample, temperature=0.0))
        # With overlap the policy will have changed when the rewards arrive.
        output = self.learner.evaluate(sampled.rollout) if self.optimizer.overlap else None
        return PendingExperience(sampled, greedy, output)

    def _say_ignored(self, names: tuple[str, ...]) -> None:
        """Say once which columns of the batches nothing reads."""
        if set(names) <= self._ignored:
            return
        self._ignored.update(names)
        inform = package_of(self).load("utilities.rank_zero_info")
        inform(
            f"PolicyTuner ignores the columns {', '.join(names)} of the batches: rewards read "
            f"{', '.join(JSON_KEYS.values())}"
        )

    def _shape(self, pending: PendingRollout, scored: RewardBatch, baseline: bool) -> Tensor:
        total = scored.total
        if self.shape_rewards is not None:
            lengths = pending.rollout.mask.sum(dim=1)
            total = self.shape_rewards(pending.samples, scored, lengths, baseline)
        return torch.from_numpy(total).float()

    def _learn(self, experience: Experience) -> dict[str, Tensor]:
        """Make all updates, or compute the loss for Lightning's; return the terms to log."""
        learner, beta, clip = self.learner, self.beta, self.optimizer.max_grad_norm
        if self.automatic_optimization:
            terms = learner.terms(experience, learner.weights(experience), beta)
        else:
            each = [
                step_optimizer(self, learner.microbatch_terms(experience[rows], beta), clip)
                for rows in self.optimizer.minibatch_rows(len(experience))
            ]
            terms = {name: torch.stack([t[name] for t in each]).mean() for name in each[0]}
        if experience.estimates is not None:
            terms["explained_variance"] = experience.estimates.explained_variance
        return terms

    def _log_rewards(self, scored: RewardBatch, rewards: Tensor) -> None:
        """Log the rewards of all ranks and, if they are shaped, the rewards learned from."""
        values = {f"reward/{name}": value for name, value in scored.statistics().items()}
        if self.shape_rewards is not None:
            shaped, _ = gather_values(rewards)
            valid = shaped[~shaped.isnan()]
            values["reward/shaped"] = float(valid.mean())
            values["reward/shaped_std"] = float(valid.std(correction=0))
        self._log_all(values, len(rewards))

    def _log_step(
        self, pending: PendingRollout, terms: Mapping[str, Tensor], waited: float, seconds: float
    ) -> None:
        values = {f"policy/{name}": float(value.detach()) for name, value in terms.items()}
        self._log_all(values | pending.metrics(waited, seconds), len(pending.samples))

    def _log_all(self, values: Mapping[str, float], batch_size: int) -> None:
        for name, value in values.items():
            shown = name == "reward/total"
            self.log(name, value, batch_size=batch_size, prog_bar=shown, sync_dist=True)
