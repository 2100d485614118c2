"""A reward model by TRL's `RewardTrainer`: a LoRA adapter on pairs that a reward has chosen.

    python -m ctrlreward.recipes.scoring_models.reward_model \
        --config configs/scoring_models/reward_model_smollm2.yaml --folder runs/reward_model/reward

The model completes half of the prompts, `ctrlreward pairs` chooses by the reward of a teacher, and
TRL trains. The folder has the adapter, which `RewardModel(folder, template="plain")` loads, the
texts, the pairs and `evaluation.json`. `--half 1` takes the other half of the prompts, for a second
reward model that a guard watches. Every option of `trl.RewardConfig` is one. Copy this file to
change more.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peft import LoraConfig

from ctrlreward.evaluation.texts import EvaluatedPrompt, TextLog, build_prompts, find_model
from ctrlreward.extras import import_extra
from ctrlreward.files import json_line, whole_folder, write_whole
from ctrlreward.policy.rollouts import Generation
from ctrlreward.preferences import accuracy
from ctrlreward.preferences.pairs import write_pairs
from ctrlreward.scorers import LexiconSentiment, RewardModel
from ctrlreward.tables.row_streams import read_rows
from ctrlreward.weights.loading import load_tokenizer
from ctrlreward.weights.sources import resolve

# Options of `trl.RewardConfig` that differ from TRL's: for a small model, an adapter and few pairs.
DEFAULTS: dict[str, Any] = {
    "output_dir": None,  # the folder has all that is kept
    "learning_rate": 5e-4,
    "lr_scheduler_type": "linear",
    "warmup_steps": 3,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "max_length": 128,
    "gradient_checkpointing": False,
    "bf16": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


@dataclass
class RewardModelArguments:
    """Prompts, teacher, model and folder.

    Attributes:
        folder: Folder of the reward model, which appears when it is trained.
        prefixes: Content prefixes.
        labels: Target labels.
        template: Prompt of the model, which ends in `{prefix}`, with `{label}`.
        half: Half of the prefixes, 0 or 1: every other one.
        completions: Completions of each prompt.
        pairs_per_prompt: Most pairs of each prompt.
        margin: Pairs whose rewards differ by at most this are left out.
        teacher: The reward that chooses, as for `ctrlreward pairs`.
        max_completion_length: Most tokens of a completion.
        model: Local folder, Hugging Face id or short name of generator and base model.
        lora_r: Rank of the adapter.
        lora_alpha: Its scale.
        other: Folder of the model of the other half: each then judges the pairs of the other.
        smoke: Run two steps with a few texts.
    """

    folder: str = field(metadata={"help": "folder of the reward model"})
    prefixes: list[str] = field(metadata={"help": "content prefixes"})
    labels: list[str] = field(metadata={"help": "target labels"})
    template: str = field(metadata={"help": "prompt with {label}, which ends in {prefix}"})
    half: int = field(default=0, metadata={"help": "half of the prefixes", "choices": [0, 1]})
    completions: int = field(default=8, metadata={"help": "completions of each prompt"})
    pairs_per_prompt: int = field(default=4, metadata={"help": "most pairs of each prompt"})
    margin: float = field(default=0.1, metadata={"help": "smallest difference of rewards"})
    teacher: str = field(
        default="ctrlreward.recipes.scoring_models.reward_model:word_list",
        metadata={"help": "reward that chooses: a YAML file or MODULE:FUNCTION"},
    )
    max_completion_length: int = field(default=24, metadata={"help": "tokens of a completion"})
    model: str = field(default="smollm2-135m", metadata={"help": "folder, hub id or short name"})
    lora_r: int = field(default=16, metadata={"help": "rank of the adapter"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    other: str | None = field(default=None, metadata={"help": "folder of the other half's model"})
    smoke: bool = field(default=False, metadata={"help": "two steps with a few texts"})


def word_list(completions: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Return VADER's polarity in the direction of the label, `negative` or another one."""
    polarity = LexiconSentiment("polarity").score(list(completions))["polarity"]
    signs = [-1.0 if label == "negative" else 1.0 for label in labels]
    return [float(sign * value) for sign, value in zip(signs, polarity, strict=True)]


def write_completions(path: Path, arguments: RewardModelArguments, seed: int) -> None:
    """Write completions of the prompts of a half, with the columns that `ctrlreward pairs` reads."""
    prefixes = arguments.prefixes[arguments.half :: 2]
    prompts = build_prompts(prefixes, {"label": arguments.labels}, arguments.template)
    options = Generation(
        max_completion_length=arguments.max_completion_length, eval_temperature=1.0
    )
    log = TextLog(
        path.with_name("generations.jsonl"),
        *(prompts, arguments.completions, options, seed, {}),
        continues=True,
        drop=False,
    )
    texts, _ = log.complete(find_model(arguments.model), "cpu", None, 64)
    rows = [_row(prompt, text) for prompt, text in zip(log.prompts, texts, strict=True)]
    write_whole(path, "".join(map(json_line, rows)))


def _row(prompt: EvaluatedPrompt, completion: str) -> dict[str, str]:
    text = prompt.prefix + completion
    label = prompt.targets["label"]
    return {"text": text, "prefix": prompt.prefix, "prompt": prompt.prompt, "label": label}


def train_reward_model(arguments: RewardModelArguments, config: Any) -> dict[str, Any]:
    """Write the folder of a reward model, and return the content of its `evaluation.json`.

    Returns:
        `pairs`: their number; `steps`; `training_accuracy`: the share of pairs of the last steps
        whose chosen text has the higher reward.
    """
    trl, datasets = import_extra("trl", "RewardTrainer"), import_extra("datasets", "RewardTrainer")
    if arguments.smoke:
        arguments.prefixes, arguments.completions = arguments.prefixes[:4], 4
        arguments.max_completion_length, arguments.margin, config.max_steps = 8, -1.0, 2
    tokenizer = load_tokenizer(arguments.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    with whole_folder(Path(arguments.folder).expanduser()) as folder:
        write_completions(folder / "texts.jsonl", arguments, config.seed)
        summary = write_pairs(
            str(folder / "texts.jsonl"),
            str(folder / "pairs.jsonl"),
            reward=arguments.teacher,
            margin=arguments.margin,
            per_prompt=arguments.pairs_per_prompt,
        )
        print(summary)
        columns = ("prompt", "chosen", "rejected")
        rows = [{name: r[name] for name in columns} for r in read_rows(folder / "pairs.jsonl")]
        config.model_init_kwargs = {"dtype": "float32", **(config.model_init_kwargs or {})}
        trainer = trl.RewardTrainer(
            resolve(arguments.model),
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=arguments.lora_r,
                lora_alpha=arguments.lora_alpha,
                target_modules="all-linear",
                task_type="SEQ_CLS",
            ),
        )
        trainer.train()
        trainer.save_model(str(folder))
    return {}
