"""Rewards by token against the reward of the sequence: steps of PPO to one level.

    python benchmarks/studies/dense_reward.py [--seeds 5] [--steps 80] [--level 0.4]

A small random Llama writes up to eight words out of a vocabulary of words. The reward is CTC's
consistency with a source text that the prompt stands for (MiniLM, the mean alignment of the text's
tokens). `sequence` gives it at the last token, `token` gives each token its own alignment
(`Objective("ppo", credit="token")`). Both runs of a seed start from the same weights and sample the
same first texts. The level is reached when the mean reward of five steps has gained `--level` of
the way from the first step's to 1, the alignment of a text with itself; a run stops there, and one
that never gets there counts with all its steps. Prints steps by seed, and their difference with its
95 % interval (Student's t, paired by seed).
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import warnings

import numpy as np
import pytorch_lightning as pl
import torch
from scipy import stats
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ctrlreward import Alignment
from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig, PolicyTuner

SOURCES = {
    "kitchen": "the cook served hot soup with fresh bread and salted butter",
    "harbour": "a storm broke the mast and the crew rowed the boat home",
    "school": "our teacher gave every pupil a book about stars and planets",
    "garden": "she planted roses beside the old wall and watered them daily",
}
OTHERS = """
    money engine yellow window paper doctor ticket shoulder phone market silver question village
    kitchen harbour school garden winter number guitar camera border powder bottle mirror carpet
""".split()
PROMPTS = [{"prompt": name, "source": source} for name, source in SOURCES.items()]


class UntilLevel(pl.Callback):
    """Mean reward of each step; stops once five steps have gained a share of what is left."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.values: list[float] = []

    @property
    def reached(self) -> bool:
        level = self.values[0] + self.share * (1 - self.values[0])
        return len(self.values) >= 5 and float(np.mean(self.values[-5:])) >= level

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.values.append(float(trainer.callback_metrics["reward/total"]))
        trainer.should_stop = self.reached


def build_model(folder: str, seed: int) -> str:
    """Save a random Llama whose tokens are words."""
    words = sorted({word for source in SOURCES.values() for word in source.split()} | {*OTHERS})
    vocabulary = {token: i for i, token in enumerate(["<|end|>", "?", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="?", eos_token="<|end|>"
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.1,  # the output layer is frozen: small weights bound its logits
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(model: str, reward: Alignment, credit: str, seed: int, options) -> UntilLevel:
    pl.seed_everything(seed, verbose=False)
    rewards = UntilLevel(options.level)
    tuner = PolicyTuner(
        model,
        reward,
        Objective("ppo", beta=0.0, credit=credit),
        Generation(num_generations=6, max_completion_length=8),
        OptimizerConfig(minibatches=2, max_grad_norm=1.0, learning_rate=5e-3),
        lora=LoRA(16, dtype="float32"),
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[rewards],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=1,
    )
    prompts = PROMPTS * options.steps
    trainer.fit(tuner, DataLoader(prompts, batch_size=len(PROMPTS), collate_fn=list))
    return rewards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--level", type=float, default=0.4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    reward = Alignment("minilm-l6", aspects="consistency")
    steps: dict[str, list[int]] = {"sequence": [], "token": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            model = build_model(folder, seed)
            for credit, found in steps.items():
                rewards = run(model, reward, credit, seed, options)
                found.append(len(rewards.values))
                curve = [round(value, 3) for value in rewards.values[::5]]
                row = {"seed": seed, "credit": credit, "steps": found[-1]}
                print(json.dumps({**row, "reached": rewards.reached, "curve": curve}), flush=True)
    for credit, found in steps.items():
        print(f"{credit:<9}{np.mean(found):6.1f} steps, by seed {found}")
    difference = np.subtract(steps["token"], steps["sequence"])
    half = stats.t.ppf(0.975, len(difference) - 1) * stats.sem(difference)
    print(f"token - sequence: {difference.mean():+.1f} ± {half:.1f} steps")


if __name__ == "__main__":
    main()
