"""The models of `PolicyTuner`: loading with a LoRA adapter, optimising, releasing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedModel,
)

from ctrlreward.engine.output_layer import keep_contiguous
from ctrlreward.lightning_package import CallbackMixin, LightningModule, Trainer
from ctrlreward.reward import Reward
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.loading import load_config
from ctrlreward.weights.sources import resolve


@dataclass(frozen=True)
class LoRA:
    """The adapter on all linear layers, and the precision of the frozen weights under it.

    Args:
        rank: Rank of the adapter; alpha is twice the rank.
        dtype: Data type of the frozen base weights; None picks one by device. The adapter is
            always float32.

    Raises:
        ValueError: The rank is not positive.
    """

    rank: int = 16
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank = {self.rank}: give a positive number")


def load_policy(model: str, lora: LoRA, device: str) -> PeftModel:
    """Load a causal or encoder-decoder language model and add a new LoRA adapter to it.

    Args:
        model: Local folder, Hugging Face id or short name.
        lora: Rank of the adapter and dtype of the base weights.
        device: Type of the device that the model will run on. It is loaded to the CPU.

    Raises:
        ValueError: An encoder-decoder does not define the token that its decoder starts with.
    """
    is_encoder_decoder = load_config(model).is_encoder_decoder
    auto_class = AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM
    base = auto_class.from_pretrained(
        resolve(model), dtype=pick_dtype(lora.dtype, device), use_safetensors=True
    )
    base.generation_config = _plain_generation_config(model, base)
    keep_contiguous(base)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank,
        target_modules="all-linear",
        task_type="SEQ_2_SEQ_LM" if is_encoder_decoder else "CAUSAL_LM",
        # Lets plain peft find the base model of an exported adapter.
        base_model_name_or_path=resolve(model),
    )
    return get_peft_model(base, config).train()


def _plain_generation_config(model: str, base: PreTrainedModel) -> GenerationConfig:
    """Keep only the start and end tokens of a model's generation config.

    Its other settings (repetition penalty, beams, forced first and last tokens) would sample from
    a distribution other than the one that is trained.
    """
    published = base.generation_config
    start = published.decoder_start_token_id
    if base.config.is_encoder_decoder and start is None:
        raise ValueError(
            f"model = {model!r} has no decoder_start_token_id: set it in its "
            "generation_config.json to the token that the decoder starts with"
        )
    return GenerationConfig(eos_token_id=published.eos_token_id, decoder_start_token_id=start)


def adamw_with_warmup(
    parameters: Iterable[torch.nn.Parameter], learning_rate: float, warmup_steps: int
) -> dict[str, Any]:
    """Return AdamW on the trainable parameters, with a linear warm-up, in Lightning's format.

    Args:
        parameters: All parameters; frozen ones are skipped.
        learning_rate: Learning rate after the warm-up.
        warmup_steps: Number of updates over which the learning rate rises linearly.
    """
    trainable = [p for p in parameters if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup_steps))
    )
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedule, "interval": "step"},
    }


def step_optimizer(
    module: LightningModule,
    microbatches: Iterable[dict[str, Tensor]],
    gradient_clip: float | None,
) -> dict[str, Tensor]:
    """Make one update with the summed gradients of some microbatches.

    Args:
        module: A module under manual optimisation, with one optimizer and one schedule.
        microbatches: The terms of each; `loss` has gradients. The next one is computed after the
            backward pass of the previous one.
        gradient_clip: Largest gradient norm; None for no clipping.

    Returns:
        The terms, summed over the microbatches, without gradients.
    """
    optimizer: Any = module.optimizers()
    schedule: Any = module.lr_schedulers()
    optimizer.zero_grad()
    detached = []
    for terms in microbatches:
        module.manual_backward(terms["loss"])
        detached.append({name: value.detach() for name, value in terms.items()})
    module.clip_gradients(optimizer, gradient_clip, "norm")
    optimizer.step()
    schedule.step()
    return {name: torch.stack([terms[name] for terms in detached]).sum() for name in detached[0]}


class ReleaseOnExceptionMixin(CallbackMixin):
    """Stops a reward's worker and frees its models after an exception.

    Lightning calls `on_exception` of callbacks, but not of modules.

    Args:
        reward: The reward to release.
    """

    def __init__(self, reward: Reward) -> None:
        super().__init__()
        self.reward = reward

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Wait for the batch that is being scored, and drop those that have not started."""
        self.reward.release()
