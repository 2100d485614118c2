"""AUC of coherence and consistency with and without the gain over a neutral context.

    python benchmarks/studies/context_gain.py [--sets own wikitext novels outputs ratings]
        [--texts 40] [--model smollm2-135m]

Texts of four sources, and versions of them that are worse by construction:

- own: the passages of `ctrlreward.text.passages`, and their topics;
- wikitext: paragraphs of WikiText-2, a topic is an article; novels: passages of two novels of
  Dickens, a topic is a novel; both begin with a prefix of four words;
- outputs: released outputs of PriorCTG with a topic, whose prefixes say little about it.

Coherence should be higher than with the sentences shuffled, or with one from another topic in
place of one. Consistency of a prefix and its own remainder should be higher than with the remainder
of another text of the topic or of another topic, or with some neighbouring words of the remainder
exchanged. Prints the AUC of each score without the gain
(`functional.calibration.context_gain`), and by how much the gain changes it, with a 95 % interval
over the texts: in all patterns, in one direction of consistency, and of that direction alone.
`CTRLEval` has the gain in coherence and, of consistency, in `prefix | remainder`. `ratings` are
the sentiment texts of the paper, with Kendall's τ instead, and intervals over the prefixes.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau

from ctrlreward import CTRLEval
from ctrlreward.data import data_folder, local_file
from ctrlreward.functional import Estimate, auc, paired_auc_bootstrap
from ctrlreward.functional.calibration import context_gain
from ctrlreward.functional.ctrleval import weighted_mean
from ctrlreward.models import tasks
from ctrlreward.models.tasks import Blank
from ctrlreward.scorers.ctrleval import coherence_blanks, consistency_blanks, neutral_blank
from ctrlreward.text.neutral_texts import neutral_texts
from ctrlreward.text.passages import Passage, passages
from ctrlreward.text.sentences import find_splitter

SENTENCES = 4  # of a passage: the cost of coherence grows with the square
PREFIX_WORDS = 4
EXCHANGED = 20  # one pair of neighbouring words in so many
CONTEXTS = neutral_texts()[:2]

split = find_splitter(None)


class Patterns(NamedTuple):
    """Pattern scores of one text without and with the gain, and weights, shape (patterns,)."""

    plain: np.ndarray
    gained: np.ndarray
    weights: np.ndarray


def paragraphs(text: str, topic: str) -> list[Passage]:
    """Return the first sentences of each paragraph that has enough of them."""
    found = []
    for paragraph in text.split("\n"):
        sentences = split(paragraph.strip())[:SENTENCES]
        short = " ".join(sentences)
        if len(sentences) >= 3 and len(short) < 700:
            words = short.split(" ")
            prefix = " ".join(words[:PREFIX_WORDS])
            found.append(Passage(topic, prefix, " ".join(words[PREFIX_WORDS:])))
    return found


def wikitext() -> list[Passage]:
    """Return paragraphs without unknown words, as they are usually written, by article."""
    text = local_file("wikitext2/valid.txt").read_text(encoding="utf-8")
    text += local_file("wikitext2/test.txt").read_text(encoding="utf-8")
    found = []
    for article in re.split(r"\n = (?==)?(?=[^=]+ = \n)", text):
        kept = [p for p in article.split("\n") if "<unk>" not in p and "=" not in p]
        plain = re.sub(r" @(.)@ ", r"\1", "\n".join(kept))
        plain = re.sub(r" ([.,;:!?)]|'s|n't)", r"\1", plain).replace("( ", "(")
        plain = re.sub(r'" ([^"]*) "', r'"\1"', plain)
        found += paragraphs(plain, article.partition("\n")[0])
    return found


def novels() -> list[Passage]:
    """Return runs of sentences from the middle of two novels."""
    found = []
    for name in ("Expectations_1861", "Oliver_1839"):
        text = (data_folder() / f"literature/Dickens_{name}.txt").read_text(encoding="utf-8")
        sentences = split(" ".join(text[400_000:450_000].split()))
        runs = [sentences[i : i + SENTENCES] for i in range(1, len(sentences) - SENTENCES, 6)]
        found += paragraphs("\n".join(map(" ".join, runs)), name)
    return found


def outputs() -> list[Passage]:
    """Return outputs of PriorCTG with a topic; few have two whole sentences."""
    with (data_folder() / "prompts35.csv").open(encoding="utf-8") as file:
        prompts = [row["prompt"] for row in csv.DictReader(file)]
    found = []
    for line in local_file("multicontrol/generate_prior.txt").read_text("utf-8").splitlines():
        (_, topic, _), text = json.loads(line)
        prefix = max((p for p in prompts if text.startswith(f"{p} ")), key=len, default="")
        if topic >= 0 and prefix:
            found.append(Passage(str(topic), prefix, text[len(prefix) :].strip()))
    return found


SOURCES = {"own": passages, "wikitext": wikitext, "novels": novels, "outputs": outputs}


def others(one: Passage, written: Sequence[Passage]) -> tuple[list[Passage], list[Passage]]:
    """Return the passages with another prefix: of the same topic, and of other topics."""
    foreign = [p for p in written if p.prefix != one.prefix]
    same = [p for p in foreign if p.topic == one.topic]
    return same, [p for p in foreign if p.topic != one.topic]


def versions(written: Sequence[Passage], count: int) -> dict[str, dict[str, list[list[Blank]]]]:
    """Return the blanks of each text by aspect and version; the first version is the best."""
    draw, exchanged = random.Random(0), random.Random(1)
    usable = [p for p in written if others(p, written)[0]]
    coherence: dict[str, list[list[Blank]]] = {"intact": [], "shuffled": [], "foreign sentence": []}
    consistency: dict[str, list[list[Blank]]] = {
        "own": [],
        "same topic": [],
        "another topic": [],
        "words exchanged": [],
    }
    for one in draw.sample(usable, min(count, len(usable))):
        same, other = map(draw.choice, others(one, written))
        words = one.remainder.split()
        for i in exchanged.sample(range(0, len(words) - 1, 2), len(words) // EXCHANGED):
            words[i : i + 2] = words[i + 1], words[i]
        remainders = one.remainder, same.remainder, other.remainder, " ".join(words)
        for version, remainder in zip(consistency, remainders, strict=True):
            blanks = consistency_blanks(f"{one.prefix} {remainder}", one.prefix)
            consistency[version].append(blanks)
        sentences = split(one.text)
        if len(sentences) < 3 or len(split(other.text)) < 3:  # nothing to put in order
            continue
        shuffled, foreign = list(sentences), list(sentences)
        while shuffled == sentences:
            draw.shuffle(shuffled)
        foreign[draw.randrange(1, len(foreign))] = draw.choice(split(other.text)[1:])
        for version, kept in zip(coherence, (sentences, shuffled, foreign), strict=True):
            coherence[version].append(coherence_blanks(kept))
    return {"consistency": consistency, "coherence": coherence}


def pattern_scores(scorer: CTRLEval, texts: Sequence[Sequence[Blank]]) -> list[Patterns]:
    """Score the patterns of each text."""
    blanks = [blank for text in texts for blank in text]
    twins = [neutral_blank(blank, context) for blank in blanks for context in CONTEXTS]
    found = scorer.loaded_model.answer([tasks.Patterns((blank,)) for blank in (*blanks, *twins)])
    means = np.array([each.means.item() for each in found])
    plain = means[: len(blanks)]
    gained = context_gain(plain, means[len(blanks) :].reshape(len(blanks), -1))
    weights = np.array([scorer.iwf.sentence_weight(t.ids) for t in found[: len(blanks)]])
    ends = np.cumsum([len(text) for text in texts])[:-1]
    parts = (np.split(values, ends) for values in (plain, gained, weights))
    return [Patterns(*one) for one in zip(*parts, strict=True)]


def by_score(aspect: str, texts: Sequence[Patterns]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each score of the texts without and with the gain; consistency by direction too."""

    def means(scores: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([weighted_mean(s, t.weights) for s, t in zip(scores, texts, strict=True)])

    plain, gained = [t.plain for t in texts], [t.gained for t in texts]
    found = {aspect: (means(plain), means(gained))}
    if aspect == "consistency":
        for i, direction in enumerate(("remainder | prefix", "prefix | remainder")):
            mixed = [p.copy() for p in plain]
            for part, values in zip(mixed, gained, strict=True):
                part[i] = values[i]
            found[direction] = (np.array([p[i] for p in plain]), np.array([g[i] for g in gained]))
            found[f"both, gain of {direction}"] = (found[aspect][0], means(mixed))
    return found


def row(source: str, version: str, score: str, before: float, gain: Estimate) -> None:
    """Print one line."""
    print(
        f"{source:9s} {version:17s} {score:34s} {before:6.3f}   {gain.value:+.3f} "
        f"({gain.low:+.3f} to {gain.high:+.3f})",
        flush=True,
    )


def compare(scorer: CTRLEval, source: str, count: int) -> None:
    """Print the AUC of each aspect and version of one source."""
    for aspect, kinds in versions(SOURCES[source](), count).items():
        if source == "outputs" and aspect == "coherence":  # most end within their first sentences
            continue
        scored = {k: pattern_scores(scorer, texts) for k, texts in kinds.items()}
        best, *worse = scored
        for kind in worse:
            texts = [*scored[best], *scored[kind]]
            size = len(texts) // 2
            positive = np.repeat([True, False], size)
            for score, (before, after) in by_score(aspect, texts).items():
                gain = paired_auc_bootstrap(
                    before, after, positive, [*range(size), *range(size)], resamples=2000
                )
                row(source, kind, score, auc(before, positive), gain)


def tau_gain(
    before: np.ndarray, after: np.ndarray, ratings: np.ndarray, clusters: Sequence[Hashable]
) -> Estimate:
    """Return the difference of Kendall's τ with its interval over clusters."""
    members = [np.flatnonzero(np.array(clusters) == c) for c in dict.fromkeys(clusters)]
    draw = np.random.default_rng(0)

    def gain(rows: np.ndarray) -> float:
        after_tau, before_tau = (
            kendalltau(s[rows], ratings[rows]).statistic for s in (after, before)
        )
        return float(after_tau - before_tau)

    draws = [
        gain(np.concatenate([members[i] for i in draw.integers(len(members), size=len(members))]))
        for _ in range(1000)
    ]
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(gain(np.arange(len(ratings))), float(low), float(high))


def compare_ratings(scorer: CTRLEval) -> None:
    """Print Kendall's τ with the ratings of the paper's sentiment texts."""
    lines = local_file("ctrleval/data_senti.txt").read_text(encoding="utf-8").splitlines()
    rated = [line.split("\t") for line in lines if line.strip()]
    prefixes = [r[1] for r in rated]
    kinds = {
        "consistency": ([consistency_blanks(r[2], r[1]) for r in rated], 4),
        "coherence": ([coherence_blanks(split(r[2])) for r in rated], 3),
    }
    for aspect, (texts, column) in kinds.items():
        ratings = np.array([float(r[column]) for r in rated])
        scored = pattern_scores(scorer, texts)
        for score, (before, after) in by_score(aspect, scored).items():
            tau = float(kendalltau(before, ratings).statistic)
            row("ratings", "tau", score, tau, tau_gain(before, after, ratings, prefixes))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--texts", type=int, default=40, help="texts per source")
    parser.add_argument("--sets", nargs="+", default=[*SOURCES, "ratings"])
    options = parser.parse_args()
    scorer = CTRLEval(options.model, dtype=options.dtype, calibration=False)
    print(f"{'texts':9s} {'against':17s} {'score':34s} without  gain (95 % interval)")
    for name in options.sets:
        if name == "ratings":
            compare_ratings(scorer)
        else:
            compare(scorer, name, options.texts)


if __name__ == "__main__":
    main()
