"""Variants of scores on rated files, and how sure their differences are: studies of our defaults.

    python -m ctrlreward.recipes.papers.defaults [groundedness] [engagingness] …

A table for each study and file: Spearman's ρ of every variant with the ratings, and its difference
to the paper's definition, with a 95 % interval (paired bootstrap over clusters of rows). Files that
we make have 1 for a text as it was and 0 for one that we corrupted.
"""

from __future__ import annotations

import random
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.functional.alignment import content_tokens
from ctrlreward.functional.bootstrap import Floats, bootstrap, cluster_numbers
from ctrlreward.functional.calibration import context_gain
from ctrlreward.functional.ctrleval import weighted_mean
from ctrlreward.models.neutral_texts import NEUTRAL_CONTEXTS
from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.stop_words import read_stop_words
from ctrlreward.models.tasks import Patterns
from ctrlreward.ratings.correlations import weighted_correlations
from ctrlreward.ratings.rated_files import read_rated
from ctrlreward.ratings.report import cell, print_table
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.samples import Samples
from ctrlreward.scorers.alignment import Alignment, AspectName
from ctrlreward.scorers.bartscore import BARTScore, after_contexts
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.ctrleval import CTRLEval, consistency_blanks, neutral_blank

# Variant → scores, shape (n,); the paper's definition is the first.
Variants: TypeAlias = Mapping[str, Scores]


class Judged(NamedTuple):
    """n samples with a rating each, and the cluster of related rows."""

    samples: Samples
    ratings: Floats
    clusters: Sequence[Hashable]


def rated(file: str, rating: str) -> Judged:
    """Return a published file with one of its ratings."""
    found = read_rated(local_file(file))
    return Judged(found.samples, found.ratings[rating], found.clusters or range(len(found.rows)))


def compare(judged: Judged, variants: Variants, seed: int = 0) -> list[list[str]]:
    """Return for each variant its ρ, and its difference to the first with the interval.

    Rows that a variant fails are left out of all.
    """
    finite = np.isfinite([judged.ratings, *variants.values()]).all(axis=0)
    rows = np.flatnonzero(finite).tolist()
    sides = [values[rows] for values in variants.values()]
    members = cluster_numbers([judged.clusters[row] for row in rows])

    def rhos(draws: Floats) -> list[Floats]:
        ratings = judged.ratings[rows]
        return [weighted_correlations(side, ratings, draws)["spearman"] for side in sides]

    def differences(draws: Floats) -> dict[str, Floats]:
        found = rhos(draws)
        return {name: rho - found[0] for name, rho in zip(variants, found, strict=True)}

    estimates = bootstrap(differences, members, 0.95, 1000, seed)
    whole = [float(rho) for (rho,) in rhos(np.ones((1, len(members))))]
    return [
        [name, cell(rho), *([cell(*estimates[name])] if i else [""])]
        for i, (name, rho) in enumerate(zip(variants, whole, strict=True))
    ]


# Alignment by embeddings


class Cosines(NamedTuple):
    """Best cosine of each token of a text with the other text, (tokens,), and content words."""

    values: Floats
    content: Floats


def cosines(samples: Samples, aspect: AspectName, layer: int | None = None) -> list[Cosines]:
    """Return the tokens of each text under MiniLM, as the paper's E compares them."""
    stop_words = read_stop_words(None)
    scorer = Alignment(aspects=[aspect], calibration=False, layer=layer)
    rows = []
    for explained in scorer.explain(samples):
        text, tokens = explained[aspect].text, explained[aspect].tokens
        values = np.array([token.value for token in tokens])
        counts = content_tokens(text, [(t.start, t.end) for t in tokens], stop_words)
        rows.append(Cosines(values, values[counts] if counts.any() else values))
    return rows


def folded(rows: Sequence[Cosines], fold: Callable[[Cosines], float]) -> Scores:
    """Return one value of each text."""
    return np.array([fold(row) for row in rows])


def dialog_variants(samples: Samples, aspect: AspectName) -> Variants:
    """Sums over content words: of cosines, and of what they have above a level."""
    rows = cosines(samples, aspect)
    chance = Alignment().loaded_model.chance  # type: ignore[union-attr]

    def above(level: float) -> Scores:
        return folded(rows, lambda r: (r.content - level).clip(0).sum())

    return {
        "sum": folded(rows, lambda r: r.content.sum()),
        "above chance": above(chance),
        "above 0.2": above(0.2),
        "above 0.5": above(0.5),
        "mean": folded(rows, lambda r: r.content.mean()),
        "number of words": folded(rows, lambda r: len(r.content)),
    }


# Faithfulness


