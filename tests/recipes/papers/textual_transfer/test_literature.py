"""Literature data: what is written, from books of our own and from those of the real data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_models import save_bert
from transformers import BertForTokenClassification, pipeline

from ctrlreward.cli import main
from ctrlreward.data import local_file
from ctrlreward.recipes.papers.textual_transfer.literature import write_literature
from ctrlreward.recipes.papers.textual_transfer.name_recognizer import NameRecognizer

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


def test_names_by_none_and_by_a_function(files, tmp_path: Path) -> None:
    def all_caps(sentences: Sequence[str]) -> list[str]:
        return [re.sub(r"\bJohn\b", "-LOCATION-", sentence) for sentence in sentences]

    report = write_literature(files, str(tmp_path / "a"), dev=1, test=1, names=all_caps)
    assert report["styles"]["old"]["-LOCATION-"] == 10
    assert "all_caps" in report["settings"]["names"]
    kept = write_literature(files, str(tmp_path / "b"), dev=1, test=1, names=None)
    assert kept["styles"]["old"]["dropped: repeated"] == 1
    assert "sir john" in (tmp_path / "b" / "train.0").read_text()
    with pytest.raises(ValueError, match="0 sentences for 26, must return one for each"):
        write_literature(files, str(tmp_path / "c"), dev=1, test=1, names=lambda _: [])


KINDS = {"B-PER": "-PERSON-", "I-PER": "-PERSON-", "B-LOC": "-LOCATION-"}


def test_a_recognizer_of_named_entities(tmp_path: Path, files, capsys) -> None:
    """Against the pipeline of transformers, which names the label of each token."""
    labels = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "B-MISC"}
    folder = tmp_path / "ner"
    save_bert(folder, BertForTokenClassification, id2label=labels, initializer_range=0.6)
    sentences = ["Sir John went to Rome, again.", "", "It rained on Mr. Dick; in York!", "Yes."]
    tagged = pipeline("token-classification", str(folder))
    expected = []
    for text in sentences:
        sentence, tokens = text, tagged(text) if text else []
        for word in reversed([*re.finditer(r"\w+|[^\w\s]", sentence)]):
            inside = [t for t in tokens if t["start"] < word.end() and t["end"] > word.start()]
            kinds = [KINDS[t["entity"]] for t in inside if t["entity"] in KINDS]
            text = text[: word.start()] + (kinds or [word.group()])[0] + text[word.end() :]
        expected.append(re.sub(r"(-PERSON-|-LOCATION-)(\s*\1)+", r"\1", text))
    assert {"-PERSON-", "-LOCATION-"} <= {*re.findall("-PERSON-|-LOCATION-", " ".join(expected))}
    assert NameRecognizer(str(folder))(sentences) == expected

    data = tmp_path / "data"
    names = f"{NameRecognizer.__module__}.NameRecognizer"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({
        "files": files, "folder": str(data), "dev": 1, "test": 1, "words": [1, 25],
        "names": {"class_path": names, "init_args": {"model": str(folder)}},
    }))  # fmt: skip
    main(["papers", "literature", "--config", str(tmp_path / "job.yaml")])
    report = json.loads((data / "report.json").read_text())
    assert report["settings"]["names"] == f"NameRecognizer({folder})"
    assert sum(style["-PERSON-"] for style in report["styles"].values()) > 0

    save_bert(tmp_path / "other", BertForTokenClassification, id2label={0: "O", 1: "B-MISC"})
    with pytest.raises(ValueError, match="must have labels such as B-PER and B-LOC, got O, B-MISC"):
        NameRecognizer(str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"files": {"old": ["x"]}}, "files must have two styles, got old"),
        ({"files": {"a": "x", "b": ["y"]}}, "files of a must be a list of one file or more, got"),
        ({"words": (9, 8)}, r"words must be two numbers of 1 or more in order, got \(9, 8\)"),
        ({"dev": 0}, "dev must be 1 or more, got 0"),
        ({"names": "capital"}, "names must be one of capitals"),
        ({"test": 9}, "old: 11 sentences of 6 to 25 words, but dev and test take 11. Add files"),
        ({"sentence_splitter": "x"}, "sentence_splitter must be .*'x'"),
    ],
)
def test_wrong_options(files, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_literature(**{"files": files, "folder": str(tmp_path / "d"), "dev": 2, **options})
    assert not (tmp_path / "d").exists()


def test_command(files, tmp_path: Path, fails: Callable[..., str], capsys) -> None:
    options = ["--files", json.dumps(files), "--dev=2", "--test=2", "--folder"]
    main(["papers", "literature", *options, str(tmp_path / "rule")])
    printed = json.loads(capsys.readouterr().out)
    assert printed["new"]["train"] == 6
    tagger = "ctrlreward.recipes.papers.textual_transfer.running_text.replace_names"
    main(["papers", "literature", *options, str(tmp_path / "function"), f"--names={tagger}"])
    assert read(tmp_path / "rule") == read(tmp_path / "function")
    options += [str(tmp_path / "missing"), "--files.old=[nowhere.txt]"]
    assert "nowhere.txt" in fails("papers", "literature", *options)


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
