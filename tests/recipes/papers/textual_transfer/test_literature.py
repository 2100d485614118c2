"""Literature data: what is written, from books of our own and from those of the real data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.papers.textual_transfer import literature
from ctrlreward.recipes.papers.textual_transfer.literature import write_literature

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
    assert json.loads((tmp_path / "data" / "report.json").read_text()) == report
    old, new = report["styles"]["old"], report["styles"]["new"]
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


def test_a_seed_fixes_the_split_and_other_files_stay(files, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "again", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        write_literature(files, str(folder), dev=2, test=2, seed=seed)
    first, again, other = map(read, folders)
    assert first == again != other
    assert sorted(chain(*first.values())) == sorted(chain(*other.values()))
    (folders[0] / "report.json").unlink()
    with pytest.raises(ValueError, match=r"does not contain report.json; it would be replaced"):
        write_literature(files, str(folders[0]), dev=2, test=2, seed=1)
    assert read(folders[0]) == first


def test_command(files, tmp_path: Path, fails: Callable[..., str], capsys) -> None:
    options = ["--files", json.dumps(files), "--dev=2", "--test=2", "--folder"]
    literature.main([*options, str(tmp_path / "rule")])
    printed = json.loads(capsys.readouterr().out)
    assert printed["new"]["train"] == 6
    options += [str(tmp_path / "missing"), "--files.old=[nowhere.txt]"]
    assert "nowhere.txt" in fails(*options, program=literature.main)


def configuration(name: str) -> Any:
    return yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())


def test_configurations_agree() -> None:
    """What one configuration writes is what the others read."""
    written = configuration("literature_data")
    files = {style: f"{written['folder']}/train.{i}" for i, style in enumerate(written["files"])}
    dev, test = ([f"{written['folder']}/{part}.{i}" for i in (0, 1)] for part in ("dev", "test"))
    transfer = configuration("literature")
    data = transfer["data"]["init_args"]
    assert (data["files"], data["exclude"]) == (files, [*dev, *test])
    assert data["words"] == written["words"]
    callbacks = [callback["init_args"] for callback in transfer["trainer"]["callbacks"]]
    selection, report = (options for options in callbacks if "sentences" in options)
    assert list(selection["sentences"]["files"].values()) == dev
    assert list(report["sentences"]["files"].values()) == test
    encoder = report["scoring_models"]["encoder"]["init_args"]
    assert encoder == {"corpus": list(files.values()), "exclude": data["exclude"]}
    models = [configuration(Path(judge["config"]).stem) for judge in data["models"]]
    roots = [model["trainer"]["default_root_dir"] for model in models]
    folders = [model["model"]["init_args"]["folder"] for model in models]
    assert folders == ["${trainer.default_root_dir}/model"] * 2
    assert [f"{root}/model" for root in roots] == [judge["folder"] for judge in data["models"]]
    classifier, language_model = (model["data"]["init_args"] for model in models)
    assert (classifier["train"], classifier["exclude"]) == (files, dev)
    assert list(classifier["test"].values()) == test
    assert language_model["train"] == list(files.values())
    assert (language_model["test"], language_model["exclude"]) == (test, dev)


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


@pytest.mark.soak
def test_sentences_of_dickens_and_wikipedia(data_dir: Path, tmp_path: Path) -> None:
    named = configuration("literature_data")["files"]
    books = {style: [str(local_file(file)) for file in files] for style, files in named.items()}
    report = write_literature(books, str(tmp_path / "data"), dev=500, test=500)
    for counts in report["styles"].values():
        dropped = sum(n for reason, n in counts.items() if reason.startswith("dropped"))
        assert counts["found"] == dropped + sum(counts[part] for part in ("train", "dev", "test"))
    assert report["styles"]["dickens"]["train"] > 8000
    assert report["styles"]["modern"]["train"] > 2500
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
    assert report["styles"]["dickens"]["-PERSON-"] > 3000
    sentences = chain.from_iterable(written[f"{part}.0"] for part in ("train", "dev", "test"))
    dickens = set(" ".join(sentences).split())
    assert not dickens & {"oliver", "fagin", "joe", "herbert", "wemmick", "havisham", "london"}
    assert {"-person-", "-location-", "sunday", "convict"} < dickens
