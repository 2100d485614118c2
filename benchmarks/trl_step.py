"""Seconds of a training step of the demo under `PolicyTuner` and under TRL's `GRPOTrainer`.

    python benchmarks/trl_step.py [--runs 3] [--steps 4]

Both train the demo's policy with its reward and objective: four prompts, eight completions of 24
tokens each, LoRA of rank 16 on all linear layers. Alternates three forms: `PolicyTuner` as the demo
configures it, with base weights in the processor's fastest dtype; the same with float32 weights;
and `GRPOTrainer` with float32 weights and without gradient checkpointing. Prints a row of medians
per form: seconds of a step, of sampling, of the reward, and of the rest: log-probabilities of the
policy and its reference, backward pass and optimizer.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from datasets import Dataset
from peft import LoraConfig
from side_by_side import machine, quiet
from step_clock import Clock, LightningClock, TransformersClock
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.command_line.config_files import read_job, resolved
from ctrlreward.models.sources import resolve
from ctrlreward.policy import Generation, LoRA, OptimizerConfig, PolicyTuner
from ctrlreward.recipes.controlled_generation import PromptData, build_prompts, relevance_reward

CONFIG = Path(__file__).parents[1] / "configs/controlled_generation/sentiment_smollm2.yaml"
DEMO = resolved(read_job(CONFIG))
MODEL, DATA = DEMO["model"]["init_args"], DEMO["data"]["init_args"]
FORMS = {"PolicyTuner": "fastest", "PolicyTuner, float32": "float32", "GRPOTrainer": "float32"}


class TimedTrainer(GRPOTrainer):
    """The same, under TRL."""

    clock: Clock

    def _generate(self, prompts: list[Any]) -> Any:
        started = time.perf_counter()
        found = super()._generate(prompts)
        self.clock.sampling.append(time.perf_counter() - started)
        self.clock.tokens.append(float(sum(map(len, found[1]))))
        return found

    def _calculate_rewards(self, *args: Any) -> Any:
        started = time.perf_counter()
        found = super()._calculate_rewards(*args)
        self.clock.reward.append(time.perf_counter() - started)
        return found


def run_tuner(dtype: str, steps: int, folder: str) -> Clock:
    """Run some steps of the demo."""
    tuner = PolicyTuner(
        MODEL["model"],
        relevance_reward(**MODEL["reward"]["init_args"]),
        beta=MODEL["beta"],
        generation=Generation(**MODEL["generation"]),
        optimizer=OptimizerConfig(**MODEL["optimizer"]),
        lora=LoRA(**MODEL["lora"] | {"dtype": dtype}),
    )
    clock = LightningClock()
    silent = ("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "logger")
    trainer = pl.Trainer(
        **dict.fromkeys(silent, False),
        accelerator="cpu",
        callbacks=[clock],
        default_root_dir=folder,
        gradient_clip_val=DEMO["trainer"]["gradient_clip_val"],
        limit_val_batches=0,
        max_steps=steps,
    )
    trainer.fit(tuner, PromptData(**DATA))
    return clock


def run_trl(dtype: str, steps: int, folder: str) -> Clock:
    """Run the same under TRL."""
    weights = resolve(MODEL["model"])
    prompts = build_prompts(DATA["prefixes"], DATA["labels"], DATA["template"])
    names = {"prompts": "prompt", "prefixes": "prefix", "labels": "label"}
    table = {name: list(prompts.columns()[column]) for column, name in names.items()}
    generation, optimizer, lora = MODEL["generation"], MODEL["optimizer"], MODEL["lora"]["r"]
    columns = {"prefixes": "prefix", "labels": "label"}
    trainer = TimedTrainer(
        AutoModelForCausalLM.from_pretrained(weights, dtype=dtype),
        reward_funcs=as_reward_funcs(relevance_reward(**MODEL["reward"]["init_args"]), columns),
        args=GRPOConfig(
            **generation,
            **{name: optimizer[name] for name in ("learning_rate", "warmup_steps")},
            output_dir=folder,
            per_device_train_batch_size=DATA["batch_size"] * generation["num_generations"],
            beta=MODEL["beta"],
            loss_type="grpo",
            max_grad_norm=DEMO["trainer"]["gradient_clip_val"],
            max_steps=steps,
            save_strategy="no",
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict(table),
        processing_class=AutoTokenizer.from_pretrained(weights),
        peft_config=LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear"),
    )
    trainer.clock = clock = TransformersClock()
    trainer.add_callback(clock)
    trainer.train()
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps per run, after one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=list(FORMS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    quiet()
    print(f"# {machine()}")
    clocks: dict[str, list[Clock]] = {form: [] for form in options.forms}
    for _ in range(options.runs):
        for form in options.forms:
            gc.collect()  # the last trainer and its module reference each other
            pl.seed_everything(0, verbose=False)
            run = run_trl if form == "GRPOTrainer" else run_tuner
            with tempfile.TemporaryDirectory() as folder:
                clocks[form].append(run(FORMS[form], options.steps + 1, folder))
    for form, own in clocks.items():
        names = ("step", "sampling", "reward", "tokens")
        values = {
            name: np.array([getattr(clock, name)[-options.steps :] for clock in own])
            for name in names
        }
        tokens = values.pop("tokens").mean()
        values["rest"] = values["step"] - values["sampling"] - values["reward"]
        shown = "   ".join(f"{name} {np.median(each):6.2f} s" for name, each in values.items())
        spread = f"({values['step'].min():.2f} to {values['step'].max():.2f})"
        print(f"trl_step  {form:<22}{shown} {spread}   {tokens:.0f} tokens")
        seconds = {name: each.tolist() for name, each in values.items()}
        print(json.dumps({"suite": "trl_step", "form": form, **seconds}), flush=True)


if __name__ == "__main__":
    main()
