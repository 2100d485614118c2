from __future__ import annotations

from collections import Counter
from pathlib import Path

from ctrlreward.recipes.papers.meta_eval.published_figures import published
from ctrlreward.recipes.papers.meta_eval.rated_files import (
    assign_systems,
    read_ctc,
    read_ctrleval,
    read_li2018,
)


def test_published_files_can_be_read(data_dir: Path) -> None:
    senti = read_ctrleval(data_dir / "ctrleval" / "data_senti.txt")
    assert len(senti.samples) == 360
    assert len(set(senti.clusters or ())) == 15
    chat = read_ctc(data_dir / "ctc" / "persona_chat.json")
    assert Counter(chat.systems) == dict.fromkeys(set(chat.systems or ()), 60)
    assert len(set(chat.clusters or ())) == 60
    summaries = read_ctc(data_dir / "ctc" / "qags_xsum.json")
    assert (len(summaries.samples), set(summaries.ratings)) == (239, {"consistency"})
    transfers = read_li2018(data_dir / "li2018" / "human_ratings_yelp.csv")
    for file in (senti, chat, summaries, transfers):
        ratings = {figure.rating for figure in published(file.file)}
        assert ratings, file.file
        assert ratings <= file.ratings.keys()


def test_systems_of_li2018_have_one_output_per_item(data_dir: Path) -> None:
    rated = read_li2018(data_dir / "li2018" / "human_ratings_yelp.csv")
    pairs = set(zip(rated.systems or (), rated.clusters or (), strict=True))
    named = [pair for pair in pairs if pair[0] is not None]
    counts = Counter(system for system, _ in named)
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
