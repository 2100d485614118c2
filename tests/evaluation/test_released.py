"""`ctrlreward evaluate --protocol lorandi`."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import save_bert
from transformers import AutoModelForCausalLM, AutoTokenizer, BertForSequenceClassification

from ctrlreward.cli import main
from ctrlreward.evaluation.released import ATTRIBUTES, read_outputs

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["{} is good", "{} was a bad bad one"]
# Two prefixes of PPLM, each with three combinations.
OUTPUTS = [
    [numbers, text.format(prefix)]
    for numbers, prefix, text in product(
        ([0, -1, -1], [-1, 2, -1], [1, 0, 1]), ("In summary", "The city"), TEXTS
    )
]


def write(path: Path, outputs: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in outputs))
    return path


def results(folder: Path) -> dict[tuple[str, str], float]:
    with open(folder / "results.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(row["system"], row["metric"]): float(row["value"] or "nan") for row in rows}


@pytest.fixture
def run(tiny_causal: Callable[..., str], tmp_path: Path) -> Callable[..., Path]:
    """A function that evaluates outputs and returns the folder."""

    def evaluate(outputs: Sequence[object] = OUTPUTS, *options: str) -> Path:
        file, folder, model = tmp_path / "outputs.txt", tmp_path / "found", tiny_causal("gpt2")
        command = ["evaluate", str(write(file, outputs)), "--protocol", "lorandi"]
        main(
            [
                *command,
                f"--perplexity={model}",
                f"--distinct={model}",
                f"--output={folder}",
                *options,
            ]
        )
        return folder

    return evaluate


def test_the_figures_equal_plain_loops(run, tiny_causal) -> None:
    found = results(run(OUTPUTS[::-1]))  # in any order
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("gpt2"))
    model = AutoModelForCausalLM.from_pretrained(tiny_causal("gpt2")).eval()
    losses, lengths = [], []
    for _, text in OUTPUTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        row = torch.tensor([[tokenizer.eos_token_id, *ids]])
        with torch.no_grad():
            logits = model(row).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], row[0, 1:]).item())
        lengths.append(len(ids))
    assert found["", "perplexity"] == pytest.approx(np.mean(np.exp(losses)), rel=1e-4)
    pooled = math.exp(np.average(losses, weights=lengths))
    assert found["", "corpus_perplexity"] == pytest.approx(pooled, rel=1e-4)
    shares = []
    for prefix in ("In summary", "The city"):
        ids = [tokenizer(text).input_ids for _, text in OUTPUTS if text.startswith(prefix)]
        shares.append(len({token for each in ids for token in each}) / sum(map(len, ids)))
    assert found["", "distinct_1"] == pytest.approx(np.mean(shares))
    assert not {metric for _, metric in found if "accuracy" in metric or metric == "finished"}
    assert ("sentiment=positive topic=world detoxification=nontoxic", "perplexity") in found


def test_accuracies_are_of_the_attributes_that_a_text_controls(run, tmp_path) -> None:
    classifiers = []
    for name, labels in ATTRIBUTES.items():
        save_bert(tmp_path / name, BertForSequenceClassification, id2label=dict(enumerate(labels)))
        classifiers.append(f"{name}={tmp_path / name}")
    folder = run(OUTPUTS, "--classifiers", *classifiers)
    found = results(folder)
    assert found["", "failed"] == 0
    assert math.isnan(found["sentiment=negative", "accuracy_topic"])
    for name, label in (("sentiment", "negative"), ("topic", "business")):
        assert found[f"{name}={label}", "accuracy"] == found[f"{name}={label}", f"accuracy_{name}"]
    average = np.mean([found[system, "accuracy"] for system in {s for s, _ in found} - {""}])
    assert found["", "accuracy"] == pytest.approx(average)
    assert "released, prefix included" in (folder / "card.md").read_text()


def test_texts_that_control_nothing_are_a_combination(run) -> None:
    folder = run([[[-1, -1, -1], text] for _, text in OUTPUTS[:4]])
    rows = [line.split(",") for line in (folder / "results.csv").read_text().splitlines()]
    values = {study: value for study, _, metric, value in rows if metric == "perplexity"}
    assert values["combinations"] == values["overall"]


@pytest.mark.parametrize("file", ["generate_prior.txt", "generate_prior_extend.txt"])
def test_the_released_files_have_five_texts_of_each_prefix_and_combination(data_dir, file) -> None:
    released = read_outputs(data_dir / "multicontrol" / file)
    prompts = [(prompt.prefix, tuple(prompt.targets.items())) for _, prompt in released]
    assert len(released) == 1400
    assert set(Counter(prompts).values()) == {5}
    assert len({prefix for prefix, _ in prompts}) == 35
    # Texts of a prompt are consecutive, as scorers of groups need them.
    assert all(len(set(prompts[i : i + 5])) == 1 for i in range(0, 1400, 5))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([[0, -1], "In summary"], ":13 must be [[sentiment, topic, detoxification], text], got"),
        ([[0, 4, -1], "In summary"], ":13: topic must be -1, not controlled, or 0 to 3, got 4"),
        ([[0, -1, -1], "Long ago"], ":13 begins with none of PPLM's prefixes: 'Long ago'"),
        (OUTPUTS[0], "as many texts of each prefix and combination, got 3 of 'sentiment=negative"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, fails, line, message) -> None:
    file = write(tmp_path / "outputs.txt", [*OUTPUTS, line])
    command = ["evaluate", str(file), "--protocol=lorandi", f"--output={tmp_path / 'found'}"]
    assert message in fails(*command)


def test_the_protocol_has_a_name(fails: Callable[..., str], tmp_path: Path) -> None:
    said = fails("evaluate", "x.txt", "--protocol=gu", f"--output={tmp_path / 'found'}")
    assert "lorandi" in said
