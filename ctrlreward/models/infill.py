"""Infilling: log-probabilities of candidate fillings at the blanks of a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from ctrlreward.engine.sharing import shared_model
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.models.tasks import Patterns, TokenScores
from ctrlreward.weights.loading import load_config


class Infiller(Protocol):
    """Frozen model that scores fillings of blanks."""

    tokenizer: PreTrainedTokenizerBase

    def answer(self, tasks: Sequence[Patterns], /) -> list[TokenScores]:
        """Return the scores of the targets of each task, blank by blank."""


def load_infiller(
    model: str, device: str = "cpu", dtype: str | None = None, batch_tokens: int | None = None
) -> Infiller:
    """Load an infiller, shared by all calls with equal arguments: masked, or prompted."""
    if load_config(model).is_encoder_decoder:
        return shared_model(Seq2SeqInfiller, model, device, dtype, batch_tokens)
    return shared_model(CausalLM, model, device, dtype, batch_tokens)
