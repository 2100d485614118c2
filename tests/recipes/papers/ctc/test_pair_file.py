from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_aligners import SENTENCES

from ctrlreward.recipes.papers.ctc import pair_file
from ctrlreward.recipes.papers.ctc.pair_file import PairFile, read_pair_file
from ctrlreward.recipes.papers.ctc.span_filling import Fillings, Template
from ctrlreward.recipes.text_files import sample_texts

TEXTS = SENTENCES[:7]


class FakeFiller:
    """Fills each blank with its size and the seed; fails for one text and after some calls."""

    def __init__(self, calls_before_interrupt: int = 99) -> None:
        self.calls = 0
        self.calls_before_interrupt = calls_before_interrupt

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        if self.calls == self.calls_before_interrupt:
            raise KeyboardInterrupt
        self.calls += 1
        return [
            None if "novel" in "".join(t.parts) else tuple(f"new{i} {seed % 7}" for i in t.sizes)
            for t in templates
        ]


Build = Callable[..., FakeFiller]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Builds a pair file of the texts in chunks of two, and returns the filler it used."""

    def build(
        file: Path, texts: Sequence[str] = TEXTS, filler: Any = None, **settings: Any
    ) -> FakeFiller:
        filler = filler or FakeFiller()
        monkeypatch.setattr(pair_file, "load_span_filler", lambda *_, **__: filler)
        (tmp_path / "texts").write_text("\n".join(texts), encoding="utf-8")
        options = {"count": len(texts), "chunk_size": 2, **settings}
        PairFile(str(file), [str(tmp_path / "texts")], **options).build()
        return filler

    return build


@pytest.mark.parametrize("calls", range(4))
def test_an_interrupted_build_is_resumed(build: Build, tmp_path: Path, calls: int) -> None:
    whole, interrupted = tmp_path / "whole.jsonl", tmp_path / "interrupted.jsonl"
    build(whole)
    with pytest.raises(KeyboardInterrupt):
        build(interrupted, filler=FakeFiller(calls))
    assert build(interrupted).calls == 4 - calls
    assert interrupted.read_bytes() == whole.read_bytes()


def cuts(content: bytes) -> Iterator[int]:
    """Ends of lines, the bytes before and after them, and every 97th byte."""
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    near = {end + shift for end in ends for shift in (-1, 0, 1, 2)}
    yield from sorted(near | set(range(0, len(content), 97)))


def test_a_build_killed_while_writing_is_resumed(build: Build, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    build(file)
    content = file.read_bytes()
    for cut in cuts(content):
        file.write_bytes(content[:cut])
        build(file)
        assert file.read_bytes() == content


def test_spans_of_the_file_are_the_words_that_b_lacks(build: Build, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    # Without repeated words, of which a text may lack only one occurrence.
    build(file, [text for text in TEXTS if len(set(text.split())) == len(text.split())])
    pairs = read_pair_file(str(file))
    assert len({len(pair.hallucinated) for pair in pairs}) > 3
    for pair in pairs:
        missing = [word for word in re.findall(r"\w+", pair.a) if word not in pair.b.split()]
        assert [pair.a[start:end] for start, end in pair.hallucinated] == missing


def test_a_file_of_other_settings_is_refused(build: Build, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    build(file)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"pairs.jsonl was started with other settings: texts"):
        build(file, [*TEXTS[1:], "the play was long and loud ."])
    with pytest.raises(ValueError, match=r"other settings: temperature 1.0, not 0.5"):
        build(file, temperature=0.5)
    with pytest.raises(ValueError, match=r"other settings: dtype "):
        build(file, dtype="bfloat16")
    assert build(file, device="nowhere").calls == 0  # a device changes nothing
    with pytest.raises(ValueError, match=r"other settings: seed .*; texts"):
        build(file, seed=1)
    assert file.read_bytes() == before
    build(tmp_path / "other.jsonl", seed=1)
    assert read_pair_file(str(tmp_path / "other.jsonl")) != read_pair_file(str(file))


def test_a_kind_decides_what_b_is(build: Build, tmp_path: Path) -> None:
    rows = [{"text": text, "context": f"fact {i}", "history": "hm"} for i, text in enumerate(TEXTS)]
    lines = list(map(json.dumps, rows))
    settings = {"kind": "dialog", "labels": "fillings", "extra_pairs": False}
    build(tmp_path / "pairs.jsonl", lines, **settings)
    pairs = read_pair_file(str(tmp_path / "pairs.jsonl"))
    assert len(pairs) == len(TEXTS) - 1  # the filler fails for one
    assert {pair.b for pair in pairs} < {f"fact {i}\n\n\nhm" for i in range(len(TEXTS))}
    with pytest.raises(ValueError, match="other settings: labels"):
        build(tmp_path / "pairs.jsonl", lines, **{**settings, "labels": "words"})
    with pytest.raises(ValueError, match="kind must be one of transfer, summary, "):
        build(tmp_path / "other.jsonl", kind="chat")


def test_a_paraphrase_takes_the_place_of_the_light_edit(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def louder(texts: Sequence[str]) -> list[str]:
        return [text.upper() if "bus" not in text else "" for text in texts]

    monkeypatch.setattr(pair_file, "Paraphraser", lambda *_, **__: louder)
    file = str(tmp_path / "pairs.jsonl")
    build(Path(file), paraphraser="louder")
    texts = sample_texts([str(tmp_path / "texts")], [], 7, (4, None), seed=0)
    first = {pair.source: pair for pair in reversed(read_pair_file(file))}
    assert [first[i].a for i in range(7)] == [t if "bus" in t else t.upper() for t in texts]
    assert [first[i].b for i in range(7)] == texts
