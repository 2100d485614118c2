"""Description and fingerprint of a reward: what changes them, and what does not."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from warm_python import run_warm

from ctrlreward import (
    Alignment,
    CTRLEval,
    Distinct,
    InverseFrequency,
    LexiconSentiment,
    Perplexity,
    Reward,
    Similarity,
    WordVectors,
)
from ctrlreward.scorers import FunctionScorer
from ctrlreward.serving import fingerprint
from ctrlreward.serving.description import describe, differences

VECTORS = {"soup": [1, 0], "broth": [3, 4]}


def changes(one: Reward, other: Reward) -> list[str]:
    """Keys that differ between two rewards."""
    ours, theirs = describe(one), describe(other)
    lines = differences(ours, theirs)
    assert (ours["fingerprint_id"] == theirs["fingerprint_id"]) == (not lines)
    return [line.partition(":")[0] for line in lines]


def fluent(**options: Any) -> Reward:
    return Reward({"fluency": Perplexity(**options)["log_likelihood"]})


def test_scores_directions_ranges_columns_and_groups_are_those_of_the_scorers() -> None:
    ctrleval, distinct = CTRLEval(aspects=["attribute_relevance"]), Distinct()
    perplexity = Perplexity()
    reward = Reward(
        {
            "relevance": ctrleval["attribute_relevance"],
            "variety": distinct["distinct_2"],
            "fluency": (perplexity["perplexity"], -0.1),
        }
    )
    described = json.loads(json.dumps(describe(reward), allow_nan=False))
    components = described["components"].values()
    assert [c["class"] for c in components] == ["CTRLEval", "Distinct", "Perplexity"]
    assert [c["score"] for c in components] == ["attribute_relevance", "distinct_2", "perplexity"]
    assert [c["pointwise"] for c in components] == [True, False, True]
    assert [c["of_groups"] for c in components] == [False, True, False]
    assert described["weights"] == {"relevance": 1.0, "variety": 1.0, "fluency": -0.1}
    assert described["aggregate"] == "weighted"
    relevance, _, fluency = components
    assert relevance["required_columns"] == {"labels": "CTRLEval attribute_relevance"}
    assert (fluency["higher_is_better"], fluency["range"]) == (False, [1.0, None])


# A reward with nested scorers, a table, a set of words and functions.
MANY = """
import json, sys
import numpy as np
from ctrlreward import Accuracy, Alignment, CTRLEval, Distinct, InverseFrequency, LexiconSentiment
from ctrlreward import Perplexity, Reward, Similarity, TransferQuality, WordVectors
from ctrlreward.serving.description import describe

causal = sys.argv[-1]
iwf = InverseFrequency(np.arange(90.0))
style = Accuracy(CTRLEval(causal, task="sentiment", iwf=iwf))
quality = TransferQuality(style, Similarity(WordVectors({"soup": [1, 0]})), Perplexity(causal))
reward = Reward(
    {
        "quality": quality["gm"],
        "kept": Alignment()["preservation"],
        "tone": LexiconSentiment()["polarity"],
        "variety": Distinct(causal)["distinct_2"],
    },
    aggregate=lambda scores: scores["quality"] * 2,
)
print(json.dumps(describe(reward)))
"""


def test_equal_rewards_of_two_processes_have_equal_descriptions(
    tiny_causal: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "many.py"
    script.write_text(MANY)
    there = run_warm(script, tiny_causal("llama"), timeout=120).stdout
    monkeypatch.setattr(sys, "argv", [str(script), tiny_causal("llama")])
    exec(compile(MANY, "elsewhere.py", "exec"), {"__name__": "__main__"})
    here = capsys.readouterr().out
    assert differences(json.loads(there), json.loads(here)) == []
    assert here == there
    assert tiny_causal("llama") not in here


def test_loading_and_scoring_change_nothing(tiny_causal: Callable[..., str]) -> None:
    folder = tiny_causal("llama")
    fluency, aspects = Perplexity(folder), CTRLEval(folder, aspects=["coherence"])
    reward = Reward({"fluency": fluency["log_likelihood"], "coherence": aspects["coherence"]})
    before = describe(reward)
    reward(["A dog slept under the table. The lake froze over."])
    assert describe(reward) == before


def content(weight: float = 1.0, **options: Any) -> Reward:
    scorer = Similarity(WordVectors(VECTORS))
    return Reward({"content": scorer if options else (scorer, weight)}, **options)


def relevance(reference: str = "minilm-l6", **options: Any) -> Reward:
    models = {"relevance_reference": reference, "relevance_output": "minilm-l6"}
    return Reward(Alignment(models, "relevance", **options)["relevance"])


def tone(*labels: str) -> Reward:
    return Reward({"tone": LexiconSentiment("accuracy", labels)})


def double(scores: Any) -> Any:
    return scores["content"] * 2


def twice(scores: Any) -> Any:
    return scores["content"] * 2


S = "fingerprint.scorers.0"


@pytest.mark.parametrize(
    ("one", "other", "changed"),
    [
        (fluent(), fluent(max_tokens=7), [f"{S}.max_tokens"]),
        (fluent(), fluent(score_end=True), [f"{S}.score_end"]),
        (fluent(), fluent(dtype="bfloat16"), [f"{S}.dtype"]),
        (fluent(), fluent(dtype="float32"), []),  # the default on the CPU
        (fluent(), fluent(batch_tokens=64), []),
        (fluent(), fluent(model="minilm-l6"), [f"{S}.model"]),
        (fluent(), fluent(model="owner/name"), [f"{S}.model"]),
        (relevance(), relevance("owner/name"), [f"{S}.models.relevance_reference"]),
        (relevance(), relevance(layer=5), [f"{S}.layer"]),
        (content(), content(0.5), ["weights.content"]),
        (tone("bad", "good"), tone("-", "+"), [f"{S}.labels"]),
        # The versions stand for code; a function of another name is another one.
        (content(aggregate=double), content(aggregate=double), []),
        (content(aggregate=double), content(aggregate=twice), ["fingerprint.aggregate"]),
    ],
)
def test_a_setting_changes_its_own_key(one: Reward, other: Reward, changed: list[str]) -> None:
    assert changes(one, other) == changed


def test_an_aligner_of_ours_counts_by_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained again, it has the same name and other weights."""
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path))
    scorer = Alignment("aligner-consistency", "groundedness", method="discriminative")
    folder = tmp_path / "aligner-consistency"
    folder.mkdir()
    found = []
    for text in "first", "again", "again":
        (folder / "model.safetensors").write_text(text)
        found.append(describe(Reward(scorer["groundedness"]))["fingerprint"])
    assert found[1] == found[2] != found[0]


