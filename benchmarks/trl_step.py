"""Seconds of a training step of the demo under `PolicyTuner` and under TRL's `GRPOTrainer`.

    python benchmarks/trl_step.py [--runs 3] [--steps 4]

Both train the demo's policy with its reward, objective and callbacks: four prompts, eight
completions of 24 tokens each, LoRA of rank 16 on all linear layers. Alternates three forms:
`PolicyTuner` as the demo configures it, with base weights in the processor's fastest dtype; the
same with float32 weights; and `GRPOTrainer` with float32 weights and without gradient
checkpointing. Prints a row and a line of JSON per form: median seconds per step, and of these the
seconds of sampling, of the reward, and of the rest: log-probabilities of the policy and its
reference, backward pass and optimizer. Each run ends with a validation, which is timed apart: eight
prompts, generated and scored by the `GenerationScorer` of the trainer, and the rules that read it.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import yaml
from datasets import Dataset
from peft import LoraConfig
from side_by_side import machine
from step_clock import Clock, LightningClock, TimedTuner, TransformersClock
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig, GRPOTrainer

from ctrlreward import Samples, callbacks, huggingface
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.models.sources import resolve
from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig
from ctrlreward.recipes.controlled_generation import (
    PromptData,
    build_prompts,
    held_out_scores,
    relevance_reward,
)

CONFIG = Path(__file__).parents[1] / "configs/controlled_generation/sentiment_smollm2.yaml"
DEMO = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
MODEL = DEMO["model"]["init_args"]
DATA = DEMO["data"]["init_args"]
HELD_OUT = ["The hotel", "The film", "Our dinner", "The band"]  # with two labels each
CHECKED = {"score/distinct_2": (0.5, None)}
FORMS = ("PolicyTuner", "PolicyTuner, float32", "GRPOTrainer")


class TimedTrainer(GRPOTrainer):
    """The same, under TRL."""

    clock: Clock

    def _generate(self, prompts: list[Any]) -> Any:
        started = time.perf_counter()
        found = super()._generate(prompts)
        if self.model.training:
            self.clock.sampling.append(time.perf_counter() - started)
            self.clock.tokens.append(float(sum(map(len, found[1]))))
        return found

    def _calculate_rewards(self, *args: Any) -> Any:
        started = time.perf_counter()
        found = super()._calculate_rewards(*args)
        if self.model.training:
            self.clock.reward.append(time.perf_counter() - started)
        return found

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Time the callbacks alone: the trainer's own evaluation would generate once more."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        self.clock.validation = time.perf_counter() - started
        return metrics


def rules(package: Any) -> list[Any]:
    """Return the demo's callbacks that decide, of one of the two packages."""
    return [
        package.RewardEarlyStopping("score/attribute_relevance", patience=2),
        package.RewardCheckpoint("score/attribute_relevance", constraints=CHECKED),
    ]


def held_out() -> Samples:
    return build_prompts(HELD_OUT, DATA["labels"], DATA["template"])


def run_tuner(dtype: str, steps: int, folder: str) -> Clock:
    """Run some steps of the demo after one warm-up step, and a validation."""
    clip = DEMO["trainer"]["gradient_clip_val"]
    tuner = TimedTuner(
        MODEL["model"],
        relevance_reward(**MODEL["reward"]["init_args"]),
        Objective(**MODEL["objective"]),
        Generation(**MODEL["generation"]),
        OptimizerConfig(**MODEL["optimizer"]),
        lora=LoRA(**MODEL["lora"] | {"dtype": dtype}),
    )
    tuner.clock = clock = LightningClock()
    scorer = callbacks.GenerationScorer(held_out_scores(evaluators=12, dtype="fastest"), held_out())
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[clock, scorer, *rules(callbacks)],
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        enable_model_summary=False,
        enable_progress_bar=False,
        gradient_clip_val=clip,
        logger=False,
        max_steps=steps + 1,
        num_sanity_val_steps=0,
        val_check_interval=steps + 1,
    )
    trainer.fit(tuner, PromptData(**DATA))
    return clock


