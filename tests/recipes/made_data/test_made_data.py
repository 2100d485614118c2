"""Files that the package makes: tenses, rated rows, prefixes."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from ctrlreward.data import DATA_SETS, local_file
from ctrlreward.recipes.made_data import rated_rows, tense


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CTRLREWARD_DATA", str(tmp_path / "data"))
    return tmp_path / "cache"


def lines(name: str) -> list[str]:
    return local_file(f"tense/{name}").read_text(encoding="utf-8").splitlines()


@pytest.mark.usefixtures("cache")
def test_sentences_of_two_tenses_differ_in_more_than_tense() -> None:
    texts = [
        line
        for own in tense.TENSES
        for split, count in (("train", 7000), ("dev", 200), ("test", 200))
        if len(found := lines(f"{own}.{split}.txt")) == count or pytest.fail(f"{own}.{split}")
        for line in found
    ]
    assert len(set(texts)) == len(texts) == 14_800
    for own in tense.TENSES:
        pairs = [line.split("\t") for line in lines(f"reference.{own}.txt")]
        assert [first for first, _ in pairs] == lines(f"{own}.test.txt")
        assert not {second for _, second in pairs} & set(texts)
        assert all(first != second for first, second in pairs)
    # Lower case, tokenized as Yelp's, without a gap or a field that was not filled in.
    assert all(re.fullmatch(r"[a-z' ]+( , [a-z' ]+)? [.?]", text) for text in texts)
    assert {len(text.split()) for text in texts} == set(range(4, 16))


@pytest.mark.usefixtures("cache")
def test_the_two_forms_of_a_sentence_share_all_but_few_words() -> None:
    for line in lines("reference.past.txt"):
        past, present = (Counter(half.split()) for half in line.split("\t"))
        assert 1 <= (past - present).total() <= 6, line
        assert abs(past.total() - present.total()) <= 2  # "the other day", "nowadays"


def test_verbs_are_inflected() -> None:
    verbs = {verb.base: verb for verb in (tense._verb(s) for s in tense._VERBS.strip().split("\n"))}
    expected = """
        study studied studies studying | tie tied ties tying | plan planned plans planning
        swim swam swims swimming | make made makes making | see saw sees seeing
        catch caught catches catching | play played plays playing | fix fixed fixes fixing
        get got gets getting | cut cut cuts cutting | mow mowed mows mowing
        knit knitted knits knitting | open opened opens opening | carry carried carries carrying
    """
    for forms in expected.strip().replace("\n", "|").split("|"):
        base, *others = forms.split()
        assert [verbs[base].past, verbs[base].present("3"), verbs[base].ing] == others
        assert verbs[base].present("1") == verbs[base].present("p") == base


def test_what_is_made_is_in_the_cache_and_checked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_file("tense/past.dev.txt") == cache / "data" / "tense" / "past.dev.txt"
    file = replace(DATA_SETS["tense"].files["present.dev.txt"], sha256="0" * 64)
    with pytest.raises(OSError, match=r"tense/present.dev.txt, made by this package, has sha256"):
        file.get()
    assert not list(cache.rglob("*present*.txt*[!k]"))


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


def test_every_file_has_a_checksum_and_a_place_of_its_own() -> None:
    files = [file for data_set in DATA_SETS.values() for file in data_set.files.values()]
    assert len({file.place for file in files}) == len(files)
    for file in files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256 or "") or (
            file.sha256 is None and re.fullmatch(r"[0-9a-f]{40}", file.git_blob or "")
        )
        assert not Path(file.place).is_absolute()
        assert ".." not in Path(file.place).parts
        made = DATA_SETS[file.data_set].made_by is not None
        assert file.address is not None or made
