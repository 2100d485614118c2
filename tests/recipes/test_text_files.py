from __future__ import annotations

from pathlib import Path

import pytest

from ctrlreward.recipes.text_files import read_held_out, read_lines, sample_texts

TEXTS = [f"the {thing} was very {word} ." for thing in ("food", "bus", "play")
         for word in ("good", "slow")]  # fmt: skip


def test_held_out_repeated_short_and_long_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join([*TEXTS, TEXTS[0], "too short", " ".join("abcdefg")]))
    held_out = f"x\t{TEXTS[1].upper().replace(' ', '  ')}\n"  # a column of a line
    (tmp_path / "held_out").write_text(held_out)
    files = [str(tmp_path / "texts")], [str(tmp_path / "held_out")]
    assert read_held_out(files[1]) == {"x", TEXTS[1]}
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
