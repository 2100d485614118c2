from __future__ import annotations

import json
from collections import Counter
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

LABELS = ["negative", "positive"]
TOPICS = Task(["<gen_result> About <mask_token>."], {"food": ["food"], "trip": ["a trip"]})
TASKS = {"sentiment": "sentiment", "topic": TOPICS}
MANY = Samples(
    ["the food was good", "a bad room", "so it was", "a trip by bus"],
    labels={"sentiment": LABELS * 2, "topic": ["food", "food", "trip", "trip"]},
)
ANY = (-99.0, 0.0)  # bounds that every likelihood is within


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
    with pytest.raises(ValueError, match="topic"):
        build_prompts(["Now"], labels, "A {sentiment} text: {prefix}")


def test_all_prompts_are_used_before_one_is_used_again() -> None:
    prefixes, template = ["The food", "My room", "Her novel"], "A {label} review: {prefix}"
    everything = build_prompts(prefixes, LABELS, template)
    batches = list(PromptData(prefixes, LABELS, template, batch_size=4, steps=9).train_dataloader())
    assert [len(batch) for batch in batches] == [4] * 9
    drawn = [prompt for batch in batches for prompt in batch.prompts]
    rounds = [drawn[start : start + 6] for start in range(0, 36, 6)]
    assert all(Counter(each) == Counter(everything.prompts) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1  # reshuffled
    for batch in batches:
        assert batch == everything[[everything.prompts.index(p) for p in batch.prompts]]


# Reward and held-out scores


def test_the_reward_is_relevance_less_a_cost_of_likelihood(letters: str) -> None:
    """By the evaluators after the text, half of all; one text is within the bounds."""
    texts = Samples(["the food was good", "a bad room", "so it was"], labels=["positive"] * 3)
    likely = Perplexity(letters).score(texts)["log_likelihood"]
    least, middle, most = sorted(likely.tolist())
    low, high = (least + middle) / 2, (middle + most) / 2
    reward = relevance_reward(letters, fluency=0.5, likelihood=(low, high))
    batch = reward(texts)
    reward.release()
    whole = Task.load("sentiment")
    after = [prompt for prompt in whole.prompts if prompt.startswith(TEXT_SLOT)]
    assert len(after) * 2 == len(whole.prompts)
    alone = CTRLEval(letters, Task(after, whole.verbalizers), "attribute_relevance")
    relevance = alone.score(texts)["attribute_relevance"]
    cost = np.array([max(low - value, value - high, 0.0) for value in likely])
    assert sorted(cost == 0.0) == [False, False, True]
    # Read in one row with the prompts.
    np.testing.assert_allclose(batch.components["attribute_relevance"], relevance, rtol=1e-4)
    np.testing.assert_allclose(batch.components["likelihood_cost"], cost, rtol=1e-4)
    np.testing.assert_allclose(batch.total, relevance - 0.5 * cost, rtol=1e-4)


def test_repeated_pairs_of_tokens_cost(letters: str) -> None:
    texts = Samples(["so so so so", "so it was"], labels=["positive"] * 2)
    plain, guarded = (relevance_reward(letters, repetition=cost) for cost in (0.0, 0.5))
    loss = plain(texts).total - guarded(texts).total
    plain.release()
    guarded.release()
    assert loss[0] > 0.2  # of letters, all but a few pairs are there before
    assert loss[1] < loss[0]


def test_several_attributes_are_a_sum_and_have_a_geometric_mean(letters: str) -> None:
    """Each relevance is that of a scorer that knows nothing of the other."""
    plain = {"sentiment": after_text("sentiment"), "topic": TOPICS}
    alone = {
        name: CTRLEval(letters, task, "attribute_relevance")["attribute_relevance"](
            MANY.texts, labels=[label.split()[i].partition("=")[2] for label in MANY.labels]
        )
        for i, (name, task) in enumerate(plain.items())
    }
    reward = relevance_reward(letters, TASKS, likelihood=ANY)
    batch = reward(MANY)
    reward.release()
    for name, values in alone.items():
        np.testing.assert_allclose(batch.components[f"{name}_relevance"], values, rtol=1e-5)
    mean = np.sqrt(alone["sentiment"] * alone["topic"])
    np.testing.assert_allclose(batch.components["attribute_relevance"], mean, rtol=1e-5)
    expected = alone["sentiment"] + alone["topic"]
    np.testing.assert_allclose(batch.total, expected, rtol=1e-5)
    assert len({*expected.tolist()}) == 4


def test_texts_are_kept_with_what_each_relevance_is_made_of(letters: str, tmp_path: Path) -> None:
    """As `BeforeAfter` writes them, for the report: the evaluators' mean is the score."""
    scores = ctrleval_scores(letters, TASKS, (), None, "cpu", None)
    scores["diversity"] = Distinct(letters)["distinct_2"]  # has nothing to explain
    path = tmp_path / "after.jsonl"
    write_scored_samples(path, MANY, {})
    _, values = scored_texts(path, scores, seed=0, setting="folder")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        assert list(row["explanation"]) == ["sentiment_relevance", "topic_relevance"]
        for name, explained in row["explanation"].items():
            mean = sum(each["score"] * each["weight"] for each in explained["evaluators"])
            assert mean == pytest.approx(values[name][i]) == row["scores"][name]


def test_selection_and_report_have_the_same_scores_of_other_prefixes(letters: str) -> None:
    labels = {"sentiment": LABELS, "topic": ["food", "trip"]}
    held_out = HeldOut(labels, "{sentiment} {topic} {prefix}", letters, TASKS)
    watch = held_out_scorer(held_out, ["Now", "Then"], generations_per_prompt=2)
    report = before_after(held_out, ["The lake"])
    names = ["attribute_relevance", "sentiment_relevance", "topic_relevance"]
    assert [*watch.components] == [*report.components] == [*names, "perplexity", "distinct_2"]
    assert (len(watch.samples), len(report.samples)) == (8, 4)
    assert (watch.generations_per_prompt, report.generations_per_prompt) == (2, 4)
    for wrong in (["positive"] * 4, {"sentiment": "positive"}, {"sentiment": "fine"}):
        with pytest.raises(ValueError, match="label"):
            watch.components["attribute_relevance"](MANY.texts, labels=wrong)
