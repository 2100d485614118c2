from __future__ import annotations

from collections.abc import Callable
from string import ascii_letters

import numpy as np
import pytest
import torch

from ctrlreward.samples import Samples
from ctrlreward.scorers import CTRLEval, Perplexity, Task
from ctrlreward.scorers.base import score

SAMPLES = Samples(
    texts=["The soup was warm.", "The bread was old. We left.", "The tea was fine."],
    labels=["positive", "negative", "positive"],
)
WORDS = {"negative": ["bad", "awful"], "positive": ["good", "nice"]}
TASK = Task(["<gen_result> It was <mask_token>.", "<gen_result> Just <mask_token>!"], WORDS)


@pytest.fixture
def scorers(tiny_llama: Callable[[str], str]) -> tuple[CTRLEval, Perplexity]:
    folder = tiny_llama(ascii_letters + " .!")
    return CTRLEval(folder, TASK, ["attribute_relevance"]), Perplexity(folder)


def test_scorers_on_one_model_share_it_and_what_their_texts_share(
    scorers: tuple[CTRLEval, Perplexity],
) -> None:
    ctrleval, perplexity = scorers
    alone = {**ctrleval.score(SAMPLES), **perplexity.score(SAMPLES)}
    model = perplexity.loaded_model.model
    assert ctrleval.loaded_model.lm is perplexity.loaded_model  # type: ignore[attr-defined]
    seen: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(
        lambda model, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    components = {name: s[name] for s in scorers for name in s.specs}
    together = score(components, SAMPLES)
    seen.clear()
    score(components, SAMPLES[:1])
    hook.remove()
    for name, values in alone.items():
        np.testing.assert_allclose(together[name], values, rtol=1e-5)
    # A token is a letter; the start token stands before each, and the last one is not read.
    (text,) = SAMPLES.texts[:1]
    read = [text] + [
        prompt.replace("<gen_result>", text).replace("<mask_token>", word)
        for prompt, words in TASK.evaluators
        for word in words
    ]
    (ids,) = seen
    assert ids.numel() == len({whole[:n] for whole in read for n in range(len(whole))})


def test_windows_of_many_texts_are_asked_for_together_and_change_no_score(
    scorers: tuple[CTRLEval, Perplexity],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ctrleval, perplexity = scorers
    samples = Samples.concat([SAMPLES, Samples(["", "Not so."], labels=["positive", "negative"])])
    components = {name: s[name] for s in scorers for name in s.specs}
    expected = score(components, samples)
    explained = ctrleval.explain(samples)
    chances = ctrleval.probabilities(samples.texts)
    corpus = perplexity.corpus_perplexity(samples)
    calls: list[set[str]] = []
    model = perplexity.loaded_model
    own = model.log_probs
    monkeypatch.setattr(
        model, "log_probs", lambda tasks: calls.append({t.target for t in tasks}) or own(tasks)
    )
    monkeypatch.setattr("ctrlreward.engine.batching._WINDOW_CHARACTERS", 45)
    caplog.clear()
    found = score(components, samples)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5)
    assert sorted(caplog.messages) == [
        "texts[3] is empty: its attribute_relevance is NaN",
        "texts[3] is empty: perplexity is NaN",
    ]
    # Two windows; each call has the words of the one scorer and the texts of the other.
    words = {" good.", " nice!"}
    assert [words & call for call in calls] == [words, words]
    assert [call & {*samples.texts} for call in calls] == [
        {*samples.texts[:2]},
        {samples.texts[2], samples.texts[4]},
    ]
    np.testing.assert_allclose(perplexity.corpus_perplexity(samples), corpus, rtol=1e-5)
    np.testing.assert_allclose(ctrleval.probabilities(samples.texts), chances, rtol=1e-5)
    for parts, others in zip(ctrleval.explain(samples), explained, strict=True):
        (part,), (other,) = parts.values(), others.values()
        np.testing.assert_allclose(part.score, other.score, rtol=1e-5)
        assert len(part.evaluators) == len(other.evaluators)
