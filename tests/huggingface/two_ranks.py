"""Script of test_decisions.py: the table of decisions on two gloo ranks, in forked processes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
import trainer_runs
from decision_cases import BY_PROMPT, CASES
from fakes import Scripted
from forked_ranks import on_two_ranks
from transformers import Trainer, TrainerCallback

from ctrlreward import HeldOutScorer, Samples
from ctrlreward.huggingface import RewardCheckpoint, RewardEarlyStopping
from ctrlreward.huggingface.generation import TrainerGenerator
from ctrlreward.scorers.base import Scores
from ctrlreward.selection import BestRule

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


class StepOne:
    """Stands for a trainer at its first step."""

    state = SimpleNamespace(global_step=1)


class LogsOwnRank(TrainerCallback):
    """Logs the step on rank 0, and its negative on the other rank."""

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sign = 1 if state.is_world_process_zero else -1
        state.log_history.append({"own": sign * state.global_step, "step": state.global_step})


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
        "best": RewardCheckpoint("own", "max"),
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


def plain_loop(rank: int) -> dict[str, Any]:
    """Score held-out prompts and decide without a trainer, as in a loop with Accelerate."""
    scorer = Counting(lambda key, step: [0.5, 0.25, 1.0, 0.75, 0.0, 0.25], StepOne(), "max")
    held_out = HeldOutScorer({"a": scorer["a"]}, ["ab", "cd", "ef"], generations_per_prompt=2)
    seen: list[str] = []

    def complete(prompts: list[str]) -> list[str]:
        seen.extend(prompts)
        return [f" by {rank}" for _ in prompts]

    metrics = held_out.evaluate(complete)
    rule = BestRule("score/a")
    state, _ = rule.update(rule.start(), 1, metrics, evidence=held_out.evidence)
    return {
        "metrics": metrics,
        "evidence": {key: row.tolist() for key, row in held_out.evidence.items()},
        "prompts": seen,
        "scored": [list(samples.texts) for samples in scorer.scored],
        "state": state.to_dict(),
    }


def run_all(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    seen: dict[str, Any] = {"means": {}, "prompts": {}, "differs": differs_by_rank()}

    def finish(name: str) -> None:
        torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(FOLDER / name, ignore_errors=True)

    for name in filter(CASES.__contains__, NAMES):
        seen["means"][name] = trainer_runs.run_by_means(CASES[name], maker("run"))
        finish("run")
    for name in filter(BY_PROMPT.__contains__, NAMES):
        seen["prompts"][name] = trainer_runs.run_by_prompt(BY_PROMPT[name], maker("run"))
        finish("run")
    seen |= {"loop": plain_loop(rank), "vllm": by_vllm()}
    (FOLDER / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    on_two_ranks(run_all)
