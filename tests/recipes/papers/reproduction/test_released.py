"""The protocol of the reproduction study on outputs, against plain loops."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ctrlreward.recipes.papers.reproduction.released import figures, main, read_outputs

# Two prefixes of PPLM, each with three combinations.
OUTPUTS = [
    [numbers, text.format(prefix)]
    for numbers, prefix, text in product(
        ([0, -1, -1], [-1, 2, -1], [1, 0, 1]),
        ("In summary", "The city"),
        ["{} is good", "{} was a bad bad one"],
    )
]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    path = tmp_path / "outputs.txt"
    path.write_text("".join(json.dumps(line) + "\n" for line in OUTPUTS))
    return path


def test_the_figures_equal_plain_loops(
    outputs: Path, tiny_causal: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_causal("gpt2")
    main([str(outputs), f"--perplexity={folder}", f"--distinct={folder}"])
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert list(printed)[-2:] == ["perplexity", "corpus_perplexity"]
    found = figures(read_outputs(outputs), folder, folder)
    assert all(float(printed[name]) == pytest.approx(found[name], abs=6e-5) for name in found)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    losses, lengths = [], []
    for _, text in OUTPUTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        row = torch.tensor([[tokenizer.eos_token_id, *ids]])
        with torch.no_grad():
            logits = model(row).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], row[0, 1:]).item())
        lengths.append(len(ids))
    assert found["perplexity"] == pytest.approx(np.mean(np.exp(losses)), rel=1e-4)
    pooled = math.exp(np.average(losses, weights=lengths))
    assert found["corpus_perplexity"] == pytest.approx(pooled, rel=1e-4)
    shares = []
    for prefix in ("In summary", "The city"):
        ids = [tokenizer(text).input_ids for _, text in OUTPUTS if text.startswith(prefix)]
        shares.append(len({token for each in ids for token in each}) / sum(map(len, ids)))
    assert found["distinct_1"] == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("file", ["generate_prior.txt", "generate_prior_extend.txt"])
def test_the_released_files_have_five_texts_of_each_prefix_and_combination(
    data_dir: Path, file: str
) -> None:
    released = read_outputs(data_dir / "multicontrol" / file)
    assert released.labels is not None
    assert released.groups is not None
    prompts = Counter(zip(released.groups, released.labels, strict=True))
    assert len(released) == 1400
    assert set(prompts.values()) == {5}
    assert len(set(released.groups)) == 35
