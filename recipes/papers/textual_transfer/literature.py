"""Corpora of two literary styles, from books and articles: the Literature data of the paper.

`python -m …literature --help` lists the options.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from ctrlreward.files import whole_folder, write_whole
from ctrlreward.models.sentences import find_splitter
from ctrlreward.models.words import separate_words
from ctrlreward.recipes.papers.textual_transfer.running_text import (
    LOCATION,
    PERSON,
    replace_names,
    split_paragraphs,
)
from ctrlreward.recipes.text_files import matching_key, read_lines

_REPORT = "report.json"
_FINAL_MARK = re.compile(r"[.!?][\") ]*$")
_PLACEHOLDER = re.compile(f"{PERSON}|{LOCATION}")


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
    names replaced (`running_text.replace_names`). Sentences are in lower case with a space between
    words and marks, as the Yelp data and the transfers of a model are, since a judge should tell
    the two styles by their words.
    Left out are sentences without a final mark (titles and items of lists), with `<unk>`, of other
    lengths, repeated ones, and sentences of both styles. Byte-pair encoding is the data module's
    (`subwords`).

    Args:
        files: Style → files of running text, UTF-8; two styles.
        folder: Folder to write. Earlier data in it is replaced; a folder with other files is
            refused.
        words: Smallest and largest number of words and marks of a sentence.
        dev: Sentences of each style for selection.
        test: Sentences of each style for the report.
        seed: Seed of the split.

    Returns:
        The content of `report.json`: `settings`, and for each style the number of sentences found,
        dropped by reason, and written, and the number of names.

    Raises:
        ValueError: `files` does not have two styles, an option is out of range, a style has no more
            sentences than `dev` and `test` need, or the folder contains other files.
        OSError: A file cannot be read.
    """
    destination = Path(folder).expanduser()
    _check(files, destination, words, dev, test)
    found = {style: _read_sentences(paths) for style, paths in files.items()}
    counts = {style: {"found": len(sentences)} for style, sentences in found.items()}
    corpora = {
        style: _usable(sentences, words, counts[style])
        for style, sentences in _with_names_replaced(found).items()
    }
    _drop_shared(corpora, counts)
    for style, sentences in corpora.items():
        if len(sentences) <= dev + test:
            raise ValueError(
                f"{style}: {len(sentences)} sentences of {words[0]} to {words[1]} words, but dev "
                f"and test take {dev + test}. Add files, or use a smaller dev and test."
            )
        random.Random(seed).shuffle(sentences)
    settings = {
        "files": files,
        **{"words": list(words), "dev": dev, "test": test},
        "seed": seed,
    }
    report = {"settings": settings, "styles": counts}
    with whole_folder(destination) as unfinished:
        for number, (style, sentences) in enumerate(corpora.items()):
            ends = {"dev": (0, dev), "test": (dev, dev + test), "train": (dev + test, None)}
            for split, (first, end) in ends.items():
                part = sentences[first:end]
                counts[style][split] = len(part)
                write_whole(unfinished / f"{split}.{number}", "".join(f"{s}\n" for s in part))
            for name in (PERSON, LOCATION):
                counts[style][name] = sum(s.split().count(name.lower()) for s in sentences)
        write_whole(unfinished / _REPORT, json.dumps(report, indent=1) + "\n")
    return report


def _check(
    files: Mapping[str, Sequence[str]], folder: Path, words: tuple[int, int], dev: int, test: int
) -> None:
    if len(files) != 2:
        raise ValueError(f"files must have two styles, got {', '.join(files) or 'none'}")
    for style, paths in files.items():
        if isinstance(paths, str) or not paths:
            raise ValueError(f"files of {style} must be a list of one file or more, got {paths!r}")
    if not 1 <= words[0] <= words[1]:
        raise ValueError(f"words must be two numbers of 1 or more in order, got {words}")
    for name, count in (("dev", dev), ("test", test)):
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, got {count}")
    occupied = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if occupied and not (folder / _REPORT).is_file():
        raise ValueError(
            f"folder = {str(folder)!r} exists and does not contain {_REPORT}; it would be "
            "replaced. Use an empty or a new folder."
        )


def _read_sentences(paths: Sequence[str]) -> list[str]:
    """Return the sentences of files of running text, with their original capitalization."""
    split = find_splitter("rules")
    texts = ("".join(read_lines([path])) for path in paths)
    paragraphs = (paragraph for text in texts for paragraph in split_paragraphs(text))
    return [sentence for paragraph in paragraphs for sentence in split(paragraph)]


def _with_names_replaced(found: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Replace names in both styles together."""
    replaced = iter(replace_names([sentence for style in found.values() for sentence in style]))
    return {style: list(islice(replaced, len(sentences))) for style, sentences in found.items()}


def _usable(sentences: Sequence[str], words: tuple[int, int], counts: dict[str, int]) -> list[str]:
    """Return the distinct sentences that are kept, and count the others by reason."""
    kept: dict[str, str] = {}
    dropped = dict.fromkeys(("unknown words", "no final mark", "length", "repeated"), 0)
    for sentence in sentences:
        text = separate_words(_PLACEHOLDER.sub(r" \g<0> ", sentence))
        key = matching_key(text)
        if "<unk>" in key:
            dropped["unknown words"] += 1
        elif not _FINAL_MARK.search(text):
            dropped["no final mark"] += 1
        elif not words[0] <= len(text.split()) <= words[1]:
            dropped["length"] += 1
        elif key in kept:
            dropped["repeated"] += 1
        else:
            kept[key] = text
    counts.update({f"dropped: {reason}": count for reason, count in dropped.items()})
    return list(kept.values())


def _drop_shared(corpora: dict[str, list[str]], counts: Mapping[str, dict[str, int]]) -> None:
    """Remove sentences that occur in both styles."""
    first, second = ({matching_key(text) for text in texts} for texts in corpora.values())
    for style, texts in corpora.items():
        corpora[style] = [text for text in texts if matching_key(text) not in first & second]
        counts[style]["dropped: in both styles"] = len(texts) - len(corpora[style])


def main(arguments: Sequence[str]) -> None:
    """Write the data of a command line, and print the report.

    Raises:
        SystemExit: With status 2 after a wrong option or a file that cannot be read.
    """
    parser = ArgumentParser(
        description="Sentences of two literary styles out of books and articles.",
    )
    parser.add_argument("--config", action="config", help="YAML file of options")
    parser.add_function_arguments(write_literature)
    options = parser.instantiate(parser.parse_args(arguments)).as_dict()
    options.pop("config")
    try:
        report = write_literature(**options)
    except (OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(report["styles"], indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
