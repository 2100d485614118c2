"""Pseudo-parallel sentences of two styles, made without parallel data.

The nearest sentences of the other style provide replacement words: words that both sentences share
are kept, and some or all of the others are exchanged. Judges choose among the results. This is
retrieval as in Li et al. (2018), https://arxiv.org/abs/1804.06437, with words found by alignment
instead of a list of style words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations
from math import log
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pytorch_lightning.utilities import rank_zero_info

from ctrlreward.files import json_line, read_jsonl, write_whole
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.progress import track
from ctrlreward.recipes.style_transfer import ScoringModels, Sentences
from ctrlreward.recipes.text_files import distinct_texts, matching_key
from ctrlreward.samples import Samples
from ctrlreward.scorers import TransferQuality
from ctrlreward.scorers.base import Scores, score

Rows: TypeAlias = npt.NDArray[np.int64]

_NEIGHBOURS = 64  # sentences that lend words to each
# Log odds from which on a word is one of a style. A rewriting has no word of the old style and one
# or more of the new one.
_STYLE_WORD = 1.4
_KEPT = 0.75  # smallest share of a sentence's other words that a rewriting keeps
_WINDOW = 250  # sentences whose candidates are judged at once
_LONGER = 2  # words that an exchange may add
_FINALISTS = 8  # candidates of a sentence that the language model reads


class Pair(NamedTuple):
    """A sentence, the style of its rewriting, and the rewriting."""

    source: str
    label: str
    text: str


@dataclass(frozen=True)
class PseudoPairs:
    """Sentences of two styles, each with a rewriting that judges find good.

    A sentence is rewritten by words of its nearest sentences of the other style. Of all rewritings
    that keep enough of its words, `best_rewritings` takes one; a sentence without any is left out.
    Pairs are in lower case, and each is used in both directions.

    Args:
        sentences: Sentences to rewrite. Those that lend words are all sentences of the same files,
            held-out ones excepted.
        scoring_models: Encoder, which also finds the neighbours, classifier and language model.
        file: JSON Lines file of the pairs. If it exists, the pairs are read from it.
    """

    sentences: Sentences
    scoring_models: ScoringModels
    file: str

    def make(self) -> None:
        """Write the file if it does not exist."""
        path = Path(self.file).expanduser()
        if path.is_file():
            return
        pairs = list(self._pairs())
        if not pairs:
            raise ValueError("no rewriting has a GM above 0. Use thresholds that fit the judges.")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(json_line(pair._asdict()) for pair in pairs))
        rank_zero_info(f"{path}: {len(pairs)} pairs of {2 * self.sentences.count} sentences")

    def samples(self) -> Samples:
        """Return each pair of the file in both directions: prompts with `references`."""
        pairs = [Pair(**row) for row in read_jsonl(Path(self.file).expanduser())]
        first, second = self.sentences.files
        other = {first: second, second: first}
        pairs += [Pair(pair.text, other[pair.label], pair.source) for pair in pairs]
        prompts = self.sentences.prompts_for([(p.source, other[p.label]) for p in pairs])
        return prompts.replace(references=[pair.text for pair in pairs])

    def _pairs(self) -> Iterator[Pair]:
        own, quality = self.sentences, self.scoring_models.quality()
        texts: dict[str, list[str]] = {}
        for style, file in own.files.items():
            lines = distinct_texts([file], own.exclude, own.words)
            texts[style] = list(dict.fromkeys(map(matching_key, lines)))
        first, second = texts
        odds = word_log_odds(*texts.values())
        words = {
            first: {word for word, value in odds.items() if -value >= _STYLE_WORD},
            second: {word for word, value in odds.items() if value >= _STYLE_WORD},
        }
        prompts = own.prompts()
        rows = [*zip(prompts.sources or (), prompts.labels or (), strict=True)]

        def embedded(sentences: Sequence[str]) -> npt.NDArray[np.float32]:
            # Float32: a product of all sentences with a window of others is large.
            vectors = quality.similarity.loaded_model.embed(sentences)
            return np.nan_to_num(vectors).astype(np.float32)

        with track("pseudo-pairs", len(rows), "sentences") as advance:
            for old, new in ((first, second), (second, first)):
                sources = [matching_key(source) for source, label in rows if label == new]
                lenders, vectors = texts[new], embedded(texts[new])
                count = min(_NEIGHBOURS, len(lenders))
                for start in range(0, len(sources), _WINDOW):
                    window = sources[start : start + _WINDOW]
                    cosines = embedded(window) @ vectors.T
                    near = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
                    candidates = [
                        {
                            text: support
                            for text, support in rewritings(s, [lenders[i] for i in places]).items()
                            if _exchanges(s, text, words[old], words[new])
                        }
                        for s, places in zip(window, near.tolist(), strict=True)
                    ]
                    best = best_rewritings(window, candidates, new, quality)
                    yield from (Pair(source, new, text) for source, text in best.items())
                    advance(len(window))
        quality.release()


def _exchanges(source: str, text: str, old: set[str], new: set[str]) -> bool:
    """Return whether a rewriting has the style words of the new style, and the other words."""
    kept = Counter(text.split())
    if not (old.isdisjoint(kept) and new & kept.keys()):
        return False
    others = Counter(word for word in source.split() if word not in old)
    return (others & kept).total() >= _KEPT * others.total()


def word_log_odds(first: Sequence[str], second: Sequence[str]) -> dict[str, float]:
    """Return by how much likelier a sentence of the second corpus has a word, as a logarithm.

    The log of the ratio of the shares of sentences that have it, each with one sentence with and
    one without it added. Words are separated by spaces.

    Examples:
        >>> odds = word_log_odds(["cold soup"] * 8, ["warm soup"] * 8)
        >>> {word: round(value, 2) for word, value in odds.items()}
        {'cold': -2.2, 'soup': 0.0, 'warm': 2.2}
    """
    counts = [
        Counter(w for text in corpus for w in dict.fromkeys(text.split()))
        for corpus in (first, second)
    ]
    shares = [
        {word: (found[word] + 1) / (len(corpus) + 2) for word in counts[0] | counts[1]}
        for found, corpus in zip(counts, (first, second), strict=True)
    ]
    return {word: log(shares[1][word] / share) for word, share in shares[0].items()}


def rewritings(source: str, lenders: Sequence[str]) -> Counter[str]:
    """Return the source with some of its words exchanged for words of other sentences.

    Source and lender are aligned word by word. Where they differ, all places, each place, or each
    two places are exchanged, except where the lender has three words more or longer: these run two
    sentences together. Each rewriting has the number of lenders that lead to it.

    Examples:
        >>> lenders = ["the soup was warm .", "the bread was warm ."]
        >>> sorted(rewritings("the soup was cold .", lenders).items())
        [('the bread was cold .', 1), ('the bread was warm .', 1), ('the soup was warm .', 2)]
    """
    words = source.split()
    found: Counter[str] = Counter()
    for lender in lenders:
        lent = lender.split()
        spans = SequenceMatcher(None, words, lent, autojunk=False).get_opcodes()
        places = [
            i
            for i, (kind, start, end, lent_start, lent_end) in enumerate(spans)
            if kind != "equal" and lent_end - lent_start <= end - start + _LONGER
        ]
        if not places or len(places) == len(spans):
            continue  # nothing to exchange, or nothing in common
        choices = [tuple(places), *((place,) for place in places), *combinations(places, 2)]
        texts = set()
        for chosen in dict.fromkeys(choices):
            text: list[str] = []
            for i, (_, start, end, lent_start, lent_end) in enumerate(spans):
                text += lent[lent_start:lent_end] if i in chosen else words[start:end]
            texts.add(" ".join(text))
        found.update(sorted(texts - {source}))
    return found


def best_rewritings(
    sources: Sequence[str],
    candidates: Sequence[Mapping[str, int]],
    label: str,
    quality: TransferQuality,
) -> Mapping[str, str]:
    """Return the rewriting of each source with the best GM · (1 + log lenders).

    `candidates` has a mapping for each source: rewriting, of style `label` → number of lenders,
    whose agreement is rarely an accident. Sources without a GM above 0 are left out. The language
    model, the slowest judge, reads the candidates that are best by the other two.
    """
    texts = [text for row in candidates for text in row]
    support = np.array([1 + log(count) for row in candidates for count in row.values()])
    if not texts:
        return {}
    owner = np.repeat(np.arange(len(sources)), [len(row) for row in candidates])
    pairs = Samples(
        texts, sources=[sources[i] for i in owner.tolist()], labels=[label] * len(texts)
    )
    style = quality.accuracy["label_probability"]
    judged = score({"style": style, "content": quality.similarity["similarity"]}, pairs).warned()
    t1, t2, _, _ = quality.thresholds
    over = [np.nan_to_num(100 * judged["style"] - t1), np.nan_to_num(100 * judged["content"] - t2)]
    # GM is a cube root, so that support counts as in the choice among finalists.
    promise = np.maximum(over[0], 0) * np.maximum(over[1], 0) * support**3
    finalists = _best_of_each(owner, promise, _FINALISTS)
    if not len(finalists):
        return {}
    fluency = {"fluency": quality.perplexity["perplexity"]}
    perplexity = score(fluency, pairs[finalists.tolist()]).warned()
    parts = (judged["style"][finalists], judged["content"][finalists], perplexity["fluency"])
    gm = np.nan_to_num(adjusted_gm(*parts, thresholds=quality.thresholds))
    winners = finalists[_best_of_each(owner[finalists], gm * support[finalists], 1)]
    return {sources[owner[i]]: texts[i] for i in winners.tolist()}


def _best_of_each(owner: Rows, values: Scores, count: int) -> Rows:
    """Return the rows with the largest values above 0 of each owner."""
    order = np.lexsort((-values, owner))
    first = np.searchsorted(owner[order], owner[order])
    rank = np.arange(len(order)) - first
    return order[(rank < count) & (values[order] > 0)]
