"""Assembly of a policy with its tokenizer, by the options of all groups."""

from __future__ import annotations

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from ctrlreward.columns import shortened
from ctrlreward.policy.base_model import checkpoint_gradients
from ctrlreward.policy.chat import end_of_turn
from ctrlreward.policy.experience import Updates
from ctrlreward.policy.model import LoRA, keep_start, load_policy
from ctrlreward.policy.objectives import Objective
from ctrlreward.policy.rollouts import Generation, add_end_tokens, stop_token
from ctrlreward.policy.value import Critic
from ctrlreward.reward import Reward
from ctrlreward.weights.loading import load_tokenizer


def check_types(
    reward: object,
    objective: object,
    generation: object,
    updates: object,
    critic: object,
    lora: object,
) -> None:
    """Raise if an argument of `PolicyTuner` is not of its class.

    Raises:
        TypeError: Names the argument and the class to give.
    """
    given = {
        "reward": (reward, Reward),
        "objective": (objective, Objective),
        "generation": (generation, Generation),
        "updates": (updates, Updates),
        "critic": (critic, Critic),
        "lora": (lora, LoRA),
    }
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise TypeError(
                f"{name} = {shortened(value)} is a {type(value).__name__}: give "
                f"{kind.__name__}(...)"
            )


def load_with_tokenizer(
    model: str,
    device: str,
    objective: Objective,
    generation: Generation,
    updates: Updates,
    lora: LoRA,
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load a policy that is ready to sample and to learn.

    Args:
        model: Local folder, Hugging Face id or short name.
        device: As in `load_policy`.
        objective: Names the reference policy.
        generation: Chat template and stop string.
        updates: Gradient checkpointing.
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
    if lora.adapter is not None and objective.reference == "start":
        keep_start(policy, lora.adapter)
    if updates.gradient_checkpointing:
        checkpoint_gradients(model, policy)
    return policy, tokenizer
