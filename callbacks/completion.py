"""What a module offers to be scored while it trains, and texts made with it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch
from pytorch_lightning.utilities.seed import isolate_rng

from ctrlreward.samples import Samples


@runtime_checkable
class TextGenerator(Protocol):
    """What a LightningModule has to offer to be scored while it trains: one method."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Writes on from each prompt.

        Called in eval mode and without gradients. It gets all prompts at once and splits them
        into batches as its memory needs.

        Args:
            prompts: What the generator reads, any number of them.

        Returns:
            What follows each prompt, the prompt left out, character for character: where a space
            comes between the two, the completion begins with it.
        """
        ...


def generate(module: TextGenerator, prompts: Samples, repeats: int = 1, seed: int = 0) -> Samples:
    """Writes on from each prompt.

    A prompt is a sample of which only the beginning exists. `Samples(texts=["The food"])` asks
    for texts that begin with "The food"; `Samples(texts=["The food"], prompts=["Praise: The
    food"], labels=["positive"])` asks for the same, from a generator that reads an instruction.
    Where text and beginning are one string (dialog, summaries) the beginning is "".

    Args:
        module: The generator. The caller puts it in eval mode.
        prompts: n samples. Each text begins with `prefixes` where they are given (what the text
            says after its prefix is dropped, so earlier outputs can be given again), else with
            `texts`. The generator reads `prompts`, where there are none the beginning. Labels,
            sources and other columns go along.
        repeats: Texts per prompt.
        seed: The same seed, prompts and weights give the same texts; the random state of the
            caller is left as it was.

    Returns:
        n × repeats samples, those of one prompt side by side: `texts` (beginning + completion),
        `prefixes` (the beginning), `prompts`, `groups` (the given ones, else the prompt's number),
        and the other columns.

    Raises:
        ValueError: The module does not return one string per prompt.
    """
    rows = prompts.as_prompts()[[i for i in range(len(prompts)) for _ in range(repeats)]]
    if len(rows) == 0:
        return rows
    read = cast(Sequence[str], rows.prompts)
    with fixed_randomness(seed):
        completions = module.complete(read)
    if len(completions) != len(read) or not all(isinstance(c, str) for c in completions):
        raise ValueError(
            f"{type(module).__name__}.complete returned {len(completions)} items for {len(read)} "
            f"prompts, first {completions[:1]!r}: return one string per prompt"
        )
    return rows.completed(completions)


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """Seeds Python, NumPy and PyTorch inside, and restores their states on leaving."""
    # Requests CUDA for its state would start it where training runs on the CPU.
    with isolate_rng(include_cuda=torch.cuda.is_initialized()):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 — a module may draw from the global generator
        torch.manual_seed(seed)
        yield
