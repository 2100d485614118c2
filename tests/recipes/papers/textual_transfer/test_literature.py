"""Literature data: what is written, from books of our own and from those of the real data."""

from __future__ import annotations

import json
import re
import textwrap
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.papers.textual_transfer.literature import (
    replace_names,
    split_paragraphs,
    write_literature,
)

CONFIGS = Path(__file__).resolve().parents[4] / "configs" / "textual_transfer"

OLD = [f"Sir John of the {word} house went to {word} again." for word in "abcdefghij"]
NEW = [f"She texted them about the {word} phone." for word in "abcdefghij"]
SHARED = "Nobody here knew what to say ."
LINES = {
    "old": [*OLD, OLD[0].lower(), SHARED, "Too short.", "A list of things that never ends\n"],
    "new": [*NEW, SHARED.lower(), "The <unk> is an unknown word here."],
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    for style, lines in LINES.items():
        (tmp_path / style).write_text("\n".join(lines))
    return {style: [str(tmp_path / style)] for style in LINES}


def read(folder: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines() for path in folder.glob("*.[01]")}


def test_every_sentence_is_written_once_or_counted(files, tmp_path: Path) -> None:
    report = write_literature(files, str(tmp_path / "data"), dev=2, test=3)
    assert json.loads((tmp_path / "data" / "report.json").read_text())["styles"] == report
    old, new = report["old"], report["new"]
    # A title before a name is replaced with it: the repeated sentence in small letters has none.
    assert old == {
        "found": 14, "dropped: unknown words": 0, "dropped: no final mark": 1,
        "dropped: length": 1, "dropped: repeated": 0, "dropped: in both styles": 1,
        "train": 6, "dev": 2, "test": 3, "-PERSON-": 10, "-LOCATION-": 0,
    }  # fmt: skip
    assert (new["dropped: unknown words"], new["dropped: in both styles"]) == (1, 1)
    assert (new["train"], new["dev"], new["test"]) == (5, 2, 3)
    written = read(tmp_path / "data")
    assert {name: len(lines) for name, lines in written.items()} == {
        "train.0": 6, "dev.0": 2, "test.0": 3, "train.1": 5, "dev.1": 2, "test.1": 3,
    }  # fmt: skip
    assert "-person- of the a house went to a again ." in chain.from_iterable(written.values())


def configuration(name: str) -> Any:
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())


def test_configurations_agree() -> None:
    """What one configuration writes is what the others read."""
    written = configuration("literature_data")
    train, dev, test = (
        [f"{written['folder']}/{part}.{i}" for i in (0, 1)] for part in ("train", "dev", "test")
    )
    transfer = configuration("literature")
    values = transfer["values"]
    assert values["corpus"] == train
    assert values["held_out"] == [*dev, *test]
    styles = list(written["files"])
    assert values["dev"] == dict(zip(styles, dev, strict=True))
    assert values["test"] == dict(zip(styles, test, strict=True))
    assert transfer["data"]["init_args"]["words"] == written["words"]
    models = [configuration(Path(judge["config"]).stem) for judge in values["models"]]
    roots = [model["trainer"]["default_root_dir"] for model in models]
    assert [f"{root}/model" for root in roots] == [judge["folder"] for judge in values["models"]]
    classifier, language_model = (model["data"]["init_args"] for model in models)
    assert (list(classifier["train"].values()), classifier["exclude"]) == (train, dev)
    assert (language_model["train"], language_model["exclude"]) == (train, dev)
    assert list(classifier["test"].values()) == language_model["test"] == test


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@pytest.mark.soak
def test_sentences_of_dickens_and_wikipedia(data_dir: Path, tmp_path: Path) -> None:
    named = configuration("literature_data")["files"]
    books = {style: [str(local_file(file)) for file in files] for style, files in named.items()}
    report = write_literature(books, str(tmp_path / "data"), dev=500, test=500)
    for counts in report.values():
        dropped = sum(n for reason, n in counts.items() if reason.startswith("dropped"))
        assert counts["found"] == dropped + sum(counts[part] for part in ("train", "dev", "test"))
    assert report["dickens"]["train"] > 8000
    assert report["modern"]["train"] > 2500
    written = read(tmp_path / "data")
    assert all(not set(a) & set(b) for a, b in combinations(written.values(), 2))
    for sentence in chain.from_iterable(written.values()):
        assert 6 <= len(sentence.split()) <= 25
        assert sentence == sentence.lower()
        assert not re.search(r"<unk>|@|[“”‘’]|= =|  ", sentence)
    # Letter for letter as in the book, though line ends, marks and spaces have changed.
    for number, paths in enumerate(books.values()):
        original = letters("".join(Path(path).read_text(encoding="utf-8") for path in paths))
        sentences = [s for s in written[f"test.{number}"] if not re.search("-person-|-loc", s)]
        assert all(letters(sentence) in original for sentence in sentences[:100])
    assert report["dickens"]["-PERSON-"] > 3000
    sentences = chain.from_iterable(written[f"{part}.0"] for part in ("train", "dev", "test"))
    dickens = set(" ".join(sentences).split())
    assert not dickens & {"oliver", "fagin", "joe", "herbert", "wemmick", "havisham", "london"}
    assert {"-person-", "-location-", "sunday", "convict"} < dickens


