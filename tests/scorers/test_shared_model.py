from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from string import ascii_letters
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from asked_models import inputs_seen

from ctrlreward.models.aligner import EmbeddingAligner
from ctrlreward.models.encoder import Encoder
from ctrlreward.samples import Samples
from ctrlreward.scorers import Accuracy, Alignment, CTRLEval, Perplexity, Scorer, Similarity, Task
from ctrlreward.scorers.base import Scores, score

SAMPLES = Samples(
    texts=["The soup was warm.", "The bread was old. We left.", "The tea was fine."],
    labels=["positive", "negative", "positive"],
)
WORDS = {"negative": ["bad", "awful"], "positive": ["good", "nice"]}
TASK = Task(["<gen_result> It was <mask_token>.", "<gen_result> Just <mask_token>!"], WORDS)
ASPECT = "attribute_relevance"


@pytest.fixture
def scorers(tiny_llama: Callable[[str], str]) -> tuple[CTRLEval, Perplexity]:
    folder = tiny_llama(ascii_letters + " .!")
    return CTRLEval(folder, TASK, [ASPECT]), Perplexity(folder)


def test_scorers_on_one_model_share_it_and_its_calls(
    scorers: tuple[CTRLEval, Perplexity], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctrleval, perplexity = scorers
    alone = {**ctrleval.score(SAMPLES), **perplexity.score(SAMPLES)}
    model = perplexity.loaded_model
    assert ctrleval.loaded_model is model  # type: ignore[comparison-overlap]
    asked: list[int] = []
    answer, texts = model.answer, len(SAMPLES)
    monkeypatch.setattr(model, "answer", lambda tasks: asked.append(len(tasks)) or answer(tasks))
    monkeypatch.setattr(model, "padding", 0)
    components = {name: s[name] for s in scorers for name in s.specs}
    together = score(components, SAMPLES).scores
    with inputs_seen(model.model) as seen:
        score(components, SAMPLES[:1])
    assert asked == [2 * texts, 2]
    for name, values in alone.items():
        np.testing.assert_allclose(together[name], values, rtol=1e-5)
    # A token is a letter; the start token stands before each, and the last one is not read. Without
    # padding, the prompts after a text are one pass, and the text alone is another.
    (text,) = SAMPLES.texts[:1]
    read = [
        prompt.replace("<gen_result>", text).replace("<mask_token>", word)
        for prompt, words in TASK.evaluators
        for word in words
    ]
    beginnings = {whole[:n] for whole in read for n in range(len(whole))}
    assert [inputs["input_ids"].numel() for inputs in seen] == [len(beginnings), len(text)]


# Models without requests are shared too, and used by one thread at a time.


def test_similarity_and_alignment_share_an_encoder_until_both_are_released() -> None:
    similarity, alignment = Similarity(batch_tokens=777), Alignment(batch_tokens=777)
    encoder = weakref.ref(similarity.loaded_model)
    assert isinstance(alignment.loaded_model, EmbeddingAligner)
    assert alignment.loaded_model.encoder is encoder()
    assert Similarity(batch_tokens=778).loaded_model is not encoder()
    similarity.release()
    gc.collect()
    assert encoder() is not None
    alignment.release()
    gc.collect()
    assert encoder() is None


def scored_at_once(scorers: list[Scorer], samples: Samples, times: int) -> list[dict[str, Scores]]:
    """Scores of each scorer on a thread of its own, the last of several runs."""
    start = Barrier(len(scorers))

    def run(scorer: Scorer) -> dict[str, Scores]:
        for _ in range(times):
            start.wait(60)
            scores = score({name: scorer[name] for name in scorer.specs}, samples).scores
        return scores

    with ThreadPoolExecutor(len(scorers)) as threads:
        return list(threads.map(run, scorers))


def test_two_threads_take_turns_with_one_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["A soup. " * (1 + i % 7) + f"It was number {i}." for i in range(20)]
    samples = Samples(texts, sources=texts[::-1])
    scorers: list[Scorer] = [Similarity(), Alignment()]
    expected = [scorer.score(samples) for scorer in scorers]
    using: list[Encoder] = []
    run = Encoder.read_texts

    def watched(encoder: Encoder, *arguments: Any) -> list[Any]:
        assert encoder not in using
        using.append(encoder)
        time.sleep(0.05)
        rows = run(encoder, *arguments)
        using.remove(encoder)
        return rows

    monkeypatch.setattr(Encoder, "read_texts", watched)
    for scores, alone in zip(scored_at_once(scorers, samples, 2), expected, strict=True):
        assert scores.keys() == alone.keys()
        for name, values in alone.items():
            np.testing.assert_allclose(scores[name], values, rtol=0, atol=1e-6)


def test_a_scorer_within_another_does_not_wait_for_itself(
    scorers: tuple[CTRLEval, Perplexity],
) -> None:
    ctrleval, perplexity = scorers
    accuracy, other = Accuracy(ctrleval), Accuracy(ctrleval)
    expected = ctrleval.score(SAMPLES)["attribute_relevance"]
    together = score(
        {"probability": accuracy["label_probability"], "relevance": ctrleval[ASPECT]}, SAMPLES
    ).scores
    for values in together.values():
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    _, first, second, alone = scored_at_once([perplexity, accuracy, other, ctrleval], SAMPLES, 3)
    for values in (first["label_probability"], second["label_probability"], alone[ASPECT]):
        np.testing.assert_allclose(values, expected, rtol=1e-5)
