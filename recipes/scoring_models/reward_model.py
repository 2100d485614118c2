"""Two reward models by TRL's `RewardTrainer`: one to train against, one that a guard watches.

    python -m ctrlreward.recipes.scoring_models.reward_model
    ctrlreward train --config configs/controlled_generation/reward_model_smollm2.yaml

Each has one half of the recipe's training prompts. The recipe's model completes them, the reward of
a teacher chooses pairs as `write_pairs` does, and TRL trains a LoRA adapter, which
`RewardModel(folder, template="plain")` loads. Each model then judges the pairs of the other half.
`--config FILE` reads the options from a YAML file; every option of `trl.RewardConfig` is one, with
the defaults of `DEFAULTS`. `--smoke` runs two steps. Copy this file to change more.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import set_seed

from ctrlreward.command_line.config_files import read_job, resolved
from ctrlreward.command_line.reward_file import load_reward
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.completion import generate
from ctrlreward.files import json_text, read_json, whole_folder, write_whole
from ctrlreward.jobs.recipes import recipe_file
from ctrlreward.policy import Generation, PolicyTuner
from ctrlreward.preferences.accuracy import preferences
from ctrlreward.preferences.candidates import write_pairs
from ctrlreward.recipes.controlled_generation import build_prompts
from ctrlreward.recipes.pair_training import adapter_trainer, parse, read_pairs
from ctrlreward.scorers import LexiconSentiment, RewardModel
from ctrlreward.scorers.records import write_scored_samples

# Folders of the two models; the first has the even prefixes of the recipe.
NAMES = ("reward", "held_out")

# Options of `trl.RewardConfig`, beside pair_training's.
DEFAULTS: dict[str, Any] = {
    "output_dir": "runs/reward_models",
    "seed": 0,
    "learning_rate": 5e-4,
    "warmup_steps": 3,
    "num_train_epochs": 2,
    "max_length": 128,
}


@dataclass
class RewardModelArguments:
    """Prompts, teacher and adapter.

    The model of the recipe is the generator and the base model; its data have `prefixes`, `labels`
    and `template`, and its `generation` is as in training, at temperature 1.
    """

    recipe: str = field(default="reward_model_smollm2", metadata={"help": "YAML file or name"})
    teacher: str = field(
        default="ctrlreward.recipes.scoring_models.reward_model:word_list",
        metadata={"help": "reward that chooses: a YAML file, FILE.py:FUNCTION or MODULE:FUNCTION"},
    )
    completions: int = field(default=24, metadata={"help": "completions of each prompt"})
    pairs_per_prompt: int = field(default=12, metadata={"help": "most pairs of each prompt"})
    margin: float = field(default=0.1, metadata={"help": "largest difference that is left out"})
    lora_r: int = field(default=16, metadata={"help": "rank of the adapter"})
    lora_alpha: int = field(default=32, metadata={"help": "scale of the adapter"})
    smoke: bool = field(default=False, metadata={"help": "two steps with a few texts"})


def word_list(texts: Sequence[str], labels: Sequence[str]) -> list[float]:
    """Return VADER's polarity in the direction of the label, -1 to 1."""
    polarity = LexiconSentiment("polarity").score(list(texts))["polarity"]
    signs = {"negative": -1.0, "positive": 1.0}
    return [float(signs[label] * value) for label, value in zip(labels, polarity, strict=True)]


def words(completions: Sequence[str]) -> list[int]:
    """Return the number of words of each completion."""
    return [len(completion.split()) for completion in completions]


def train_reward_model(
    folder: Path, ours: RewardModelArguments, config: Any, half: int
) -> dict[str, Any]:
    """Write completions of every other prompt, the teacher's pairs and the adapter to a folder.

    Returns:
        `pairs`, their number; `steps`; `loss`, TRL's, the mean over the training.
    """
    folder.mkdir()
    seed = 2 * config.seed + half  # other completions, and another head
    file = Path(ours.recipe) if Path(ours.recipe).is_file() else recipe_file(ours.recipe)
    recipe = resolved(read_job(file))
    policy, data = recipe["model"]["init_args"], recipe["data"]["init_args"]
    prompts = build_prompts(data["prefixes"], data["labels"], data["template"])
    own = range(half, min(len(prompts), 8) if ours.smoke else len(prompts), 2)
    generation = Generation(**{**policy["generation"], "eval_temperature": 1.0})
    generator = PolicyTuner(policy["model"], words, generation=generation)
    samples = generate(generator, prompts[list(own)], 4 if ours.smoke else ours.completions, seed)
    write_scored_samples(folder / "texts.jsonl", samples, {})
    totals, pairs = load_reward(ours.teacher)(samples).total, folder / "pairs.jsonl"
    write_pairs(pairs, samples, totals, per_prompt=ours.pairs_per_prompt, margin=ours.margin)
    rows = read_pairs(pairs)
    config = copy.copy(config)
    config.seed, config.output_dir = seed, str(folder)
    if ours.smoke:
        config.max_steps = 2
    set_seed(seed)  # of the head, which is new
    lora = (ours.lora_r, ours.lora_alpha)
    datasets = {"train_dataset": rows}
    trainer = adapter_trainer("RewardTrainer", policy["model"], config, datasets, "SEQ_CLS", *lora)
    result = trainer.train()
    trainer.save_model(str(folder))
    return {"pairs": len(rows), "steps": result.global_step, "loss": result.training_loss}


def train_reward_models(ours: RewardModelArguments, config: Any) -> dict[str, dict[str, Any]]:
    """Write both models and `summary.json` to the output folder, return the summary.

    Returns:
        Name of the model → what `train_reward_model` returns, and `accuracy`: `value`, the share of
        the other half's pairs whose chosen text it rates higher, with `low` and `high`, its 95 %
        interval by prompt.
    """
    output = Path(config.output_dir).expanduser()
    if output.exists():
        raise ValueError(f"{output} exists. Delete it, or use another --output_dir.")
    with whole_folder(output) as folder:
        summary = {
            name: train_reward_model(folder / name, ours, config, half)
            for half, name in enumerate(NAMES)
        }
        for name, other in zip(NAMES, NAMES[::-1], strict=True):
            scorer = RewardModel(str(folder / name), template="plain")
            file = folder / name / "preferences.json"
            preferences(folder / other / "pairs.jsonl", scorers=[scorer], output=file)
            scorer.release()
            summary[name]["accuracy"] = read_json(file)["reward"]["subsets"]["all"]["higher"]
        write_whole(folder / "summary.json", json_text(summary))
    return summary


def main(arguments: Sequence[str]) -> None:
    """Train by the options of a command line, and print the accuracy on the other half."""
    ours, config = parse("RewardConfig", RewardModelArguments, DEFAULTS, arguments)
    with user_errors():
        summary = train_reward_models(ours, config)
    for name, model in summary.items():
        print(
            f"{name}: {model['pairs']} pairs, {model['steps']} steps, accuracy on the other half's"
            " pairs {value:.3f} ({low:.3f} to {high:.3f})".format(**model["accuracy"])
        )
    print(f"adapters in {', '.join(str(Path(config.output_dir) / name) for name in NAMES)}")


if __name__ == "__main__":
    main(sys.argv[1:])
