"""`AdaptedModuleMixin`: a LightningModule around a language model with a LoRA adapter."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from os import PathLike
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctrlreward.lightning_package import LightningModule
from ctrlreward.placement import reserve_core
from ctrlreward.policy.chat import conversations
from ctrlreward.policy.experience import Updates
from ctrlreward.policy.model import LoRA, export_adapter
from ctrlreward.policy.rollouts import Generation, Rollout, sample
from ctrlreward.samples import Samples

_PROMPTS_PER_BATCH = 128  # in `complete`


class AdaptedModuleMixin(LightningModule):
    """Language model with a LoRA adapter that completes prompts.

    Checkpoints hold what is trained, without the frozen base weights. A subclass defines
    `configure_model`, which sets `policy` and `tokenizer`, and the training.

    Args:
        model: Local folder, Hugging Face id or short name of the base model.
        generation: How prompts are completed.
        updates: Optimizer, and whether cores are shared with a reward.
        lora: The adapter, and the precision of the base weights.
    """

    policy: PeftModel  # set by configure_model, as the next one
    tokenizer: PreTrainedTokenizerBase

    def __init__(self, model: str, generation: Generation, updates: Updates, lora: LoRA) -> None:
        super().__init__()
        self.base_model = model
        self.generation = generation
        self.updates = updates
        self.lora = lora
        # A checkpoint has the adapter only; the base weights are loaded from `model`.
        self.strict_loading = False

    def transfer_batch_to_device(self, batch: Samples, device: torch.device, _: int) -> Samples:
        """Return the batch; text needs no device."""
        return batch

    def validation_step(self, batch: Samples, batch_idx: int) -> Tensor | None:
        """Do nothing: `GenerationScorer` scores held-out generations at each validation."""
        return None

    def test_step(self, batch: Samples, batch_idx: int) -> Tensor | None:
        """Do nothing, as in validation."""
        return None

    def complete(self, prompts: str | Sequence[str]) -> list[str]:
        """Complete each prompt with the settings of `generation`, at its `eval_temperature`."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        temperature = self.generation.eval_temperature
        return [
            completion
            for start in range(0, len(prompts), _PROMPTS_PER_BATCH)
            for completion in self._sample(
                prompts[start : start + _PROMPTS_PER_BATCH], temperature
            ).completions
        ]

    def export_adapter(self, folder: str | PathLike[str]) -> None:
        """Write the adapter in peft's format, for `PeftModel.from_pretrained`."""
        self.configure_model()
        export_adapter(self.policy, str(folder))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remove the frozen base model from the checkpoint."""
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name in trained
        }

    def _sample(self, prompts: Sequence[str], temperature: float | None = None) -> Rollout:
        self.configure_model()
        self.policy.eval()  # no dropout; checkpointed layers would keep no key-value cache
        options = self.generation
        if options.chat:
            prompts = conversations(self.tokenizer, options, prompts)
        temperature = options.temperature if temperature is None else temperature
        shares_cores = self.updates.overlap and self.device.type == "cpu"
        limits = (options.max_new_tokens, temperature, not options.chat)
        with reserve_core() if shares_cores else nullcontext():
            return sample(self.policy, self.tokenizer, prompts, *limits)
