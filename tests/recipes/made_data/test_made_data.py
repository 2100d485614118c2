"""Files that the package makes: rated rows, prefixes."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.made_data import rated_rows


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CTRLREWARD_DATA", str(tmp_path / "data"))
    return tmp_path / "cache"


def test_rated_rows_are_those_of_the_published_assignments(data_dir: Path, cache: Path) -> None:
    """With the outputs of each system as far as the rows name it."""
    folder = data_dir / "li2018"
    expected = (folder / "human_ratings_yelp.csv").read_bytes()
    outputs = defaultdict(set)
    for row in csv.DictReader(expected.decode().splitlines()):
        for system in row["system"].split("|"):
            outputs[system, row["target"]].add((row["source"], row["output"]))
    for system in rated_rows.SYSTEMS:
        for number, target in enumerate(("positive", "negative")):
            file = cache / f"evaluation/outputs/yelp/sentiment.test.{number}.{system}"
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = sorted(outputs[system, target])
            file.write_text("".join(f"{source}\t{text}\t0\n" for source, text in rows))
    made = rated_rows.make(
        "human_ratings_yelp.csv",
        lambda name: (cache if name.startswith("evaluation/") else folder) / name,
    )
    assert made == expected


@pytest.mark.usefixtures("cache")
def test_the_prefixes_are_those_of_the_reproduction(data_dir: Path) -> None:
    assert (
        local_file("pplm/prompts35.csv").read_bytes() == (data_dir / "prompts35.csv").read_bytes()
    )
