"""Description and digest of a reward: what changes them, and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ctrlreward import Distinct, Perplexity, Reward
from ctrlreward.serving import description
from ctrlreward.serving.description import describe, digest


def block(**options: Any) -> dict[str, Any]:
    return {"components": {"fluency": {"scorer": "Perplexity", "score": "perplexity", **options}}}


def test_what_is_written_in_the_file_counts() -> None:
    assert digest(block()) == digest(json.loads(json.dumps(block())))
    changed = [block(), block(model="minilm-l6"), block(max_tokens=7), block(weight=0.5)]
    assert len({*map(digest, changed)}) == 4
    reward = Reward({"fluency": Perplexity()["perplexity"]})
    assert describe(reward, block())["fingerprint_id"] == digest(block())


def test_a_reward_of_python_counts_by_its_description() -> None:
    first, second = Perplexity(), Perplexity()
    components = (first["perplexity"], (first["perplexity"], -0.1), Distinct()["distinct_2"])
    ids = [describe(Reward({"x": component}))["fingerprint_id"] for component in components]
    assert len({*ids}) == 3
    assert describe(Reward({"x": second["perplexity"]}))["fingerprint_id"] == ids[0]


def test_weights_count_and_their_place_does_not(
    tiny_causal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in Path(tiny_causal("llama")).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return folder

    one, other = copied("one"), copied("other")
    before = digest(block(model=str(one)))
    assert digest(block(models={"x": [str(other)]})) == digest(block(models={"x": [str(one)]}))
    assert digest(block(model=str(other))) == before
    weights = load_file(other / "model.safetensors")
    weights[max(weights)].view(-1)[-1] += 0.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    assert digest(block(model=str(other))) != before
    # A model that we train into the cache has the same name and other weights.
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path))
    ids = [digest(block(model="aligner-consistency"))]
    one.rename(tmp_path / "aligner-consistency")
    ids.append(digest(block(model="aligner-consistency")))
    assert ids[0] != ids[1] == before
    assert digest(block(prompt="~" + "x" * 5000))  # is no path


def test_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(block())
    monkeypatch.setattr(description, "version", lambda package: "9.9")
    assert digest(block()) != before
