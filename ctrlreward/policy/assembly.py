"""Assembly of a policy with its tokenizer, by the options of all groups."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from peft import LoraConfig, PeftModel
from transformers import PreTrainedTokenizerBase

from ctrlreward.policy import keywords
from ctrlreward.policy.chat import end_of_turn
from ctrlreward.policy.model import (
    LoRA,
    check_config,
    checkpoint_gradients,
    keep_start,
    load_policy,
)
from ctrlreward.policy.objectives import Objective
from ctrlreward.policy.optimizer import OptimizerConfig
from ctrlreward.policy.rollouts import Generation, add_end_tokens, stop_token
from ctrlreward.policy.value import Critic
from ctrlreward.samples import shortened
from ctrlreward.weights.loading import load_tokenizer

GROUPS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "objective": (Objective, keywords.OBJECTIVE),
    "generation": (Generation, keywords.GENERATION),
    "optimizer": (OptimizerConfig, keywords.OPTIMIZER),
    "critic": (Critic, keywords.CRITIC),
    "lora": (LoRA, keywords.LORA),
}


def instead() -> dict[str, str]:
    """Return what to type in place of options that are given to `PolicyTuner` without their group.

    Example:
        >>> instead()["num_generations"], instead()["kl_coef"]
        ('generation=Generation(num_generations=...)', 'objective=Objective(beta=...)')
    """
    lines: dict[str, list[str]] = {}
    for group, (kind, renamed) in GROUPS.items():
        own = {field.name: field.name for field in fields(kind)}
        for name, argument in (own | renamed).items():
            argument = argument if "=" in argument else f"{argument}=..."
            lines.setdefault(name, []).append(f"{group}={kind.__name__}({argument})")
    return {name: " or ".join(each) for name, each in lines.items()} | keywords.TUNER


def check_types(**given: object) -> None:
    """Raise if a group of options of `PolicyTuner` is not of its class.

    Raises:
        TypeError: Names the argument and the class to give.
        ValueError: An option of a configuration of peft cannot be honoured.
    """
    for name, value in given.items():
        kind, _ = GROUPS[name]
        if isinstance(value, LoraConfig) and kind is LoRA:
            check_config(value)
        elif not isinstance(value, kind):
            raise TypeError(
                f"{name} = {shortened(value)} is a {type(value).__name__}: give "
                f"{kind.__name__}(...)"
            )


def load_with_tokenizer(
    model: str,
    device: str,
    objective: Objective,
    generation: Generation,
    optimizer: OptimizerConfig,
    lora: LoRA | LoraConfig,
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a policy that is ready to sample and to learn.

    Args:
        model: Local folder, Hugging Face id or short name.
        device: As in `load_policy`.
        objective: Names the reference policy.
        generation: Chat template and stop string.
        optimizer: Gradient checkpointing.
        lora: Adapter and base weights.

    Raises:
        ValueError: An option does not fit the model; see `LoRA` and `Generation`.
        ImportError: The base weights are to be quantised, without bitsandbytes.
    """
    tokenizer = load_tokenizer(model)
    turn = end_of_turn(tokenizer, generation, model) if generation.chat else []
    stop = [] if generation.stop is None else [stop_token(tokenizer, generation.stop)]
    policy = load_policy(model, lora, device)
    add_end_tokens(policy, [*turn, *stop])
    trained = None if isinstance(lora, LoraConfig) else lora.adapter
    if trained is not None and objective.reference == "start":
        keep_start(policy, trained)
    if optimizer.gradient_checkpointing:
        checkpoint_gradients(model, policy)
    return policy, tokenizer
