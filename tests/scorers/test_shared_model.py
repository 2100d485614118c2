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
    model = perplexity.language_model.model
    assert ctrleval.infiller.lm is perplexity.language_model  # type: ignore[attr-defined]
    seen: list[torch.Tensor] = []
    hook = model.register_forward_pre_hook(
        lambda model, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    components = {name: s[name] for s in scorers for name in s.metrics}
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
