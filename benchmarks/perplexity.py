"""Perplexity against the sliding-window loop in the documentation of transformers.

    python benchmarks/perplexity.py [--texts 32] [--runs 5]

SmolLM2-135M in float32 on paragraphs of WikiText-2 with 20 to 80 words. Both sides prepend the same
start token, so that the first word counts too.
"""

from __future__ import annotations

import numpy as np
import torch
from side_by_side import compare, parse_options

from ctrlreward.models.tokenization import start_token
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.scorers import Perplexity

STRIDE = 512


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
    """Return consecutive texts of WikiText-2 of 20, 40, 60, 80, 20, … words."""
    lines = local_file("wikitext2/test.txt").read_text(encoding="utf-8").splitlines()
    running = " ".join(line for line in lines if not line.startswith(" ="))
    words = [word for word in running.split() if word != "<unk>"]
    return [" ".join(words[i * 80 : i * 80 + 20 + 20 * (i % 4)]) for i in range(count)]


def main() -> None:
    options = parse_options(__doc__, 32)
    scorer = Perplexity("smollm2-135m", dtype="float32")
    texts = paragraphs(options.texts)
    compare(
        *("perplexity", "smollm2-135m", lambda: scorer.score(texts)["log_likelihood"]),
        *(lambda: documented(scorer, texts), options.runs, "loop in the documentation"),
    )


if __name__ == "__main__":
    main()
