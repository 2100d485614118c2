"""A trainer under FSDP on two CPU ranks: the texts and decisions of one rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from module_files import load

from ctrlreward import Samples
from ctrlreward.huggingface.generation import TrainerGenerator

SCRIPT = Path(__file__).with_name("sharded_ranks.py")
sharded_ranks = load(SCRIPT)
RUNS = ("FSDP2", "FSDP2, resumed", "FSDP1")


@pytest.fixture(scope="module")
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama("abcde")


@pytest.fixture(scope="module")
def seen(run_ranks, model: str) -> list[dict[str, Any]]:
    return run_ranks(SCRIPT, model)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: str) -> dict[str, Any]:
    run = sharded_ranks.run(model, tmp_path_factory.mktemp("alone") / "run")
    return json.loads(json.dumps(run))


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_write_and_decide_as_one(seen, alone, module_folder: Path, name: str) -> None:
    assert len({text for texts in alone["scored"] for text in texts}) > 10
    assert 2 < alone["selected"] < sharded_ranks.STEPS
    resumed = 2 if name.endswith("resumed") else 0
    assert seen[0][name]["scored"] == alone["scored"][resumed:]
    for rank in seen:
        assert rank[name]["kind"] == (
            "FullyShardedDataParallel" if name == "FSDP1" else "FSDPLlamaForCausalLM"
        )
        assert rank[name]["losses"] == pytest.approx(alone["losses"], abs=1e-4)
        for key in ("scores", "selected", "state", "after"):
            assert rank[name][key] == alone[key]
        assert rank[name]["best"] == str(module_folder / name / f"checkpoint-{alone['selected']}")


def test_zero3_is_gathered_by_trl(make_trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed is not installed here: this shows who gathers, and that no rank waits inside."""
    trainer, entered = make_trainer(), []

    @contextmanager
    def unwrap(model: Any, accelerator: Any) -> Iterator[Any]:
        entered.append((model, accelerator))
        yield model
        entered.append("left")

    def noting(model: Any, input_ids: Any, synced_gpus: bool | None = None, **_: Any) -> Any:
        entered.append(synced_gpus)
        return input_ids

    monkeypatch.setattr("trl.models.unwrap_model_for_generation", unwrap)
    monkeypatch.setattr(type(trainer.model), "generate", noting)
    state = type(trainer.accelerator.state)
    monkeypatch.setattr(state, "deepspeed_plugin", SimpleNamespace(zero_stage=3))
    prompts = Samples(["ab"]).as_prompts()
    assert len(TrainerGenerator(trainer, prompts).generate(prompts, 1, 0)) == 1
    assert entered == [(trainer.model_wrapped, trainer.accelerator), False, "left"]
