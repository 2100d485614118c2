from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ctrlreward import Samples
from ctrlreward.callbacks.report import scored_texts
from ctrlreward.recipes.controlled_generation import (
    HeldOut,
    PromptData,
    after_text,
    before_after,
    build_prompts,
    ctrleval_scores,
    held_out_scorer,
    relevance_reward,
)
from ctrlreward.scorers import CTRLEval, Distinct, Perplexity, Task
from ctrlreward.scorers.records import write_scored_samples
from ctrlreward.scorers.task import TEXT_SLOT

TEMPLATE = "A {label} review: {prefix}"
LABELS = ["negative", "positive"]
PREFIXES = ["The food", "My room", "Her novel"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(" abcdefghijklmnopqrstuvwxyz.")


def test_every_prefix_with_every_combination_of_labels() -> None:
    labels = {"sentiment": LABELS, "topic": ["food", "travel"]}
    samples = build_prompts(["Now"], labels, "A {sentiment} text about {topic}: {prefix}")
    pairs = [(s, t) for s in LABELS for t in labels["topic"]]
    assert samples == Samples(
        texts=["Now"] * 4,
        prefixes=["Now"] * 4,
        labels={"sentiment": [s for s, _ in pairs], "topic": [t for _, t in pairs]},
        prompts=[f"A {s} text about {t}: Now" for s, t in pairs],
        groups=["Now"] * 4,
    )
    data = PromptData(["Now"], labels, "A {sentiment} text about {topic}: {prefix}", batch_size=4)
    assert Counter(read(data)[0].labels or ()) == Counter(samples.labels)
    with pytest.raises(ValueError, match=r"include \{topic\} and end in \{prefix\}"):
        build_prompts(["Now"], labels, "A {sentiment} text: {prefix}")


# The data


def read(data: PromptData) -> list[Samples]:
    return list(data.train_dataloader())


def test_all_prompts_are_used_before_one_is_used_again() -> None:
    data = PromptData(PREFIXES, LABELS, TEMPLATE, batch_size=4, steps=9)
    assert len(list(data.val_dataloader())) == 1  # a validation
    batches = read(data)
    assert [len(batch) for batch in batches] == [4] * 9
    drawn = [prompt for batch in batches for prompt in batch.prompts]
    rounds = [drawn[start : start + 6] for start in range(0, 36, 6)]
    assert all(Counter(r) == Counter(data.prompts.prompts) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1  # reshuffled
    everything = build_prompts(PREFIXES, LABELS, TEMPLATE)
    for batch in batches:
        assert batch == everything[[everything.prompts.index(p) for p in batch.prompts]]


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
    cost = np.array([max(low - value, value - high, 0.0) for value in likely])
    assert sorted(cost == 0.0) == [False, False, True]
    # Read in one row with the prompts.
    np.testing.assert_allclose(batch.components["likelihood_cost"], cost, rtol=1e-4)
    expected = batch.components["attribute_relevance"] - 0.5 * cost
    np.testing.assert_allclose(batch.total, expected, rtol=1e-5)


def test_an_empty_text_fails_and_is_named(model: str, caplog) -> None:
    reward = relevance_reward(model)
    batch = reward(Samples(["good", "", "bad"], labels=["positive"] * 3))
    assert batch.failed.tolist() == [False, True, False]
    (message,) = caplog.messages  # of both scores
    assert "texts[1]" in message
    assert batch.statistics()["fail_rate"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"labels\[0\]"):
        reward(Samples(["good"], labels=["fine"]))
    reward.release()


TOPICS = Task(["<gen_result> About <mask_token>."], {"food": ["food"], "trip": ["a trip"]})
TASKS = {"sentiment": "sentiment", "topic": TOPICS}
MANY = Samples(
    ["the food was good", "a bad room", "so it was", "a trip by bus"],
    labels={"sentiment": LABELS * 2, "topic": ["food", "food", "trip", "trip"]},
)


def relevances(model: str) -> dict[str, np.ndarray]:
    """Relevance of each attribute, by a scorer that knows nothing of the other."""
    topics = ["food", "food", "trip", "trip"]
    plain = {"sentiment": (after_text("sentiment"), LABELS * 2), "topic": (TOPICS, topics)}
    scores = {}
    for name, (task, labels) in plain.items():
        relevance = CTRLEval(model, task, "attribute_relevance")["attribute_relevance"]
        scores[name] = relevance(MANY.texts, labels=labels)
    return scores


def test_the_relevances_of_several_attributes_have_a_geometric_mean(model: str) -> None:
    """Each is that of its own scorer; no text is outside of the range of likelihood."""
    alone = relevances(model)
    reward = relevance_reward(model, TASKS, likelihood=(-99.0, 0.0))
    batch = reward(MANY)
    reward.release()
    for name, values in alone.items():
        np.testing.assert_allclose(batch.components[f"{name}_relevance"], values, rtol=1e-5)
    expected = np.sqrt(alone["sentiment"] * alone["topic"])
    np.testing.assert_allclose(batch.total, expected, rtol=1e-5)
    assert len({*expected.tolist()}) == 4


def test_repeated_pairs_of_tokens_cost(model: str) -> None:
    texts = Samples(["so so so so", "so it was"], labels=["positive"] * 2)
    plain, guarded = (relevance_reward(model, repetition=cost) for cost in (0.0, 0.5))
    loss = plain(texts).total - guarded(texts).total
    plain.release()
    guarded.release()
    assert loss[0] > 0.2  # of letters, all but a few pairs are there before
    assert loss[1] < loss[0]


def test_each_attribute_can_have_a_weight_in_place_of_the_fold(model: str) -> None:
    alone = relevances(model)
    weights = {"sentiment": 2.0, "topic": 0.5}
    reward = relevance_reward(model, TASKS, attributes=weights, likelihood=(-99.0, 0.0))
    batch = reward(MANY)
    reward.release()
    expected = 2 * alone["sentiment"] + 0.5 * alone["topic"]
    np.testing.assert_allclose(batch.total, expected, rtol=1e-5)
    assert reward.weights is not None  # what `normalize_then_sum` needs
    assert reward.weights["attribute_relevance"] == 0.0
    with pytest.raises(ValueError, match="attributes"):
        relevance_reward(model, TASKS, attributes={"sentiment": 1.0})
    with pytest.raises(ValueError, match="attributes"):
        relevance_reward(model, attributes={"sentiment": 1.0})


def test_texts_are_kept_with_what_each_relevance_is_made_of(model: str, tmp_path: Path) -> None:
    """As `BeforeAfter` writes them, for the report: the evaluators' mean is the score."""
    scores = ctrleval_scores(model, TASKS, (), None, "cpu", None)
    scores["diversity"] = Distinct(model)["distinct_2"]  # has nothing to explain
    path = tmp_path / "after.jsonl"
    write_scored_samples(path, MANY, {})
    _, found = scored_texts(path, scores, seed=0, setting="folder")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        assert list(row["explanation"]) == ["sentiment_relevance", "topic_relevance"]
        for name, explained in row["explanation"].items():
            mean = sum(each["score"] * each["weight"] for each in explained["evaluators"])
            assert mean == pytest.approx(found[name][i]) == row["scores"][name]
    assert Samples.from_jsonl(path) == MANY
    next(iter(scores.values())).scorer.release()


def test_the_held_out_scores_have_each_relevance(model: str) -> None:
    labels = {"sentiment": LABELS, "topic": ["food", "trip"]}
    held_out = HeldOut(labels, "{sentiment} {topic} {prefix}", model, TASKS)
    watch = held_out_scorer(held_out, ["Now"])
    names = ["attribute_relevance", "sentiment_relevance", "topic_relevance"]
    assert list(watch.components) == [*names, "perplexity", "distinct_2"]
    for wrong, message in (
        (["positive"] * 4, "labels.0. = 'positive' does not name the attribute 'sentiment'"),
        ({"sentiment": "positive"}, "does not name the attribute 'topic', which CTRLEval"),
        ({"sentiment": "positive", "topic": "tea"}, "'tea' is not a label"),
    ):
        with pytest.raises(ValueError, match=message):
            watch.components["attribute_relevance"](MANY.texts, labels=wrong)


def test_callbacks_share_their_models() -> None:
    watch = held_out_scorer(HeldOut(LABELS, TEMPLATE), PREFIXES, generations_per_prompt=2)
    report = before_after(HeldOut(LABELS, TEMPLATE), ["The lake"])
    for name, component in report.components.items():
        assert component.scorer is watch.components[name].scorer
    assert list(report.components) == ["attribute_relevance", "perplexity", "distinct_2"]
    assert (len(watch.samples), len(report.samples)) == (6, 2)
    assert (watch.generations_per_prompt, report.generations_per_prompt) == (2, 4)