def source_gain(samples: Samples) -> dict[str, Scores]:
    """Mean log-probability of a text after its source, and its gain over neutral texts, in nats.

    Under SmolLM2-135M; half of the neutral likelihood comes off in `BARTScore`.
    """
    model: Any = BARTScore("smollm2-135m").loaded_model
    own, neutral = after_contexts(model, samples.sources or (), samples.texts)
    half = context_gain(own, neutral)
    return {"likelihood": own, "half gain": half, "gain": own - neutral.mean(axis=1)}


def faithfulness_variants(samples: Samples) -> Variants:
    """Means of cosines over all tokens, content words, the worst words; likelihoods."""
    last, fifth = (cosines(samples, "consistency", layer) for layer in (None, 5))

    def worst(rows: Sequence[Cosines]) -> Scores:
        return folded(rows, lambda r: np.sort(r.content)[:3].mean())

    return {
        "mean": folded(last, lambda r: r.values.mean()),
        "mean, layer 5": folded(fifth, lambda r: r.values.mean()),
        "content words": folded(last, lambda r: r.content.mean()),
        "worst three words": worst(last),
        "worst three words, layer 5": worst(fifth),
        **source_gain(samples),
    }


# A name within a sentence, a number, a word.
_KINDS = (r"(?<=[a-z,] )[A-Z][a-z]{3,}", r"\b\d+\b", r"\b[a-z]{6,}\b")


def paragraphs(limit: int) -> list[tuple[str, list[str]]]:
    """Return the first sentence of paragraphs of WikiText-2, and the others."""
    found = []
    for line in local_file("wikitext2/test.txt").read_text("utf-8").splitlines():
        text = re.sub(r" @(\S)@ ", r"\1", re.sub(r" ([,.;:!?)])", r"\1", line.strip()))
        first, *others = split_sentences(text.replace(" 's", "'s")) or [""]
        if len(others) > 2 and "<unk>" not in first + others[0] and 8 <= len(first.split()) <= 40:
            found.append((first, others))
    return found[:limit]


def corrupted(seed: int = 0, limit: int = 150) -> Judged:
    """First sentences of paragraphs with the rest as the source, and each once more, corrupted.

    A name, a number or a word becomes one of another paragraph: the kinds take turns, and a
    sentence that lacks one has the next. Every fifth sentence is another paragraph's.
    """
    draw = random.Random(seed)
    pairs = [(first, " ".join(others)) for first, others in paragraphs(limit)]
    words = {kind: re.findall(kind, " ".join(first for first, _ in pairs)) for kind in _KINDS}
    texts, sources, ratings = [], [], []
    for i, (first, rest) in enumerate(pairs):
        wrong = pairs[i - 1][0]
        turn = i % len(_KINDS)
        kinds = [kind for kind in _KINDS[turn:] + _KINDS[:turn] if re.search(kind, first)]
        if i % 5 and kinds:
            word = draw.choice(list(re.finditer(kinds[0], first)))
            other = draw.choice([word for word in words[kinds[0]] if word not in first + rest])
            wrong = first[: word.start()] + other + first[word.end() :]
        texts += [first, wrong]
        sources += [rest, rest]
        ratings += [1.0, 0.0]
    return Judged(Samples(texts, sources=sources), np.array(ratings), sources)


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


PERSONA_CHAT = "ctc/persona_chat.json"
# Study → file or name of made texts → the texts, and the variants.
STUDIES: Mapping[str, Mapping[str, tuple[Callable[[], Judged], Callable[[Samples], Variants]]]] = {
    "groundedness": {
        PERSONA_CHAT: (
            partial(rated, PERSONA_CHAT, "uses_knowledge"),
            partial(dialog_variants, aspect="groundedness"),
        )
    },
    "engagingness": {
        PERSONA_CHAT: (
            partial(rated, PERSONA_CHAT, "engaging"),
            partial(dialog_variants, aspect="engagingness"),
        )
    },
    "faithfulness": {
        "ctc/qags_xsum.json": (
            partial(rated, "ctc/qags_xsum.json", "consistency"),
            faithfulness_variants,
        ),
        "first sentences of WikiText-2, corrupted": (corrupted, faithfulness_variants),
    },
    "consistency": {
        "ctrleval/data_senti.txt": (
            partial(rated, "ctrleval/data_senti.txt", "consistency"),
            continuation_variants,
        ),
        "next sentences of WikiText-2, and others": (continued, continuation_variants),
    },
}


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Run the chosen studies, all by default."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    chosen = parser.parse_args(arguments).studies or [*STUDIES]
    if unknown := {*chosen} - {*STUDIES}:
        parser.error(f"studies must be of {', '.join(STUDIES)}, got {', '.join(unknown)}")
    for study in chosen:
        for name, (read, variants) in STUDIES[study].items():
            judged = read()
            lines = compare(judged, variants(judged.samples))
            print_table(
                f"{study}: {name}, {len(judged.ratings)} texts",
                ["variant", "Spearman ρ", "difference"],
                lines,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
