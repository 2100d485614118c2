"""Supervised fine-tuning of a language model with LoRA, the start of a policy.

`configs/style_transfer/*_warm_up.yaml` use these classes. Copy this file to change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ctrlreward.files import whole_folder
from ctrlreward.models.control_tokens import text_reader
from ctrlreward.policy.adapted_module import AdaptedModuleMixin
from ctrlreward.policy.model import LoRA
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Generation, Rollout, encode_prompts, end_tokens, log_probs
from ctrlreward.recipes.style_transfer.pseudo_pairs import PseudoPairs
from ctrlreward.recipes.trained_first import TrainedFirst
from ctrlreward.recipes.training_batches import PromptBatches
from ctrlreward.samples import Samples


class SupervisedTuner(AdaptedModuleMixin, pl.LightningModule):
    """Fine-tuning of a language model on the completions of a data set, with LoRA.

    A batch is `Samples` with `prompts`, and `references` as completions. The loss is the mean
    negative log-probability of their tokens and of the end token, logged as `train_loss`, nats per
    token. At the end of training the adapter that the trainer's `RewardCheckpoint` selected, else
    the last one, is written to a folder, for `LoRA(adapter=...)` of a `PolicyTuner`. An earlier one
    in it is replaced. The other arguments go to `PolicyTuner`.
    """

    def __init__(
        self,
        folder: str,
        model: str,
        generation: Generation = Generation(),
        optimizer: OptimizerConfig = OptimizerConfig(),
        lora: LoRA = LoRA(),
    ) -> None:
        super().__init__(model, generation, optimizer, lora)
        self.folder = Path(folder).expanduser()

    def training_step(self, batch: Samples, batch_idx: int) -> Tensor:
        self.policy.train()
        prompts = batch.require("prompts", "SupervisedTuner")
        texts = batch.require("references", "SupervisedTuner")
        if not self.policy.config.is_encoder_decoder:
            texts = tuple(f" {text}" for text in texts)  # which belongs to the completion
        rollout = self._rollout(prompts, texts)
        loss = -log_probs(self.policy, rollout, 1.0).sum() / rollout.mask.sum()
        self.log("train_loss", loss.detach(), batch_size=len(batch), prog_bar=True)
        return loss

    def on_fit_end(self) -> None:
        if self.trainer.fast_dev_run or not self.trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        if best:
            state = torch.load(best, map_location=self.device, weights_only=True)["state_dict"]
            self.load_state_dict(state, strict=False)
        with whole_folder(self.folder) as folder:
            self.export_adapter(folder)

    def _rollout(self, prompts: Sequence[str], completions: Sequence[str]) -> Rollout:
        """Return completions that are given, instead of sampled, each with the last end token."""
        model, tokenizer = self.policy, self.tokenizer
        ids, attention = encode_prompts(model, tokenizer, list(prompts), special_tokens=True)
        end = int(end_tokens(model)[-1])
        reader = text_reader(tokenizer, completions)
        rows = reader(list(completions), add_special_tokens=False).input_ids
        ends = [torch.tensor([*row, end]) for row in rows]
        new = pad_sequence(ends, batch_first=True, padding_value=end).to(ids.device)
        lengths = torch.tensor([len(row) for row in ends], device=ids.device)
        mask = (torch.arange(new.shape[1], device=ids.device) < lengths[:, None]).float()
        ids = torch.cat([ids, new], dim=1)
        attention = torch.cat([attention, mask.long()], dim=1)
        done = torch.ones(len(rows), dtype=torch.bool, device=ids.device)
        return Rollout(list(completions), ids, attention, mask, done)


class PairData(PromptBatches):
    """Batches of pseudo-pairs, whose file is written first; see `PromptBatches`."""

    def __init__(
        self,
        pairs: PseudoPairs,
        batch_size: int = 16,
        steps: int = 1000,
        seed: int = 0,
        models: Sequence[TrainedFirst] = (),
    ) -> None:
        super().__init__(pairs.samples, batch_size, steps, seed, models)
        self.pairs = pairs

    def prepare_data(self) -> None:
        super().prepare_data()
        self.pairs.make()
