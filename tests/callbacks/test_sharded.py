"""Two CPU ranks that share the weights of a model: the same texts and decisions as one rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_choice import (
    GenerationScorer,
    MisconfigurationException,
    RewardCheckpoint,
    quiet_trainer,
)
from module_files import load
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

SCRIPT = Path(__file__).with_name("sharded_ranks.py")
sharded_ranks = load(SCRIPT)


@pytest.fixture(scope="module")
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama("abcde")


@pytest.fixture(scope="module")
def seen(run_ranks, model: str) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT, model)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: str) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, json.loads(json.dumps(sharded_ranks.run("one rank", model, folder)))


RUNS = ("FSDP2", *sharded_ranks.INTERRUPTED)  # all but the first are resumed after step 2


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_write_the_texts_and_scores_of_one(seen, alone, name: str) -> None:
    expected = alone[1]
    assert len({text for texts in expected["scored"] for text in texts}) > 10
    for rank in seen:
        assert rank[name]["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert rank[name]["score"] == expected["score"]
        assert rank[name]["after"] == expected["after"] != ""
    resumed = 0 if name == "FSDP2" else 2
    assert seen[0][name]["scored"] == expected["scored"][resumed:]
    shares = [[["ab", "dea", "e"]], [["c", "bad"]]]
    for rank, share in zip(seen, shares, strict=True):  # of different size and length
        asked = [prompts for prompts in rank[name]["asked"] if prompts in share]
        assert len(asked) == sharded_ranks.STEPS - resumed


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_keep_the_checkpoint_of_one(seen, alone, module_folder: Path, name: str) -> None:
    expected = alone[1]
    assert 2 < expected["selected"] < sharded_ranks.STEPS
    for rank in seen:
        for key in ("selected", "state", "stop"):
            assert rank[name][key] == expected[key]
        assert rank[name]["best"] == str(
            module_folder / name / "kept" / Path(expected["best"]).name
        )
    names = {Path(expected["best"]).name, "last.ckpt"}  # the displaced ones are gone
    assert {path.name for path in (module_folder / name / "kept").iterdir()} == names


def test_the_kept_checkpoint_has_the_weights_of_one_rank(seen, alone, tmp_path, model: str) -> None:
    whole = torch.load(alone[1]["best"], weights_only=True)["state_dict"]
    for name in RUNS:
        best = Path(seen[0][name]["best"])
        assert best.is_dir() == (name != "FSDP2 full")
        file = best
        if best.is_dir():
            file = tmp_path / name
            dcp_to_torch_save(best, file)
        saved = torch.load(file, weights_only=True)
        weights = saved["model" if name.startswith("FSDP1") else "state_dict"]
        assert weights.keys() == whole.keys()
        for key in whole:
            torch.testing.assert_close(weights[key], whole[key], rtol=1e-4, atol=1e-5)


def test_a_checkpoint_that_was_not_finished_is_absent(seen, module_folder: Path) -> None:
    failed = [rank["full disk"]["error"] for rank in seen]
    assert failed == ["OSError: no space left", "rank 0 failed with OSError: no space left"]
    first, last = sorted((module_folder / "full disk" / "kept").iterdir(), reverse=True)
    assert (first.name[:11], last.name) == ("step=000001", "last.ckpt")
    for path in (first, last):  # whole
        dcp_to_torch_save(path, module_folder / "weights")
        state = torch.load(path / "meta.pt", weights_only=True)
        assert state["global_step"] == 1
        (keeper,) = (s for key, s in state["callbacks"].items() if "RewardCheckpoint" in key)
        assert keeper["best_model_path"] == str(first)


def test_a_part_runs_alone_as_often_as_a_rank_likes(seen) -> None:
    for rank in seen:
        found = rank["plain loop"]
        assert max(found["differences"]) < 1e-6
        assert found["shards"] == [["DTensor"] * 6] * 2
        # The second layer of three frees its weights after a pass, the others don't.
        kept = ["Parameter"] * 2 + ["DTensor"] * 2 + ["Parameter"] * 2
        assert found["after a pass"] == [kept] * 2


def refused(strategy: Any, callback: Any, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = quiet_trainer(barebones=True)
    monkeypatch.setattr(trainer._accelerator_connector, "strategy", strategy)
    callback.setup(trainer, module, "validate")


@pytest.mark.lightning
def test_strategies_that_callbacks_cannot_gather_are_refused(
    curve, tuned, held_out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    strategies = sharded_ranks.strategies
    scorer = GenerationScorer({"v": curve([0.0])["value"]}, held_out)
    # Without __init__, since that of DeepSpeed's needs its package.
    deepspeed = strategies.DeepSpeedStrategy.__new__(strategies.DeepSpeedStrategy)
    with pytest.raises(MisconfigurationException, match="DeepSpeedStrategy"):
        refused(deepspeed, scorer, tuned(), monkeypatch)
    split = strategies.ModelParallelStrategy()
    split._device_mesh = {"tensor_parallel": SimpleNamespace(size=lambda: 2)}
    with pytest.raises(MisconfigurationException, match="tensor_parallel_size"):
        refused(split, scorer, tuned(), monkeypatch)
    keeper = RewardCheckpoint("v", "max", dirpath=str(tmp_path))
    with pytest.raises(MisconfigurationException, match="export_adapter"):
        refused(strategies.FSDPStrategy(), keeper, tuned(), monkeypatch)
