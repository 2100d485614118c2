"""Sentences of books and articles: paragraphs out of wrapped lines, and names replaced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

PERSON, LOCATION = "-PERSON-", "-LOCATION-"

_GUTENBERG_START = re.compile(r"^\*\*\* ?START OF .*$", re.MULTILINE)
_GUTENBERG_END = re.compile(r"^(?:\*\*\* ?END OF |End of (?:the|this) Project Gutenberg)", re.M)

_DIVISION = "chapter|book|volume|part|canto|stave"
_HEADING = re.compile(
    rf"=.*=|(?:{_DIVISION.upper()})\b.*|(?i:{_DIVISION})\s+(?:[IVXLCivxlc]+|\d+)[.:]?"
)
_ENDED = re.compile(r"[.!?…:;*=][\"'”’»)\]]*$")  # a line that a heading may follow

_BROKEN_WORD = re.compile(r"(\w+)-\n\s*(\w+)")
# Marks as books and WikiText have them, in the order of their normalization. Apostrophes that
# begin a word: 'em, 'tis, 'twas, 's.
_CLITIC = r"(?:[Ee]m|[Tt]is|[Tt]w\w+|[Uu]n|[Uu]d|ll|s|d|re|ve|m)\b"
_MARKS = [
    (re.compile(r" ?@([-,.])@ ?"), r"\1"),
    (re.compile(r"[“”]|``|''"), '"'),
    (re.compile(r"[‘’]"), "'"),
    (re.compile(r"--+|[–—]"), " - "),
    (re.compile(r"\b_|_\b"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<!\S)\" ([^\"]*) \"(?!\S)"), r'"\1"'),
    (re.compile(r" ([.,!?;:])(?![^\s\"])"), r"\1"),
    # Single quotation marks, but neither apostrophes nor clitics.
    (re.compile(r"(?<=[.,!?;:…-])'(?!\w)"), '"'),
    (re.compile(rf"(?<![\w'])'(?!{_CLITIC})(?=\w)"), '"'),
]

_TITLES = "Mr|Mrs|Miss|Ms|Master|Mister|Dr|Doctor|Sir|Lady|Lord|Captain|Colonel|Uncle|Aunt"
_CAPITAL = r"[A-Z][a-z]\w*(?:-\w+)*"
_INSIDE = re.compile(rf"(?<=[a-z0-9,;] ){_CAPITAL}")
_LOWER = re.compile(r"\b[a-z]\w*(?:-\w+)*")
_RUN = re.compile(
    r"(?P<place>\b(?:[Ii]n|[Nn]ear|[Aa]cross|[Tt]hroughout) (?:the )?)?"
    rf"(?P<titles>(?:\b(?:{_TITLES})\.? )+)?"
    rf"(?P<name>\b{_CAPITAL}(?: {_CAPITAL})*)"
)
# Words with a capital that name neither a person nor a place.
_NO_NAMES = frozenset(
    f"{_TITLES}|God|Heaven|Christmas|Easter|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|"
    "Sunday|January|February|March|April|May|June|July|August|September|October|November|December|"
    "English|French|German|Greek|Dutch|Welsh".split("|")
)
_ADJECTIVES = ("ish", "ese", "ian", "ians", "ican", "icans")


def split_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a book or an article, each on one line.

    Removed are the licence around a text of Project Gutenberg, chapter headings (`CHAPTER II …`,
    `= title =`, lines of capitals that do not continue a sentence) and marks of emphasis. Wrapped
    lines are joined. A word that is hyphenated at the end of a line loses the hyphen if the text
    has it elsewhere without one. Quotation marks become `"`, apostrophes `'`, dashes ` - `, and
    spaces before punctuation are removed, so that tokenized and typeset texts look the same.

    Args:
        text: Running text; an empty line, or a heading, ends a paragraph.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    start, end = _GUTENBERG_START.search(text), _GUTENBERG_END.search(text)
    text = text[start.end() if start else 0 : end.start() if end else len(text)]
    words = frozenset(re.findall(r"\w+", text.lower()))

    def joined(broken: re.Match[str]) -> str:
        first, second = broken.groups()
        return first + ("" if (first + second).lower() in words else "-") + second

    paragraphs = _paragraphs(_BROKEN_WORD.sub(joined, text).split("\n"))
    for pattern, replacement in _MARKS:
        paragraphs = [pattern.sub(replacement, paragraph) for paragraph in paragraphs]
    return list(filter(None, map(str.strip, paragraphs)))


def replace_names(sentences: Sequence[str]) -> list[str]:
    """Replace names by -PERSON- and -LOCATION-, going by their capital letters.

    A name is a word that has a capital inside sentences and almost never a small letter: at most
    once for twenty capitals. Names in a row are one name, and what follows a title belongs to it. A
    word is a location if a preposition of place precedes it in a tenth of the cases or more;
    every other name is a person, including book titles. A recognizer of named entities is better
    at this; this rule needs no model and treats every corpus the same.

    Args:
        sentences: Sentences with their original capitalization, of all corpora together.

    Returns:
        The sentences in the same order.
    """
    inside = Counter(word for text in sentences for word in _INSIDE.findall(text))
    lower = Counter(word for text in sentences for word in _LOWER.findall(text))
    names = {
        word
        for word, count in inside.items()
        if word not in _NO_NAMES
        and not word.endswith(_ADJECTIVES)
        and lower[word.lower()] <= count / 20
    }
    uses, places = Counter[str](), Counter[str]()
    for run in (run for text in sentences for run in _RUN.finditer(text)):
        words = run["name"].split()
        uses.update(words)
        if run["place"] and not run["titles"]:
            places.update(words)
    locations = {name for name in names if places[name] >= uses[name] / 10}

    def placeholders(run: re.Match[str]) -> str:
        before = run["place"] or ""
        if run["titles"]:
            return before + PERSON
        pieces = []
        for are_names, group in groupby(run["name"].split(), names.__contains__):
            words = list(group)
            name = LOCATION if locations.intersection(words) else PERSON
            pieces.append(name if are_names else " ".join(words))
        return before + " ".join(pieces)

    return [_RUN.sub(placeholders, text) for text in sentences]


def _paragraphs(lines: Sequence[str]) -> list[str]:
    """Return the lines between empty lines and headings, joined."""
    found: list[str] = []
    paragraph: list[str] = []
    for line in map(str.strip, lines):
        continues = bool(paragraph) and not _ENDED.search(paragraph[-1])
        capitals = line.upper() == line and line.lower() != line
        if not line or _HEADING.fullmatch(line) or (capitals and not continues):
            found.append(" ".join(paragraph))
            paragraph = []
        else:
            paragraph.append(line)
    return [*found, " ".join(paragraph)]
