"""Perplexity against the sliding-window loop of Hugging Face's documentation, text by text.

    python benchmarks/perplexity.py [--texts 32] [--runs 5] [--curve]

SmolLM2-135M in float32, paragraphs of WikiText-2 of 20 to 80 words. Both sides read the same start
token, so that the first word counts on both. Needs the data folder (CTRLREWARD_DATA).
"""

from __future__ import annotations

import floor
import numpy as np
import torch
from side_by_side import Work, compare, cost_curve, header, options, running_texts

from ctrlreward import Samples
from ctrlreward.models.tokenization import start_token
from ctrlreward.scorers import Perplexity

SUITE = "perplexity"
STRIDE = 512


def scoring(scorer: Perplexity, texts: list[str]) -> Work:
    scorer.load()
    samples = Samples(texts=texts)
    return lambda: scorer.score(samples)["log_likelihood"]


@floor.plain_products()
def documented(scorer: Perplexity, texts: list[str]) -> np.ndarray:
    """Each text alone, in windows of the model's context: the loss of the tokens that are new."""
    model, tokenizer = scorer.language_model.model, scorer.language_model.tokenizer
    window = model.config.max_position_embeddings
    start = start_token(tokenizer)
    values = []
    for text in texts:
        ids = torch.tensor([start + tokenizer(text, add_special_tokens=False).input_ids])
        total, counted, seen = 0.0, 0, 0
        for begin in range(0, ids.shape[1], STRIDE):
            end = min(begin + window, ids.shape[1])
            read = ids[:, begin:end]
            labels = read.clone()
            labels[:, : read.shape[1] - (end - seen)] = -100
            with torch.no_grad():
                loss = model(read, labels=labels).loss
            # Labels are moved by one inside the model, so a window's first token has no loss.
            scored = int((labels[:, 1:] != -100).sum())
            total, counted, seen = total - loss.item() * scored, counted + scored, end
            if end == ids.shape[1]:
                break
        values.append(total / counted)
    return np.array(values)


def paragraphs(count: int) -> list[str]:
    """Texts of 20, 40, 60, 80, 20 … words."""
    texts = running_texts(count, 80)
    return [" ".join(text.split()[: 20 + 20 * (i % 4)]) for i, text in enumerate(texts)]


def main() -> None:
    given = options(__doc__, 32)
    header()
    scorer = Perplexity("smollm2-135m", dtype="float32")
    if given.curve:
        cost_curve(
            *(SUITE, "smollm2-135m", lambda texts: scoring(scorer, texts)),
            *(given.curve_texts, given.curve_words),
        )
        return
    texts = paragraphs(given.texts)
    ours = scoring(scorer, texts)
    compare(
        *(SUITE, "smollm2-135m", ours, lambda: documented(scorer, texts), given.runs),
        *("loop of the documentation", floor.unpadded(scorer.language_model, ours)),
    )


if __name__ == "__main__":
    main()
