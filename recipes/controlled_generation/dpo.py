"""DPO with TRL on the pairs of `write_pairs`: a LoRA adapter and its held-out margin.

    python -m ctrlreward.recipes.controlled_generation.dpo --pairs pairs.jsonl \
        --output_dir runs/dpo --max_steps 50

`--config FILE` reads the options from a YAML file; every option of `trl.DPOConfig` is one, with the
defaults of `DEFAULTS`. `--smoke` runs two steps. Copy this file to change more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.files import json_text, write_whole
from ctrlreward.recipes.pair_training import adapter_trainer, parse, read_pairs
from ctrlreward.recipes.text_files import split_off
from ctrlreward.tables.rows import Row

# Options of `trl.DPOConfig`, beside pair_training's.
DEFAULTS: dict[str, Any] = {
    "output_dir": "runs/dpo",
    "learning_rate": 5e-5,
    "per_device_eval_batch_size": 8,
    "max_length": 256,
}


@dataclass
class DPOArguments:
    """Model, adapter and training data."""

    pairs: str = field(metadata={"help": "JSONL file with prompt, chosen and rejected"})
    model: str = field(default="smollm2-135m", metadata={"help": "folder, hub id or short name"})
    validation_share: float = field(default=0.1, metadata={"help": "share of held-out prompts"})
    lora_r: int = field(default=16, metadata={"help": "rank of the adapter"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    smoke: bool = field(default=False, metadata={"help": "two steps with at most eight pairs"})


def split_pairs(
    rows: Sequence[Row], validation_share: float, seed: int, file: str
) -> tuple[list[Row], list[Row]]:
    """Return the pairs of a file to train on and the held-out ones, which have other prompts."""
    keys = [json.dumps(row["prompt"]) for row in rows]  # a chat is a list
    held = {*split_off(list(dict.fromkeys(keys)), validation_share, seed, [file])[1]}
    pairs = list(zip(keys, rows, strict=True))
    return [row for key, row in pairs if key not in held], [r for key, r in pairs if key in held]


def train_dpo(arguments: DPOArguments, config: Any) -> dict[str, Any]:
    """Train an adapter, write it with `summary.json` to the output folder, return the summary.

    Returns:
        `before` and `after`, each with `margin`, the mean difference of β log π/π_ref of the chosen
        and the rejected completion of held-out pairs, and `accuracy`, the share in which it is
        above 0; the number of pairs.
    """
    rows, share = read_pairs(Path(arguments.pairs)), arguments.validation_share
    training, held_out = split_pairs(rows, share, config.seed, arguments.pairs)
    if arguments.smoke:
        training, held_out, config.max_steps = training[:8], held_out[:8], 2
    pairs = {"train_dataset": training, "eval_dataset": held_out}
    lora = (arguments.lora_r, arguments.lora_alpha)
    trainer = adapter_trainer("DPOTrainer", arguments.model, config, pairs, "CAUSAL_LM", *lora)
    summary: dict[str, Any] = {"pairs": {"training": len(training), "held_out": len(held_out)}}
    for when in ("before", "after"):
        metrics = trainer.evaluate()
        summary[when] = {
            "margin": metrics["eval_rewards/margins"],
            "accuracy": metrics["eval_rewards/accuracies"],
        }
        if when == "before":
            trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
    trainer.save_model(config.output_dir)
    write_whole(Path(config.output_dir) / "summary.json", json_text(summary))
    return summary


def main(arguments: Sequence[str]) -> None:
    """Train by the options of a command line, and print the held-out margin."""
    ours, config = parse("DPOConfig", DPOArguments, DEFAULTS, arguments)
    with user_errors():
        summary = train_dpo(ours, config)
    print(f"{summary['pairs']['training']} pairs, {summary['pairs']['held_out']} held out")
    for when in ("before", "after"):
        margin, accuracy = summary[when]["margin"], summary[when]["accuracy"]
        print(f"{when:<7}margin {margin:+.4f}, chosen ahead in {accuracy:.0%}")
    print(f"adapter in {config.output_dir}")


if __name__ == "__main__":
    main(sys.argv[1:])
