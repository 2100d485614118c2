"""A tiny Llama in a `Trainer`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

LETTERS = "abcdef"


@pytest.fixture
def make_trainer(tiny_llama: Callable[[str], str], tmp_path: Path) -> Callable[..., Trainer]:
    """Return a function that makes a trainer which evaluates at every step."""

    def make(**settings: Any) -> Trainer:
        folder = tiny_llama(LETTERS)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = tokenizer.eos_token
        defaults: dict[str, Any] = {
            "output_dir": str(tmp_path / "run"),
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
        return Trainer(
            AutoModelForCausalLM.from_pretrained(folder),
            TrainingArguments(**(defaults | settings)),
            data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
            train_dataset=[{"input_ids": [2, 3, 4]}] * 16,  # type: ignore[arg-type]
            eval_dataset=[{"input_ids": [2, 3]}],  # type: ignore[arg-type]
            processing_class=tokenizer,
        )

    return make
