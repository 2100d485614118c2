"""Digest of a configuration: the content of what it names, wherever that is, and versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ctrlreward.models import identity
from ctrlreward.models.identity import digest


def block(**options: Any) -> dict[str, Any]:
    return {"components": {"fluency": {"scorer": "Perplexity", "score": "perplexity", **options}}}


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
    monkeypatch.setattr(identity, "version", lambda package: "9.9")
    assert digest(block()) != before


def test_files_and_folders_of_modules_and_the_base_of_an_adapter_count(tmp_path: Path) -> None:
    sentences, base, adapter = (tmp_path / name for name in ("sentences", "base", "adapter"))
    rubric, pooling = tmp_path / "rubric.yaml", sentences / "1_Pooling" / "config.json"
    for file in (rubric, pooling, sentences / "modules.json", base / "config.json"):
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("{}")
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    settings = block(rubric=str(rubric), models=[str(sentences), str(adapter)])
    digests = [digest(settings)]
    for file in (rubric, pooling, base / "config.json"):
        file.write_text('{"changed": 1}')
        digests.append(digest(settings))
    assert len({*digests}) == 4


def test_the_place_of_a_model_does_not_count() -> None:
    placed = block(device="cuda:1", batch_tokens=7)
    assert digest(block(device=None)) == digest(placed) == digest(block())
    named = {"weights": {"device": 0.5}}  # a component of this name
    assert digest(named) != digest({"weights": {}})
