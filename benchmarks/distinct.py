"""Distinct-n against the loop that studies of multi-aspect control use: a set for each prefix.

    python benchmarks/distinct.py [--texts 1400] [--runs 5] [--curve]

Released outputs of PriorCTG over GPT-2 tokens: `distinct_n` on ready token ids, and the scorer,
which tokenises the texts. Needs the data folder (CTRLREWARD_DATA).
"""

from __future__ import annotations

import csv
import json

import numpy as np
from side_by_side import DATA, Work, compare, cost_curve, header, options
from transformers import GPT2TokenizerFast, PreTrainedTokenizerBase

from ctrlreward import Samples
from ctrlreward.functional.diversity import distinct_n
from ctrlreward.scorers import Distinct

SUITE = "distinct"


def gpt2_tokenizer() -> PreTrainedTokenizerBase:
    folder = DATA / "tokenizers" / "gpt2"
    return GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))


def released_outputs(count: int) -> Samples:
    """The first outputs that begin with one of the 35 prefixes, which is their group."""
    with open(DATA / "prompts35.csv", encoding="utf-8") as file:
        prefixes = sorted((row["prompt"] for row in csv.DictReader(file)), key=len, reverse=True)
    lines = (DATA / "multicontrol" / "generate_prior.txt").read_text(encoding="utf-8").splitlines()
    texts, own = [], []
    for line in lines[:count]:
        text = json.loads(line)[1]
        prefix = next((p for p in prefixes if text.startswith(p)), None)
        if prefix is not None:
            texts.append(text)
            own.append(prefix)
    return Samples(texts=texts, prefixes=own)


def looped(rows: list[list[int]], prefixes: list[str]) -> np.ndarray:
    """Distinct-1, -2 and -3: unique n-grams over tokens for each prefix, then the mean."""
    values = []
    for n in (1, 2, 3):
        shares = []
        for prefix in dict.fromkeys(prefixes):
            seen, tokens = set(), 0
            for ids, own in zip(rows, prefixes, strict=True):
                if own != prefix:
                    continue
                tokens += len(ids)
                for i in range(len(ids) - n + 1):
                    seen.add(tuple(ids[i : i + n]))
            shares.append(len(seen) / tokens)
        values.append(np.mean(shares))
    return np.array(values)


def scoring(scorer: Distinct, samples: Samples) -> Work:
    """Each group's values, averaged over the groups."""
    firsts = [samples.prefixes.index(prefix) for prefix in dict.fromkeys(samples.prefixes)]
    return lambda: np.array([values[firsts].mean() for values in scorer.score(samples).values()])


def main() -> None:
    given = options(__doc__, 1400)
    header()
    tokenizer = gpt2_tokenizer()
    scorer = Distinct(tokenizer)
    if given.curve:
        cost_curve(
            *(SUITE, "scorer"),
            lambda texts: scoring(scorer, Samples(texts=texts, prefixes=[t[:1] for t in texts])),
            *(given.curve_texts, given.curve_words),
        )
        return
    samples = released_outputs(given.texts)
    texts, prefixes = samples.texts, samples.prefixes
    rows = tokenizer(texts, verbose=False).input_ids
    compare(
        *(SUITE, "distinct_n of token ids"),
        lambda: np.array([distinct_n(rows, n, prefixes) for n in (1, 2, 3)]),
        lambda: looped(rows, prefixes),
        *(given.runs, "a set for each prefix"),
    )
    compare(
        *(SUITE, "scorer, tokens included", scoring(scorer, samples)),
        lambda: looped([tokenizer.encode(text) for text in texts], prefixes),
        *(given.runs, "a set for each prefix, a text tokenised at a time"),
    )


if __name__ == "__main__":
    main()
