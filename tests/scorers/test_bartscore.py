from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from ctrlreward import CTRLEval, Samples
from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.models.tokenization import start_token
from ctrlreward.samples import MissingColumn
from ctrlreward.scorers.bartscore import AspectName, BARTScore

SOURCES = [
    "The food was good, and the staff was friendly and quick.",
    "We waited an hour for a table.",
    "The food was good, and the staff was friendly and quick.",
    "A dog slept under the table while the lake froze over.",
]
TEXTS = ["Good food.", "The soup came cold, and nobody said sorry.", "The lake froze.", "A dog!"]
REFERENCES = ["The food was fine.", "A long wait.", "Good food and staff.", "It was great."]
SAMPLES = Samples(TEXTS, sources=SOURCES, references=REFERENCES)
ASPECTS: tuple[AspectName, ...] = ("faithfulness", "precision", "recall", "f_score")


def by_loss(
    folder: str, sources: list[str], targets: list[str], dtype: torch.dtype = torch.float64
) -> list[float]:
    """transformers alone: the mean cross-entropy of the labels, one pair per forward pass."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype).eval()
    scores = []
    for source, target in zip(sources, targets, strict=True):
        with torch.inference_mode():
            output = model(
                input_ids=torch.tensor([tokenizer(source).input_ids]),
                labels=torch.tensor([tokenizer(target).input_ids]),
            )
        scores.append(-output.loss.item())
    return scores


@pytest.mark.parametrize("batch_tokens", [1, 8192])
@pytest.mark.parametrize("family", ["pegasus", "t5", "bart"])
def test_equals_the_loss_of_one_plain_pass_per_pair(
    family: str, batch_tokens: int, seq2seq_folders: dict[str, str]
) -> None:
    folder = seq2seq_folders[family]
    scores = BARTScore(folder, ASPECTS, batch_tokens=batch_tokens).score(SAMPLES)
    assert tuple(scores) == ASPECTS
    pairs = {
        "faithfulness": (SOURCES, TEXTS),
        "precision": (REFERENCES, TEXTS),
        "recall": (TEXTS, REFERENCES),
    }
    exact = {name: np.array(by_loss(folder, *each)) for name, each in pairs.items()}
    assert np.ptp(exact["faithfulness"]) > 0.1  # texts are told apart
    for name, each in pairs.items():
        # A random T5 attends sharply: on some processors its float32 alone is off by 3e-4,
        # and padding changes the order of sums.
        rounding = np.abs(by_loss(folder, *each, torch.float32) - exact[name]).max()
        np.testing.assert_allclose(scores[name], exact[name], atol=2e-5 + 5 * rounding)
    np.testing.assert_allclose(
        scores["f_score"], (scores["precision"] + scores["recall"]) / 2, atol=1e-6
    )


def test_columns_are_those_of_the_wanted_scores(tiny_bart: str) -> None:
    scorer = BARTScore(tiny_bart, ASPECTS)
    assert scorer.loaded_model is CTRLEval(tiny_bart).loaded_model  # type: ignore[comparison-overlap]
    assert set(scorer.required_columns()) == {"sources", "references"}
    only = scorer["faithfulness"](TEXTS, sources=SOURCES)
    np.testing.assert_allclose(only, scorer.score(SAMPLES)["faithfulness"], atol=1e-6)
    some = BARTScore(tiny_bart, "all").score(TEXTS, sources=SOURCES)
    assert list(some) == ["faithfulness"]
    with pytest.raises(MissingColumn, match="references"):
        scorer["recall"](TEXTS, sources=SOURCES)


def test_a_decoder_scores_what_a_text_gains_by_the_other(
    tiny_causal: Callable[..., str],
) -> None:
    """transformers alone: after the other text, less half of after two neutral texts."""
    folder = tiny_causal("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    start = start_token(tokenizer)

    def after(context: str, target: str) -> float:
        before = tokenizer(f"{context}\n\n", add_special_tokens=False).input_ids
        ids = tokenizer(target, add_special_tokens=False).input_ids
        with torch.inference_mode():
            logits = model(torch.tensor([[*start, *before, *ids]])).logits[0]
        predicted = logits[-len(ids) - 1 : -1].log_softmax(-1)
        return float(predicted[range(len(ids)), ids].mean())

    def gain(context: str, target: str) -> float:
        neutral = [after(text, target) for text in neutral_texts()[:2]]
        return min(0.0, after(context, target) - np.mean(neutral) / 2)

    scores = BARTScore(folder, ASPECTS).score(SAMPLES)
    pairs = {"faithfulness": (SOURCES, TEXTS), "recall": (TEXTS, REFERENCES)}
    for name, (read, scored) in pairs.items():
        expected = [gain(*pair) for pair in zip(read, scored, strict=True)]
        assert np.ptp(expected) > 1e-4
        np.testing.assert_allclose(scores[name], expected, atol=2e-5)
    failed = BARTScore(folder).score(["a", "b"], sources=["", "c"])["faithfulness"]
    assert np.isnan(failed).tolist() == [True, False]


def test_what_the_model_cannot_read_is_cut_and_named(
    tiny_bart: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = "The soup was cold. " * 40
    scores = BARTScore(tiny_bart).score(["Good.", long], sources=[long, "Soup."])
    assert np.isfinite(scores["faithfulness"]).all()
    assert sum("exceed" in message for message in caplog.messages) == 2
