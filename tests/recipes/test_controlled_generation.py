from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from ctrlreward import Samples
from ctrlreward.recipes.controlled_generation import (
    PromptData,
    before_after,
    build_prompts,
    held_out_scorer,
    relevance_reward,
)
from ctrlreward.scorers import CTRLEval, Perplexity, Task
from ctrlreward.scorers.task import TEXT_SLOT

TEMPLATE = "A {label} review: {prefix}"
LABELS = ["negative", "positive"]
PREFIXES = ["The food", "My room", "Her novel"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(" abcdefghijklmnopqrstuvwxyz.")


def test_every_prefix_with_every_label() -> None:
    samples = build_prompts(["The food", "A {dog}"], LABELS, TEMPLATE)
    assert samples == Samples(
        texts=["The food", "The food", "A {dog}", "A {dog}"],
        prefixes=["The food", "The food", "A {dog}", "A {dog}"],
        labels=LABELS * 2,
        prompts=[
            "A negative review: The food",
            "A positive review: The food",
            "A negative review: A {dog}",
            "A positive review: A {dog}",
        ],
        groups=["The food", "The food", "A {dog}", "A {dog}"],
    )


@pytest.mark.parametrize("template", ["{prefix}", "{label}: {prefix}.", "{label}"])
def test_a_template_names_the_label_and_ends_in_the_prefix(template: str) -> None:
    with pytest.raises(ValueError, match=r"include \{label\} and end in \{prefix\}"):
        build_prompts(PREFIXES, LABELS, template)


# The data


def read(data: PromptData) -> list[Samples]:
    return list(data.train_dataloader())


def test_all_prompts_are_used_before_one_is_used_again() -> None:
    data = PromptData(PREFIXES, LABELS, TEMPLATE, batch_size=4, steps=9)
    batches = read(data)
    assert [len(batch) for batch in batches] == [4] * 9
    drawn = [prompt for batch in batches for prompt in batch.prompts]
    rounds = [drawn[start : start + 6] for start in range(0, 36, 6)]
    assert all(Counter(r) == Counter(data.prompts.prompts) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1  # reshuffled
    for batch in batches:
        assert (
            batch
            == build_prompts(PREFIXES, LABELS, TEMPLATE)[
                [data.prompts.prompts.index(prompt) for prompt in batch.prompts]
            ]
        )


def test_the_seed_decides_the_order() -> None:
    first, same, other = (
        read(PromptData(PREFIXES, LABELS, TEMPLATE, steps=5, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


def test_one_item_makes_a_validation() -> None:
    assert len(list(PromptData(PREFIXES, LABELS, TEMPLATE).val_dataloader())) == 1


# Reward and held-out scores


def test_the_reward_uses_the_evaluators_after_the_text(model: str) -> None:
    reward = relevance_reward(model)
    texts = Samples(["the food was good", "a bad room"], labels=["positive", "negative"])
    batch = reward(texts)
    reward.release()
    whole = Task.load("sentiment")
    after = [prompt for prompt in whole.prompts if prompt.startswith(TEXT_SLOT)]
    assert len(after) * 2 == len(whole.prompts)
    expected = CTRLEval(model, Task(after, whole.verbalizers), ("attribute_relevance",))
    relevance = expected.score(texts)["attribute_relevance"]
    assert batch.components["attribute_relevance"].tolist() == relevance.tolist()


def test_texts_outside_the_range_of_likelihood_cost(model: str) -> None:
    texts = Samples(["the food was good", "a bad room", "so it was"], labels=["positive"] * 3)
    likely = Perplexity(model).score(texts)["log_likelihood"]
    least, middle, most = sorted(likely.tolist())
    low, high = (least + middle) / 2, (middle + most) / 2
    reward = relevance_reward(model, fluency=0.5, likelihood=(low, high))
    batch = reward(texts)
    reward.release()
    together = batch.components["log_likelihood"]  # read in one row with the prompts
    np.testing.assert_allclose(together, likely, rtol=1e-5)
    cost = [0.5 * max(low - value, value - high, 0.0) for value in together]
    assert sorted(value == 0.0 for value in cost) == [False, False, True]
    expected = batch.components["attribute_relevance"] - cost
    np.testing.assert_allclose(batch.total, expected)


def test_an_empty_text_fails_and_is_named(model: str, caplog) -> None:
    reward = relevance_reward(model)
    batch = reward(Samples(["good", "", "bad"], labels=["positive"] * 3))
    assert batch.failed.tolist() == [False, True, False]
    assert sorted(caplog.messages) == [
        "texts[1] is empty: its attribute_relevance is NaN",
        "texts[1] is empty: perplexity is NaN",
    ]
    assert batch.statistics()["fail_rate"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"labels\[0\] = 'fine' is not a label of the task"):
        reward(Samples(["good"], labels=["fine"]))
    reward.release()


def test_callbacks_share_their_models() -> None:
    watch = held_out_scorer(PREFIXES, LABELS, TEMPLATE, generations_per_prompt=2)
    report = before_after(["The lake"], LABELS, TEMPLATE)
    for name, component in report.components.items():
        assert component.scorer is watch.components[name].scorer
    assert list(report.components) == ["attribute_relevance", "perplexity", "distinct_2"]
    assert (len(watch.samples), len(report.samples)) == (6, 2)
    assert (watch.generations_per_prompt, report.generations_per_prompt) == (2, 4)
