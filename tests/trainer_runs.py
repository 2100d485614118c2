"""Runs of the table of decisions through `transformers.Trainer` and our callbacks.

tests/huggingface runs them in pytest's process, and its scripts on two ranks or killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from decision_cases import PROMPTS, ByPrompt, Case, eighths, values
from fakes import Scripted
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from ctrlreward.huggingface import (
    GenerationScorer,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 8,
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
}
SAVING = {"save_strategy": "steps", "save_steps": 1}


def tiny_trainer(model: str, output: Path, **settings: Any) -> Trainer:
    """Return a trainer of a `tiny_llama` of letters, which evaluates at every step."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.eos_token
    return Trainer(
        AutoModelForCausalLM.from_pretrained(model),
        TrainingArguments(**(SETTINGS | {"output_dir": str(output)} | settings)),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        train_dataset=[{"input_ids": [2, 3, 4]}] * 32,  # type: ignore[arg-type]
        eval_dataset=[{"input_ids": [2, 3]}] * 2,  # type: ignore[arg-type]
        processing_class=tokenizer,
    )


def add(trainer: Trainer, scorer: Scripted, prompts: int, *callbacks: Any, every: int = 1) -> None:
    """Add a `GenerationScorer` with both scores, and the callbacks that read it."""
    scores = {"a": scorer["a"], "b": scorer["b"]}
    held_out = GenerationScorer(
        trainer, scores, ["ab"] * prompts, every, generation={"max_new_tokens": 1}
    )
    for callback in (held_out, *callbacks):
        trainer.add_callback(callback)


def train(trainer: Trainer, *callbacks: Any) -> None:
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()


def resumed(make: Callable[..., Trainer], cut: int, ready: Callable[[Trainer], None]) -> Trainer:
    """Train; if `cut` is not 0, in a run that ends after this step and in a second one."""
    checkpoint = None
    if cut:
        first = make(**SAVING)
        ready(first)
        first.args.max_steps = cut
        first.train()
        checkpoint = str(Path(first.args.output_dir or "") / f"checkpoint-{cut}")
    trainer = make(**SAVING if cut else {})
    ready(trainer)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def run_by_means(case: Case, make: Callable[..., Trainer]) -> dict[str, Any]:
    """Run a case by means, with its interruption, and return what was decided."""

    def scripted(key: str, step: int) -> list[float]:
        row = values(getattr(case, key))
        return [row[min(step, len(row) - 1)]] * PROMPTS

    used: dict[str, Any] = {}

    def ready(trainer: Trainer) -> None:
        low, high = case.constraint or (None, None)
        bounds = {"eval_score/b": (eighths(low), eighths(high))} if case.constraint else {}
        used["stop"] = RewardEarlyStopping("score/a", **case.stopping)
        used["best"] = RewardCheckpoint("score/a", constraints=bounds)
        used["front"] = ParetoCheckpoint(["score/a", "score/b"])
        scorer = Scripted(scripted, trainer, case.mode)
        add(trainer, scorer, PROMPTS, *used.values(), every=case.every)

    trainer = resumed(lambda **more: make(max_steps=case.steps, **more), case.resume or 0, ready)
    return outcome(trainer, used)


def run_by_prompt(case: ByPrompt, make: Callable[..., Trainer]) -> dict[str, Any]:
    """Run a case by prompt, interrupted after step 2, and return what was decided."""
    used: dict[str, Any] = {}

    def ready(trainer: Trainer) -> None:
        used["stop"] = RewardEarlyStopping("score/a", **case.stopping)
        used["best"] = RewardCheckpoint("score/a", **case.keeping)
        used["alarm"] = ProxyGuard(**{"proxy": "score/b", "held_out": "score/a", **case.guarding})
        add(trainer, Scripted(case.scores, trainer, "max"), 12, *used.values())

    trainer = resumed(lambda **more: make(max_steps=len(case.a), **more), 2, ready)
    return outcome(trainer, used)


def outcome(trainer: Trainer, callbacks: dict[str, Any]) -> dict[str, Any]:
    """Return the decisions of a run as plain data; NaN as in Python's JSON."""
    folders = Path(trainer.args.output_dir or "").glob("checkpoint-*")
    found = {
        "steps": trainer.state.global_step,
        "states": {name: callback.state.to_dict() for name, callback in callbacks.items()},
        "selected": callbacks["best"].selected_step,
        "best_global_step": trainer.state.best_global_step,
        "best_model_checkpoint": trainer.state.best_model_checkpoint,
        "checkpoints": sorted(int(folder.name.split("-")[1]) for folder in folders),
    }
    return json.loads(json.dumps(found))
