"""Script of test_decisions.py: the table of decisions on two gloo ranks, in forked processes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import trainer_runs
from decision_cases import BY_PROMPT, TABLE
from fakes import Scripted
from forked_ranks import on_two_ranks
from transformers import Trainer, TrainerCallback

from ctrlreward import Samples
from ctrlreward.huggingface import RewardCheckpoint, RewardEarlyStopping
from ctrlreward.huggingface.generation import TrainerGenerator
from ctrlreward.scorers.base import Scores

FOLDER, MODEL = Path(sys.argv[1]), sys.argv[2]
NAMES = sys.argv[3:]


class Counting(Scripted):
    """Scores that keep the samples that they were asked for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scored: list[Samples] = []

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(samples)
        return super().score_samples(samples)


class LogsOwnRank(TrainerCallback):
    """Logs the step on rank 0, and its negative on the other rank; and one on rank 0 alone."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sign = 1 if state.is_world_process_zero else -1
        step = state.global_step
        alone = {"alone": step} if state.is_world_process_zero else {}
        state.log_history.append({"own": sign * step, **alone, "step": step})


class Engine:
    """Stands for TRL's vLLM server, which repeats each prompt: both calls are collectives.

    The prompts of all ranks are one list, in which a rank has as many places as it has prompts.
    """

    def sync_weights(self) -> None:
        torch.distributed.barrier()

    def generate(self, prompts: list[Any], images: None, num_generations: int) -> tuple[Any, ...]:
        of_ranks: list[Any] = [None, None]
        torch.distributed.all_gather_object(of_ranks, prompts)
        start = torch.distributed.get_rank() * len(prompts)
        return None, [*of_ranks[0], *of_ranks[1]][start : start + len(prompts)]


def maker(name: str) -> Callable[..., Trainer]:
    def make(**settings: Any) -> Trainer:
        return trainer_runs.tiny_trainer(MODEL, FOLDER / name, ddp_backend="gloo", **settings)

    return make


def differs_by_rank() -> dict[str, Any]:
    trainer = maker("differs")(max_steps=5)
    scorer = Counting(lambda key, step: [0.5] * 3, trainer, "max")
    used = {
        "stop": RewardEarlyStopping("own", "max", patience=2),
        "best": RewardCheckpoint("alone", "max"),
    }
    trainer_runs.add(trainer, scorer, 3, LogsOwnRank(), *used.values())
    trainer.train()
    logged = [row["own"] for row in trainer.state.log_history if "own" in row]
    return {**trainer_runs.outcome(trainer, used), "logged": logged, "scored": len(scorer.scored)}


def by_vllm() -> list[tuple[str, ...]]:
    trainer: Any = maker("vllm")()
    trainer.vllm_generation = Engine()
    found = []
    for prompts in (["ab", "cd", "ef"], ["ab"]):
        samples = Samples(prompts).as_prompts()
        found.append(TrainerGenerator(trainer, samples).generate(samples, 2, 0).texts)
    return found


def run_all(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    seen: dict[str, Any] = {"cases": {}, "differs": differs_by_rank(), "vllm": by_vllm()}
    for given in NAMES:
        name, cut = given.split(":")
        case = (TABLE | BY_PROMPT)[name]
        seen["cases"][name] = trainer_runs.run_case(case, int(cut), maker("run"))
        torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(FOLDER / "run")
        torch.distributed.barrier()
    (FOLDER / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    on_two_ranks(run_all)
