"""A frozen language model, causal or encoder-decoder, with an adapter that learns."""

from __future__ import annotations

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedModel,
)

from ctrlreward.engine.output_layer import keep_contiguous
from ctrlreward.weights.dtypes import pick_dtype
from ctrlreward.weights.loading import load_config
from ctrlreward.weights.sources import resolve


def load_with_adapter(model: str, rank: int, dtype: str | None, device: str) -> PeftModel:
    """Loads a base model and puts a new LoRA adapter on all its linear layers.

    Args:
        model: Local folder, hub id or short name.
        rank: Of the adapter; its alpha is twice that.
        dtype: Of the frozen weights; None picks by device. The adapter is float32.
        device: The type of the device that the model will run on; it is loaded to the CPU.

    Raises:
        ValueError: An encoder-decoder doesn't say what its decoder starts with.
    """
    reads_apart = load_config(model).is_encoder_decoder
    auto_class = AutoModelForSeq2SeqLM if reads_apart else AutoModelForCausalLM
    base = auto_class.from_pretrained(
        resolve(model), dtype=pick_dtype(dtype, device), use_safetensors=True
    )
    base.generation_config = _undirected(model, base)
    keep_contiguous(base)
    lora = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        task_type="SEQ_2_SEQ_LM" if reads_apart else "CAUSAL_LM",
        # What a plain peft user needs to find the base model again.
        base_model_name_or_path=resolve(model),
    )
    return get_peft_model(base, lora).train()


def _undirected(model: str, base: PreTrainedModel) -> GenerationConfig:
    """What generation needs to begin and to end, and nothing more.

    What a model's makers advise beyond that (a repetition penalty, beams, forced first and last
    tokens) draws from a distribution that is not the one being trained.
    """
    advised = base.generation_config
    start = advised.decoder_start_token_id
    if base.config.is_encoder_decoder and start is None:
        raise ValueError(
            f"model = {model!r} names no decoder_start_token_id: write the token that its decoder "
            "starts with into its generation_config.json"
        )
    return GenerationConfig(eos_token_id=advised.eos_token_id, decoder_start_token_id=start)
