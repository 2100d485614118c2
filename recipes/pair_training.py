"""Training of a LoRA adapter on preference pairs by one of TRL's trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peft import LoraConfig

from ctrlreward.extras import import_extra
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.sources import resolve
from ctrlreward.tables.rows import Row, read_rows

# Options of `trl.DPOConfig` and `trl.RewardConfig` that differ from TRL's: for a small model, an
# adapter and few pairs.
DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": False,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


def parse(
    kind: str, own: type, defaults: Mapping[str, Any], arguments: Sequence[str]
) -> tuple[Any, Any]:
    """Return a script's own options, and options of a TRL configuration by name.

    `--config FILE` reads options from a YAML file, as TRL's scripts do.
    """
    trl = import_extra("trl", kind)
    parser = trl.TrlParser(dataclass_types=[own, getattr(trl, kind)])
    parser.set_defaults(**DEFAULTS, **defaults)
    ours, config = parser.parse_args_and_config(list(arguments))
    return ours, config


def read_pairs(path: Path) -> list[Row]:
    """Return the prompt and both completions of each pair that `write_pairs` wrote."""
    columns = ("prompt", "chosen", "rejected")
    return [{name: row[name] for name in columns} for row in read_rows(path)]


def adapter_trainer(
    kind: str,
    model: str,
    config: Any,
    pairs: Mapping[str, Sequence[Row]],
    task_type: str,
    r: int,
    lora_alpha: int,
) -> Any:
    """Return a trainer of TRL for an adapter of all linear layers, on float32 weights.

    Args:
        kind: Class of TRL, such as `"DPOTrainer"`.
        model: Folder, hub id or short name of the base model.
        config: Arguments of the trainer.
        pairs: Argument of the trainer → pairs, such as `train_dataset`.
        task_type: Kind of model in peft, `"CAUSAL_LM"` or `"SEQ_CLS"`.
        r: Rank of the adapter.
        lora_alpha: Its scale.
    """
    trl, datasets = import_extra("trl", kind), import_extra("datasets", kind)
    tokenizer = load_tokenizer(model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config.model_init_kwargs = {"dtype": "float32", **(config.model_init_kwargs or {})}
    return getattr(trl, kind)(
        resolve(model),
        args=config,
        **{name: datasets.Dataset.from_list(rows) for name, rows in pairs.items()},
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=r, lora_alpha=lora_alpha, target_modules="all-linear", task_type=task_type
        ),
    )
