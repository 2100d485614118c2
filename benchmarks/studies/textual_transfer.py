"""Steps per second and memory of textual transfer at the paper's sizes, and 20 epochs from them.

    python benchmarks/studies/textual_transfer.py [--models m0 m2 m7] [--steps 50] [--threads 2]

Each model trains in a process of its own, without validations: its configuration with the data
that it names. The style language models of M7 keep their first weights, which cost as much as
trained ones. An epoch of the paper has as many batches as its larger corpus fills, 268,000
sentences at 64.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of side_by_side

import pytorch_lightning as pl
import torch
from side_by_side import machine

from ctrlreward.jobs.training_job import build
from ctrlreward.recipes.papers.textual_transfer.batches import TransferSentences
from ctrlreward.recipes.papers.textual_transfer.style_models import StyleLanguageModel, StyleModels

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "textual_transfer"
EPOCHS = 20
SENTENCES = 268_000  # of the paper's larger corpus
WARMUP = 5


class UntrainedStyleModels(StyleModels):
    """Language models of the styles with their first weights."""

    def trained(self, data: TransferSentences) -> tuple[StyleLanguageModel, StyleLanguageModel]:
        first, second = (
            StyleLanguageModel(len(data.tokenizer), self.embedding_size, self.width)
            .eval()
            .requires_grad_(False)
            for _ in data.styles
        )
        return first, second


class StepClock(pl.Callback):
    """Wall time and CPU time at the end of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.cpu: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())


def measure(model: str, steps: int) -> dict[str, Any]:
    """Return the speed and the memory of a model's steps, after a few that warm up."""
    without = {"logger": "false", "callbacks": "null", "enable_progress_bar": "false"}
    without |= {"enable_checkpointing": "false", "limit_val_batches": "0"}
    options = [f"--trainer.{name}={value}" for name, value in without.items()]
    cli = build([str(CONFIGS / f"{model}.yaml"), *options, f"--trainer.max_steps={WARMUP + steps}"])
    cli.datamodule.models = ()  # nothing is scored
    cli.model.style_models = UntrainedStyleModels()
    # Else the first steps would learn reconstruction alone, and cost less.
    cli.model.hparams.poor_discriminator = None
    clock = StepClock()
    cli.trainer.callbacks.append(clock)
    cli.trainer.fit(cli.model, cli.datamodule)
    seconds = (clock.ends[-1] - clock.ends[WARMUP - 1]) / steps
    batches = EPOCHS * math.ceil(SENTENCES / cli.datamodule.batch_size)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    on_gpu = cli.model.device.type == "cuda"
    return {
        "model": model,
        "steps": steps,
        "words": len(cli.datamodule.tokenizer),
        "steps_per_s": 1 / seconds,
        # On a busy machine, steps take longer; their CPU time grows far less.
        "cpu_s_per_step": (clock.cpu[-1] - clock.cpu[WARMUP - 1]) / steps,
        "peak_mib": resident,
        "peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        "hours": batches * seconds / 3600,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["m0", "m2", "m7"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    if options.one:
        print(json.dumps(measure(options.models[0], options.steps)))
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"# {machine()}, {device}")
    widths = {"words": 8, "steps/s": 10, "CPU s/step": 12, "peak MiB": 10, "GPU MiB": 9}
    head = "".join(f"{name:>{width}}" for name, width in widths.items())
    print(f"{'model':7}{head}{'20 epochs':>12}", flush=True)
    for model in options.models:
        command = [sys.executable, __file__, "--one", "--models", model]
        command += ["--steps", str(options.steps), "--threads", str(options.threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        line = done.stdout.splitlines()[-1]
        row = json.loads(line)
        gpu = "" if row["peak_gpu_mib"] is None else f"{row['peak_gpu_mib']:.0f}"
        print(
            f"{model:7}{row['words']:8}{row['steps_per_s']:10.2f}{row['cpu_s_per_step']:12.2f}"
            f"{row['peak_mib']:10.0f}{gpu:>9}{row['hours']:10.1f} h"
        )
        print(line, flush=True)


if __name__ == "__main__":
    main()
