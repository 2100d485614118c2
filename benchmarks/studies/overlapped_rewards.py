"""Overlapped rewards: the step time they save, and their effect on learning.

    python benchmarks/studies/overlapped_rewards.py [--steps 40] [--seeds 3] [--threads 1]

A letter bandit: the reward is the share of the letter a in completions of a small random model.
Scoring sleeps for as long as the updates on one rollout take, which is measured first. Serial and
overlapped runs alternate. Prints a line of JSON and a table: median seconds per step, and the mean
reward of the last third of the rollouts, per seed and as a mean with its 95 % interval (Student's
t).
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Mapping

import numpy as np
import pytorch_lightning as pl
import torch
from scipy import stats
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ctrlreward import Reward, Samples
from ctrlreward.policy import Generation, LoRA, Objective, OptimizerConfig, PolicyTuner
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec

LETTERS = "abcdefgh"
PROMPTS = Samples(texts=[*LETTERS])


class SlowShare(Scorer):
    """Share of the letter a in the text after the prefix; sleeps before it scores."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {"share": ScoreSpec(True, (0.0, 1.0))}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        time.sleep(self.seconds)
        completions = [
            t[len(p) :] for t, p in zip(samples.texts, samples.prefixes or (), strict=True)
        ]
        return {"share": np.array([r.count("a") / len(r) if r else np.nan for r in completions])}


class Clock(pl.Callback):
    """Seconds of each step, and the mean reward of each rollout that updates the policy."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.rewards: list[float] = []
        self._started = 0.0

    def on_train_batch_start(self, trainer, module, batch, batch_idx) -> None:
        self._started = time.perf_counter()
        module.last_rollout = None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        if module.last_rollout is not None:
            self.rewards.append(float(np.nanmean(module.last_rollout[1].total)))


def build_model(folder: str, width: int, layers: int) -> str:
    """Save a random Llama whose tokens are letters."""
    vocabulary = {token: i for i, token in enumerate(["<|end|>", "?", *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    letters.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=letters, unk_token="?", eos_token="<|end|>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def run(model: str, sleep: float, overlap: bool, seed: int, steps: int) -> Clock:
    pl.seed_everything(seed, verbose=False)
    clock = Clock()
    tuner = PolicyTuner(
        model,
        Reward({"share": SlowShare(sleep)["share"]}),
        Objective(beta=0.0),
        Generation(num_generations=16, max_completion_length=8),
        OptimizerConfig(num_iterations=4, minibatches=2, overlap=overlap, learning_rate=3e-3),
        lora=LoRA(8, dtype="float32"),
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[clock],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        max_epochs=1,
    )
    trainer.fit(tuner, DataLoader([PROMPTS] * (steps + overlap), batch_size=None))
    return clock


def with_interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    forms = {"serial": False, "overlapped": True}
    results: dict[str, dict[str, list[float]]] = {f: {"seconds": [], "reward": []} for f in forms}
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(folder, options.width, options.layers)
        sleep = update_seconds(model)
        for seed in range(options.seeds):
            for form, overlap in forms.items():
                clock = run(model, sleep, overlap, seed, options.steps)
                # The first steps warm up; the first overlapped step has no rollout to learn from.
                results[form]["seconds"].append(float(np.median(clock.seconds[3:])))
                results[form]["reward"].append(float(np.mean(clock.rewards[-options.steps // 3 :])))
    report(results, sleep)


def update_seconds(model: str) -> float:
    """Return the median seconds of the updates on one rollout, with an instant reward."""
    updates: list[float] = []
    original = PolicyTuner._learn

    def timed(tuner, *arguments):
        started = time.perf_counter()
        result = original(tuner, *arguments)
        updates.append(time.perf_counter() - started)
        return result

    PolicyTuner._learn = timed
    run(model, 0.0, False, 0, 12)
    PolicyTuner._learn = original
    return float(np.median(updates[3:]))


def report(results: dict[str, dict[str, list[float]]], sleep: float) -> None:
    serial, overlapped = results["serial"], results["overlapped"]
    savings = [1 - o / s for s, o in zip(serial["seconds"], overlapped["seconds"], strict=True)]
    saving = 1 - float(np.median(overlapped["seconds"]) / np.median(serial["seconds"]))
    gains = [o - s for s, o in zip(serial["reward"], overlapped["reward"], strict=True)]
    print(json.dumps({"sleep": sleep, **results, "step_time_falls_by": savings}))
    print(f"scoring sleeps {sleep:.3f} s, as long as the updates on a rollout take")
    for form, values in results.items():
        reward, half = with_interval(values["reward"])
        per_seed = ", ".join(f"{value:.3f}" for value in values["reward"])
        print(
            f"{form:<12}{np.median(values['seconds']):.3f} s per step   "
            f"reward {reward:.3f} ± {half:.3f} (seeds: {per_seed})"
        )
    gain, half = with_interval(gains)
    print(
        f"step time falls by {saving:.0%} (pairs of runs: {min(savings):.0%} to "
        f"{max(savings):.0%}); reward changes by {gain:+.3f} ± {half:.3f}"
    )


if __name__ == "__main__":
    main()
