"""Paraphrase pairs of eq. 5: from a file, or a stand-in made from the training sentences."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from pytorch_lightning.utilities import rank_zero_info

from ctrlreward.models.words import separate_words
from ctrlreward.recipes.style_transfer.pseudo_pairs import word_log_odds
from ctrlreward.recipes.text_files import read_lines
from ctrlreward.samples import shortened

Pair = tuple[str, str]

# Pairs for each training sentence: the paper has 90,000 for the 447,000 of Yelp.
_SHARE = 0.2


@dataclass(frozen=True)
class Paraphrases:
    """Paraphrase pairs ⟨u, v⟩ of the loss of eq. 5 of Pang & Gimpel (2019).

    The paper takes them from ParaNMT-50M: pairs in which neither sentence contains the other, then
    90,000 at random. `file` is read in the same way. Without a file, a stand-in is made of the
    training sentences by `rewrite`, whose rules are for English. Equation 5 decodes each
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
            raise ValueError(f"count must be 1 or more, got {self.count}")

    def pairs(self, *sentences: Sequence[str]) -> list[Pair]:
        """Return the pairs, in lower case and tokenized; their number and three are logged.

        Args:
            *sentences: Training sentences of each style, for the stand-in.

        Raises:
            ValueError: A line of the file lacks a tab, has an empty side, or no pair is left.
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
                f"{source}: there is no pair in which neither sentence contains the other, must "
                "have lines u<TAB>v"
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
                f"{file}, line {number}: {shortened(line.strip())} is not a pair, must be two "
                "sentences with a tab between them"
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


# Interchangeable phrases; with `>`, only the second for the first. Tokenized, lower case. None that
# has a second common sense in the same place ("happy hour", "really liked").
_PHRASES = files(__package__).joinpath("phrases.txt").read_text("utf-8")

_AUXILIARIES = "do|does|did|is|are|was|were|has|have|had|would|could|should"
_SUBJECTS = "i|you|he|she|it|we|they"
# After `'s`, these say that it is `has`.
_PARTICIPLES = "been|got|gone|had|become|changed|always been|never been"
# A form and its replacement; none where a question needs it ("did n't we").
_CONTRACTIONS: list[tuple[str, str]] = [
    (rf"({_AUXILIARIES}) n't(?! (?:{_SUBJECTS}|the)\b)", r"\1 not"),
    (rf"({_AUXILIARIES}) not(?! only\b)", r"\1 n't"),
    (rf"ca n't(?! (?:{_SUBJECTS})\b)", "can not"),
    (r"(?:can not|cannot)(?! only\b)", "ca n't"),
    (rf"wo n't(?! (?:{_SUBJECTS})\b)", "will not"),
    (r"will not(?! only\b)", "wo n't"),
    (r"i 'm", "i am"),
    (r"i am(?= \w)", "i 'm"),
    (r"(you|we|they) 're", r"\1 are"),
    (r"(you|we|they) are(?= \w)", r"\1 're"),
    (rf"({_SUBJECTS}) 'll", r"\1 will"),
    (rf"({_SUBJECTS}) will(?= \w)(?! not\b)", r"\1 'll"),
    (r"(i|you|we|they) 've", r"\1 have"),
    (r"(i|you|we|they) have(?= (?:been|never|had|ever|tried|eaten)\b)", r"\1 've"),
    (rf"(it|that|there) 's(?! (?:{_PARTICIPLES})\b)", r"\1 is"),
    (r"(it|that|there) is(?= \w)", r"\1 's"),
]

# Two main clauses of which the second does not refer to the first.
_REST = r"(?:(?!(?:and|but|or|so|then|which|that|,) )\S+ ){2,}"
_TWO_CLAUSES = re.compile(
    rf"((?:i|we|you|my|our|the|this) {_REST})(, )?and ((?:my|our|the|this) {_REST})([.!])"
)


def rewrite(text: str, random_: random.Random) -> str:
    """Return a tokenized lower-case text with phrases, contractions and clauses exchanged.

    Every rule that applies is applied; of several alternatives of a phrase, a random one is
    taken. A text to which none applies is returned unchanged.

    Examples:
        >>> import random
        >>> rewrite("we did n't wait and the staff was very nice .", random.Random(0))
        'the team was really pleasant and we did not wait .'
    """
    text = _CONTRACTION.sub(_other_form, text)
    text = _PHRASE.sub(lambda match: _other_phrase(match, random_), text)
    clauses = _TWO_CLAUSES.fullmatch(text)
    if clauses is None:
        return text
    first, comma, second, end = clauses.groups()
    return f"{second}{comma or ''}and {first}{end}"


def _alternatives() -> dict[str, list[str]]:
    """Return the alternatives of each phrase."""
    found: dict[str, list[str]] = {}
    for entry in _PHRASES.strip().replace("\n", ";").split(";"):
        phrases = [phrase.strip() for phrase in re.split("[>=]", entry)]
        for phrase in phrases if "=" in entry else phrases[:1]:
            found.setdefault(phrase, []).extend(other for other in phrases if other != phrase)
    return found


def _any_of(patterns: Iterable[str], before: str = "") -> re.Pattern[str]:
    return re.compile(rf"(?<!\S){before}(?:{'|'.join(patterns)})(?!\S)")


_RULES = [(_any_of([pattern]), form) for pattern, form in _CONTRACTIONS]
_CONTRACTION = _any_of(pattern for pattern, _ in _CONTRACTIONS)
_ALTERNATIVES = _alternatives()
_LONGEST_FIRST = sorted(map(re.escape, _ALTERNATIVES), key=len, reverse=True)
_PHRASE = _any_of(_LONGEST_FIRST, "(?P<article>an? )?")


def _other_form(found: re.Match[str]) -> str:
    matches = (rule.match(found.string, found.start()) for rule, _ in _RULES)
    return next(m.expand(form) for m, (_, form) in zip(matches, _RULES, strict=True) if m)


def _other_phrase(found: re.Match[str], random_: random.Random) -> str:
    article = found["article"] or ""
    phrase = random_.choice(_ALTERNATIVES[found[0].removeprefix(article)])
    if article:
        article = "an " if phrase[0] in "aeiou" else "a "
    return article + phrase
