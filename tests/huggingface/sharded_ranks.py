"""Script of test_sharded.py: a trainer under FSDP on two gloo ranks, in forked processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed
import trainer_runs
from accelerate.state import AcceleratorState, DistributedType, PartialState
from fakes import ByText

from ctrlreward import Samples
from ctrlreward.huggingface import BeforeAfter, GenerationScorer, RewardCheckpoint

PROMPTS = Samples(["ab", "c", "dea", "bad", "e"])
STEPS = 5


def run(model: str, folder: Path, steps: int = STEPS, **settings: Any) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one, and return what was decided."""
    trainer = trainer_runs.tiny_trainer(
        model,
        folder,
        **trainer_runs.SAVING,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        load_best_model_at_end=True,
        max_grad_norm=0.0,  # FSDP1 clips otherwise than one rank
        max_steps=steps,
        **settings,
    )
    scorer, keeper = ByText(), RewardCheckpoint("score/v")
    generation = {"do_sample": False, "max_new_tokens": 6}
    for callback in (
        GenerationScorer(trainer, {"v": scorer["value"]}, PROMPTS, generation=generation),
        keeper,
        BeforeAfter(
            trainer, {"v": ByText()["value"]}, Samples(["a", "ba", "d"]), 1, generation=generation
        ),
    ):
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    return {
        "scored": scorer.scored,
        "selected": keeper.selected_step,
        "state": keeper.state.to_dict(),
        "best": trainer.state.best_model_checkpoint,
        "scores": [
            row["eval_score/v"] for row in trainer.state.log_history if "eval_score/v" in row
        ],
        "losses": [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row],
        "after": (folder / "after.jsonl").read_text(),
        "kind": type(trainer.model).__name__,
    }


def sharded(version: int) -> dict[str, Any]:
    config = {
        "version": version,
        "state_dict_type": "SHARDED_STATE_DICT",
        "sync_module_states": False,  # FSDP1 of Accelerate would look for a GPU
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    }
    return {"ddp_backend": "gloo", "fsdp": True, "fsdp_config": config}


def accelerator_state(self: AcceleratorState, *args: Any, **kwargs: Any) -> None:
    """Initialize the state of Accelerate as on GPUs: on the CPU it leaves FSDP out."""
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    PartialState._shared_state["device"] = torch.device("cpu")
    start(self, *args, **kwargs)


start = AcceleratorState.__init__


def run_all(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    folder, model = Path(sys.argv[1]), sys.argv[2]
    seen: dict[str, Any] = {}
    with patch.object(AcceleratorState, "__init__", accelerator_state):
        seen["FSDP2"] = run(model, folder / "FSDP2", **sharded(2))
        run(model, folder / "FSDP2, resumed", steps=2, **sharded(2))
        seen["FSDP2, resumed"] = run(model, folder / "FSDP2, resumed", **sharded(2))
        seen["FSDP1"] = run(model, folder / "FSDP1", **sharded(1))
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    on_two_ranks(run_all)
