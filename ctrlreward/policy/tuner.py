"""`PolicyTunerMixin`: a LightningModule that fine-tunes a language model on a `Reward`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from peft import LoraConfig
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from ctrlreward.arguments import check_type, checked_keywords, kind_of
from ctrlreward.completion import unclear_input
from ctrlreward.functional.advantages import decoupled_rewards, zero_signal
from ctrlreward.functional.policy import explained_variance, value_loss
from ctrlreward.lightning_package import (
    Callback,
    LightningModule,
    Trainer,
    check_whole_model,
    misconfigured,
    mixed,
    package_of,
)
from ctrlreward.placement import overlap_on_cpu, shared_device
from ctrlreward.policy.adapted_module import AdaptedModuleMixin
from ctrlreward.policy.model import LoRA, check_config, keep_start, reference_policy
from ctrlreward.policy.objectives import (
    Critic,
    Experience,
    Objective,
    ValueHead,
    check_reward,
    check_sampling,
    completion_advantages,
    loss_terms,
    loss_weights,
    token_advantages,
)
from ctrlreward.policy.optimizer import OptimizerConfig, check_loss, step_optimizer
from ctrlreward.policy.prompts import Prompt, check_beginnings, read_batch
from ctrlreward.policy.rollouts import (
    Generation,
    PolicyOutput,
    Rollout,
    joined_rollouts,
    policy_output,
)
from ctrlreward.ranks import fail_together, gather_values, on_every_rank
from ctrlreward.reward import Reward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import JSON_KEYS, Samples, shortened
from ctrlreward.scorers.base import Scores

# Argument → class of its options.
GROUPS: dict[str, Any] = {
    "objective": Objective,
    "generation": Generation,
    "optimizer": OptimizerConfig,
    "critic": Critic,
    "lora": LoRA,
}

# Old keywords, and keywords of TRL.
_OTHERS = {
    "updates": "optimizer=OptimizerConfig(...)",
    "reward_funcs": "reward=Reward(...)",
    "reward_weights": "reward=Reward({name: (component, weight)})",
    "peft_config": "lora=LoraConfig(...)",
    "model_name_or_path": "model",
    "args": "objective=Objective(...), generation=Generation(...), optimizer=OptimizerConfig(...)",
    "train_dataset": "trainer.fit(tuner, DataLoader(train_dataset, batch_size=8))",
    "eval_dataset": "Trainer(callbacks=[GenerationScorer(...)])",
    "processing_class": "model, whose folder has its tokenizer",
    "tokenizer": "model, whose folder has its tokenizer",
    "callbacks": "Trainer(callbacks=[...])",
    "max_steps": "Trainer(max_steps=...)",
    "num_train_epochs": "Trainer(max_epochs=...)",
    "output_dir": "Trainer(default_root_dir=...)",
    "logging_steps": "Trainer(log_every_n_steps=...)",
    "seed": "seed_everything(...) of Lightning",
}

_STEPS_WITHOUT_SIGNAL = 3  # before a warning


def options_by_group() -> dict[str, str]:
    """Return what replaces each option that is passed to `PolicyTuner` without its group."""
    lines: dict[str, list[str]] = {}
    for group, kind in GROUPS.items():
        own = {field.name: field.name for field in fields(kind)}
        for name, argument in (kind.__init__.our_names | own).items():
            if not argument.startswith("PolicyTuner("):  # with an option of peft
                argument = argument if "=" in argument else f"{argument}=..."
                argument = f"{group}={kind.__name__}({argument})"
            lines.setdefault(name, []).append(argument)
    return {name: " or ".join(each) for name, each in lines.items()} | _OTHERS


class ScoredRollout(NamedTuple):
    """Completions with their rewards; completions of a prompt are consecutive.

    Attributes:
        samples: n samples with all columns.
        rollout: Their completions.
        seconds: Duration of sampling.
        rewards: Their rewards.
    """

    samples: Samples
    rollout: Rollout
    seconds: float
    rewards: RewardBatch


class PendingRollout(NamedTuple):
    """A rollout whose rewards may still be computing: `scored` waits for them.

    `seconds` is the duration of sampling, and `greedy` are the greedy completions, if they are the
    baseline. `output` is of the policy that sampled; None if it can't change before the update.
    """

    rollout: Rollout
    seconds: float
    scored: Callable[[], ScoredRollout]
    greedy: PendingRollout | None = None
    output: PolicyOutput | None = None


class _ReleaseMixin(Callback):
    """Frees a reward when training fails: Lightning calls `on_exception` only on callbacks."""

    def __init__(self, reward: Reward) -> None:
        super().__init__()
        self.reward = reward

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Wait for the batch that is being scored, and drop batches that have not started."""
        self.reward.release()


