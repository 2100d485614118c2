"""`AdaptedModuleMixin`: a LightningModule around a language model with a LoRA adapter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from os import PathLike
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctrlreward.lightning_package import LightningModule
from ctrlreward.placement import reserve_core
from ctrlreward.policy.chat import conversations, strings
from ctrlreward.policy.model import LoRA, export_adapter
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.prompt_batches import Prompt
from ctrlreward.policy.rollouts import Generation, Rollout, sample
from ctrlreward.progress import part
from ctrlreward.ranks import rank_and_ranks

_PROMPTS_PER_BATCH = 128  # in `complete`


class AdaptedModuleMixin(LightningModule):
    """Language model with a LoRA adapter that completes prompts.

    Checkpoints hold what is trained, without the frozen base weights. A subclass defines
    `configure_model`, which sets `policy` and `tokenizer`, and the training.

    The random numbers of a batch follow from the seed of the run (`seed_everything`, or
    `torch.manual_seed`; random without one), the rank, the epoch and the batch. The seed is in the
    checkpoint, so a resumed run samples what an uninterrupted one would have sampled.

    Args:
        model: Local folder, Hugging Face id or short name of the base model.
        generation: How prompts are completed.
        optimizer: Optimizer, and whether cores are shared with a reward.
        lora: The adapter, and the precision of the base weights.
    """

    policy: PeftModel  # set by configure_model, as the next one
    tokenizer: PreTrainedTokenizerBase

    def __init__(
        self,
        model: str,
        generation: Generation,
        optimizer: OptimizerConfig,
        lora: LoRA | LoraConfig,
    ) -> None:
        super().__init__()
        if not isinstance(model, str | PathLike):
            raise TypeError(
                f"model is a loaded {type(model).__name__}: give its folder, Hugging Face id or "
                "short name; write a folder with model.save_pretrained and tokenizer."
                "save_pretrained"
            )
        self.base_model = str(model)
        self.generation = generation
        self.optimizer = optimizer
        self.lora = lora
        # A checkpoint has the adapter only; the base weights are loaded from `model`.
        self.strict_loading = False
        self._seed = 0  # of the run
        self._resumed_seed: int | None = None

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
        """Return the batch; text needs no device."""
        return batch

    def on_fit_start(self) -> None:
        """Take the seed of the run: the checkpoint's, else that of PyTorch's generator."""
        seed = torch.initial_seed() if self._resumed_seed is None else self._resumed_seed
        self._seed = self.trainer.strategy.broadcast(seed)
        self._resumed_seed = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed PyTorch by run, rank, epoch and batch."""
        rank, _ = rank_and_ranks()
        run = (self._seed * 1_009 + rank) * 10_007 + self.current_epoch
        torch.manual_seed((run * 1_000_003 + batch_idx) % 2**63)

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """Do nothing: `GenerationScorer` scores held-out generations at each validation."""
        return None

    def test_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        """Do nothing, as in validation."""
        return None

    def complete(self, prompts: str | Sequence[str]) -> list[str]:
        """Complete each prompt with the settings of `generation`, at its `eval_temperature`."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        temperature = self.generation.eval_temperature
        completions: list[str] = []
        several = len(prompts) > _PROMPTS_PER_BATCH
        with part("generating", len(prompts)) if several else nullcontext() as advance:
            for start in range(0, len(prompts), _PROMPTS_PER_BATCH):
                batch = prompts[start : start + _PROMPTS_PER_BATCH]
                completions += self._sample(batch, temperature).completions
                if advance:
                    advance(len(batch))
        return completions

    def export_adapter(self, folder: str | PathLike[str]) -> None:
        """Write the adapter in peft's format, for `PeftModel.from_pretrained`."""
        self.configure_model()
        export_adapter(self.policy, str(folder))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remove the frozen base model from the checkpoint, and add the seed of the run."""
        checkpoint["ctrlreward_seed"] = self._seed
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name in trained
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the seed of the run."""
        self._resumed_seed = checkpoint.get("ctrlreward_seed")

    def _sample(self, prompts: Sequence[Prompt], temperature: float | None = None) -> Rollout:
        self.configure_model()
        self.policy.eval()  # no dropout; checkpointed layers would keep no key-value cache
        options = self.generation
        if options.chat:
            texts = conversations(self.tokenizer, options, prompts)
        else:
            texts = strings(prompts)
        temperature = options.temperature if temperature is None else temperature
        shares_cores = self.optimizer.overlap and self.device.type == "cpu"
        length, truncation = options.max_completion_length, options.truncation
        limits = (length, temperature, not options.chat, truncation)
        with reserve_core() if shares_cores else nullcontext():
            return sample(self.policy, self.tokenizer, texts, *limits)
