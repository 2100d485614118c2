"""Reward of a trained reward model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack, get_args

import numpy as np

from ctrlreward.arguments import one_of
from ctrlreward.failures import Failures
from ctrlreward.models.rendering import Answer, Side, check_template, needs_prompts
from ctrlreward.models.reward_head import RewardHead
from ctrlreward.models.sharing import shared_model
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scored, ScoreSpec, scatter
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer, check_loaded

REWARD = "reward"
UNBOUNDED = ScoreSpec(higher_is_better=True, range=(-np.inf, np.inf))


class RewardModel(ModelScorer[RewardHead]):
    """Output of a reward model for each text, such as one that TRL's `RewardTrainer` trained.

    - `reward`: the model's only output, unbounded; higher is better. It has no unit: add up two
      reward models by `fit_scales`.

    The completion is the text after its prefix if the prompt ends with the prefix, else the text.

    Args:
        model: Local folder or Hugging Face id of a model for sequence classification in
            transformers, or folder of an adapter of peft, whose `adapter_config.json` names the
            base model.
        template: How prompt and completion become one text. `"chat"`: the chat template of the
            tokenizer. `"plain"`: one after the other, and the end token, as in TRL. Another text
            has `{prompt}` and `{completion}`, and its control tokens count. None: `"chat"` if the
            tokenizer has a chat template and the samples have `prompts`, else `"plain"`.
        truncation_side: Side at which a text longer than the model's context is cut, `"left"` or
            `"right"`, with a warning. None takes the tokenizer's side, mostly `"right"`.
        **options: See `ModelOptions`.
    """

    def __init__(
        self,
        model: str | RewardHead,
        template: str | None = None,
        truncation_side: Side | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        check_loaded(model, "rewards")
        super().__init__(model, **options)
        if template is not None:
            check_template(template)
        self.template = template
        self.truncation_side: Side | None = truncation_side
        if truncation_side is not None:
            one_of("truncation_side", truncation_side, get_args(Side))

    specs: Mapping[str, ScoreSpec] = {REWARD: UNBOUNDED}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return ("prompts",) if needs_prompts(self.template) else ()

    def build_model(self, name: str) -> RewardHead:
        return shared_model(RewardHead, name, self.device, self.dtype, self.batch_tokens)

    def score_samples(self, samples: Samples) -> Scored:
        answers, failures = answers_of(samples)
        with self.locked_model() as model:
            rewards = model.rewards([*answers.values()], self.template, self.truncation_side)
        for row, reward in zip(answers, rewards, strict=True):
            if np.isnan(reward):
                failures.add(row, "the text has no token that the model knows")
        return Scored({REWARD: scatter(rewards, [*answers], len(samples))}, failures)


def answers_of(samples: Samples) -> tuple[dict[int, Answer], Failures]:
    """Return the answers by row, without a prefix that ends the prompt, and rows without one."""
    prefixes = samples.prefixes or ("",) * len(samples)
    prompts = samples.prompts or (None,) * len(samples)
    answers, failures = {}, Failures()
    rows = zip(samples.texts, prefixes, prompts, strict=True)
    for i, (text, prefix, prompt) in enumerate(rows):
        if text[len(prefix) :].strip():
            begun = prompt is not None and prompt.endswith(prefix)
            answers[i] = Answer(prompt, text[len(prefix) :] if begun else text)
        else:
            failures.add(i, "the text ends with its prefix")
    return answers, failures
