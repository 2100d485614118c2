"""Script of test_two_ranks.py: tunes policies on two CPU ranks, which write their weights."""

from __future__ import annotations

import json
import os
import random
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_choice import LoRA, PolicyTuner, pl, quiet_trainer
from module_files import load
from torch.utils.data import DataLoader
from tuner_records import drift

from ctrlreward import Reward, Samples
from ctrlreward.policy.model import load_policy
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.scorers.base import Scores

shared = load(Path(__file__).with_name("conftest.py"))

STEPS = 3
LONGEST = 5
# The prompts of both ranks, step by step; one rank has them all.
BATCHES = [[["ab", "ba"], ["cd", "dc"]], [["ac", "ca"], ["bd", "db"]], [["ef", "fe"], ["af", "fa"]]]
FORMS: dict[str, dict[str, Any]] = {
    "batch baseline": {"algorithm": "reinforce++"},
    "token mean": {"algorithm": "dapo"},
    "decoupled": {"algorithm": "dapo", "scale": "components"},
    "trained adapter, checkpointed layers": {
        "algorithm": "grpo",
        "continued": True,
        "gradient_checkpointing": True,
        "lr_scheduler_type": "linear",
    },
}


class FixedCompletions(PolicyTuner):
    """A tuner with fixed completions for each prompt, and SGD."""

    def rollout(self, prompts: Sequence[str], temperature: float | None = None) -> Rollout:
        self.configure_model()
        self.policy.eval()
        rows, lengths = [], []
        for i, prompt in enumerate(prompts):
            place = i % self.generation.num_generations
            draw = random.Random(zlib.crc32(f"{prompt} {place}".encode()))
            rows.append(
                [*self.tokenizer.encode(prompt), *(draw.randint(2, 7) for _ in range(LONGEST))]
            )
            lengths.append(draw.randint(1, LONGEST))
        ids = torch.tensor(rows)
        mask = (torch.arange(LONGEST) < torch.tensor(lengths)[:, None]).float()
        texts = [
            self.tokenizer.decode(r[-LONGEST:][:n]) for r, n in zip(rows, lengths, strict=True)
        ]
        attention = torch.cat([torch.ones(len(rows), 2), mask], dim=1).long()
        return Rollout(texts, ids, attention, mask, torch.ones(len(rows), dtype=torch.bool))

    def configure_optimizers(self) -> Any:
        configured = super().configure_optimizers()
        sgd = torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.3)
        constant = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1.0)
        configured["lr_scheduler"]["scheduler"] = constant
        return {**configured, "optimizer": sgd}


class FailsForPrompts(shared.Share):
    """Raises, or returns NaN, for prompts that only one rank has."""

    def __init__(self, broken: str = "", unknown: str = "") -> None:
        super().__init__()
        self.broken, self.unknown = broken, unknown

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        scores = super().score_samples(samples)
        prefixes = samples.prefixes or ()
        if self.broken in prefixes:
            raise ValueError("no scores")
        lost = np.array([prefix in self.unknown.split() for prefix in prefixes])
        return {name: np.where(lost, np.nan, values) for name, values in scores.items()}


def trained_adapter(folder: str) -> str:
    """Write an adapter that differs from its base model, the same on every rank."""
    policy = drift(load_policy(folder, LoRA(2), "cpu"), 1)
    out = f"{folder}-adapter-{os.getpid()}"
    policy.save_pretrained(out)
    return out


def tune(folder: str, ranks: int, scorer: shared.Share, **choices: Any) -> dict[str, Any]:
    lora = {"adapter": trained_adapter(folder)} if choices.pop("continued", False) else {"r": 2}
    pl.seed_everything(0, verbose=False)
    module = FixedCompletions(
        folder,
        Reward({"share": scorer["share"]}),
        **shared.grouped(
            num_generations=4, max_completion_length=LONGEST, beta=0.1, **lora, **choices
        ),
    )
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    own = [step[rank] if ranks > 1 else step[0] + step[1] for step in BATCHES]
    trainer = quiet_trainer(
        devices=ranks,
        max_epochs=1,
        strategy="ddp" if ranks > 1 else "auto",
        use_distributed_sampler=False,  # Lightning's shuffles
    )
    error = ""
    try:
        trainer.fit(module, DataLoader([Samples(prompts) for prompts in own], batch_size=None))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {
        "error": error,
        "steps": trainer.global_step,
        "learned": {name: p.detach().flatten().tolist() for name, p in trained.items()},
        "metrics": {key: float(value) for key, value in trainer.callback_metrics.items()},
    }


def run(rank: int) -> None:
    out, folder = sys.argv[1:]
    seen = {form: tune(folder, 2, shared.Share(), **choices) for form, choices in FORMS.items()}
    seen["broken"] = tune(folder, 2, FailsForPrompts(broken="db"))
    seen["unknown"] = tune(folder, 2, FailsForPrompts(unknown="ab ba"))
    (Path(out) / f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from forked_ranks import on_two_ranks

    torch.set_num_threads(1)
    on_two_ranks(run)
