from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest
from transformers import AutoTokenizer

from ctrlreward import progress
from ctrlreward.cli import main
from ctrlreward.models.frequency import InverseFrequency
from ctrlreward.recipes.scoring_models.iwf import read_sentences, run

LINES = [
    "The food was good. We will come back!",
    "",
    "Mr. Fox sleeps. Does the dog?",
    "A café: 5 € for tea.",  # characters that the tokenizer below lacks
]


@pytest.fixture
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama(ascii_letters + " .!,:\n")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


def counted(sentences: list[str], model: str) -> list[float]:
    """Return log(1 + |C|) / f_w of each token."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [tokenizer(sentence, add_special_tokens=False).input_ids for sentence in sentences]
    weights = []
    for token in range(len(tokenizer)):
        holding = sum(token in row for row in rows)
        weights.append(math.log(1 + len(sentences)) / holding if holding else 0.0)
    return weights


def test_the_table_equals_a_plain_count(
    model: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = corpus.with_name("iwf.txt")
    main(["iwf", str(corpus), str(output), "--model", model])
    sentences = ["The food was good.", "We will come back!", "Mr. Fox sleeps.", "Does the dog?"]
    expected = counted([*sentences, "A café: 5 € for tea."], model)
    lines = output.read_text().splitlines()
    np.testing.assert_allclose([float(line) for line in lines], expected, rtol=1e-15)
    seen = sum(weight > 0 for weight in expected)
    message = f"{output}: {len(expected)} tokens, {seen} of them in the corpus\n"
    assert capsys.readouterr().out == message
    assert 10 < seen < len(expected)


def test_a_pattern_matches_several_files(model: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("Soup. Bread.")
    (tmp_path / "two.txt").write_text("Soup again.\n")
    (tmp_path / "three.md").write_text("Nothing of this.")
    output = tmp_path / "iwf.out"
    run([str(tmp_path / "**" / "*.txt"), str(output), "--model", model])
    expected = counted(["Soup.", "Bread.", "Soup again."], model)
    np.testing.assert_allclose(InverseFrequency.from_file(output).weights, expected, rtol=1e-15)


def test_the_sentence_splitter_can_be_chosen(corpus: Path, model: str) -> None:
    pytest.importorskip("sentencex")
    corpus.write_text("Good.Bad. So.")  # sentencex splits without a space
    weights = []
    for splitter in ("rules", "sentencex"):
        output = corpus.with_name(f"{splitter}.txt")
        run([str(corpus), str(output), "--model", model, "--sentence_splitter", splitter])
        weights.append(InverseFrequency.from_file(output).weights.tolist())
    sentences = ["Good.Bad.", "So."], ["Good.", "Bad.", "So."]
    expected = [counted(each, model) for each in sentences]
    np.testing.assert_allclose(weights, expected, rtol=1e-15)
    assert weights[0] != weights[1]


def test_a_log_shows_how_much_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.0)
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    for path in paths:
        path.write_text(f"{'x' * 99_999}\n" * 4)
    assert len(list(read_sentences(paths, lambda line: [line]))) == 8
    said = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert said[0] == "counting: 0.0 of 0.8 MB, time left unknown"
    assert said[1].startswith("counting: 0.1 of 0.8 MB, ")
    assert said[-1].startswith("counting: 0.8 of 0.8 MB")


def test_files_are_read_lazily(tmp_path: Path) -> None:
    """A corpus may be larger than memory."""
    split_lines: list[str] = []

    def split(line: str) -> list[str]:
        split_lines.append(line)
        return [line]

    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    paths[0].write_text("one\r\ntwo\nthree")
    paths[1].write_bytes(b"\xef\xbb\xbffour\n")  # the byte order mark is not text
    sentences: Iterator[str] = read_sentences(paths, split)
    assert [next(sentences), next(sentences)] == split_lines == ["one", "two"]
    assert list(sentences) == ["three", "four"]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"A dog.", "no.txt iwf.txt", "corpus = 'no.txt' matches no file, must be a text file"),
        (b"A dog.", "c.txt no/iwf.txt", "output = no/iwf.txt: the folder no does not exist. Cre"),
        (b"A dog.\n\xff\xfe", "c.txt iwf.txt", "c.txt:2 is not UTF-8 text. Convert the file"),
        (b" \n\n", "c.txt iwf.txt", "the corpus has no sentences, must have at least one"),
        (b"A dog.", "c.txt iwf.txt --sentence_splitter x", "sentence_splitter must be a functio"),
    ],
)
def test_errors_are_one_line(
    content: bytes,
    arguments: str,
    message: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Callable[..., str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.txt").write_bytes(content)
    said = fails("iwf", *arguments.split(), "--model", model)
    assert re.search(f"^error: {re.escape(message)}", said, re.M)
    assert not Path("iwf.txt").exists()
