# /// script
# requires-python = ">=3.11"
# dependencies = ["ctrlreward[gguf,trl]", "trackio"]
#
# [tool.uv.sources]
# ctrlreward = { path = "..", editable = true }
# ///
"""Train SmolLM2-135M by TRL's GRPOTrainer on a reward of ctrlreward, and keep the best checkpoint.

Run `uv run examples/grpo_trl.py`, or `uv run examples/grpo_trl.py 50 trackio` for 50 steps that are
logged to trackio.

Three disjoint sets of prompts: one trains, one selects, and the reward's own metrics are logged.
"""

from __future__ import annotations

import sys

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

from ctrlreward import CTRLEval, Distinct, Perplexity, Reward, Samples
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.huggingface import GenerationScorer, RewardCheckpoint, RewardEarlyStopping
from ctrlreward.models import resolve

TRAIN = ["The food", "The service", "My room", "The concert", "This phone", "Our guide", "The play"]
HELD_OUT = ["The hotel", "The film", "Our dinner", "The band", "This jacket", "The tour"]


def rows(prefixes: list[str]) -> Dataset:
    """Return a prompt for each prefix and sentiment."""
    return Dataset.from_list(
        [{"prompt": p, "sentiment": s} for p in prefixes for s in ("negative", "positive")]
    )


def main(steps: str = "20", report_to: str = "none") -> None:
    """Train, and print the selected checkpoint."""
    relevance = CTRLEval(
        "smollm2-135m", task="sentiment", aspects="attribute_relevance", evaluators=9
    )["attribute_relevance"]
    fluency = Perplexity("smollm2-135m")["log_likelihood"]
    reward = Reward({"relevance": (relevance, 1.0), "fluency": (fluency, 0.1)})
    trainer = GRPOTrainer(
        str(resolve("smollm2-135m")),
        reward_funcs=as_reward_funcs(reward, {"prefixes": "prompt", "labels": "sentiment"}),
        args=GRPOConfig(
            output_dir="runs/grpo_trl",
            max_steps=int(steps),
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=24,
            learning_rate=5e-4,
            beta=0.08,
            eval_strategy="steps",
            eval_steps=5,
            save_steps=5,
            logging_steps=1,
            bf16=False,
            report_to=report_to,
        ),
        train_dataset=rows(TRAIN),
        eval_dataset=rows(HELD_OUT[:1]),
        peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    both = [prefix for prefix in HELD_OUT[1:] for _ in range(2)]
    held_out = Samples(both, prefixes=both, labels=["negative", "positive"] * 5)
    scores = {"relevance": relevance, "distinct_2": Distinct()["distinct_2"]}
    trainer.add_callback(GenerationScorer(trainer, scores, held_out))
    trainer.add_callback(RewardEarlyStopping("score/relevance", patience=3))
    trainer.add_callback(
        RewardCheckpoint("score/relevance", constraints={"score/distinct_2": (0.8, None)})
    )
    trainer.train()
    print(f"selected {trainer.state.best_model_checkpoint}")


if __name__ == "__main__":
    main(*sys.argv[1:])
