"""Controlled generation: completing a content prefix with a target attribute.

`configs/controlled_generation/*.yaml` use these classes and functions: prompts from prefixes and
labels, the reward, and the held-out scores. Copy this folder to change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from ctrlreward.callbacks import AUC, BeforeAfter, GenerationScorer
from ctrlreward.functional.shaping import distance_outside
from ctrlreward.recipes.training_batches import PromptBatches
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers import CTRLEval, Distinct, Perplexity, Task
from ctrlreward.scorers.base import Component, Scorer, Scores
from ctrlreward.scorers.task import TEXT_SLOT
from ctrlreward.weights.dtypes import Dtype


def build_prompts(prefixes: Sequence[str], labels: Sequence[str], template: str) -> Samples:
    """Return a prompt for each combination of a prefix and a label.

    The texts are the prefixes alone, to be completed. Diversity is measured per prefix.

    Args:
        prefixes: Content prefixes.
        labels: Target attributes.
        template: Prompt of the policy, with `{label}`, ending in `{prefix}`.

    Raises:
        ValueError: The template lacks `{label}`, or does not end in `{prefix}`.
    """
    if "{label}" not in template or not template.endswith("{prefix}"):
        raise ValueError(f"template = {template!r}: include {{label}} and end in {{prefix}}")
    rows = [(prefix, label) for prefix in prefixes for label in labels]
    return Samples(
        texts=[prefix for prefix, _ in rows],
        prefixes=[prefix for prefix, _ in rows],
        labels=[label for _, label in rows],
        prompts=[template.format(prefix=prefix, label=label) for prefix, label in rows],
        groups=[prefix for prefix, _ in rows],
    )


class PromptData(PromptBatches):
    """Batches of training prompts, reshuffled after every pass.

    Args:
        prefixes: Content prefixes, disjoint from the held-out ones.
        labels: Target attributes.
        template: See `build_prompts`.
        batch_size: Prompts per step.
        steps: Number of batches; the trainer's `max_steps` may stop earlier.
        seed: Seed of the order.
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
        super().__init__(batch_size, steps, seed)
        self.prompts = build_prompts(prefixes, labels, template)

    def read_prompts(self) -> Samples:
        """Return a prompt of each label for each prefix."""
        return self.prompts


def relevance_reward(
    model: str = "smollm2-135m",
    task: str = "sentiment",
    fluency: float = 0.3,
    likelihood: tuple[float, float] = (-3.6, -3.0),
    evaluators: int | None = None,
    device: str = "cpu",
    dtype: Dtype | None = None,
) -> Reward:
    """Return attribute relevance minus a cost for unusually unlikely and unusually likely texts.

    A lower bound on the likelihood alone lets the policy drift to likely, repetitive texts. For the
    same reason GM takes points off for low perplexity, too (Pang and Gimpel 2019, eq. 1).

    Only the evaluators whose prompt follows the text are used. That halves the computation, and
    leaves the other half as evaluators of held-out texts that were not trained on.

    Args:
        model: Infilling model of the relevance and language model of the cost.
        task: Task of CTRLEval.
        fluency: Cost of each nat of mean token log-probability outside of `likelihood`; relevance
            has weight 1.
        likelihood: Bounds of the mean token log-probability under `model`, in nats, between which
            there is no cost. The defaults are perplexities of 37 and 20: those of the untuned
            SmolLM2-135M are about 28.
        evaluators: Number of evaluators to draw, for a lower cost (see `CTRLEval`); None uses all.
        device: Device of the model.
        dtype: Dtype of the model.
    """
    all_prompts = Task.load(task)
    after_text = Task(
        [prompt for prompt in all_prompts.prompts if prompt.startswith(TEXT_SLOT)],
        all_prompts.verbalizers,
    )
    ctrleval = CTRLEval(
        *(model, after_text, ("attribute_relevance",)),
        evaluators=evaluators,
        device=device,
        dtype=dtype,
    )
    perplexity = Perplexity(model, device=device, dtype=dtype)

    def guarded(scores: Mapping[str, Scores]) -> Scores:
        cost = fluency * distance_outside(scores["log_likelihood"], *likelihood)
        return scores["attribute_relevance"] - cost

    return Reward(
        {
            "attribute_relevance": ctrleval["attribute_relevance"],
            "log_likelihood": perplexity["log_likelihood"],
        },
        aggregate=guarded,
    )


@cache  # both callbacks share the models
def held_out_scores(
    model: str = "smollm2-135m",
    task: str = "sentiment",
    evaluators: int | None = None,
    device: str = "cpu",
    dtype: Dtype | None = None,
) -> dict[str, Component]:
    """Return attribute relevance, perplexity and Distinct-2 per prefix under the frozen model.

    Args:
        model: The frozen model.
        task: Task of CTRLEval.
        evaluators: Number of evaluators to draw (see `CTRLEval`); None uses all.
        device: Device of the model.
        dtype: Dtype of the model.
    """
    ctrleval = CTRLEval(
        *(model, task, ("attribute_relevance",)),
        evaluators=evaluators,
        device=device,
        dtype=dtype,
    )
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
    evaluators: int | None = None,
    device: str = "cpu",
    dtype: Dtype | None = None,
) -> GenerationScorer:
    """Return a callback that scores completions of validation prefixes during training."""
    return GenerationScorer(
        held_out_scores(model, task, evaluators, device, dtype),
        build_prompts(prefixes, labels, template),
        generations_per_prompt=generations_per_prompt,
    )


def before_after(
    prefixes: list[str],
    labels: list[str],
    template: str,
    generations_per_prompt: int = 4,
    model: str = "smollm2-135m",
    task: str = "sentiment",
    evaluators: int | None = None,
    device: str = "cpu",
    dtype: Dtype | None = None,
    judges: Mapping[str, Component | Scorer | AUC] | None = None,
) -> BeforeAfter:
    """Return a callback that compares the untuned and the selected policy on test prefixes.

    Nothing else sees the test prefixes. The judges see nothing but these texts.
    """
    return BeforeAfter(
        held_out_scores(model, task, evaluators, device, dtype),
        build_prompts(prefixes, labels, template),
        generations_per_prompt=generations_per_prompt,
        judges=judges,
    )
