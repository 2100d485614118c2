"""A frozen causal language model with an adapter that learns."""

from __future__ import annotations

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig

from ctrlreward.models.dtypes import pick_dtype
from ctrlreward.models.head import keep_contiguous
from ctrlreward.models.weights import resolve


def load_with_adapter(model: str, rank: int, dtype: str | None, device: str) -> PeftModel:
    """Loads a base model and puts a new LoRA adapter on all its linear layers.

    Args:
        model: Local folder, hub id or short name.
        rank: Of the adapter; its alpha is twice that.
        dtype: Of the frozen weights; None picks by device. The adapter is float32.
        device: The type of the device that the model will run on; it is loaded to the CPU.
    """
    base = AutoModelForCausalLM.from_pretrained(
        resolve(model), dtype=pick_dtype(dtype, device), use_safetensors=True
    )
    # What a model's makers advise (a repetition penalty, say) draws from a distribution that is
    # not the one being trained.
    base.generation_config = GenerationConfig(eos_token_id=base.generation_config.eos_token_id)
    keep_contiguous(base)
    lora = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        # What a plain peft user needs to find the base model again.
        base_model_name_or_path=resolve(model),
    )
    return get_peft_model(base, lora).train()
