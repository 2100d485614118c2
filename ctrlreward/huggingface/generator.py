"""Generation with the model of a trainer of transformers or TRL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, Trainer

from ctrlreward.completion import unclear_input
from ctrlreward.samples import Samples


class TrainerGenerator:
    """A `TextGenerator` with the model in training, by `generate` or the trainer's vLLM.

    Args:
        trainer: The trainer.
        generation: Settings of `generate`. Defaults to the trainer's, else to the model's with
            `max_new_tokens=64`.
    """

    def __init__(
        self, trainer: Trainer, generation: GenerationConfig | Mapping[str, Any] | None
    ) -> None:
        self.trainer = trainer
        self.generation = generation

    def check(self, samples: Samples) -> None:
        """Raise if the trainer cannot complete the samples.

        Raises:
            ValueError: The strategy splits the model, the trainer has no tokenizer, or it is not
                known whether an encoder-decoder reads or continues the samples.
        """
        trainer: Any = self.trainer
        error = unclear_input(trainer.model, samples)
        if error:
            raise ValueError(error)
        if trainer.processing_class is None:
            raise ValueError("the trainer has no tokenizer. Use Trainer(processing_class=...).")
        zero = getattr(trainer.accelerator.state.deepspeed_plugin, "zero_stage", 0)
        if not self._has_vllm and (trainer.is_fsdp_enabled or zero == 3):
            raise ValueError(
                "each rank generates with the whole model, which FSDP and DeepSpeed ZeRO-3 split. "
                "Use vLLM (use_vllm=True), DDP or ZeRO-2."
            )

    @property
    def _has_vllm(self) -> bool:
        return bool(getattr(self.trainer, "use_vllm", False))

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Complete each prompt."""
        trainer: Any = self.trainer
        tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
        if self._has_vllm:
            trainer.vllm_generation.sync_weights()
            ids = tokenizer(text=list(prompts))["input_ids"]
            _, new, *_ = trainer.vllm_generation.generate(
                prompts=ids, images=None, num_generations=1
            )
            return list(tokenizer.batch_decode(new, skip_special_tokens=True))
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token  # as TRL's trainers do
        model = trainer.accelerator.unwrap_model(trainer.model)
        config, training = self._config(model), model.training
        texts: list[str] = []
        model.eval()
        with torch.no_grad(), trainer.accelerator.autocast():
            size = trainer.args.per_device_eval_batch_size
            for start in range(0, len(prompts), size):
                batch = tokenizer(
                    text=list(prompts[start : start + size]),
                    padding=True,
                    padding_side="left",
                    return_tensors="pt",
                ).to(model.device)
                new = model.generate(
                    input_ids=batch.input_ids,
                    attention_mask=batch.attention_mask,
                    generation_config=config,
                )
                if not model.config.is_encoder_decoder:
                    new = new[:, batch.input_ids.shape[1] :]
                texts += tokenizer.batch_decode(new, skip_special_tokens=True)
        model.train(training)
        return texts

    def _config(self, model: Any) -> GenerationConfig:
        if isinstance(self.generation, GenerationConfig):
            return self.generation
        if self.generation is None and hasattr(self.trainer, "generation_config"):
            config: GenerationConfig = self.trainer.generation_config
            return config
        own = {**model.generation_config.to_dict(), "max_length": None, "max_new_tokens": 64}
        return GenerationConfig.from_dict({**own, **(self.generation or {})})


def check_trainer(trainer: object, callback: object) -> None:
    """Raise if the first argument of a callback is not a trainer.

    Raises:
        TypeError: Names the callback and the call.
    """
    if not isinstance(trainer, Trainer):
        name = type(callback).__name__
        raise TypeError(
            f"trainer must be a transformers.Trainer, got a {type(trainer).__name__}. Create the "
            f"trainer first, then call trainer.add_callback({name}(trainer, scores, samples))."
        )