# Running text

BOOK = """\ufeffThe Project Gutenberg eBook of Our Test
*** START OF THE PROJECT GUTENBERG EBOOK OUR TEST ***

THE LAMP
BY
NOBODY
CHAPTER I. In which a lamp is lit
The lamp was lit; it was a light-
house lamp, and a well-
worn one. Every lighthouse had one, said
I.

II
\u2018It\u2019s late,\u2019 he said. \u2018Give \u2019em the _old_ lamp\u2014or
THE NEW ONE, please.\u2019

*** END OF THE PROJECT GUTENBERG EBOOK OUR TEST ***
Licence.
"""


def test_book_loses_its_wrapping() -> None:
    assert split_paragraphs(BOOK.replace("\n", "\r\n")) == split_paragraphs(BOOK)
    assert split_paragraphs(BOOK) == [
        "The lamp was lit; it was a lighthouse lamp, and a well-worn one. "
        "Every lighthouse had one, said I.",
        '"It\'s late," he said. "Give \'em the old lamp - or THE NEW ONE, please."',
    ]


WORDS = st.text("abcdefgh", min_size=1, max_size=12)


@given(st.lists(st.lists(WORDS, min_size=1).map(" ".join), min_size=1), st.integers(12, 80))
def test_wrapping_at_any_width_is_undone(paragraphs: list[str], width: int) -> None:
    assert split_paragraphs("\n\n".join(textwrap.fill(p, width) for p in paragraphs)) == paragraphs


@pytest.mark.parametrize(
    ("tokenized", "typeset"),
    [
        ('It is a two @-@ part " show " , at 1 @,@ 200 .', 'It is a two-part "show", at 1,200.'),
        ('" We won ! " he said . " So , " he said .', '"We won!" he said. "So," he said.'),
        ("It is 3 @.@ 5 km : too far ?", "It is 3.5 km: too far?"),
    ],
)
def test_tokenized_text_is_set_as_printed(tokenized: str, typeset: str) -> None:
    assert split_paragraphs(f" \n = Title = \n {tokenized} \n = = End = = \n") == [typeset]
    assert split_paragraphs(typeset) == [typeset]


def test_capital_letters_tell_names() -> None:
    sentences = [
        "And Anna Berg left the old house in Rostock.",
        "Then Anna, who hates Rostock, met Mr. Hope at the Bell.",
        "Anna's hope was a bell in Rostock on a Monday with English fog, and a house is a house.",
        "House by house, they saw Mrs. Van Berg.",
    ]
    assert replace_names(sentences) == [
        "And -PERSON- left the old house in -LOCATION-.",
        "Then -PERSON-, who hates -LOCATION-, met -PERSON- at the Bell.",
        "-PERSON-'s hope was a bell in -LOCATION- on a Monday with English fog, and a house is a "
        "house.",
        "House by house, they saw -PERSON-.",
    ]
    assert replace_names([]) == []
