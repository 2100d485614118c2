"""Distinct-n against the loop in studies of multi-aspect control, with one set per prefix.

    python benchmarks/distinct.py [--texts 1400] [--runs 5]

Released outputs of PriorCTG in GPT-2 tokens: `distinct_n` on given token ids, and the scorer, which
also tokenises the texts. Needs GPT-2's vocabulary, tokenizers/gpt2 in the folder CTRLREWARD_DATA.
"""

from __future__ import annotations

import numpy as np
from side_by_side import DATA, compare, parse_options
from transformers import GPT2TokenizerFast, PreTrainedTokenizerBase

from ctrlreward.functional.diversity import distinct_n
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.papers.reproduction.released import read_outputs
from ctrlreward.scorers import Distinct


def gpt2_tokenizer() -> PreTrainedTokenizerBase:
    folder = DATA / "tokenizers" / "gpt2"
    return GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))


def looped(rows: list[list[int]], prefixes: list[str]) -> np.ndarray:
    """Return distinct-1, -2 and -3: unique n-grams over tokens per prefix, then the mean."""
    values = []
    for n in (1, 2, 3):
        shares = []
        for prefix in dict.fromkeys(prefixes):
            unique, tokens = set(), 0
            for ids, row_prefix in zip(rows, prefixes, strict=True):
                if row_prefix != prefix:
                    continue
                tokens += len(ids)
                for i in range(len(ids) - n + 1):
                    unique.add(tuple(ids[i : i + n]))
            shares.append(len(unique) / tokens)
        values.append(np.mean(shares))
    return np.array(values)


def main() -> None:
    options = parse_options(__doc__, 1400)
    tokenizer = gpt2_tokenizer()
    scorer = Distinct(tokenizer)
    outputs = read_outputs(local_file("multicontrol/generate_prior.txt"))
    samples = outputs[: options.texts]
    texts, prefixes = samples.texts, samples.groups
    rows = tokenizer(texts, verbose=False).input_ids
    first_rows = [prefixes.index(prefix) for prefix in dict.fromkeys(prefixes)]

    def scored() -> np.ndarray:
        scores = scorer.score(samples)
        return np.array([scores[f"distinct_{n}"][first_rows].mean() for n in (1, 2, 3)])

    compare(
        *("distinct", "distinct_n of token ids"),
        lambda: np.array([distinct_n(rows, n, prefixes) for n in (1, 2, 3)]),
        lambda: looped(rows, prefixes),
        *(options.runs, "one set per prefix"),
    )
    compare(
        *("distinct", "scorer, tokens included", scored),
        lambda: looped([tokenizer.encode(text) for text in texts], prefixes),
        *(options.runs, "one set per prefix, texts tokenised one by one"),
    )


if __name__ == "__main__":
    main()
