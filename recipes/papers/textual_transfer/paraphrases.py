"""Paraphrase pairs of eq. 5: from a file, or a stand-in made from the training sentences."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytorch_lightning.utilities import rank_zero_info

from ctrlreward.columns import shortened
from ctrlreward.recipes.papers.textual_transfer.rewriting import rewrite
from ctrlreward.recipes.style_transfer.style_words import word_log_odds
from ctrlreward.recipes.text_files import read_lines
from ctrlreward.text.separation import separate_words

Pair = tuple[str, str]

# Pairs for each training sentence: the paper has 90,000 for the 447,000 of Yelp.
_SHARE = 0.2


@dataclass(frozen=True)
class Paraphrases:
    """Paraphrase pairs ⟨u, v⟩ of the loss of eq. 5 of Pang & Gimpel (2019).

    The paper takes them from ParaNMT-50M: those of which neither sentence contains the other, then
    90,000 at random. `file` is read in the same way. Without a file, a stand-in is made of the
    training sentences by `rewriting.rewrite`, whose rules are for English. Equation 5 decodes each
    v in both styles, so that a v with the words of one style would teach the other style to write
    them; ParaNMT's sentences have few such words. The stand-in therefore has the pairs whose words
    are on average most equally frequent in both styles, one for every five training sentences as in
    the paper.

    Args:
        file: File of one pair per line, `u<TAB>v`; further columns, such as ParaNMT's scores, are
            not read. None for the stand-in.
        count: Largest number of pairs.
        seed: Seed of the choice of pairs and of their phrases.

    Raises:
        ValueError: `count` is below 1.
    """

    file: str | None = None
    count: int = 90_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count = {self.count}: give 1 or more")

    def pairs(self, *sentences: Sequence[str]) -> list[Pair]:
        """Return the pairs, in lower case and tokenized; their number and three are logged.

        Args:
            *sentences: Training sentences of each style, for the stand-in.

        Raises:
            ValueError: A line of the file has no tab or an empty side, or no pair is left.
        """
        draws = random.Random(self.seed)
        if self.file is not None:
            apart = (pair for pair in _read_pairs(self.file) if _neither_contains_the_other(pair))
            # Streams the file: ParaNMT-50M need not fit into memory.
            found = heapq.nsmallest(self.count, apart, key=lambda pair: draws.random())
            source = self.file
        else:
            found = _neutral_pairs(sentences, self.count, draws)
            source = "rewritten training sentences, in place of a file of paraphrases"
        if not found:
            raise ValueError(
                f"{source}: no pair of which neither sentence contains the other; give a file of "
                "lines u<TAB>v"
            )
        shown = "; ".join(f"{u} → {v}" for u, v in found[:3])
        rank_zero_info(f"{len(found)} paraphrase pairs from {source}: {shown}")
        return found


def _read_pairs(file: str) -> Iterator[Pair]:
    for number, line in enumerate(read_lines([file]), 1):
        if not line.strip():
            continue
        u, v, *_ = (separate_words(column) for column in f"{line}\t".split("\t"))
        if not u or not v:
            raise ValueError(
                f"{file}, line {number}: {shortened(line.strip())} is no pair: write two sentences "
                "with a tab between them"
            )
        yield u, v


def _neither_contains_the_other(pair: Pair) -> bool:
    u, v = pair
    return u not in v and v not in u


def _neutral_pairs(
    corpora: Sequence[Sequence[str]], count: int, draws: random.Random
) -> list[Pair]:
    """Rewrite sentences and return the pairs whose words occur about equally in both corpora."""
    texts = [text for corpus in corpora for text in corpus]
    pairs = [(text, rewrite(text, draws)) for text in draws.sample(texts, len(texts))]
    pairs = [pair for pair in pairs if _neither_contains_the_other(pair)]
    if len(corpora) == 2:
        odds = word_log_odds(*corpora)
        pairs.sort(key=lambda pair: max(_mean_of(odds, text) for text in pair))
    most = min(count, max(1, round(_SHARE * len(texts))))
    return draws.sample(pairs[:most], len(pairs[:most]))


def _mean_of(odds: dict[str, float], text: str) -> float:
    """Return the mean absolute log odds of the words of a text; unknown words count as 0."""
    words = text.split()
    return sum(abs(odds.get(word, 0.0)) for word in words) / len(words)