def test_a_device_counts_by_its_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(fluent(device="cuda:7"))["fingerprint"]["scorers.0.dtype"]  # absent

    def pick(dtype: str | None, device: str) -> torch.dtype:
        return torch.bfloat16 if device == "cuda" else torch.float32

    monkeypatch.setattr(fingerprint, "pick_dtype", pick)
    assert changes(fluent(), fluent(device="cuda")) == ["fingerprint.scorers.0.dtype"]
    assert changes(fluent(), fluent(device="cpu:0")) == []


def test_weights_count_and_their_folder_does_not(
    tiny_causal: Callable[..., str], tmp_path: Path
) -> None:
    def copy(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in Path(tiny_causal("llama")).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    one, other = copy("one"), copy("other")
    assert changes(fluent(model=str(one)), fluent(model=str(other))) == []
    weights = load_file(other / "model.safetensors")
    weights[min(weights)].view(-1)[5] += 0.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    assert changes(fluent(model=str(one)), fluent(model=str(other))) == [
        "fingerprint.scorers.0.model"
    ]


def test_a_large_file_is_read_whole(tmp_path: Path) -> None:
    weights = {"large": torch.zeros(2**20), "small": torch.zeros(3), "last": torch.zeros(2**18)}

    def digest() -> str:
        save_file(weights, tmp_path / "model.safetensors")
        return describe(fluent(model=str(tmp_path)))["fingerprint"]["scorers.0.model"]

    before = digest()
    assert digest() == before
    for name, tensor in list(weights.items()):
        weights[name] = tensor + 1  # as training changes it, everywhere
        assert digest() != before, name
        weights[name] = tensor
    weights["other"] = weights.pop("last")
    assert digest() != before


def test_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe(fluent())
    installed = before["fingerprint"]["versions.torch"]
    monkeypatch.setattr(fingerprint, "version", lambda package: "9.9")
    line = f'fingerprint.versions.torch: expected "{installed}", found "9.9"'
    assert line in differences(before, describe(fluent()))


def test_tables_and_words_count() -> None:
    def vectors(width: float) -> Reward:
        return Reward({"content": Similarity(WordVectors({"soup": [1, 0], "broth": [width, 4]}))})

    def table(last: float) -> Reward:
        weights = np.append(np.zeros(50_000), last)
        return Reward({"c": CTRLEval(iwf=InverseFrequency(weights))["coherence"]})

    for build in (vectors, table):
        assert changes(build(1.0), build(1.0)) == []
        assert changes(build(1.0), build(2.0))


def test_an_expectation_may_be_a_part() -> None:
    found = describe(content(0.5))
    assert differences({"weights": {"content": 0.5}}, found) == []
    assert differences({"weights": {"content": 1.0, "fluency": 0.1}}, found) == [
        "weights.content: expected 1.0, found 0.5",
        "weights.fluency: expected 0.1, found nothing",
    ]
    assert differences({"fingerprint_id": "another"}, found) == [
        f'fingerprint_id: expected "another", found "{found["fingerprint_id"]}"'
    ]


def test_infinite_settings_are_plain() -> None:
    found = fingerprint.fingerprint({"0": FunctionScorer(len, range=(0, math.inf))}, "weighted")
    assert found["scorers.0.range"] == [0, "Infinity"]
