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


def tiny_trl(
    model: str, output: Path, rows: list[Any], algorithm: str = "GRPO", **settings: Any
) -> Any:
    """Return a trainer of TRL on some rows, evaluated on two; prompts may be texts.

    `reward_funcs`, `callbacks` and `chat_template` are taken out of the settings.
    """
    import trl  # slow to import
    from datasets import Dataset

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.chat_template = settings.pop("chat_template", None)
    own = {key: settings.pop(key) for key in ("reward_funcs", "callbacks") if key in settings}
    given = SETTINGS | {"output_dir": str(output), "bf16": False} | settings
    data = Dataset.from_list([{"prompt": r} if isinstance(r, str) else r for r in rows])
    return getattr(trl, f"{algorithm}Trainer")(
        model,
        args=getattr(trl, f"{algorithm}Config")(**given),
        train_dataset=data,
        eval_dataset=data.select(range(2)),
        processing_class=tokenizer,
        **own,
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


def run_case(case: Case | ByPrompt, cut: int, make: Callable[..., Trainer]) -> dict[str, Any]:
    """Run a case, interrupted after step `cut` and resumed, and return what was decided."""
    by_prompt = isinstance(case, ByPrompt)
    prompts = 12 if by_prompt else PROMPTS

    def scripted(key: str, step: int) -> list[float]:
        if by_prompt:
            return case.scores(key, step)
        row = values(getattr(case, key))
        return [row[min(step, len(row) - 1)]] * PROMPTS

    used: dict[str, Any] = {}

    def ready(trainer: Trainer) -> None:
        used["stop"] = RewardEarlyStopping("score/a", **case.stopping)
        if by_prompt:
            keeping, guarding = case.keeping, {"held_out": "score/a", **case.guarding}
            used["alarm"] = ProxyGuard("score/b", **guarding)
        else:
            bound = {"eval_score/b": tuple(map(eighths, case.constraint or ()))}
            keeping = {"constraints": bound} if case.constraint else {}
            used["front"] = ParetoCheckpoint(["score/a", "score/b"])
        used["best"] = RewardCheckpoint("score/a", **keeping)
        scorer = Scripted(scripted, trainer, "max" if by_prompt else case.mode)
        add(trainer, scorer, prompts, *used.values(), every=1 if by_prompt else case.every)

    steps = len(case.a) if by_prompt else case.steps
    trainer = resumed(lambda **more: make(max_steps=steps, **more), cut, ready)
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
