from __future__ import annotations

from pathlib import Path

import pytest

from ctrlreward.recipes.text_files import read_held_out, read_lines, sample_texts

TEXTS = [f"the {thing} was very {word} ." for thing in ("food", "bus", "play")
         for word in ("good", "slow")]  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[str], list[str]]:
    (tmp_path / "texts").write_text("\n".join([*TEXTS, TEXTS[0], "too short", " ".join("abcdefg")]))
    (tmp_path / "held_out").write_text(f"x\t{TEXTS[1].upper().replace(' ', '  ')}\n")
    return [str(tmp_path / "texts")], [str(tmp_path / "held_out")]


def test_held_out_repeated_short_and_long_lines_are_left_out(files) -> None:
    texts = sample_texts(*files, 5, (4, 6), seed=1)
    assert sorted(texts) == sorted(set(TEXTS) - {TEXTS[1]})
    assert texts == sample_texts(*files, 5, (4, 6), seed=1)
    assert texts != sample_texts(*files, 5, (4, 6), seed=2)
    assert len(sample_texts(*files, 6, (4, None), seed=1)) == 6
    with pytest.raises(ValueError, match="texts"):
        sample_texts(*files, 7, (4, 6), seed=1)


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_bytes("one\u2028line\x0c here\r\ntwo\n".encode())
    assert list(read_lines([str(path), str(path)])) == ["one\u2028line\x0c here\r\n", "two\n"] * 2


def test_columns_are_held_out_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("A  text\tits Reference\nanother\n")
    assert read_held_out([str(tmp_path / "pairs")]) == {"a text", "its reference", "another"}
