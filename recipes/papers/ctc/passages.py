"""Labelled pairs from running text, without a model: sentences against the passage around them.

A summary describes the subject of a document in other words, and a hallucinated name occurs in a
fluent sentence. Sentences taken out of their passage have both properties: the rest of the passage
supports some of their words and not others, and all are fluent.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ctrlreward.models.sentences import split_sentences
from ctrlreward.models.stop_words import ENGLISH_STOP_WORDS
from ctrlreward.recipes.papers.ctc.labelled_pairs import AlignmentPair, Span, edit_lightly
from ctrlreward.recipes.papers.textual_transfer.running_text import split_paragraphs
from ctrlreward.recipes.text_files import WORD, read_lines

# Placeholder of rare words in WikiText; sentences are readable without it.
_RARE = re.compile(r"\s*<unk>")
_NAME = r"[A-Z]\w*(?:['’\-]\w+)*"
# Units of replacement: names in a row, a number, or a word.
_UNIT = re.compile(rf"{_NAME}(?: {_NAME})*|\d[\d,.]*\d|{WORD.pattern}")
_ENDINGS = ("ing", "ed", "ly", "s")


def read_passages(
    files: Sequence[str], words: tuple[int, int], count: int, seed: int
) -> list[list[str]]:
    """Return passages of running text, such as WikiText and novels, as their sentences.

    Paragraphs are read by `split_paragraphs`, and `<unk>` is left out. A passage ends at the end of
    its paragraph, or at a length that is drawn for it; none overlaps another.

    Args:
        files: Files of running text.
        words: Smallest and largest number of words of a passage.
        count: Number of passages.
        seed: Seed of their lengths, choice and order.

    Raises:
        ValueError: The files contain fewer passages.
    """
    random_ = random.Random(seed)
    found: list[list[str]] = []
    for file in files:
        for paragraph in split_paragraphs(_RARE.sub("", "".join(read_lines([file])))):
            passage: list[str] = []
            length, longest = 0, random_.randint(*words)
            for sentence in split_sentences(paragraph):
                size = len(WORD.findall(sentence))
                if length + size > longest:
                    if length >= words[0]:
                        found.append(passage)
                    passage, length, longest = [], 0, random_.randint(*words)
                passage.append(sentence)
                length += size
            if words[0] <= length <= words[1]:
                found.append(passage)
    if len(found) < count:
        raise ValueError(
            f"{', '.join(files)}: {len(found)} passages of {words[0]} to {words[1]} words, fewer "
            f"than {count}. Add files, or use a smaller number."
        )
    return random_.sample(found, count)


@dataclass(frozen=True)
class PassagePairs:
    """Pairs of a few sentences and their passage.

    In half of the pairs the context lacks the sentences: content words that it contains are
    supported, names and numbers that it lacks are hallucinated, and the other words have no label.
    In the other half it contains them, and they are edited lightly. In both, content words that the
    supports are then replaced by others of the same form, from other passages.

    Args:
        texts: Files of running text, as `read_passages` reads them.
        count: Number of passages, one pair each.
        words: Smallest and largest number of words of a passage.
        sentences: Smallest and largest number of sentences of a text.
        replaced: Smallest and largest share of the supported content words that are replaced.
        lower: Share of the pairs in lower case.
        seed: Seed of all choices.

    Raises:
        ValueError: `count` or a range is out of range.
    """

    texts: list[str]
    count: int
    words: tuple[int, int] = (80, 260)
    sentences: tuple[int, int] = (1, 2)
    replaced: tuple[float, float] = (0.0, 0.5)
    lower: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"count must be 2 or more, got {self.count}")
        for name, least, most in (
            ("words", 1, math.inf),
            ("sentences", 1, math.inf),
            ("replaced", 0, 1),
        ):
            low, high = getattr(self, name)
            if not least <= low <= high <= most:
                raise ValueError(
                    f"{name} must be two numbers from {least} in order, got {(low, high)}"
                )
        if not 0 <= self.lower <= 1:
            raise ValueError(f"lower must be a share, 0 to 1, got {self.lower}")

    def build(self) -> list[AlignmentPair]:
        """Return the pairs; equal settings give equal pairs.

        Raises:
            ValueError: The files contain fewer passages than `count`.
        """
        passages = read_passages(self.texts, self.words, self.count, self.seed)
        random_ = random.Random(self.seed)
        pool = unit_pool(chain.from_iterable(passages))
        return [self._pair(i, passage, pool, random_) for i, passage in enumerate(passages)]

    def _pair(
        self, source: int, passage: list[str], pool: Mapping[str, list[str]], random_: random.Random
    ) -> AlignmentPair:
        size = min(random_.randint(*self.sentences), max(1, len(passage) - 1))
        first = random_.randint(0, len(passage) - size)
        chosen, before = passage[first : first + size], passage[:first]
        after = passage[first + size :]
        held_out = random_.random() < 0.5 and len(passage) > size
        text = " ".join(chosen)
        if not held_out:
            text = edit_lightly(text, random_)
        context = " ".join([*before, *([] if held_out else chosen), *after])
        share = random_.uniform(*self.replaced)
        text, wrong, absent, function = replace_units(text, context, pool, share, random_)
        unknown: tuple[Span, ...] = ()
        if held_out:  # the passage may say the rest in other words
            unknown = function + tuple(span for span in absent if not _is_name(text, span))
            absent = tuple(span for span in absent if _is_name(text, span))
        if random_.random() < self.lower and len(text.lower()) == len(text):
            text, context = text.lower(), context.lower()
        return AlignmentPair(source, text, context, wrong + absent, unknown)


def unit_pool(sentences: Iterable[str]) -> dict[str, list[str]]:
    """Return the distinct names, numbers and content words of sentences, by form.

    A sentence's first word is left out: its capital says nothing.
    """
    pool: dict[str, dict[str, None]] = defaultdict(dict)
    for sentence in sentences:
        for match in _UNIT.finditer(sentence):
            unit = match.group()
            if match.start() and unit.lower() not in ENGLISH_STOP_WORDS:
                pool[unit_form(unit)][unit] = None
    return {form: list(units) for form, units in pool.items()}


def unit_form(unit: str) -> str:
    """Return the form by which a name, number or word is replaced by another."""
    if unit[0].isdigit():
        return "year" if re.fullmatch(r"1\d{3}|20\d\d", unit) else "number"
    if unit[0].isupper():
        return "name"
    return next((ending for ending in _ENDINGS if unit.endswith(ending)), "word")


def replace_units(
    text: str,
    context: str,
    pool: Mapping[str, Sequence[str]],
    share: float,
    random_: random.Random,
) -> tuple[str, tuple[Span, ...], tuple[Span, ...], tuple[Span, ...]]:
    """Replace a share of the content words that the context has by words that it lacks.

    Args:
        text: Text to alter.
        context: What supports it.
        pool: Replacements by form.
        share: Share of the supported names, numbers and content words to replace.
        random_: Source of randomness.

    Returns:
        The text, the spans of the words that were put in, of the text's own content words that the
        context lacks, and of its function words.
    """
    known = {stem(word) for word in WORD.findall(context)}
    parts: list[str] = []
    put_in: list[Span] = []
    absent: list[Span] = []
    function: list[Span] = []
    length = end = 0
    for match in _UNIT.finditer(text):
        gap, unit = text[end : match.start()], match.group()
        end = match.end()
        is_function = unit.lower() in ENGLISH_STOP_WORDS
        start = length + len(gap)
        words = [(start + w.start(), start + w.end(), w.group()) for w in WORD.finditer(unit)]
        lacking = [(s, e) for s, e, word in words if stem(word) not in known]
        if is_function:
            function.append((start, start + len(unit)))
        elif not lacking and match.start() and random_.random() < share:
            unit = _replacement(unit, known, pool, random_)
            words = [(start + w.start(), start + w.end(), w.group()) for w in WORD.finditer(unit)]
            put_in += [(s, e) for s, e, word in words if stem(word) not in known]
        else:
            absent += lacking
        parts += [gap, unit]
        length = start + len(unit)
    return "".join([*parts, text[end:]]), tuple(put_in), tuple(absent), tuple(function)


def _is_name(text: str, span: Span) -> bool:
    """Return whether a word has a digit, or a capital that no start of a sentence explains."""
    word, before = text[span[0] : span[1]], text[: span[0]].rstrip("\"'“‘( ")
    first = not before or before[-1] in ".!?:"
    return any(map(str.isdigit, word)) or (word[0].isupper() and not first)


def stem(word: str) -> str:
    """Return a word without capitals, possessive and a common ending, to match its other forms."""
    word = re.sub(r"['’]s?$", "", word.lower())
    for ending in ("ing", "ies", "es", "ed", "ly", "s", "e", "y"):
        if len(word) - len(ending) >= 3 and word.endswith(ending):
            return word.removesuffix(ending)
    return word


def _replacement(
    unit: str, known: set[str], pool: Mapping[str, Sequence[str]], random_: random.Random
) -> str:
    """Draw another unit of the same form without a word of the context; else return the unit."""
    candidates = pool.get(unit_form(unit), ())
    for _ in range(20 if candidates else 0):
        drawn = random_.choice(candidates)
        if not any(stem(word) in known for word in WORD.findall(drawn)):
            return drawn
    return unit
