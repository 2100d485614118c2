"""Corpora of two literary styles, from books and articles: the Literature data of the paper.

python -m ctrlreward.recipes.papers.textual_transfer.literature \
        --config configs/textual_transfer/literature_data.yaml
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from ctrlreward.files import json_text, whole_folder, write_whole
from ctrlreward.models.sentences import find_splitter
from ctrlreward.models.words import separate_words
from ctrlreward.recipes.text_files import matching_key, plain_marks, read_lines

PERSON, LOCATION = "-PERSON-", "-LOCATION-"

_GUTENBERG_START = re.compile(r"^\*\*\* ?START OF .*$", re.MULTILINE)
_GUTENBERG_END = re.compile(r"^(?:\*\*\* ?END OF |End of (?:the|this) Project Gutenberg)", re.M)

_DIVISION = "chapter|book|volume|part|canto|stave"
_HEADING = re.compile(
    rf"=.*=|(?:{_DIVISION.upper()})\b.*|(?i:{_DIVISION})\s+(?:[IVXLCivxlc]+|\d+)[.:]?"
)
_ENDED = re.compile(r"[.!?…:;*=][\"'”’»)\]]*$")  # a line that a heading may follow

_BROKEN_WORD = re.compile(r"(\w+)-\n\s*(\w+)")

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


def write_literature(
    files: dict[str, list[str]],
    folder: str,
    words: tuple[int, int] = (6, 25),
    dev: int = 5000,
    test: int = 5000,
    seed: int = 0,
) -> dict[str, Any]:
    """Write sentences of two styles as `train.0`, `train.1`, `dev.0`, … for `TransferSentences`.

    The Literature data of Pang & Gimpel (2019), §5.1: sentences of Dickens and of modern prose with
    names replaced. Sentences are in lower case with a space between words and marks, as the Yelp
    data and the transfers of a model are, since a judge should tell the two styles by their words.
    Left out are sentences without a final mark (titles and items of lists), with `<unk>`, of other
    lengths, repeated ones, and sentences of both styles.

    Args:
        files: Style → files of running text, UTF-8; two styles.
        folder: Folder to write. Earlier data in it is replaced.
        words: Smallest and largest number of words and marks of a sentence.
        dev: Sentences of each style for selection.
        test: Sentences of each style for the report.
        seed: Seed of the split.

    Returns:
        Style → the number of sentences found, dropped by reason, and written, and the number of
        names; with the settings, the content of `report.json`.

    Raises:
        ValueError: `files` does not have two styles, a style has no more sentences than `dev` and
            `test` need, or the folder contains other files.
    """
    if len(files) != 2:
        raise ValueError(f"files must have two styles, got {', '.join(files) or 'none'}")
    destination = Path(folder).expanduser()
    if destination.exists() and not (destination / "report.json").is_file():
        raise ValueError(f"folder must be new or have a report.json, got {folder!r}")
    split = find_splitter("rules")
    corpora = {
        style: [
            sentence
            for path in paths
            for paragraph in split_paragraphs("".join(read_lines([path])))
            for sentence in split(paragraph)
        ]
        for style, paths in files.items()
    }
    counts = {style: {"found": len(sentences)} for style, sentences in corpora.items()}
    replaced = iter(replace_names([text for texts in corpora.values() for text in texts]))
    kept: dict[str, dict[str, str]] = {}  # of each style, sentence by its key
    for style, sentences in corpora.items():
        kept[style] = {}
        dropped = Counter({"unknown words": 0, "no final mark": 0, "length": 0, "repeated": 0})
        for sentence in (next(replaced) for _ in sentences):
            text = separate_words(re.sub(f"{PERSON}|{LOCATION}", r" \g<0> ", sentence))
            key = matching_key(text)
            if "<unk>" in key:
                dropped["unknown words"] += 1
            elif not re.search(r"[.!?][\") ]*$", text):
                dropped["no final mark"] += 1
            elif not words[0] <= len(text.split()) <= words[1]:
                dropped["length"] += 1
            elif key in kept[style]:
                dropped["repeated"] += 1
            else:
                kept[style][key] = text
        counts[style] |= {f"dropped: {reason}": count for reason, count in dropped.items()}
    first, second = kept.values()
    shared = first.keys() & second.keys()
    settings = {"files": files, "words": list(words), "dev": dev, "test": test, "seed": seed}
    with whole_folder(destination) as unfinished:
        for number, (style, found) in enumerate(kept.items()):
            texts = [text for key, text in found.items() if key not in shared]
            counts[style]["dropped: in both styles"] = len(found) - len(texts)
            if len(texts) <= dev + test:
                raise ValueError(
                    f"{style} must have more than {dev + test} sentences, got {len(texts)}"
                )
            random.Random(seed).shuffle(texts)
            parts = {
                "dev": texts[:dev],
                "test": texts[dev : dev + test],
                "train": texts[dev + test :],
            }
            for part, lines in parts.items():
                counts[style][part] = len(lines)
                write_whole(unfinished / f"{part}.{number}", "".join(f"{s}\n" for s in lines))
            for name in (PERSON, LOCATION):
                counts[style][name] = sum(s.split().count(name.lower()) for s in texts)
        write_whole(unfinished / "report.json", json_text({"settings": settings, "styles": counts}))
    return counts


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
    return list(filter(None, map(plain_marks, paragraphs)))


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


def main(arguments: Sequence[str]) -> None:
    """Write the data of a command line, and print the counts."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", action="config", help="YAML file of options")
    parser.add_function_arguments(write_literature)
    options = parser.instantiate(parser.parse_args(arguments)).as_dict()
    del options["config"]
    print(json.dumps(write_literature(**options), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
