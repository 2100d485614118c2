"""Perplexity against the sliding-window loop in the documentation of transformers.

    python benchmarks/perplexity.py [--texts 32] [--runs 5]

SmolLM2-135M in float32 on paragraphs of WikiText-2 with 20 to 80 words. Both sides prepend the same
start token, so that the first word counts too.
"""

from __future__ import annotations

import numpy as np
import torch
from side_by_side import Work, compare, parse_options, running_texts

from ctrlreward import Samples
from ctrlreward.models.tokenization import start_token
from ctrlreward.scorers import Perplexity

SUITE = "perplexity"
STRIDE = 512


def scoring(scorer: Perplexity, texts: list[str]) -> Work:
    scorer.load()
    samples = Samples(texts=texts)
    return lambda: scorer.score(samples)["log_likelihood"]


def documented(scorer: Perplexity, texts: list[str]) -> np.ndarray:
    """Score one text at a time in windows of the model's context, counting only new tokens."""
    model, tokenizer = scorer.loaded_model.model, scorer.loaded_model.tokenizer
    window = model.config.max_position_embeddings
    start = start_token(tokenizer)
    values = []
    for text in texts:
        ids = torch.tensor([start + tokenizer(text, add_special_tokens=False).input_ids])
        total, count, scored_until = 0.0, 0, 0
        for begin in range(0, ids.shape[1], STRIDE):
            end = min(begin + window, ids.shape[1])
            window_ids = ids[:, begin:end]
            labels = window_ids.clone()
            labels[:, : window_ids.shape[1] - (end - scored_until)] = -100
            with torch.no_grad():
                loss = model(window_ids, labels=labels).loss
            # The model shifts the labels by one, so the first token of a window has no loss.
            new = int((labels[:, 1:] != -100).sum())
            total, count, scored_until = total - loss.item() * new, count + new, end
            if end == ids.shape[1]:
                break
        values.append(total / count)
    return np.array(values)


def paragraphs(count: int) -> list[str]:
    """Return texts of 20, 40, 60, 80, 20, … words."""
    texts = running_texts(count, 80)
    return [" ".join(text.split()[: 20 + 20 * (i % 4)]) for i, text in enumerate(texts)]


def main() -> None:
    options = parse_options(__doc__, 32)
    scorer = Perplexity("smollm2-135m", dtype="float32")
    texts = paragraphs(options.texts)
    ours = scoring(scorer, texts)
    compare(
        *(SUITE, "smollm2-135m", ours, lambda: documented(scorer, texts), options.runs),
        "loop in the documentation",
    )


if __name__ == "__main__":
    main()
