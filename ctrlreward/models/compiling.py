"""Layers that torch compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import ModuleList

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def compile_layers(model: PreTrainedModel) -> None:
    """Has torch compile the model's layers at their first passes, for rows of any length.

    Layer by layer, since they have the same code and it is compiled once: of SmolLM2-135M in half a
    minute, where the model as a whole was not ready after four.
    """
    stacks = [module for module in model.modules() if isinstance(module, ModuleList)]
    inner = {id(part) for stack in stacks for layer in stack for part in layer.modules()}
    for stack in stacks:
        if id(stack) not in inner:  # T5's layers hold stacks of their own
            for layer in stack:
                # The worker of an overlapped reward computes on fewer threads than were compiled.
                layer.compile(dynamic=True, options={"cpp.dynamic_threads": True})
