"""`ctrlreward evaluate`."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_bert
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertModel,
)
from wandb_runs import read_runs
from warm_python import run_warm

from ctrlreward import Accuracy, LabelDescriptions
from ctrlreward.cli import main
from ctrlreward.evaluation.texts import find_model
from ctrlreward.functional.agreement import cv_star
from ctrlreward.policy.model import LoRA, load_policy
from ctrlreward.samples import Samples
from ctrlreward.serving.fingerprint import weights_identity

pytestmark = pytest.mark.usefixtures("one_thread")

PREFIXES = ["The food", "In summary", "A dog slept."]
LABELS = {"sentiment": ("negative", "positive"), "length": ("short", "long")}
TEMPLATE = "A {length} and {sentiment} text: {prefix}"
COMBINATIONS = [f"sentiment={s} length={n}" for s, n in product(*LABELS.values())]


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, tiny_causal: Callable[..., str]
) -> dict[str, str]:
    """Generator, a judge with a start token, and a classifier per attribute."""
    folder = tmp_path_factory.mktemp("evaluated")
    judge = folder / "judge"
    shutil.copytree(tiny_causal("llama"), judge)
    tokenizer = AutoTokenizer.from_pretrained(judge)
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.save_pretrained(judge)
    found = {"generator": tiny_causal("gpt2"), "judge": str(judge)}
    for i, (name, labels) in enumerate(LABELS.items()):
        path = folder / name
        save_bert(path, BertForSequenceClassification, id2label=dict(enumerate(labels)))
        model = AutoModelForSequenceClassification.from_pretrained(path)
        torch.manual_seed(i)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 1.0)
            model.classifier.bias.zero_()
        model.save_pretrained(path)
        found[name] = str(path)
    return found


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prefixes") / "prefixes.txt"
    file.write_text("\n".join([*PREFIXES, ""]))
    return file


@pytest.fixture(scope="module")
def plain(models: dict[str, str], prefixes: Path) -> Path:
    """The folder of an evaluation with batches of 8."""
    main(words(models, prefixes, prefixes.with_name("plain"), batch_size=8))
    return prefixes.with_name("plain")


@pytest.fixture
def evaluated(models: dict[str, str], prefixes: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that evaluates into a folder and returns it."""

    def run(name: str, **changes: Any) -> Path:
        main(words(models, prefixes, tmp_path / name, **changes))
        return tmp_path / name

    return run


