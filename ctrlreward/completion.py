"""Text generation with the model in training: its protocols, and seeded calls."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ctrlreward.arguments import kind_of
from ctrlreward.ranks import on_every_rank, rank_and_ranks
from ctrlreward.samples import REWRITES_OR_CONTINUES, Samples, SamplesLike, as_samples, shortened


@runtime_checkable
class TextGenerator(Protocol):
    """Interface of a LightningModule that can be scored while it trains: one method."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Complete each prompt: in order, without the prompt.

        Called in eval mode without gradients, with all prompts at once: split them into batches
        that fit in memory. A space between prompt and completion belongs to the completion: read a
        prompt that ends with one without it. It is not doubled (`Samples.completed`).
        """
        ...


@runtime_checkable
class SampleGenerator(Protocol):
    """Interface of a LightningModule that needs more than prompts, such as a target style.

    It is preferred to `TextGenerator` if a module has both methods.
    """

    def complete_samples(self, samples: Samples) -> list[str]:
        """Complete each sample; called like `TextGenerator.complete`.

        Samples have the columns given to the caller (`labels`, `sources`, …). `texts` and
        `prefixes` are the beginnings of the texts to generate, "" in a task without continuation,
        such as style transfer; `prompts` and `groups` are always filled in.
        """
        ...


REASONING_END = "</think>"

Generator: TypeAlias = TextGenerator | SampleGenerator | Callable[[Sequence[str]], list[str]]


def generate(module: Generator, prompts: SamplesLike, repeats: int = 1, seed: int = 0) -> Samples:
    """Complete each prompt, by `complete_samples` or `complete` of the module, or a function.

    A prompt is a sample whose text is only a beginning: `Samples(texts=["The food"])` requests
    texts that begin with "The food". With `prompts=["Praise: The food"]` the model reads that
    instead. In tasks whose text does not continue the prompt (dialog, summaries, transfer), the
    beginning is "": `as_samples(data, prefixes="")`.

    Args:
        module: A `TextGenerator` or a function, which gets the prompts, or a `SampleGenerator`,
            which gets all columns and is preferred; the caller puts a model in eval mode.
        prompts: n samples, or anything that `as_samples` converts. The beginning of each text is
            `prefixes` if given, else `texts`; the rest of a text is ignored. The model reads
            `prompts` if given, else the beginnings. Other columns are kept.
        repeats: Completions per prompt.
        seed: Seeds the global generators during the call. Their previous state is restored.

    Returns:
        n × repeats samples, completions of one prompt in consecutive rows: `texts` (beginning +
        completion), `prefixes` (the beginning), `prompts`, `groups` (as given, else the index of
        the prompt) and the other columns.

    Examples:
        >>> from pytorch_lightning.demos.boring_classes import BoringModel
        >>> class Writer(BoringModel):
        ...     def complete(self, prompts):
        ...         return [" was good" for prompt in prompts]
        >>> samples = generate(Writer(), ["The soup", "The view"], repeats=2)
        >>> samples.texts
        ('The soup was good', 'The soup was good', 'The view was good', 'The view was good')
    """
    samples = as_samples(prompts)
    error = mismatch(module, samples) or unclear_input(module, samples)
    if error:
        raise ValueError(error)
    return complete(module, samples.as_prompts(), repeats, seed)


def complete(module: Generator, prompts: Samples, repeats: int, seed: int) -> Samples:
    """Complete prompts of `Samples.as_prompts` that fit the module; see `generate`."""
    name = getattr(module, "__name__", type(module).__name__)
    rows = prompts[[i for i in range(len(prompts)) for _ in range(repeats)]]
    asked = rows.prompts or ()
    if not asked:
        return rows
    completions: Any  # what the module returns, not what it should
    with fixed_randomness(seed):
        if isinstance(module, SampleGenerator):
            caller, completions = f"{name}.complete_samples", module.complete_samples(rows)
        elif isinstance(module, TextGenerator):
            caller, completions = f"{name}.complete", module.complete(asked)
        else:
            caller, completions = name, module(asked)
    # A mapping would give its keys, often the prompts, and a set another order.
    if isinstance(completions, str | Mapping | Set) or not hasattr(completions, "__len__"):
        raise TypeError(
            f"{caller} must return a list, got {shortened(completions)}, {kind_of(completions)}"
        )
    others = [each for each in completions if not isinstance(each, str)]
    if len(completions) != len(rows) or others:
        raise ValueError(
            f"{caller} must return one string per prompt, got {len(completions)} items for "
            f"{len(rows)} prompts, such as {(others or completions)[:1]!r}"
        )
    pairs = zip(asked, completions, strict=True)
    # With sources it may be a copy of the input, which some models begin with.
    if rows.sources is None and all(p and text.startswith(p) for p, text in pairs):
        warnings.warn(
            f"all completions of {caller} begin with their prompt: return only what follows it, "
            "ids[:, input_ids.shape[1]:] of a model without an encoder",
            stacklevel=2,
        )
    return with_answers(rows.completed(completions), getattr(module, "tokenizer", None))


def with_answers(samples: Samples, tokenizer: Any) -> Samples:
    """Return completions of which the answers are scored if the tokenizer's model reasons.

    It does if its chat template has `</think>`. An `answer_after` that is given stays.
    """
    template = str(getattr(tokenizer, "chat_template", None))
    if samples.answer_after is not None or REASONING_END not in template:
        return samples
    return samples.read_after(REASONING_END)


def mismatch(module: object, prompts: Samples) -> str:
    """Return why the methods of a module do not fit `generate` and samples, "" if they do."""
    name = type(module).__name__
    if isinstance(module, SampleGenerator):
        # Nearly always the sources or references of a data set, which should not be continued.
        if prompts.sources is not None and prompts.prefixes is None and any(prompts.texts):
            return (
                f"samples for {name}.complete_samples have sources and texts, but no prefixes: "
                'use as_samples(samples, prefixes="") to rewrite the sources, or '
                "as_samples(samples, prefixes=samples.texts) to continue the texts"
            )
    elif not isinstance(module, TextGenerator) and (
        not callable(module) or isinstance(module, nn.Module)  # its call is not a completion
    ):
        return (
            f"{name} must define complete(self, prompts: Sequence[str]) -> list[str], or "
            "complete_samples(self, samples: Samples) -> list[str]"
        )
    return ""


def unclear_input(module: object, samples: Samples) -> str:
    """Return why a text alone may be input or output of an encoder-decoder, "" if it is clear.

    A module is an encoder-decoder if all of its language models of transformers are.
    """
    if samples.prefixes is not None or samples.prompts is not None:
        return ""
    parts, models = [module] if isinstance(module, nn.Module) else [], []
    while parts:
        child = parts.pop()
        if isinstance(child, PreTrainedModel) and child.can_generate():
            models.append(child)
        else:
            parts += child.children()
    if not models or not all(model.config.is_encoder_decoder for model in models):
        return ""
    return (
        f"samples for {type(module).__name__}, an encoder-decoder, must have prefixes or prompts. "
        f"{REWRITES_OR_CONTINUES}"
    )


def generate_across_ranks(module: Generator, prompts: Samples, repeats: int, seed: int) -> Samples:
    """Share `complete` over the ranks, and return all samples, in its order, on every rank.

    A collective. Rank r completes the rows r, r + number of ranks, and so on, with `seed` + r.
    """
    rank, ranks = rank_and_ranks()
    if ranks == 1:
        return complete(module, prompts, repeats, seed)
    share = prompts[rank::ranks]
    parts = on_every_rank(lambda: complete(module, share, repeats, seed + rank))
    owners = [i for r in range(ranks) for i in range(r, len(prompts), ranks)]
    order = np.argsort(np.repeat(owners, repeats), kind="stable")
    return Samples.concat(parts)[order.tolist()]


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in eval mode inside the context; each part returns to its own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def fixed_randomness(seed: int) -> Iterator[None]:
    """Seed Python, NumPy and PyTorch inside the context, and restore their states afterwards."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = "cpu" if accelerator is None else accelerator.type
    module = getattr(torch, kind)
    # Reading its random state would initialise CUDA in a run that trains on the CPU.
    used = kind == "mps" or (kind != "cpu" and module.is_initialized())
    with torch.random.fork_rng(range(module.device_count()) if used else (), device_type=kind):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 — a module may draw from the global generator
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
