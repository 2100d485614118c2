"""Controlled generation: completing a content prefix with a target attribute, or several.

`configs/controlled_generation/*.yaml` use this file. A new attribute is a new YAML; copy this file
to change more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np

from ctrlreward.callbacks import AUC, BeforeAfter, GenerationScorer
from ctrlreward.models.dtypes import Dtype
from ctrlreward.models.tasks import TEXT_SLOT, Infiller, Patterns, TokenScores
from ctrlreward.recipes.text_files import read_lines
from ctrlreward.recipes.training_batches import PromptBatches
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples, SamplesLike
from ctrlreward.scorers import (
    CompositeScorer,
    CTRLEval,
    Distinct,
    Perplexity,
    Repetition,
    ScoreSpec,
    Task,
)
from ctrlreward.scorers.base import Component, Scorer, Scores, TaskScorer
from ctrlreward.scorers.ctrleval import AspectName, Explanation

# Target labels: of one attribute, or attribute → labels.
Labels: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]

# Task of CTRLEval, a name, a file or the phrases themselves, or attribute → task.
Tasks: TypeAlias = str | Task | Mapping[str, str | Task]

_RELEVANCE = ("attribute_relevance",)

# Aspects of CTRLEval that can be part of the reward or of the held-out scores.
TextAspect: TypeAlias = Literal["coherence", "consistency"]


def build_prompts(prefixes: str | Sequence[str], labels: Labels, template: str) -> Samples:
    """Return a prompt for each prefix with each label, or each combination of labels.

    Groups are the prefixes, so that diversity is measured per prefix.

    Args:
        prefixes: Content prefixes, or a file with one per line.
        labels: Target labels, or attribute → labels for several attributes.
        template: Prompt of the policy, ending in `{prefix}`, with `{label}` or, for several
            attributes, the name of each: `"A {sentiment} text about {topic}: {prefix}"`.
    """
    if isinstance(prefixes, str):
        prefixes = [line.rstrip("\n") for line in read_lines([prefixes]) if line.strip()]
    several = labels if isinstance(labels, Mapping) else {"label": labels}
    missing = [slot for name in several if (slot := f"{{{name}}}") not in template]
    if missing or not template.endswith("{prefix}"):
        slots = ", ".join(missing or [f"{{{name}}}" for name in several])
        raise ValueError(f"template = {template!r}: include {slots} and end in {{prefix}}")
    combinations = [dict(zip(several, each, strict=True)) for each in product(*several.values())]
    rows = [(prefix, targets) for prefix in prefixes for targets in combinations]
    columns = {name: [targets[name] for _, targets in rows] for name in several}
    texts = [prefix for prefix, _ in rows]
    return Samples(
        texts=texts,
        prefixes=texts,
        labels=columns if several is labels else columns["label"],
        prompts=[template.format(prefix=prefix, **targets) for prefix, targets in rows],
        groups=texts,
    )


class PromptData(PromptBatches):
    """Batches of training prompts; see `build_prompts` and `PromptBatches`."""

    def __init__(
        self,
        prefixes: list[str] | str,
        labels: list[str] | dict[str, list[str]],
        template: str,
        batch_size: int = 4,
        steps: int = 1000,
        seed: int = 0,
    ) -> None:
        prompts = partial(build_prompts, prefixes, labels, template)
        super().__init__(prompts, batch_size, steps, seed)
        self.prompts = prompts()  # a wrong template raises before models are loaded


class SeveralRelevances(CompositeScorer, TaskScorer):
    """Relevance of several attributes; the model reads a text once for all of them.

    - `<attribute>_relevance`: relevance by the attribute's `CTRLEval`, 0 to 1, higher is better.
    - `attribute_relevance`: their geometric mean, 0 to 1, higher is better.
    """

    def __init__(self, scorers: Mapping[str, CTRLEval]) -> None:
        self.scorers = dict(scorers)

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        names = ["attribute_relevance", *(f"{name}_relevance" for name in self.scorers)]
        return dict.fromkeys(names, ScoreSpec(higher_is_better=True, range=(0.0, 1.0)))

    @property
    def parts(self) -> Sequence[CTRLEval]:
        return tuple(self.scorers.values())

    @property
    def loaded_model(self) -> Infiller:
        return self.parts[0].loaded_model

    def tasks(self, samples: Samples, names: Collection[str]) -> list[Patterns]:
        return [task for part in self.parts for task in part.tasks(samples, _RELEVANCE)]

    def fold(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> dict[str, Scores]:
        n = len(samples)
        relevances = {}
        for k, (name, part) in enumerate(self.scorers.items()):
            own = part.fold(samples, answers[k * n : (k + 1) * n], _RELEVANCE)
            relevances[f"{name}_relevance"] = own.scores["attribute_relevance"]
        with np.errstate(divide="ignore"):  # the logarithm of 0
            mean = np.exp(np.log(np.stack([*relevances.values()])).mean(axis=0))
        return {"attribute_relevance": mean, **relevances}

    def explain(
        self, samples: SamplesLike | None = None, **columns: Any
    ) -> list[dict[str, Explanation]]:
        names = [f"{name}_relevance" for name in self.scorers]
        rows = zip(*(part.explain(samples, **columns) for part in self.parts), strict=True)
        return [
            {name: part["attribute_relevance"] for name, part in zip(names, row, strict=True)}
            for row in rows
        ]


def after_text(task: str | Task) -> Task:
    """Return a task without the prompts that precede the text."""
    whole = task if isinstance(task, Task) else Task.load(task)
    prompts = [prompt for prompt in whole.prompts if prompt.startswith(TEXT_SLOT)]
    return Task(prompts, whole.verbalizers)


class LikelihoodCost(Perplexity):
    """Cost of unusually unlikely and unusually likely texts.

    - `likelihood_cost`: distance of the mean token log-probability from `low` to `high`, in nats,
      0 between them; lower is better.

    A lower bound alone lets a policy drift to likely, repetitive texts. For the same reason GM also
    penalizes low perplexity (Pang and Gimpel 2019, eq. 1).
    """

    specs: Mapping[str, ScoreSpec] = {
        "likelihood_cost": ScoreSpec(higher_is_better=False, range=(0.0, math.inf))
    }

    def __init__(self, model: str, low: float, high: float, **options: Any) -> None:
        super().__init__(model, **options)
        self.low, self.high = low, high

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        """Return nothing: the cost of a corpus is the mean."""
        return {}

    def fold(
        self, samples: Samples, answers: Sequence[TokenScores], names: Collection[str]
    ) -> dict[str, Scores]:
        scores = super().fold(samples, answers, names)
        values = scores["log_likelihood"]
        cost = np.maximum(self.low - values, 0.0) + np.maximum(values - self.high, 0.0)
        return {**scores, "likelihood_cost": cost}


def relevance_reward(
    model: str = "smollm2-135m",
    task: Tasks = "sentiment",
    aspects: Mapping[TextAspect, float] | None = None,
    fluency: float = 0.3,
    likelihood: tuple[float, float] = (-3.6, -3.0),
    repetition: float = 0.0,
    evaluators: int | None = None,
    device: str = "cpu",
    dtype: Dtype | None = None,
) -> Reward:
    """Return attribute relevance minus a cost for unusually unlikely and unusually likely texts.

    A weighted sum. Only the evaluators whose prompt follows the text are used; the others are left
    for the evaluation of held-out texts.

    Args:
        model: Infilling model of the relevance and language model of the cost.
        task: Task of CTRLEval, a name or a file; attribute → task for labels of several attributes,
            the relevance of each of which has weight 1.
        aspects: Weight of coherence and consistency, in 1 per nat; None leaves them out.
        fluency: Cost of each nat of mean token log-probability outside of `likelihood`.
        likelihood: Bounds of the mean token log-probability under `model`, in nats. The defaults
            are perplexities of 37 and 20; the untuned SmolLM2-135M has about 28.
        repetition: Cost of the share of repeated pairs of tokens in a text (`Repetition`).
        evaluators: Number of evaluators to draw, for a lower cost (see `CTRLEval`); None uses all.
        device: Device of the model.
        dtype: Dtype of the model.
    """
    tasks: Tasks
    if isinstance(task, Mapping):
        tasks = {name: after_text(each) for name, each in task.items()}
        weights = {f"{name}_relevance": 1.0 for name in task}
    else:
        tasks, weights = after_text(task), {"attribute_relevance": 1.0}
    weights |= {str(name): weight for name, weight in (aspects or {}).items()}
    scores = ctrleval_scores(model, tasks, tuple(aspects or ()), evaluators, device, dtype)
    components: dict[str, tuple[Component, float]] = {
        name: (component, weights.get(name, 0.0)) for name, component in scores.items()
    }
    cost = LikelihoodCost(model, *likelihood, device=device, dtype=dtype)
    components["likelihood_cost"] = (cost["likelihood_cost"], -fluency)
    if repetition:
        components["repetition"] = (Repetition(model, n=2)["repetition"], -repetition)
    return Reward(components)


def ctrleval_scores(
    model: str,
    task: Tasks,
    aspects: Sequence[TextAspect],
    evaluators: int | None,
    device: str,
    dtype: Dtype | None,
) -> dict[str, Component]:
    """Return `attribute_relevance`, each attribute's if there are several, and the aspects.

    The arguments are as in `relevance_reward`.
    """
    names: list[AspectName] = ["attribute_relevance", *aspects]
    options: dict[str, Any] = {"evaluators": evaluators, "device": device, "dtype": dtype}
    if isinstance(task, str | Task):
        one = CTRLEval(model, task, names, **options)
        return {name: one[name] for name in one.specs}
    scorers = {
        attribute: CTRLEval(model, each, names, attribute=attribute, **options)
        for attribute, each in task.items()
    }
    relevance = SeveralRelevances(scorers)
    first = next(iter(scorers.values()))
    return {name: relevance[name] for name in relevance.specs} | {a: first[a] for a in aspects}


@dataclass(frozen=True)
class HeldOut:
    """Prompts and scores of prefixes that are not trained on, for selection and report.

    The scores are attribute relevance, also by attribute if there are several, `aspects`,
    perplexity and Distinct-2 per prefix, under the frozen model. The arguments are as in
    `build_prompts` and `relevance_reward`.
    """

    labels: list[str] | dict[str, list[str]]
    template: str
    model: str = "smollm2-135m"
    task: str | Task | dict[str, str | Task] = "sentiment"
    aspects: list[TextAspect] = field(default_factory=list)
    evaluators: int | None = None
    device: str = "cpu"
    dtype: Dtype | None = None

    def prompts(self, prefixes: str | Sequence[str]) -> Samples:
        """Return a prompt of each label for each prefix."""
        return build_prompts(prefixes, self.labels, self.template)

    def scores(self) -> dict[str, Component]:
        """Return the scores by name."""
        options = self.evaluators, self.device, self.dtype
        perplexity = Perplexity(self.model, device=self.device, dtype=self.dtype)
        return {
            **ctrleval_scores(self.model, self.task, self.aspects, *options),
            "perplexity": perplexity["perplexity"],
            "distinct_2": Distinct(self.model)["distinct_2"],
        }


def held_out_scorer(
    held_out: HeldOut,
    prefixes: list[str] | str,
    generations_per_prompt: int = 1,
    others: Mapping[str, Component | Scorer] | None = None,
) -> GenerationScorer:
    """Return a callback that scores completions of validation prefixes during training.

    `others` are further scores by name, such as a judge for `ProxyGuard`.
    """
    return GenerationScorer(
        {**held_out.scores(), **(others or {})},
        held_out.prompts(prefixes),
        generations_per_prompt=generations_per_prompt,
    )


def before_after(
    held_out: HeldOut,
    prefixes: list[str] | str,
    generations_per_prompt: int = 4,
    judges: Mapping[str, Component | Scorer | AUC] | None = None,
) -> BeforeAfter:
    """Return a callback that compares the untuned and the selected policy on test prefixes.

    The test prefixes and the judges are used nowhere else.
    """
    return BeforeAfter(
        held_out.scores(),
        held_out.prompts(prefixes),
        generations_per_prompt=generations_per_prompt,
        judges=judges,
    )