def words(
    models: dict[str, str],
    file: Path,
    output: Path,
    labels: list[str] | None = None,
    classifiers: list[str] | None = None,
    **changes: Any,
) -> list[str]:
    labels = labels or [f"{name}={','.join(each)}" for name, each in LABELS.items()]
    classifiers = classifiers or [f"{name}={models[name]}" for name in LABELS]
    options = {
        "template": TEMPLATE,
        "prefixes": file,
        "completions": 3,
        "max-tokens": 12,
        "perplexity": models["judge"],
        "distinct": models["judge"],
        "output": output,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    command = ["evaluate", str(options.pop("model", models["generator"]))]
    command += ["--labels", *labels, "--classifier", *classifiers]
    return command + [f"--{name}={value}" for name, value in options.items()]


def content(folder: Path) -> dict[str, bytes]:
    names = ("texts.jsonl", "results.csv", "card.json", "card.md")
    return {name: (folder / name).read_bytes() for name in names}


def results(folder: Path) -> dict[tuple[str, str, str], float]:
    with open(folder / "results.csv", encoding="utf-8") as file:
        return {
            (row["study"], row["system"], row["metric"]): float(row["value"])
            for row in csv.DictReader(file)
        }


def perplexity_of_evaluate(folder: str, text: str) -> float:
    """Perplexity of a text as `evaluate.load("perplexity")` computes it, with its start token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]
    row = torch.tensor([ids])
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(row).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], row[0, 1:])
    return math.exp(loss.item())


def test_the_figures_equal_twins_written_from_transformers(plain, models) -> None:
    samples, found = Samples.from_jsonl(plain / "texts.jsonl"), results(plain)
    assert samples.labels is not None
    assert samples.prompts is not None
    rows = list(product(LABELS["sentiment"], LABELS["length"], PREFIXES, range(3)))
    assert samples.labels == tuple(f"sentiment={s} length={n}" for s, n, _, _ in rows)
    assert samples.prompts == tuple(f"A {n} and {s} text: {p}" for s, n, p, _ in rows)
    assert all(t.startswith(p) for t, (_, _, p, _) in zip(samples.texts, rows, strict=True))

    perplexities = np.array([perplexity_of_evaluate(models["judge"], t) for t in samples.texts])
    assert found["overall", "", "perplexity"] == pytest.approx(perplexities.mean(), rel=1e-4)

    correct = {}
    for position, name in enumerate(LABELS):
        model = AutoModelForSequenceClassification.from_pretrained(models[name]).eval()
        tokenizer = AutoTokenizer.from_pretrained(models[name])
        with torch.no_grad():
            predicted = [
                LABELS[name][model(**tokenizer(t, return_tensors="pt")).logits[0].argmax()]
                for t in samples.texts
            ]
        correct[name] = np.array(
            [p == row[position] for p, row in zip(predicted, rows, strict=True)]
        )
    by_combination = {name: each.reshape(4, -1).mean(axis=1) for name, each in correct.items()}
    assert len({*by_combination["sentiment"]} | {*by_combination["length"]}) > 3
    for name, values in by_combination.items():
        for combination, value in zip(COMBINATIONS, values, strict=True):
            assert found["combinations", combination, f"accuracy_{name}"] == pytest.approx(value)
        assert found["overall", "", f"accuracy_{name}"] == pytest.approx(values.mean())
        assert found["overall", "", f"accuracy_{name}_deviation"] == pytest.approx(values.std())
    average = np.mean(list(by_combination.values()), axis=0)
    assert found["overall", "", "accuracy_deviation"] == pytest.approx(average.std())

    tokenizer = AutoTokenizer.from_pretrained(models["judge"])
    shares = []
    for prefix in dict.fromkeys(prefix for _, _, prefix, _ in rows):
        mine = [t for t, row in zip(samples.texts, rows, strict=True) if row[2] == prefix]
        ids = [tokenizer(t).input_ids for t in mine]
        pairs = {pair for each in ids for pair in pairwise(each)}
        shares.append(len(pairs) / sum(map(len, ids)))
    assert found["overall", "", "distinct_2"] == pytest.approx(np.mean(shares))


KILLED = """
import os, signal, sys
from ctrlreward.cli import main
from ctrlreward.files import JsonLog, json_line

append, rename, calls = JsonLog.append, os.replace, []


def is_last(call):
    calls.append(call)
    return len(calls) == int(sys.argv[1])


def cut(log, record):
    if is_last(record):
        lines = json_line(record)
        if not log.path.exists():
            lines = json_line(log.identity) + lines
        with open(log.path, "ab") as file:
            file.write(lines.encode()[: len(lines) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    append(log, record)


def cut_file(unfinished, path):
    if is_last(path):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(unfinished, path)


JsonLog.append, os.replace = cut, cut_file
main(sys.argv[2:])
"""


@pytest.mark.parametrize("write", [1, 3, 6, 7, 8, 11])
def test_a_killed_run_continues_with_equal_texts_and_figures(
    evaluated, models, prefixes, plain, tmp_path, write
) -> None:
    """Killed at a write: within the first line of completions, the third, the first of scores (6),
    of Distinct by prefix (7), before the texts have their name (8), before the last file has (11).
    """
    script, folder = tmp_path / "killed.py", tmp_path / "cut"
    script.write_text(KILLED)
    arguments = words(models, prefixes, folder, batch_size=8)
    ended = run_warm(script, write, *arguments, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    files = ("texts.jsonl", "results.csv", "card.json", "card.md")
    assert [(folder / name).exists() for name in files] == [write > 8 + i for i in range(4)]
    generated = (folder / "generations.jsonl").read_bytes()
    # Complete lines: of the settings, which the first record brings, and of five batches.
    assert generated.count(b"\n") == {1: 0, 3: 3}.get(write, 6)
    assert content(evaluated("cut", batch_size=8)) == content(plain)
    assert (
        (folder / "generations.jsonl")
        .read_bytes()
        .startswith(generated[: generated.rfind(b"\n") + 1])
    )


@pytest.mark.parametrize("batch_size", [1, 5, 36])
def test_the_batch_size_does_not_matter(evaluated, plain, batch_size) -> None:
    assert content(evaluated("b", batch_size=batch_size)) == content(plain)


def test_a_finished_run_is_not_repeated_nor_continued_with_another_seed(
    evaluated, plain, tmp_path, monkeypatch, capsys
) -> None:
    before = content(shutil.copytree(plain, tmp_path / "a"))
    monkeypatch.setattr("ctrlreward.evaluation.texts.EvaluatedModel.load", None)
    monkeypatch.setattr("ctrlreward.evaluation.measure.score", None)
    assert content(evaluated("a")) == before
    with pytest.raises(SystemExit):
        evaluated("a", seed=1)
    assert "generations.jsonl was started with other settings: seed 0" in capsys.readouterr().err


def test_two_seeds_are_compared(evaluated, plain, tmp_path, capsys) -> None:
    second, output = evaluated("b", seed=1), tmp_path / "comparison.json"
    assert content(plain)["texts.jsonl"] != content(second)["texts.jsonl"]
    capsys.readouterr()
    main(["compare", str(plain), str(second), "--output", str(output)])
    assert f"run 1: {plain}\nrun 2: {second}\n" in capsys.readouterr().out
    studies = json.loads(output.read_text())["studies"]
    assert list(studies) == ["combinations", "overall"]
    of_combinations = studies["combinations"]["metrics"]["perplexity"]["cv_star"]
    assert list(of_combinations) == COMBINATIONS
    ours, theirs = (results(folder)["overall", "", "perplexity"] for folder in (plain, second))
    of_all = studies["overall"]["metrics"]["perplexity"]["cv_star"]
    assert of_all["run"] == pytest.approx(cv_star([ours, theirs]))


def test_a_tuned_adapter_is_evaluated_from_its_run(evaluated, models, plain, tmp_path) -> None:
    policy = load_policy(models["generator"], LoRA(4), "cpu")
    policy.save_pretrained(str(tmp_path / "run" / "checkpoints" / "adapter"))
    untrained = evaluated("untrained", model=tmp_path / "run")
    # The adapter of a new policy changes nothing.
    assert content(untrained)["texts.jsonl"] == content(plain)["texts.jsonl"]
    torch.manual_seed(0)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    policy.save_pretrained(str(tmp_path / "other"))
    other = evaluated("other_texts", model=tmp_path / "other")
    assert content(other)["texts.jsonl"] != content(untrained)["texts.jsonl"]
    with pytest.raises(SystemExit):  # another model in the same folder
        evaluated("other_texts", model=tmp_path / "run")
    # `RewardCheckpoint` writes the last adapter beside the selected one.
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "adapter").rename(checkpoints / "last-adapter")
    assert find_model(str(tmp_path / "run")).adapter == str(checkpoints / "last-adapter")
    policy.save_pretrained(str(checkpoints / "step=000005-adapter"))
    selected = evaluated("selected", model=tmp_path / "run")
    assert content(selected)["texts.jsonl"] == content(other)["texts.jsonl"]
    policy.save_pretrained(str(checkpoints / "step=000010-adapter"))
    with pytest.raises(ValueError, match=r"has 2 adapters, choose one of .*step=000005-adapter, "):
        find_model(str(tmp_path / "run"))


def test_the_last_sentence_of_a_completion_that_was_cut_off_is_dropped(evaluated) -> None:
    options = {"completions": 8, "max_tokens": 30}
    whole = evaluated("keep", unfinished="keep", **options)
    dropped = evaluated("drop", **options)
    texts = [Samples.from_jsonl(folder / "texts.jsonl") for folder in (whole, dropped)]
    ended = [
        each
        for line in (whole / "generations.jsonl").read_text().splitlines()[1:]
        for each in json.loads(line)["ended"]
    ]
    differing = 0
    for long, short, prefix, end in zip(
        texts[0].texts, texts[1].texts, texts[0].prefixes or (), ended, strict=True
    ):
        assert long.startswith(short)
        if short != long:
            differing += 1
            assert not end
            assert short[-1] in ".!?…\"'”’»)]"
            assert len(short) > len(prefix)
    assert differing


def test_an_encoder_decoder_writes_the_whole_text(evaluated, tiny_t5) -> None:
    template = "Write a {length} {sentiment} text that begins with {prefix}."
    folder = evaluated("t5", model=tiny_t5, template=template, completions=2)
    samples = Samples.from_jsonl(folder / "texts.jsonl")
    logged = (folder / "generations.jsonl").read_text().splitlines()[1:]
    completions = [text for line in logged for text in json.loads(line)["completions"]]
    assert all(c.startswith(t) for t, c in zip(samples.texts, completions, strict=True))
    assert samples.prefixes == ("",) * 24
    assert samples.prompts is not None
    assert samples.prompts[2] == "Write a short negative text that begins with In summary."
    assert "- text: completion\n" in (folder / "card.md").read_text()


def test_the_card_goes_to_weights_and_biases(
    evaluated, plain, tmp_path, monkeypatch, capsys
) -> None:
    """Config, summary and tables of an offline run; the run of the same evaluation is the same."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    shutil.copytree(plain, tmp_path / "a")
    for _ in range(2):  # of a finished evaluation, and again
        folder = evaluated("a", wandb="control")
    assert content(folder) == content(plain)
    runs = read_runs(folder)
    assert len(runs) == 2
    assert {(run.start.project, run.start.display_name) for run in runs} == {("control", "a")}
    assert len({run.id for run in runs}) == 1
    assert f"Weights & Biases: wandb sync {runs[0].folder}" in capsys.readouterr().out

    config = {item.key: json.loads(item.value_json) for item in runs[0].start.config.update}
    card = json.loads((folder / "card.json").read_text())
    assert {key: config[key] for key in card} == card
    found = results(folder)
    for (study, _, metric), value in found.items():
        if study == "overall":
            assert runs[0].summary[metric] == pytest.approx(value)
    (row,) = [row for row in runs[0].rows if "combinations" in row]
    table = runs[0].table(row, "combinations")
    assert [cells[0] for cells in table["data"]] == COMBINATIONS
    for name, *cells in table["data"]:
        for metric, cell in zip(table["columns"][1:], cells, strict=True):
            assert cell == pytest.approx(found["combinations", name, metric])
    texts = runs[0].table(row, "samples")
    assert texts["columns"][:3] == ["prompt", "label", "text"]
    samples = Samples.from_jsonl(folder / "texts.jsonl")
    assert [cells[2] for cells in texts["data"]] == list(samples.texts)


def test_options_of_a_yaml_file_and_the_card(models, prefixes, plain, tmp_path) -> None:
    """A map of labels, a further scorer, and a classifier as an object: descriptions of labels."""
    save_bert(tmp_path / "encoder", BertModel)
    encoder = str(tmp_path / "encoder")
    described = {"short": ["it was"], "long": ["an hour for a table"]}
    length = {
        "class_path": "ctrlreward.LabelDescriptions",
        "init_args": {"descriptions": described, "encoder": encoder},
    }
    options = {
        "labels": {"sentiment": ["bad", "positive"], "length": ["short", "long"]},
        "label_map": ["bad=negative"],
        "classifiers": {"sentiment": models["sentiment"], "length": length},
        "template": TEMPLATE,
        "prefixes": str(prefixes),
        "completions": 3,
        "max_tokens": 12,
        "perplexity": models["judge"],
        "distinct": models["judge"],
        "scorers": [{"class_path": "LexiconSentiment", "init_args": {"aspects": "polarity"}}],
    }
    config, folder = tmp_path / "evaluation.yaml", tmp_path / "mapped"
    config.write_text(json.dumps(options))
    main(["evaluate", models["generator"], "--config", str(config), "--output", str(folder)])
    found, samples = results(folder), Samples.from_jsonl(folder / "texts.jsonl")
    assert ("overall", "", "polarity") in found
    assert ("combinations", "sentiment=bad length=short", "accuracy_sentiment") in found
    # Only the prompts with the other word differ.
    for name in ("accuracy_sentiment", "perplexity"):
        key = ("combinations", "sentiment=positive length=long", name)
        assert found[key] == pytest.approx(results(plain)[key])
    judge = Accuracy(LabelDescriptions(described, encoder), attribute="length")
    expected = judge.score(samples)["accuracy"]
    assert 0 < expected.mean() < 1
    assert found["overall", "", "accuracy_length"] == pytest.approx(expected.mean())
    card = json.loads((folder / "card.json").read_text())
    assert card["protocol"]["combinations"] == 4
    assert card["protocol"]["completions"] == "3 per prefix and combination, 36 texts"
    texts = (folder / "texts.jsonl").read_bytes()
    assert card["files"]["texts.jsonl"] == f"sha256:{hashlib.sha256(texts).hexdigest()}"
    scorers = card["scorers"]
    assert scorers["versions.transformers"]
    identity = scorers["scorers.classifiers.classifiers.length.model.encoder"]
    assert identity == weights_identity(encoder)
    weights = [value for key, value in scorers.items() if key.endswith(".model")]
    assert len(weights) >= 3
    assert all(value.startswith("sha256:") for value in [identity, *weights])
    text = (folder / "card.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| accuracy |"))
    numbers = (found["overall", "", name] for name in ("accuracy", "accuracy_deviation"))
    assert row == "| accuracy | {:.4f} | {:.4f} |".format(*numbers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"template": "A {sentiment} text: {prefix}"}, "lacks {length}"),
        ({"template": "{length} {sentimnt}: {prefix}"}, "(did you mean 'sentiment'?)"),
        ({"template": "{prefix}, {length}, {sentiment}"}, "must end in {prefix}"),
        ({"template": "{length {sentiment}: {prefix}"}, "template = '{length {sent"),
        ({"prefixes": "pplmm"}, "(did you mean 'pplm'?)"),
        ({"completions": 0}, "completions must be positive, got 0"),
        ({"label_map": "negative"}, "label_map = 'negative' must be OLD=NEW"),
        ({"label_map": "negative=NEG"}, "'NEG' is not a label of the classifier for 'sentiment'"),
        ({"labels": ["negative"]}, "labels = 'negative' must be ATTRIBUTE=LABEL,LABEL"),
        ({"labels": ["sentiment="]}, "labels of 'sentiment' must be one or more"),
        (
            {"labels": ["mood=a", "topic=b"], "classifiers": ["topic=x"]},
            "attribute 'mood' needs a classifier",
        ),
        ({"classifiers": ["sentimnt=x"]}, "'sentiment'?"),
        ({"classifiers": ["sentiment"]}, "must be ATTRIBUTE=MODEL"),
        ({"base": "smollm2-135m"}, "is not the folder of an adapter"),
        ({"distinct": "/nowhere"}, "model = '/nowhere'"),
        ({"model": "/nowhere"}, "model = '/nowhere' is neither a folder"),
    ],
)
def test_a_mistake_is_named_before_anything_is_generated(
    evaluated, tmp_path, capsys, changes, message
) -> None:
    with pytest.raises(SystemExit) as exit:
        evaluated("a", **changes)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


LABEL_DESCRIPTIONS = "ctrlreward.LabelDescriptions"


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("LabelDescriptions", {}, "expected a dot import path string: LabelDescriptions"),
        (LABEL_DESCRIPTIONS[:-1], {}, "(did you mean 'LabelDescriptions'?)"),
        (
            LABEL_DESCRIPTIONS,
            {"init_args": {"description": {"negative": ["bad"]}}},
            "classifiers.description is not an option (did you mean 'descriptions'?)",
        ),
    ],
)
def test_a_mistake_in_a_classifier_of_a_file_is_one_line(
    tmp_path, fails, path, options, message
) -> None:
    file = tmp_path / "evaluation.yaml"
    file.write_text(json.dumps({"classifiers": {"sentiment": {"class_path": path, **options}}}))
    said = fails("evaluate", "gpt2", "--config", file, "--output", tmp_path / "a")
    (line,) = [line for line in said.splitlines() if "error: " in line]
    assert line.endswith(message)
