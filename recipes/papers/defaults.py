"""Variants of scores on rated files, and how sure their differences are: studies of our defaults.

    python -m ctrlreward.recipes.papers.defaults groundedness engagingness consistency

A table for each study and file: Spearman's ρ of every variant with the ratings, and its difference
to the paper's definition, with a 95 % interval (paired bootstrap over clusters of rows).
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.functional.bootstrap import Floats, bootstrap, cluster_numbers
from ctrlreward.functional.ctrleval import weighted_mean
from ctrlreward.functional.means import valid_mean
from ctrlreward.models.neutral_texts import NEUTRAL_CONTEXTS
from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.tasks import Patterns
from ctrlreward.ratings.correlations import correlate
from ctrlreward.ratings.rated_files import read_rated
from ctrlreward.ratings.report import cell, print_table
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.samples import Samples
from ctrlreward.scorers.alignment import Alignment, AspectName
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import CTRLEval, consistency_blanks, neutral_blank

# Variant → scores, shape (n,); the paper's definition is the first.
Variants: TypeAlias = Mapping[str, Scores]


class Judged(NamedTuple):
    """n samples with a rating each, and the cluster of related rows."""

    samples: Samples
    ratings: Floats
    clusters: Sequence[Hashable]


# File or name of made texts, the texts, and their variants.
Study: TypeAlias = tuple[str, Callable[[], Judged], Callable[[Samples], Variants]]


def rated(file: str, rating: str) -> Judged:
    """Return a published file with one of its ratings."""
    found = read_rated(local_file(file))
    return Judged(found.samples, found.ratings[rating], found.clusters or range(len(found.rows)))


def compare(judged: Judged, variants: Variants, seed: int = 0) -> list[list[str]]:
    """Return for each variant its ρ, and its difference to the first with the interval."""

    def rhos(weights: Floats) -> Floats:
        """Return the ρ of each variant if rows are drawn `weights` times."""
        times = weights.astype(np.int64)
        ratings = np.repeat(judged.ratings, times)
        drawn = (np.repeat(values, times) for values in variants.values())
        return np.array([correlate(values, ratings)["spearman"] for values in drawn])

    def differences(draws: Floats) -> dict[str, Floats]:
        found = np.array([rhos(weights) for weights in draws])
        return {name: found[:, i] - found[:, 0] for i, name in enumerate(variants)}

    estimates = bootstrap(differences, cluster_numbers(judged.clusters), 0.95, 1000, seed)
    whole = rhos(np.ones(len(judged.ratings))).tolist()
    return [
        [name, cell(rho), *([cell(*estimates[name])] if i else [""])]
        for i, (name, rho) in enumerate(zip(variants, whole, strict=True))
    ]


# Alignment by embeddings


def dialog_variants(samples: Samples, aspect: AspectName) -> Variants:
    """Sums over content words: of best cosines, and of what they have above a level."""
    explained = Alignment(aspects=[aspect], calibration=False).explain(samples)
    rows = [np.array([t.value for t in row[aspect].tokens if t.counted]) for row in explained]
    chance = Alignment().loaded_model.chance  # type: ignore[union-attr]

    def above(level: float) -> Scores:
        return np.array([(row - level).clip(0).sum() for row in rows])

    return {
        "sum": np.array([row.sum() for row in rows]),
        "above chance": above(chance),
        "above 0.2": above(0.2),
        "above 0.5": above(0.5),
        "mean": np.array([valid_mean(row) for row in rows]),
        "number of words": np.array([float(len(row)) for row in rows]),
    }


# Consistency of CTRLEval


def paragraphs(limit: int) -> list[tuple[str, list[str]]]:
    """Return the first sentence of paragraphs of WikiText-2, and the others."""
    found = []
    for line in local_file("wikitext2/test.txt").read_text("utf-8").splitlines():
        text = re.sub(r" @(\S)@ ", r"\1", re.sub(r" ([,.;:!?)])", r"\1", line.strip()))
        first, *others = split_sentences(text.replace(" 's", "'s")) or [""]
        if len(others) > 2 and "<unk>" not in first + others[0] and 8 <= len(first.split()) <= 40:
            found.append((first, others))
    return found[:limit]


def continuation_variants(samples: Samples) -> Variants:
    """CTRLEval's two patterns: how much of each one's neutral likelihood comes off, and weights."""
    scorer = CTRLEval(aspects=["consistency"])
    prefixes = samples.require("prefixes", "consistency")
    blanks = [consistency_blanks(*row) for row in zip(samples.texts, prefixes, strict=True)]
    tasks = [Patterns(each) for each in blanks]
    for context in NEUTRAL_CONTEXTS:
        tasks += [Patterns(tuple(neutral_blank(b, context) for b in each)) for each in blanks]
    model: Any = scorer.loaded_model
    answers = model.answer(tasks)
    means = np.array([answer.means for answer in answers]).reshape(3, len(samples), 2)
    own, neutral = means[0], means[1:].mean(axis=0)  # (n, 2): remainder, prefix
    weights = np.array(
        [
            [scorer.iwf.sentence_weight(ids) for ids in answer.tokens]
            for answer in answers[: len(own)]
        ]
    )
    shares = {
        "as published": (0.0, 0.0),
        "half of the prefix's": (0.0, 0.5),
        "all of the prefix's": (0.0, 1.0),
        "half of both (the default)": (0.5, 0.5),
        "all of both": (1.0, 1.0),
    }
    gains = {name: np.minimum(own - share * neutral, 0.0) for name, share in shares.items()}
    variants = {
        name: np.array([weighted_mean(*row) for row in zip(gain, weights, strict=True)])
        for name, gain in gains.items()
    }
    half = gains["half of both (the default)"]
    return variants | {"the default's plain mean": half.mean(axis=1)}


def continued(limit: int = 150) -> Judged:
    """First sentences of paragraphs with the next sentence, and with another paragraph's next."""
    pairs = [(first, others[0]) for first, others in paragraphs(limit)]
    texts, prefixes, ratings = [], [], []
    for i, (first, own) in enumerate(pairs):
        texts += [f"{first} {own}", f"{first} {pairs[i - 1][1]}"]
        prefixes += [first, first]
        ratings += [1.0, 0.0]
    return Judged(Samples(texts, prefixes=prefixes), np.array(ratings), prefixes)


def dialog(aspect: AspectName, rating: str) -> Study:
    """Return the study of an aspect of persona_chat's dialogs."""
    file = "ctc/persona_chat.json"
    return file, lambda: rated(file, rating), lambda samples: dialog_variants(samples, aspect)


SENTIMENT = "ctrleval/data_senti.txt"
STUDIES: Mapping[str, Sequence[Study]] = {
    "groundedness": [dialog("groundedness", "uses_knowledge")],
    "engagingness": [dialog("engagingness", "engaging")],
    "consistency": [
        (SENTIMENT, lambda: rated(SENTIMENT, "consistency"), continuation_variants),
        ("next sentences of WikiText-2, and others", continued, continuation_variants),
    ],
}


def main(arguments: Sequence[str]) -> None:
    """Run the chosen studies."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("studies", nargs="+", choices=STUDIES)
    for study in parser.parse_args(arguments).studies:
        for name, read, variants in STUDIES[study]:
            judged = read()
            lines = compare(judged, variants(judged.samples))
            title = f"{study}: {name}, {len(judged.ratings)} texts"
            print_table(title, ["variant", "Spearman ρ", "difference"], lines)


if __name__ == "__main__":
    main(sys.argv[1:])
