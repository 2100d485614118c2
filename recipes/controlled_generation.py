"""Controlled generation: writing on from a content prefix with a wanted attribute.

The pieces of `configs/controlled_generation/*.yaml`: prompts made of prefixes and labels, the
reward, and the held-out scores. Copy this file to change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader

from ctrlreward.callbacks import BeforeAfter, GenerationScorer
from ctrlreward.recipes.prompt_data import one_item, training_batches
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers import CTRLEval, Distinct, Perplexity, Task
from ctrlreward.scorers.base import Component, Scores
from ctrlreward.scorers.task import TEXT_SLOT


def prompts(prefixes: Sequence[str], labels: Sequence[str], template: str) -> Samples:
    """Every prefix with every label, as prompts that hold no text beyond the prefix.

    Args:
        prefixes: What the texts begin with.
        labels: The wanted attributes.
        template: What the policy reads, with `{label}` and `{prefix}`, ending in the prefix.

    Raises:
        ValueError: The template lacks a field, or does not end in the prefix.
    """
    if "{label}" not in template or not template.endswith("{prefix}"):
        raise ValueError(f"template = {template!r}: it must hold {{label}} and end in {{prefix}}")
    rows = [(prefix, label) for prefix in prefixes for label in labels]
    return Samples(
        texts=[prefix for prefix, _ in rows],
        prefixes=[prefix for prefix, _ in rows],
        labels=[label for _, label in rows],
        prompts=[template.format(prefix=prefix, label=label) for prefix, label in rows],
        groups=[prefix for prefix, _ in rows],  # diversity is that of a prefix's texts
    )


class PromptData(pl.LightningDataModule):
    """Training prompts in batches, shuffled anew each time all have been used.

    Args:
        prefixes: What the texts begin with; apart from all held-out prefixes.
        labels: The wanted attributes.
        template: See `prompts`.
        batch_size: Prompts per step.
        steps: Length of the data; `max_steps` of the trainer may end sooner.
        seed: Of the order.
    """

    def __init__(
        self,
        prefixes: list[str],
        labels: list[str],
        template: str,
        batch_size: int = 4,
        steps: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.prompts = prompts(prefixes, labels, template)
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed

    def train_dataloader(self) -> DataLoader[Samples]:
        """`Samples` of `batch_size` prompts a step."""
        return training_batches(self.prompts, self.batch_size, self.steps, self.seed)

    def val_dataloader(self) -> DataLoader[Samples]:
        """One item."""
        return one_item(self.prompts)


def relevance_reward(
    model: str = "smollm2-135m",
    task: str = "sentiment",
    fluency: float = 0.1,
    floor: float = -3.5,
    evaluators: int | None = None,
    device: str = "cpu",
    dtype: str | None = None,
) -> Reward:
    """Attribute relevance, less a penalty for texts that the frozen base model finds unlikely.

    Only the prompts that stand behind the text are asked: half the work, and the other half of
    the evaluators judge the held-out texts without having been trained on.

    Args:
        model: The infilling model, which is the fluency guard's too.
        task: A task of CTRLEval.
        fluency: What each nat of mean token log-probability below the floor costs; relevance has
            the weight 1. Above the floor likelihood earns nothing: a text that is likely without
            end is a repetitive one.
        floor: In nats per token; -3.5 is a perplexity of 33.
        evaluators: How many of the evaluators to draw (`CTRLEval`), which costs less; None takes
            all.
        device: Where both score.
        dtype: Of their weights.
    """
    whole = Task.load(task)
    behind = Task([p for p in whole.prompts if p.startswith(TEXT_SLOT)], whole.verbalizers)
    ctrleval = CTRLEval(
        *(model, behind, ("attribute_relevance",)),
        evaluators=evaluators,
        device=device,
        dtype=dtype,
    )
    perplexity = Perplexity(model, device=device, dtype=dtype)

    def guarded(scores: Mapping[str, Scores]) -> Scores:
        below = np.minimum(scores["log_likelihood"] - floor, 0.0)
        return scores["attribute_relevance"] + fluency * below

    return Reward(
        {
            "attribute_relevance": ctrleval["attribute_relevance"],
            "log_likelihood": perplexity["log_likelihood"],
        },
        aggregate=guarded,
    )


@cache  # two callbacks, one set of models
def held_out_scores(
    model: str = "smollm2-135m",
    task: str = "sentiment",
    device: str = "cpu",
    dtype: str | None = None,
) -> dict[str, Component]:
    """Attribute relevance, perplexity and Distinct-2 within the prefix, by the frozen model."""
    ctrleval = CTRLEval(model, task, ("attribute_relevance",), device=device, dtype=dtype)
    perplexity = Perplexity(model, device=device, dtype=dtype)
    return {
        "attribute_relevance": ctrleval["attribute_relevance"],
        "perplexity": perplexity["perplexity"],
        "distinct_2": Distinct(model)["distinct_2"],
    }


def held_out_scorer(
    prefixes: list[str],
    labels: list[str],
    template: str,
    generations_per_prompt: int = 1,
    model: str = "smollm2-135m",
    task: str = "sentiment",
    device: str = "cpu",
    dtype: str | None = None,
) -> GenerationScorer:
    """Scores generations from validation prefixes while training."""
    return GenerationScorer(
        held_out_scores(model, task, device, dtype),
        prompts(prefixes, labels, template),
        generations_per_prompt=generations_per_prompt,
    )


def before_after(
    prefixes: list[str],
    labels: list[str],
    template: str,
    generations_per_prompt: int = 4,
    model: str = "smollm2-135m",
    task: str = "sentiment",
    device: str = "cpu",
    dtype: str | None = None,
) -> BeforeAfter:
    """Compares the untuned and the selected policy on test prefixes, which nothing else sees."""
    return BeforeAfter(
        held_out_scores(model, task, device, dtype),
        prompts(prefixes, labels, template),
        generations_per_prompt=generations_per_prompt,
    )