def run_trl(dtype: str, steps: int, folder: str) -> Clock:
    """Run the same under TRL."""
    weights = resolve(MODEL["model"])
    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompts = build_prompts(DATA["prefixes"], DATA["labels"], DATA["template"])
    names = {"prompts": "prompt", "prefixes": "prefix", "labels": "label"}
    table = {name: list(prompts.columns()[column]) for column, name in names.items()}
    completions = MODEL["generation"]["num_generations"]
    lora = MODEL["lora"]["r"]
    trainer = TimedTrainer(
        AutoModelForCausalLM.from_pretrained(weights, dtype=dtype),
        reward_funcs=as_reward_funcs(
            relevance_reward(**MODEL["reward"]["init_args"]),
            {"prefixes": "prefix", "labels": "label"},
        ),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=DATA["batch_size"] * completions,
            num_generations=completions,
            max_completion_length=MODEL["generation"]["max_completion_length"],
            temperature=MODEL["generation"]["temperature"],
            beta=MODEL["objective"]["beta"],
            loss_type="grpo",
            learning_rate=MODEL["optimizer"]["learning_rate"],
            warmup_steps=MODEL["optimizer"]["warmup_steps"],
            max_grad_norm=DEMO["trainer"]["gradient_clip_val"],
            max_steps=steps + 1,
            eval_strategy="steps",
            eval_steps=steps + 1,
            save_strategy="no",
            logging_steps=1,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict(table),
        eval_dataset=Dataset.from_dict(table),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear"),
    )
    trainer.clock = clock = TransformersClock()
    scorer = huggingface.GenerationScorer(
        trainer,
        held_out_scores(evaluators=12, dtype="fastest"),
        held_out(),
        generation={"max_new_tokens": MODEL["generation"]["max_completion_length"]},
    )
    for callback in (clock, scorer, *rules(huggingface)):
        trainer.add_callback(callback)
    trainer.train()
    return clock


def run(form: str, steps: int) -> Clock:
    """Run one form in a folder of its own."""
    gc.collect()  # the last trainer and its module reference each other
    pl.seed_everything(0, verbose=False)
    works: dict[str, Callable[[str], Clock]] = {
        "PolicyTuner": lambda folder: run_tuner("fastest", steps, folder),
        "PolicyTuner, float32": lambda folder: run_tuner("float32", steps, folder),
        "GRPOTrainer": lambda folder: run_trl("float32", steps, folder),
    }
    with tempfile.TemporaryDirectory() as folder:
        clock = works[form](folder)
    for seconds in (clock.step, clock.cpu, clock.sampling, clock.reward, clock.tokens):
        del seconds[:-steps]
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps per run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    print(f"# {machine()}")
    clocks: dict[str, list[Clock]] = {form: [] for form in options.forms}
    for _ in range(options.runs):
        for form in options.forms:
            clocks[form].append(run(form, options.steps))
            seconds = ", ".join(f"{each:.2f}" for each in clocks[form][-1].step)
            print(f"# {form}: {seconds} s", flush=True)
    for form in options.forms:
        seconds = {
            name: np.array([getattr(clock, name) for clock in clocks[form]])
            for name in ("step", "sampling", "reward", "cpu")
        }
        cpu = seconds.pop("cpu")  # which tells more where other work shares the processors
        seconds["rest"] = seconds["step"] - seconds["sampling"] - seconds["reward"]
        shown = "   ".join(f"{name} {np.median(each):6.2f} s" for name, each in seconds.items())
        tokens = float(np.mean([clock.tokens for clock in clocks[form]]))
        spread = f"({seconds['step'].min():.2f} to {seconds['step'].max():.2f})"
        validations = [clock.validation for clock in clocks[form]]
        print(
            f"trl_step  {form:<22}{shown} {spread}   processors {np.median(cpu):.2f} s   "
            f"{tokens:.0f} tokens   validation {np.median(validations):.2f} s"
        )
        record = {name: each.tolist() for name, each in {**seconds, "cpu": cpu}.items()}
        print(
            json.dumps({"suite": "trl_step", "form": form, "tokens": tokens, **record}), flush=True
        )


if __name__ == "__main__":
    main()
