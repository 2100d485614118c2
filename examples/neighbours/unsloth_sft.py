"""Unsloth with scores of generated texts: keep the best checkpoint, and stop early.

Tried with Unsloth 2026.10.9, transformers 5.17 and peft 0.21.2 on a CPU, where it has SFT alone.

    python unsloth_sft.py MODEL DATASET   # a folder or id, and a dataset with a column `text`
"""

from __future__ import annotations

import sys

from unsloth import FastLanguageModel  # isort: skip: it patches transformers and TRL
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

from ctrlreward import LexiconSentiment
from ctrlreward.huggingface import GenerationScorer, RewardCheckpoint, RewardEarlyStopping

PROMPTS = {"prompt": [[{"role": "user", "content": f"Review the {x}."}] for x in ("hotel", "film")]}


def main(folder: str, dataset: str) -> None:
    """Train, and print the best checkpoint."""
    model, tokenizer = FastLanguageModel.from_pretrained(
        folder, max_seq_length=512, load_in_4bit=False
    )
    model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "v_proj"])
    data = load_dataset(dataset, split="train").train_test_split(0.1)
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        args=SFTConfig(
            output_dir="runs/unsloth",
            max_steps=200,
            eval_strategy="steps",
            eval_steps=50,
            save_steps=50,
            load_best_model_at_end=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["test"],
    )
    scores, generation = {"polarity": LexiconSentiment()["polarity"]}, {"max_new_tokens": 64}
    trainer.add_callback(GenerationScorer(trainer, scores, PROMPTS, generation=generation))
    trainer.add_callback(RewardCheckpoint("score/polarity"))
    trainer.add_callback(RewardEarlyStopping("score/polarity"))
    trainer.train()
    print(f"selected {trainer.state.best_model_checkpoint}")


if __name__ == "__main__":
    main(*sys.argv[1:])
