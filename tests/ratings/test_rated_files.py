"""Files of ratings as they were published, and the user's own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ctrlreward.ratings.rated_files import assign_systems, read_rated


def test_published_files_can_be_read(data_dir: Path) -> None:
    senti = read_rated(data_dir / "ctrleval" / "data_senti.txt")
    assert [*senti.ratings] == ["coherence", "consistency", "attribute_relevance"]
    assert len(senti.samples) == 360
    assert len(set(senti.clusters or ())) == 15
    chat = read_rated(data_dir / "ctc" / "persona_chat.json")
    assert [*chat.ratings][:2] == ["engaging", "uses_knowledge"]
    assert Counter(chat.systems) == dict.fromkeys(set(chat.systems or ()), 60)
    assert len(set(chat.clusters or ())) == 60
    summaries = read_rated(data_dir / "ctc" / "qags_xsum.json")
    assert (len(summaries.samples), set(summaries.ratings)) == (239, {"consistency"})


def test_systems_of_li2018_have_one_output_per_item(data_dir: Path) -> None:
    rated = read_rated(data_dir / "li2018" / "human_ratings_yelp.csv")
    assert [*rated.ratings] == ["topic", "sentiment", "grammaticality", "mean"]
    pairs = set(zip(rated.systems or (), rated.clusters or (), strict=True))
    counts = Counter(system for system, _ in pairs if system is not None)
    assert len(counts) == 8
    # Four items have two rows without a name, which could be of either missing system.
    assert Counter(rated.systems or ())[None] == 8
    assert counts == {s: 396 if s in ("human", "label") else 400 for s in counts}


def test_rows_that_name_several_systems_get_one_each() -> None:
    names = ["a|b", "c", "a|b", "d", "a", "b", "c", "", "a", "", "c", ""]
    assert assign_systems(names, list("iiiijjjjkkkk")) == (
        *("a", "c", "b", "d"),
        *("a", "b", "c", "d"),
        *("a", None, "c", None),
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", "positive\tA\tA b\t1\t2\tx\n", "a.txt:1"),
        ("a.txt", "\n", "no rows"),
        ("a.json", '[{"response": "hi"}]', "dialog_history"),
        ("a.csv", "text,good\nhi,1\n", "--ratings"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=problem):
        read_rated(tmp_path / name)
