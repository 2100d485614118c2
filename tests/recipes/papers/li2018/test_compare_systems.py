"""The comparison of style transfer systems, on sentences and judges that are made here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctrlreward import Accuracy, Samples, Similarity, WordVectors
from ctrlreward.cli import main
from ctrlreward.files import JsonLog
from ctrlreward.functional.bootstrap import Estimate
from ctrlreward.functional.transfer import SentenceScores, adjusted_gm
from ctrlreward.models.text_cnn import TextCNN, TextCNNConfig, save_text_cnn
from ctrlreward.recipes.papers.li2018.compare_systems import compare_systems
from ctrlreward.recipes.papers.li2018.system_figures import SystemFigures
from ctrlreward.recipes.papers.li2018.system_outputs import SystemOutputs, read_outputs
from ctrlreward.recipes.papers.li2018.system_report import (
    acceptance,
    differences,
    front,
    rewritings,
    systems_text,
    validation_trail,
)
from ctrlreward.recipes.papers.textual_transfer.transfer_bleu import read_references
from ctrlreward.recipes.scoring_models.text_cnn import frequent_words
from ctrlreward.recipes.style_transfer import ScoringModels
from ctrlreward.text.words import separate_words

pytestmark = pytest.mark.usefixtures("one_thread")

THINGS = ("soup", "room", "bus", "play", "tea", "inn")
THRESHOLDS = (-8.0, -100.0, 1e6, -1e6)


def sentence(thing: str, word: str) -> str:
    return f"the {thing} was so {word} ."


TRAINING = {
    "sour": [sentence(thing, "cold") for thing in THINGS],
    "sweet": [sentence(thing, "lovely") for thing in THINGS],
}
# Style of a source → source and reference, which is not written as the corpus is.
PAIRS = {
    "sour": [(f"{thing} cold .", f"The {thing} was lovely.") for thing in THINGS],
    "sweet": [(f"{thing} lovely .", f"The {thing} wasn't cold!") for thing in THINGS],
}


@dataclass(frozen=True)
class Setting:
    """Files and judges of a comparison."""

    folder: Path
    references: dict[str, str]
    constant_files: dict[str, str]
    classifiers: list[str]
    vectors: list[WordVectors]
    language_model: str

    @property
    def scoring_models(self) -> ScoringModels:
        return ScoringModels(
            self.classifiers[0], self.vectors[0], self.language_model, thresholds=THRESHOLDS
        )

    @property
    def test(self) -> Samples:
        return read_references(self.references)

    def write(self, name: str, texts: Sequence[str], order: Sequence[int] = range(12)) -> str:
        """Write outputs for the test sentences, and return NAME=FILE."""
        sources, labels = self.test.sources or (), self.test.labels or ()
        rows = [{"text": texts[i], "source": sources[i].upper(), "label": labels[i]} for i in order]
        file = self.folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"{name}={file}"

    def compare(self, *systems: str, **options: Any) -> dict[str, Any]:
        """Compare systems, and return the content of systems.json."""
        compare_systems(
            self.scoring_models,
            Accuracy(self.classifiers[1]),
            self.references,
            str(self.folder / "out"),
            self.vectors[1],
            self.constant_files,
            system=systems,
            resamples=200,
            **options,
        )
        return json.loads((self.folder / "out" / "systems.json").read_text())


@pytest.fixture
def setting(tmp_path: Path, tiny_llama: Callable[[str], str]) -> Setting:
    words = frequent_words([text for side in TRAINING.values() for text in side], 1)
    classifiers, vectors = [], []
    for seed in (0, 1):
        torch.manual_seed(seed)
        folder = tmp_path / f"judge{seed}"
        folder.mkdir()
        save_text_cnn(TextCNN(TextCNNConfig(words, ("sour", "sweet"), 8, (2,), 4, 0.0)), folder)
        classifiers.append(str(folder))
        draws = np.random.default_rng(seed)
        vectors.append(WordVectors({word: draws.normal(size=4).tolist() for word in words}))
    for style in PAIRS:
        (tmp_path / f"{style}.pairs").write_text("\n".join(map("\t".join, PAIRS[style])))
        (tmp_path / style).write_text("\n".join(TRAINING[style]))
    references = {style: str(tmp_path / f"{style}.pairs") for style in PAIRS}
    constants = {style: str(tmp_path / style) for style in PAIRS}
    letters = tiny_llama(" abcdefghijklmnopqrstuvwxyz.'!")
    return Setting(tmp_path, references, constants, classifiers, vectors, letters)


def changed(test: Samples) -> list[str]:
    """Return other outputs for the test sentences, of several lengths."""
    draw = random.Random(0)
    return [
        f" {source[:-2]} {' '.join(draw.choices(('so', 'lovely', 'cold'), k=1 + i % 3))}."
        for i, source in enumerate(test.sources or ())
    ]


def pairs_per_word(texts: Sequence[str]) -> float:
    words = [text.split() for text in texts]
    pairs = {pair for line in words for pair in pairwise(line)}
    return len(pairs) / sum(map(len, words))


# Figures


def test_figures_are_those_of_the_judges_one_text_at_a_time(setting: Setting) -> None:
    test = setting.test
    mine = changed(test)
    found = setting.compare(setting.write("mine", mine))
    constant = found["constants"]
    texts = {
        "references": list(test.references or ()),
        "copying": list(test.sources or ()),
        "constant": [constant[label] for label in test.labels or ()],
        "mine": mine,
    }
    assert list(found["systems"]) == list(texts)
    quality, second = setting.scoring_models.quality(), Accuracy(setting.classifiers[1])
    raw = Similarity(setting.vectors[1])
    for name, outputs in texts.items():
        rows = []
        for text, source, label in zip(outputs, test.sources or (), test.labels or (), strict=True):
            one = Samples([separate_words(text)], labels=[label], sources=[source])
            scores = {key: values[0] for key, values in quality.score(one).items()}
            scores["independent"] = second.score(one)["accuracy"][0]
            scores["uncentred"] = raw.score(one)["similarity"][0]
            scores["letters"] = len(one.texts[0])  # tokens of this language model
            rows.append(scores)
        table = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        figures = found["systems"][name]
        value = {key: each["value"] for key, each in figures.items() if isinstance(each, dict)}
        assert figures["n"] == len(test) == 12
        assert figures["failed"] == 0
        means = ("accuracy", "independent", "similarity", "uncentred")
        expected = {key: table[key].mean() for key in means}
        total = (table["log_likelihood"] * table["letters"]).sum()
        expected["perplexity"] = np.exp(-total / table["letters"].sum())
        expected["gm"] = adjusted_gm(
            *(expected["accuracy"], expected["similarity"], value["perplexity"]), THRESHOLDS
        )
        for key, each in expected.items():
            assert value[key] == pytest.approx(float(each), rel=1e-5), key
        separated = [separate_words(text) for text in outputs]
        assert figures["distinct_2"] == pytest.approx(pairs_per_word(separated))
        for key in ("independent", "similarity", "perplexity", "gm"):
            assert figures[key]["low"] <= value[key] <= figures[key]["high"]
    systems = found["systems"]
    assert systems["references"]["bleu"] is None
    assert systems["references"]["meteor"] is None
    assert 0 < systems["mine"]["meteor"] < 100
    assert systems["copying"]["similarity"]["value"] == 1
    assert systems["mine"]["similarity"]["low"] < systems["mine"]["similarity"]["high"]
    quality.release()


def test_the_order_of_rows_does_not_matter(setting: Setting) -> None:
    texts = changed(setting.test)
    order = list(range(len(texts)))
    random.Random(1).shuffle(order)
    first = setting.compare(setting.write("mine", texts), selected="mine")
    second = setting.compare(setting.write("mine", texts, order), selected="mine")
    assert first == second
    # A checkpoint's outputs in a file of several are read as rows of their own.
    file = setting.folder / "translations.jsonl"
    sources = setting.test.sources or ()
    lines = [
        {"source": sources[i], "reference": "-", "outputs": {"last": "-", "best_gm": texts[i]}}
        for i in order
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert setting.compare(f"mine={file}", selected="mine") == first


def test_rated_systems_have_the_sentences_that_they_have(setting: Setting) -> None:
    test = setting.test
    sources, labels = test.sources or (), test.labels or ()
    lines = ["item,target,system,source,output,grammaticality,sentiment,topic"]
    for i in (7, 2, 4):
        lines.append(f"{i},{labels[i]},retrieval|rules,{sources[i]},the tea was so cold .,4,4,3")
        lines.append(f"{i},{labels[i]},retrieval|rules,{sources[i]},the tea was so cold .,4,4,3")
    ratings = setting.folder / "ratings.csv"
    ratings.write_text("\n".join(lines))
    found = setting.compare(ratings=str(ratings))["systems"]
    counts = {
        **dict.fromkeys(("references", "copying", "constant"), 12),
        "retrieval": 3,
        "rules": 3,
    }
    assert {name: each["n"] for name, each in found.items()} == counts
    quality = setting.scoring_models.quality()
    rated = test[[2, 4, 7]].replace(texts=["the tea was so cold ."] * 3)
    expected = quality.corpus(rated)
    assert found["rules"]["similarity"]["value"] == pytest.approx(expected["similarity"])
    assert found["rules"]["accuracy"]["value"] == expected["accuracy"]
    quality.release()
    with pytest.raises(ValueError, match="rules has 3 of 12 sentences"):
        setting.compare(ratings=str(ratings), selected="rules")


# Errors


def test_missing_doubled_and_unknown_sentences_are_named(setting: Setting) -> None:
    test, texts = setting.test, changed(setting.test)

    def read(order: Sequence[int]) -> SystemOutputs:
        name, _, file = setting.write("mine", texts, order).partition("=")
        return read_outputs(name, Path(file), test)

    everything = list(range(12))
    assert read(everything).samples.texts == tuple(texts)
    with pytest.raises(ValueError, match=r"mine has no output for 'bus cold \.'; 1 of 12"):
        read([i for i in everything if i != 2])
    with pytest.raises(ValueError, match=r"mine has 'BUS COLD \.' twice"):
        read([*everything, 2])
    file = setting.folder / "mine.jsonl"
    lines = file.read_text().splitlines()[:12]
    file.write_text("\n".join(lines).replace("BUS COLD", "BUS COOL"))
    with pytest.raises(ValueError, match=r"has 'BUS COOL \.', which is not a test sentence"):
        read_outputs("mine", file, test)
    file.write_text("\n".join(lines).replace('"sweet"', '"sour"'))
    with pytest.raises(ValueError, match=r"rewrites 'SOUP COLD \.' as sour, but the references"):
        read_outputs("mine", file, test)
    file.write_text("\n".join([*lines[:3], '{"source": "soup ."}']))
    with pytest.raises(ValueError, match=r"mine\.jsonl:4 must have `source` and `text`"):
        read_outputs("mine", file, test)


def test_names_that_mean_no_system_are_refused(setting: Setting) -> None:
    mine = setting.write("mine", changed(setting.test))
    with pytest.raises(ValueError, match="yours is not a system, must be one of references, copyi"):
        setting.compare(mine, selected="mine", against=["yours"])
    with pytest.raises(ValueError, match="against needs selected"):
        setting.compare(mine, against=["copying"])
    with pytest.raises(ValueError, match="two systems are named mine"):
        setting.compare(mine, mine)
    with pytest.raises(ValueError, match="--system must be NAME=FILE, got 'mine'"):
        setting.compare("mine")


# Requirements


def system(
    name: str, independent: float, similarity: float, perplexity: float, distinct: float, gm: float
) -> SystemFigures:
    """Return a system of given figures; its scores have this Sim, and Acc 1."""
    names = ("accuracy", "independent", "similarity", "perplexity", "gm")
    values = zip(names, (1.0, independent, similarity, perplexity, gm), strict=True)
    estimates = {name: Estimate(value, value - 0.01, value + 0.01) for name, value in values}
    n = np.ones(20)
    noise = np.linspace(-0.1, 0.1, 20)
    scores = SentenceScores(n, similarity + noise, -np.log(perplexity) * n, 5 * n)
    return SystemFigures(name, tuple(range(20)), scores, estimates, distinct, 20.0, "", 50.0)


HUMANS = system("references", 0.9, 0.7, 60.0, 0.5, 25.0)
WORSE = system("copying", 0.05, 0.4, 50.0, 0.5, 10.0)


@pytest.mark.parametrize(
    ("figures", "missed"),
    [
        ((0.80, 0.65, 60.0, 0.4), []),
        ((0.79, 0.65, 60.0, 0.4), ["independent Acc ≥ 0.80: 0.790"]),
        ((0.80, 0.64, 60.0, 0.4), ["Sim ≥ Sim of the references - 0.05: 0.640, at least 0.650"]),
        ((0.80, 0.65, 60.1, 0.4), ["PP ≤ PP of the references: 60.1, at most 60.0"]),
        (
            (0.80, 0.65, 60.0, 0.39),
            ["Distinct-2 ≥ 0.8 × Distinct-2 of the references: 0.390, at least 0.400"],
        ),
    ],
)
def test_each_requirement_is_met_or_missed_by_itself(
    figures: tuple[float, float, float, float], missed: list[str]
) -> None:
    mine = system("mine", *figures, gm=30.0)
    found = differences({"mine": mine, "copying": WORSE}, "mine", ["copying"], (0, 0, 97, -37))
    systems = {"references": HUMANS, "copying": WORSE, "mine": mine}
    checks = acceptance(systems, "mine", found)
    text = systems_text(systems, "mine", found, checks)
    lines = text.splitlines()
    assert [line.removeprefix("- missed: ") for line in lines if "- missed" in line] == missed
    assert sum(line.startswith("- met: ") for line in lines) == 5 - len(missed)


def test_a_gm_that_may_be_no_better_is_missed() -> None:
    mine = system("mine", 0.9, 0.7, 50.0, 0.5, 30.0)
    systems = {"references": HUMANS, "copying": WORSE, "mine": mine, "same": mine}
    found = differences(systems, "mine", ["copying", "same"], (0, 0, 97, -37))
    low, high = (float(adjusted_gm(1.0, each, 50.0, (0, 0, 97, -37))) for each in (0.4, 0.7))
    assert found["copying"].value == pytest.approx(high - low)
    assert tuple(found["same"]) == (0, 0, 0)  # the same sentences are drawn for both
    met = {check.claim: check.met for check in acceptance(systems, "mine", found)}
    assert met["GM above the GM of copying, with the interval above 0"]
    assert not met["GM above the GM of same, with the interval above 0"]
    wide = {"copying": Estimate(2.0, -0.1, 4.0)}
    (line,) = (check for check in acceptance(systems, "mine", wide) if "GM" in check.claim)
    assert (line.met, line.figures) == (False, "+2.00 (-0.10 to +4.00)")


# Files


def test_a_command_line_writes_four_files(
    setting: Setting, fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = JsonLog(setting.folder / "run" / "metrics.jsonl")
    for step in (5, 10):
        run.append({"step": step, "score/independent": step / 20, "score/corpus/similarity": 0.5})
    assert validation_trail(setting.folder / "run") == [(0.25, 0.5), (0.5, 0.5)]
    config, vectors = setting.folder / "systems.json", str(setting.folder / "vectors")
    setting.vectors[0].save(vectors)
    models = {"classifier": setting.classifiers[0], "language_model": setting.language_model}
    accuracy = {"model": setting.classifiers[1]}
    options = {
        "scoring_models": {**models, "encoder": vectors, "thresholds": THRESHOLDS},
        "independent": {"class_path": "ctrlreward.scorers.Accuracy", "init_args": accuracy},
        "references": setting.references,
    }
    config.write_text(json.dumps(options))
    texts = changed(setting.test)
    folder = setting.folder / "out"
    arguments = ["--config", str(config), "--output", str(folder), "--run", str(run.path.parent)]
    for name in ("first", "second"):
        arguments += ["--system", setting.write(name, texts)]
    arguments += ["--selected", "first", "--resamples", "50"]
    main(["papers", "compare-systems", *arguments])
    shown = capsys.readouterr().out
    assert shown == (folder / "systems.md").read_text()
    found = json.loads((folder / "systems.json").read_text())
    assert list(found["systems"]) == ["references", "copying", "first", "second"]
    assert list(found["differences"]) == ["copying", "second"]
    assert found["differences"]["second"] == {"value": 0, "low": 0, "high": 0}
    assert "- missed: GM above the GM of second" in shown
    assert (folder / "systems.png").read_bytes().startswith(b"\x89PNG")
    rewritten = (folder / "rewritings.md").read_text()
    assert "| target | source | reference | first | second |" in rewritten
    assert len(rewritten.splitlines()) == 2 + 12
    main(["papers", "compare-systems", *arguments, "--against", "copying"])
    found = json.loads((folder / "systems.json").read_text())
    assert list(found["differences"]) == ["copying"]
    arguments[3] = str(config)  # a file, which is named before the outputs are read
    missing = ["--system", "third=nowhere.jsonl"]
    assert "File exists" in fails("papers", "compare-systems", *arguments, *missing)
    arguments[3] = str(folder)
    assert "nobody is not a system" in fails(
        "papers", "compare-systems", *arguments, "--against", "nobody"
    )


def test_forty_rewritings_are_evenly_spaced() -> None:
    n = 118
    columns = {name: [f"{name} {i}" for i in range(n)] for name in ("sources", "references")}
    test = Samples([""] * n, labels=["sweet"] * n, **columns)
    texts = [f" a | b\n{i}" for i in range(n)]
    mine = SystemOutputs("mine", tuple(range(n)), test.replace(texts=texts))
    lines = rewritings(test, [mine]).splitlines()
    assert len(lines) == 42
    assert lines[2] == r"| 1 | sweet | sources 0 | references 0 | a \| b 0 |"
    assert lines[3] == r"| 4 | sweet | sources 3 | references 3 | a \| b 3 |"
    assert lines[-1].startswith("| 118 |")


def test_the_front_leaves_out_what_another_system_dominates() -> None:
    best = {"copying": (0.05, 1.0), "good": (0.8, 0.7), "constant": (1.0, 0.1)}
    figures = {
        name: system(name, *sides, 50.0, 0.5, 1.0)
        for name, sides in {**best, "bad": (0.7, 0.6)}.items()
    }
    assert front(figures) == best
