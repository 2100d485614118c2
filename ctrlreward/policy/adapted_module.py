"""`AdaptedModuleMixin`: a LightningModule around a language model with a LoRA adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ctrlreward.lightning_package import LightningModule, misconfigured
from ctrlreward.models.loading import check_vocabulary, load_tokenizer
from ctrlreward.policy.model import LoRA, keep_start, load_policy, reference_policy
from ctrlreward.policy.optimizer import OptimizerConfig, adamw
from ctrlreward.policy.prompts import end_of_turn, model_texts
from ctrlreward.policy.rollouts import Generation, Rollout, add_end_tokens, sample
from ctrlreward.ranks import rank_and_ranks

PROMPTS_PER_BATCH = 128  # in `complete`
_ADVICE = "Pass the model and the lora that the checkpoint was trained with."


class AdaptedModuleMixin(LightningModule):
    """Language model with a LoRA adapter that completes prompts; a subclass defines the training.

    Checkpoints contain the trained weights, without the frozen base weights. The random numbers of
    a batch follow from the seed of the run, the rank, the epoch and the batch. The seed is in the
    checkpoint, so a resumed run samples like an uninterrupted one.
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
                "model must be a folder, a Hugging Face id or a short name, got a loaded "
                f"{type(model).__name__}: save it by save_pretrained"
            )
        self.base_model = str(model)
        self.generation = generation
        self.hparams["max_completion_length"] = generation.max_completion_length
        self.optimizer = optimizer
        self.lora = lora
        # A checkpoint has the adapter only; the base weights are loaded from `model`.
        self.strict_loading = False
        self._training_device: torch.device | None = None
        self._seed = 0  # of the run
        self._resumed_seed: int | None = None

    def setup(self, stage: str) -> None:
        """Remember the device: `configure_model` runs before Lightning moves the module there."""
        precision = str(self.trainer.precision)
        if precision.endswith("-true") and precision != "32-true":
            raise misconfigured(
                self.trainer,
                f"Trainer(precision={precision!r}) also converts the adapter, which is trained in "
                "float32. Use 'bf16-mixed', or lora=LoRA(dtype='bfloat16') for the base weights.",
            )
        self._training_device = self.trainer.strategy.root_device

    def configure_model(self) -> None:
        """Load the base model with its adapter, and its tokenizer; only once."""
        if "policy" in self._modules:
            return
        model, options = self.base_model, self.generation
        tokenizer = load_tokenizer(model)
        turn = end_of_turn(tokenizer, options, model) if options.chat else []
        policy = load_policy(model, self.lora, str(self._training_device or self.device))
        check_vocabulary(model, tokenizer, policy, reads_padding=True)
        add_end_tokens(policy, tokenizer, options.stop, turn)
        if self.optimizer.gradient_checkpointing:
            base: Any = policy.get_base_model()
            base.gradient_checkpointing_enable({"use_reentrant": False})
        if isinstance(self.lora, LoRA) and self.lora.adapter is not None:
            keep_start(policy, self.lora.adapter)
        self.policy, self.tokenizer = policy, tokenizer

    def configure_optimizers(self) -> Any:
        return adamw(self, self.optimizer)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _: int) -> Any:
        return batch

    def on_fit_start(self) -> None:
        """Take the seed of the run from the checkpoint, else from PyTorch's generator."""
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

    def rollout(self, prompts: Sequence[str], temperature: float | None = None) -> Rollout:
        """Sample one completion of each prompt, by default at the temperature of training."""
        self.configure_model()
        self.policy.eval()  # no dropout; checkpointed layers would not keep a key-value cache
        texts = model_texts(self.tokenizer, self.generation, prompts)
        return sample(self.policy, self.tokenizer, texts, self.generation, temperature)

    def complete(self, prompts: str | Sequence[str]) -> list[str]:
        """Complete each prompt with the settings of `generation`, at its `eval_temperature`."""
        prompts = [prompts] if isinstance(prompts, str) else prompts
        temperature = self.generation.eval_temperature
        completions: list[str] = []
        for start in range(0, len(prompts), PROMPTS_PER_BATCH):
            batch = prompts[start : start + PROMPTS_PER_BATCH]
            completions += self.rollout(batch, temperature).completions
        return completions

    def complete_as_reference(self, prompts: str | Sequence[str]) -> list[str]:
        """Complete prompts like `complete`, with the reference policy of the KL term."""
        self.configure_model()
        with reference_policy(self.policy):
            return self.complete(prompts)

    def export_adapter(self, folder: str | PathLike[str]) -> None:
        """Write the adapter in peft's format, for `PeftModel.from_pretrained`."""
        self.configure_model()
        self.policy.save_pretrained(str(folder), selected_adapters=["default"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remove the frozen base weights from the checkpoint; add the run's seed, and the scale."""
        checkpoint["ctrlreward_seed"], checkpoint["ctrlreward_scale"] = self._seed, self._scaling()
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        checkpoint["state_dict"] = {
            name: value for name, value in checkpoint["state_dict"].items() if name in trained
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the seed of the run, after a check of the adapter's scale."""
        self._resumed_seed = checkpoint.get("ctrlreward_seed")
        saved, scale = checkpoint.get("ctrlreward_scale"), self._scaling()
        if saved not in (None, scale):  # the weights alone would fit
            raise RuntimeError(f"the checkpoint was trained with {saved}, not {scale}. {_ADVICE}")

    def _scaling(self) -> dict[str, Any]:
        """Return what scales the adapter and is not seen in its weights."""
        self.configure_model()
        config = self.policy.peft_config["default"]
        names = ("lora_alpha", "alpha_pattern", "use_rslora")
        return {name: getattr(config, name) for name in names if getattr(config, name)}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the trained weights; the frozen ones, which no checkpoint has, are not missing."""
        found = super().load_state_dict(state_dict, strict, assign)
        trained = {name for name, p in self.named_parameters() if p.requires_grad}
        found.missing_keys[:] = [name for name in found.missing_keys if name in trained]
        wrong = [*found.missing_keys, *found.unexpected_keys]
        if wrong := [key for key in wrong if key.startswith("policy.")]:
            raise RuntimeError(
                f"the checkpoint has other weights than this adapter, such as {wrong[0]}. {_ADVICE}"
            )
        return found