@checked_keywords(**options_by_group())
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

    By default each rollout makes one update, by Lightning's automatic optimisation. Under manual
    optimisation (see `OptimizerConfig`) leave out the trainer's `gradient_clip_val` and
    `accumulate_grad_batches`; `global_step` counts updates, and `max_steps` is checked after each
    rollout.

    Logs `reward/<name>` and `reward/<name>_std` of the total, of each component and, if
    `shape_rewards` is set, of the shaped reward (`shaped`); `reward/fail_rate`;
    `reward/zero_signal`, the share of prompts whose completions all have the same reward (or the
    same value of `objective.filter_groups`), before any are replaced; `policy/loss`,
    `policy/kl` and `policy/entropy` (nats per token), `policy/ratio` to the policy that sampled,
    `policy/clip_fraction` (share of tokens), `policy/update_kl` from the policy that sampled (nats
    per token); with a value head `policy/value_loss` and `policy/explained_variance` (at most 1);
    `rollout/length` (tokens), `rollout/truncated` (share of completions without an end token),
    `rollout/tokens_per_second`; with `objective.filter_groups` also `rollout/refills`, the extra
    sampling rounds, and `rollout/unfilled`, the share of prompts without signal after
    them; `time/rollout_share` and `time/reward_share`, the shares of the step's wall time spent on
    sampling and on waiting for rewards. Policy metrics are means over the updates of a rollout.

    Under several ranks each rank has its own prompts, the same number on each. Baselines,
    deviations and token means are computed over all ranks. A scorer's exception ends all ranks.

    Args:
        model: Local folder, Hugging Face id or short name of the model to tune.
        reward: The reward to maximise: a `Reward`, or its components, such as a function.
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
        TypeError: An argument is of the wrong class.
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
        given = (objective, generation, optimizer, critic, lora)
        for (name, kind), value in zip(GROUPS.items(), given, strict=True):
            if isinstance(value, LoraConfig) and kind is LoRA:
                check_config(value)
            else:
                check_type(name, kind, value)
        check_sampling(objective, generation.num_generations, optimizer)
        super().__init__(model, generation, optimizer, lora)
        self.reward = as_reward(reward)
        check_reward(objective, self.reward)
        self.objective = objective
        self.critic = critic
        self.beta = objective.beta
        self.automatic_optimization = optimizer.automatic
        self.last_rollout: tuple[Samples, RewardBatch] | None = None
        self.shape_rewards: Callable[[Samples, RewardBatch, Tensor, bool], Scores] | None = None
        self._ignored: set[str] = set()
        self._without_signal = 0  # steps in a row
        self._waiting: PendingRollout | None = None
        self.value_head: ValueHead | None = None  # set by configure_model

    def configure_callbacks(self) -> list[Callback]:
        """Return a callback that frees the reward's models when training fails."""
        return [mixed(_ReleaseMixin, package_of(self), "callbacks.Callback")(self.reward)]

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
        """Load the policy, the reference policy and, if needed, a value head."""
        super()._load()
        trained = None if isinstance(self.lora, LoraConfig) else self.lora.adapter
        if trained is not None and self.objective.reference == "start":
            keep_start(self.policy, trained)
        if self.objective.choices.baseline == "value":
            self.value_head = ValueHead(self.policy.get_output_embeddings().weight.shape[1])

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
        if self.objective.filter_groups is not None and (unfit := _unfit_loader(given)):
            raise misconfigured(
                self,
                "objective.filter_groups draws further prompts from the training set, must be a "
                f"DataLoader of a list or a datasets.Dataset, got {unfit}",
            )
        if self.objective.decoupled and self.shape_rewards is not None:
            raise misconfigured(
                self,
                "RewardShaping shapes the total of a reward, and objective."
                "multi_objective_aggregation = 'normalize_then_sum' learns from its components. "
                "Use 'sum_then_normalize', or no RewardShaping.",
            )

    def training_step(self, batch: object, batch_idx: int) -> Tensor | None:
        """Sample completions, score them, and return the loss or update the policy.

        With `optimizer.overlap` the step learns from the completions of the previous step, and the
        first step returns None.

        Raises:
            RuntimeError: Every sample of the batch failed, or the loss is NaN or infinite.
        """
        started = time.perf_counter()
        self.configure_model()
        prompts, inputs = self._read(batch)
        sampled = self._start(prompts, inputs, self.generation.num_generations)
        if self.objective.choices.baseline == "greedy":
            sampled = sampled._replace(greedy=self._start(prompts, inputs, 1, temperature=0.0))
        if self.optimizer.overlap:  # the policy will have changed when the rewards arrive
            sampled = sampled._replace(output=self._evaluate(sampled.rollout))
            waiting, self._waiting = self._waiting, sampled
            if waiting is None:
                return None
            sampled = waiting
        wait_started = time.perf_counter()
        scored, lacking, metrics = fail_together(partial(self._filled, sampled))
        of_all_ranks = RewardBatch.concat(on_every_rank(lambda: scored.rewards))
        waited = time.perf_counter() - wait_started - (scored.seconds - sampled.seconds)
        if of_all_ranks.failed.all():
            raise RuntimeError(
                f"all {len(of_all_ranks.total)} samples of this step got NaN as reward, so there "
                "is nothing to learn from. See the scorers' warnings for the reason."
            )
        self.last_rollout = (scored.samples, scored.rewards)
        rewards = self._shape(scored, baseline=False)
        if self.objective.filter_groups is not None:
            without = lacking.repeat_interleave(self.generation.num_generations)
            rewards = rewards.masked_fill(without, torch.nan)
        greedy = None
        if sampled.greedy is not None:
            greedy = self._shape(fail_together(sampled.greedy.scored), baseline=True)
        experience = self._experience(scored.rollout, rewards, greedy, sampled.output)
        self._without_signal = 0 if experience.advantages.any() else self._without_signal + 1
        terms = self._learn(experience)
        seconds = time.perf_counter() - started
        metrics["time/rollout_share"] = scored.seconds / seconds
        metrics["time/reward_share"] = waited / seconds
        metrics["rollout/tokens_per_second"] = float(scored.rollout.mask.sum()) / scored.seconds
        metrics |= {f"reward/{name}": each for name, each in of_all_ranks.statistics().items()}
        metrics |= {f"policy/{name}": float(value.detach()) for name, value in terms.items()}
        self._log_step(scored.rollout, rewards, metrics)
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

    def on_fit_start(self) -> None:
        """Take the seed of the run, and load the scorers if they run parallel to training."""
        super().on_fit_start()
        if self.optimizer.overlap:
            components = self.reward.components if isinstance(self.reward, Reward) else {}
            used = {device for c in components.values() for device in c.scorer.devices}
            if warning := overlap_on_cpu(used, self.device.type):
                package_of(self).load("utilities.rank_zero_warn")(f"PolicyTuner: {warning}")
            with torch.random.fork_rng(devices=[]):
                self.reward.load()

    def on_fit_end(self) -> None:
        """Stop the reward's worker and free its models."""
        self._waiting = None
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

    def _start(
        self,
        prompts: Samples,
        inputs: Sequence[Prompt],
        repeats: int,
        temperature: float | None = None,
    ) -> PendingRollout:
        """Sample completions of each prompt; with overlap, let the worker score them now."""
        started = time.perf_counter()
        rows = [i for i in range(len(inputs)) for _ in range(repeats)]
        prompts = prompts[rows]
        rollout = self._sample([inputs[row] for row in rows], temperature)
        seconds = time.perf_counter() - started
        samples, reward = prompts.completed(rollout.completions), self.reward
        score: Callable[[], RewardBatch] = partial(reward, samples)
        if self.optimizer.overlap:
            score = reward.submit(samples).result
        scored = lambda: ScoredRollout(samples, rollout, seconds, score())  # noqa: E731
        return PendingRollout(rollout, seconds, scored)

    def _filled(self, sampled: PendingRollout) -> tuple[ScoredRollout, Tensor, dict[str, float]]:
        """Wait for the rewards, and replace groups without signal if the objective says so.

        DAPO (Yu et al. 2025, section 3.2). Returns the completions, True for each group without
        signal, and metrics to log.
        """
        scored, size = sampled.scored(), self.generation.num_generations
        lacking = self._lacks_signal(scored)
        metrics = {"reward/zero_signal": float(lacking.float().mean())} if size > 1 else {}
        if self.objective.filter_groups is None:
            return scored, lacking, metrics
        parts, count = [scored], len(lacking)
        groups = torch.arange(count)
        while lacking.any() and len(parts) <= self.objective.max_refills:
            parts.append(self._more_groups(int(lacking.sum())))
            found = (~self._lacks_signal(parts[-1])).nonzero()[:, 0]
            places = lacking.nonzero()[: len(found), 0]
            groups[places], lacking[places] = count + found, False
            count += len(parts[-1].samples) // size
        metrics["rollout/unfilled"] = float(lacking.float().mean())
        metrics["rollout/refills"] = float(len(parts) - 1)
        if len(parts) > 1:
            rows = (groups[:, None] * size + torch.arange(size)).flatten()
            left = not self.policy.config.is_encoder_decoder
            rollouts = [part.rollout for part in parts]
            scored = ScoredRollout(
                Samples.concat(part.samples for part in parts)[rows.tolist()],
                joined_rollouts(rollouts, self.tokenizer.pad_token_id, left)[rows],
                sum(part.seconds for part in parts),
                RewardBatch.concat([part.rewards for part in parts])[rows.numpy()],
            )
        return scored, lacking, metrics

    def _lacks_signal(self, scored: ScoredRollout) -> Tensor:
        """Return True for each group in which the objective's score, or the total, is the same."""
        rewards, name = scored.rewards, self.objective.filter_groups or "total"
        values = rewards.total if name == "total" else rewards.components[name]
        known = torch.from_numpy(values).masked_fill(torch.from_numpy(rewards.failed), torch.nan)
        size = self.generation.num_generations
        return zero_signal(known, torch.arange(len(known)) // size)[::size]

    def _more_groups(self, n: int) -> ScoredRollout:
        """Sample and score the groups of n prompts of the training set, drawn at random."""
        loader: Any = self.trainer.train_dataloader
        samples: list[Samples] = []
        inputs: list[Prompt] = []
        while len(inputs) < n:
            places = torch.randint(len(loader.dataset), (n,)).tolist()
            batched = loader.batch_sampler is None  # an item of the dataset is a batch
            items = loader.dataset[places[0]] if batched else [loader.dataset[i] for i in places]
            prompts, read = self._read(loader.collate_fn(items))
            samples.append(prompts)
            inputs += read
        repeats = self.generation.num_generations
        return self._start(Samples.concat(samples)[:n], inputs[:n], repeats).scored()

    def _shape(self, scored: ScoredRollout, baseline: bool) -> Tensor:
        """Return the rewards to learn from, float64, shape (n,); NaN if a sample failed."""
        rewards = scored.rewards
        if self.objective.decoupled:
            weights: Mapping[str, float] = self.reward.weights or {}
            table = np.stack([rewards.components[name] for name in weights], axis=1)
            table = np.where(rewards.failed[:, None], np.nan, table)
            groups = torch.arange(len(table)) // self.generation.num_generations
            each = torch.tensor(list(weights.values()))
            return decoupled_rewards(torch.from_numpy(table), each, groups)
        total = rewards.total
        if self.shape_rewards is not None:
            lengths = scored.rollout.mask.sum(dim=1)
            total = self.shape_rewards(scored.samples, rewards, lengths, baseline)
        return torch.from_numpy(total).double()

    @torch.no_grad()
    def _evaluate(self, rollout: Rollout) -> PolicyOutput:
        """Compute log-probabilities and values without dropout, a microbatch at a time."""
        self.policy.eval()
        size, rows = self.optimizer.microbatch_size, torch.arange(len(rollout.completions))
        outputs = [
            policy_output(self.policy, part, self.generation.temperature, self.value_head)
            for part in ([rollout] if size is None else map(rollout.__getitem__, rows.split(size)))
        ]
        log_probs, values = zip(*outputs, strict=True)
        return PolicyOutput(torch.cat(log_probs), torch.cat(values) if self.value_head else None)

    def _experience(
        self,
        rollout: Rollout,
        rewards: Tensor,
        greedy: Tensor | None = None,
        output: PolicyOutput | None = None,
    ) -> Experience:
        """Compute advantages and everything else that stays fixed during the updates.

        Statistics are over the completions of all ranks. Completions of one prompt are consecutive.
        `rewards` are NaN if a sample failed, shape (n,), in float64, so that squares of large ones
        are finite; `greedy`, shape (prompts,), are the rewards of greedy completions. `output` is
        of the policy that sampled; None if it is the current policy.
        """
        choices, mask = self.objective.choices, rollout.mask
        with reference_policy(self.policy):
            reference = self._evaluate(rollout).log_probs
        if output is None and (self.optimizer.off_policy or self.value_head):
            output = self._evaluate(rollout)
        values = None if output is None else output.values
        returns = valued = None
        if values is None:
            all_rewards, own = gather_values(rewards)
            groups = torch.arange(len(all_rewards)) // self.generation.num_generations
            all_greedy = None if greedy is None else gather_values(greedy)[0]
            advantages = completion_advantages(choices, all_rewards, groups, all_greedy)[own]
        else:
            own_rewards = rewards.float().to(mask.device)
            advantages, returns, valued = token_advantages(
                self.critic, own_rewards, values, mask, whiten=choices.scale == "batch"
            )
        if self.objective.mask_truncated_completions:
            mask = mask * rollout.ended[:, None]
        advantages = advantages.float().to(mask.device)
        old = output.log_probs if output is not None and self.optimizer.off_policy else None
        return Experience(rollout, advantages, mask, reference, old, values, returns, valued)

    def _terms(self, experience: Experience) -> Iterator[dict[str, Tensor]]:
        """Yield the `loss_terms` of each microbatch; their sums are the terms of the update.

        With a value head `loss` has the value loss as well, whose gradient reaches the adapter, and
        `value_loss` is that loss without gradients.
        """
        choices, options = self.objective.choices, self.generation
        size = self.optimizer.microbatch_size
        weights = loss_weights(choices, experience, options.max_completion_length)
        for rows in torch.arange(n := len(experience.mask)).split(size or n):
            part, of_part = experience, weights
            if size is not None:
                part = experience[rows]
                of_part = {name: each[rows.to(each.device)] for name, each in weights.items()}
            self.policy.train()  # the adapter's dropout, and gradient checkpointing
            log_probs, values = policy_output(
                self.policy, part.rollout, options.temperature, self.value_head
            )
            terms = loss_terms(choices, log_probs, part, of_part, self.beta)
            if values is not None and part.values is not None and part.returns is not None:
                costs = value_loss(values, part.values, part.returns, self.critic.clip)
                loss = (of_part["value"] * costs).sum()
                terms["loss"] = terms["loss"] + self.critic.coef * loss
                terms["value_loss"] = loss.detach()
            yield terms

    def _learn(self, experience: Experience) -> dict[str, Tensor]:
        """Make all updates, or compute the loss for Lightning's; return the terms to log."""
        if self.automatic_optimization:
            (terms,) = self._terms(experience)
            fail_together(partial(check_loss, terms))
        else:
            each = [
                step_optimizer(self, self._terms(experience[rows]), self.optimizer.max_grad_norm)
                for rows in self.optimizer.minibatch_rows(len(experience.mask))
            ]
            terms = {name: torch.stack([t[name] for t in each]).mean() for name in each[0]}
        values, returns, valued = experience.values, experience.returns, experience.valued
        if values is not None and returns is not None and valued is not None:
            terms["explained_variance"] = explained_variance(values, returns, valued)
        return terms


def _unfit_loader(loader: object) -> str | None:
    """Return why prompts can't be drawn from a training dataloader; None if they can."""
    if not isinstance(loader, DataLoader):
        return kind_of(loader)
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        return f"a DataLoader of {kind_of(loader.dataset)}, which does not have a length"
    return None
