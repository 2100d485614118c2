"""Text generation with a LightningModule: the interface it implements, and seeded calls of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch

from ctrlreward.progress import phase
from ctrlreward.ranks import on_every_rank, rank_and_ranks
from ctrlreward.samples import Samples, SamplesLike, as_samples


@runtime_checkable
class TextGenerator(Protocol):
    """Interface of a LightningModule that can be scored while it trains: one method.

    Examples:
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> class Writer(BoringModel):
        ...     def complete(self, prompts):
        ...         return [" was good" for prompt in prompts]
        >>> isinstance(Writer(), TextGenerator)
        True
    """

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Complete each prompt.

        Called in eval mode without gradients, with all prompts at once: split them into batches
        that fit in memory.

        Args:
            prompts: Any number of model inputs.

        Returns:
            One completion per prompt, in order and without the prompt. Prompt and completion are
            concatenated as they are, so a space between them belongs to the completion.
        """
        ...


def generate(
    module: TextGenerator, prompts: SamplesLike, repeats: int = 1, seed: int = 0
) -> Samples:
    """Complete each prompt.

    A prompt is a sample whose text is only a beginning. `Samples(texts=["The food"])` requests
    texts that begin with "The food". `Samples(texts=["The food"], prompts=["Praise: The food"],
    labels=["positive"])` requests the same from a model that reads an instruction. In tasks whose
    text does not continue the prompt (dialog, summaries), the beginning is "".

    Args:
        module: The generator; the caller puts it in eval mode.
        prompts: n samples, or anything that `as_samples` converts. The beginning of each text is
            `prefixes` if given, else `texts`. With prefixes, the rest of each text is ignored, so
            earlier generations can be passed again. The model reads `prompts` if given, else the
            beginnings. Labels, sources and other columns are kept.
        repeats: Completions per prompt.
        seed: Seeds the global generators during the call. Their previous state is restored.

    Returns:
        n × repeats samples, those of one prompt in consecutive rows: `texts` (beginning +
        completion), `prefixes` (the beginning), `prompts`, `groups` (as given, else the index of
        the prompt) and the other columns.

    Raises:
        ValueError: The module does not return one string per prompt.

    Examples:
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> class Writer(BoringModel):
        ...     def complete(self, prompts):
        ...         return [" was good" for prompt in prompts]
        >>> samples = generate(Writer(), ["The soup", "The view"], repeats=2)
        >>> samples.texts
        ('The soup was good', 'The soup was good', 'The view was good', 'The view was good')
        >>> samples.groups
        ('0', '0', '1', '1')
    """
    starts = as_samples(prompts).as_prompts()
    rows = starts[[i for i in range(len(starts)) for _ in range(repeats)]]
    if len(rows) == 0:
        return rows
    inputs = cast(Sequence[str], rows.prompts)
    with fixed_randomness(seed), phase(f"generating {len(inputs)} texts"):
        completions = module.complete(inputs)
    if len(completions) != len(inputs) or not all(isinstance(c, str) for c in completions):
        raise ValueError(
            f"{type(module).__name__}.complete returned {len(completions)} items for "
            f"{len(inputs)} prompts, first {completions[:1]!r}: return one string per prompt"
        )
    return rows.completed(completions)


def generate_across_ranks(
    module: TextGenerator, prompts: Samples, repeats: int, seed: int
) -> Samples:
    """Share `generate` over the ranks, and return all samples on every rank; call it on each.

    Args:
        module: As in `generate`.
        prompts: n samples; rank r completes the rows r, r + number of ranks, and so on.
        repeats: Completions per prompt.
        seed: Rank r uses `seed` + r.

    Returns:
        n × repeats samples, in the same order as from `generate`.

    Raises:
        Exception: The exception of this rank.
        RuntimeError: Another rank failed; with that rank's message.
    """
    rank, ranks = rank_and_ranks()
    share = prompts.as_prompts()[rank::ranks]
    parts = on_every_rank(lambda: generate(module, share, repeats, seed + rank))
    owners = [i for r in range(ranks) for i in range(r, len(prompts), ranks)]
    order = np.argsort(np.repeat(owners, repeats), kind="stable")
    return Samples.concat(parts)[order.tolist()]


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch inside the context, and restore their states afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    # Reading the CUDA random state would initialise CUDA in a run that trains on the CPU.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 — a module may draw from the global generator
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
