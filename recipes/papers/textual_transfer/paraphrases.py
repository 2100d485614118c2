"""Paraphrase pairs of eq. 5: from a file, or a stand-in made from the training sentences."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from pytorch_lightning.utilities import rank_zero_info

from ctrlreward.models.words import separate_words
from ctrlreward.recipes.style_transfer.pseudo_pairs import word_log_odds
from ctrlreward.recipes.text_files import read_lines

Pair = tuple[str, str]

_SHARE = 0.2  # pairs for each training sentence: the paper has 90,000 for the 447,000 of Yelp


def paraphrase_pairs(
    file: str | None, *sentences: Sequence[str], count: int = 90_000, seed: int = 0
) -> list[Pair]:
    """Return paraphrase pairs ⟨u, v⟩, in lower case and tokenized, at most `count` at random.

    The paper takes 90,000 pairs of ParaNMT-50M in which neither sentence contains the other. A file
    of `u ⇥ v` lines is read in the same way; further columns are not read. Without one, a stand-in
    is made of the training sentences of both styles by `rewrite`, whose rules are for English.
    Equation 5 decodes each v in both styles, so that a v with the words of one style would teach
    the other style to write them. So the stand-in has the pairs whose words are on average most
    equally frequent in both styles, one for every five training sentences as in the paper.
    """
    draws = random.Random(seed)
    if file is not None:
        # Streams the file: ParaNMT-50M need not fit into memory.
        pairs = heapq.nsmallest(count, filter(_apart, _read(file)), lambda pair: draws.random())
    else:
        texts = [text for corpus in sentences for text in corpus]
        rewritten = [(text, rewrite(text, draws)) for text in draws.sample(texts, len(texts))]
        odds = word_log_odds(*sentences)

        def one_sided(pair: Pair) -> float:
            """Return the mean absolute log odds of the words, of the worse side."""
            sides = ([abs(odds.get(word, 0.0)) for word in text.split()] for text in pair)
            return max(sum(side) / len(side) for side in sides)

        most = min(count, max(1, round(_SHARE * len(texts))))
        pairs = sorted(filter(_apart, rewritten), key=one_sided)[:most]
        pairs = draws.sample(pairs, len(pairs))
    source = file or "rewritten training sentences"
    if not pairs:
        raise ValueError(f"{source} must have pairs of which neither sentence contains the other")
    shown = "; ".join(f"{u} → {v}" for u, v in pairs[:3])
    rank_zero_info(f"{len(pairs)} paraphrase pairs from {source}: {shown}")
    return pairs


def _read(file: str) -> Iterator[Pair]:
    for number, line in enumerate(read_lines([file]), 1):
        if line.strip():
            u, v, *_ = (separate_words(column) for column in f"{line}\t".split("\t"))
            if not u or not v:
                raise ValueError(f"{file}:{number} must be two sentences with a tab between them")
            yield u, v


def _apart(pair: Pair) -> bool:
    return pair[0] not in pair[1] and pair[1] not in pair[0]


_AUXILIARIES = "do|does|did|is|are|was|were|has|have|had|would|could|should"
_SUBJECTS = "i|you|he|she|it|we|they"
# A form and its replacement; none where a question needs it ("did n't we"). After `'s`, a
# participle says that it is `has`.
_CONTRACTIONS = [
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
    (r"(it|that|there) 's(?! (?:been|got|gone|had|become|changed|always been|never been)\b)",
     r"\1 is"),
    (r"(it|that|there) is(?= \w)", r"\1 's"),
]  # fmt: skip
_RULES = [(re.compile(rf"(?<!\S)(?:{form})(?!\S)"), other) for form, other in _CONTRACTIONS]
_CONTRACTION = re.compile(rf"(?<!\S)(?:{'|'.join(form for form, _ in _CONTRACTIONS)})(?!\S)")

# Two main clauses of which the second does not refer to the first.
_REST = r"(?:(?!(?:and|but|or|so|then|which|that|,) )\S+ ){2,}"
_TWO_CLAUSES = re.compile(
    rf"((?:i|we|you|my|our|the|this) {_REST})(, )?and ((?:my|our|the|this) {_REST})([.!])"
)

# Interchangeable phrases; with `>`, only the second for the first. Tokenized, lower case. None that
# has a second common sense in the same place ("happy hour", "really liked").
_ALTERNATIVES: dict[str, list[str]] = {}
for entry in re.split("[;\n]", files(__package__).joinpath("phrases.txt").read_text("utf-8")):
    phrases = [phrase.strip() for phrase in re.split("[>=]", entry) if phrase.strip()]
    for phrase in phrases if "=" in entry else phrases[:1]:
        _ALTERNATIVES.setdefault(phrase, []).extend(p for p in phrases if p != phrase)
_LONGEST_FIRST = sorted(map(re.escape, _ALTERNATIVES), key=len, reverse=True)
_PHRASE = re.compile(rf"(?<!\S)(?P<article>an? )?(?:{'|'.join(_LONGEST_FIRST)})(?!\S)")


def rewrite(text: str, draws: random.Random) -> str:
    """Return a tokenized lower-case text with phrases, contractions and clauses exchanged.

    Every rule that applies is applied; of several alternatives of a phrase, a random one is
    taken. A text to which none applies is returned unchanged.

    Examples:
        >>> import random
        >>> rewrite("we did n't wait and the staff was very nice .", random.Random(0))
        'the team was really pleasant and we did not wait .'
    """

    def other_form(found: re.Match[str]) -> str:
        matches = ((rule.match(text, found.start()), form) for rule, form in _RULES)
        return next(match.expand(form) for match, form in matches if match)

    def other_phrase(found: re.Match[str]) -> str:
        article = found["article"] or ""
        phrase = draws.choice(_ALTERNATIVES[found[0].removeprefix(article)])
        return ("an " if phrase[0] in "aeiou" else "a ") * bool(article) + phrase

    text = _PHRASE.sub(other_phrase, _CONTRACTION.sub(other_form, text))
    clauses = _TWO_CLAUSES.fullmatch(text)
    if clauses is None:
        return text
    first, comma, second, end = clauses.groups()
    return f"{second}{comma or ''}and {first}{end}"
