"""What the Python blocks of a page take as given: names of the reader's own, and files.

The code runs before the page's blocks, in their namespace. A Hugging Face id is a folder of that
name in the working directory, so that the blocks run as they are written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import trl
from judge_server import serving
from peft import LoraConfig, get_peft_model
from tiny_models import use_weights
from transformers import AutoModelForCausalLM

from ctrlreward import WordVectors

ROWS = """
from datasets import Dataset
rows = Dataset.from_list([{"prompt": "The food was", "sentiment": "positive"}] * 2)
"""
GIVEN = {
    "README.md": ROWS
    + """
import string
from random import Random
from counting_module import Counting

class Writer(Counting):
    batches = 1  # of an epoch; there are 1000, unless the run stops early

    def complete(self, prompts):
        return ["".join(Random(i).sample(string.printable[:62], 62)) for i in range(len(prompts))]

module = Writer()
train_loader, validation_loader = module.train_dataloader(), module.val_dataloader()
train = validation = rows
""",
    "training.md": """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from ctrlreward.models.sources import resolve
folder = resolve("smollm2-135m")
model, tokenizer = (c.from_pretrained(folder) for c in (AutoModelForCausalLM, AutoTokenizer))
tokenizer.pad_token = tokenizer.eos_token
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = [dict.fromkeys(("input_ids", "labels"), torch.tensor([[2, 3, 4]]))] * 8
""",
}


# Files


def tiny_data(patch: pytest.MonkeyPatch, small: Mapping[str, str]) -> None:
    """Write files of the names of data sets, with sentences of ours, and vectors of their words."""
    nouns = ("soup", "view", "staff", "bread", "room")
    names = [f"{name}.{i}" for name in ("sentiment.test", "reference") for i in (0, 1)]
    for name in ("yelp_shen", "li2018"):
        Path("data", name).mkdir(parents=True)
    for style, words in enumerate((("cold", "stale"), ("warm", "fresh"))):
        lines = [f"the {noun} is {words[0]} today ." for noun in nouns]
        Path(f"data/yelp_shen/sentiment.test.{style}").write_text("\n".join(lines) + "\n")
        lines = [f"a {noun} so {words[1]} ." for noun in nouns]
        Path(f"data/li2018/{names[style]}").write_text("\n".join(lines) + "\n")
        pairs = [
            f"{line}\tno {noun} was {words[0]} ." for line, noun in zip(lines, nouns, strict=True)
        ]
        Path(f"data/li2018/{names[2 + style]}").write_text("\n".join(pairs) + "\n")
    text = " ".join(path.read_text() for path in Path("data").rglob("*.[01]"))
    known = sorted({*re.findall(r"\w+|[.]", text), "food", "great"})
    vectors = np.random.default_rng(0).normal(1, 1, (len(known), 4))
    WordVectors(dict(zip(known, vectors.tolist(), strict=True))).save("glove")
    patch.setenv("CTRLREWARD_DATA", str(Path("data").resolve()))
    use_weights(patch, {**small, "glove-6b-50d": str(Path("glove").resolve())})


# Parts of other packages


JUDGED = json.dumps({"polite": {"reason": "It is.", "score": 5}, "short": {"score": "yes"}})
ON_CPU = {"use_cpu": True, "bf16": False, "max_steps": 2, "report_to": "none", "disable_tqdm": True}
EVALUATED = {**ON_CPU, "eval_steps": 1, "save_steps": 1, "max_completion_length": 4}


def small_trainers(patch: pytest.MonkeyPatch) -> None:
    """Let the trainers of TRL run for two steps of four tokens on the CPU."""
    grpo, rewards = trl.GRPOConfig, trl.RewardConfig
    patch.setattr(trl, "GRPOConfig", lambda **given: grpo(**{**given, **EVALUATED}))
    options = {**ON_CPU, "save_strategy": "no"}
    patch.setattr(trl, "RewardConfig", lambda out, **given: rewards(out, **{**given, **options}))


def verl(patch: pytest.MonkeyPatch) -> None:
    """Make a trainer of verl importable, whose validation returns the metrics of the page."""

    class RayPPOTrainer:
        global_steps = 7

        def _validate(self, merged: bool = False) -> dict[str, float]:
            return {"val-core/gsm8k/reward/mean@4": 0.25, "val-aux/gsm8k/acc/mean@4": 0.75}

    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.trainer.ppo.ray_trainer"):
        patch.setitem(sys.modules, name, ModuleType(name))
    patch.setattr(sys.modules[name], "RayPPOTrainer", RayPPOTrainer, raising=False)


def prepare(page: str, small: Mapping[str, str], request: pytest.FixtureRequest) -> None:
    """Put the files in place that a page's blocks read, and shrink what they start."""
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    Path("HuggingFaceTB").mkdir()
    Path("HuggingFaceTB/SmolLM2-135M").symlink_to(small["smollm2-135m"])
    small_trainers(patch)
    if page in ("recipes.md", "scorers.md"):
        tiny_data(patch, small)
    if page == "training.md":
        verl(patch)
        Path("runs/own").mkdir(parents=True)
        rows = [{"step": step, "score/coherence": step / 4} for step in (1, 2)]
        Path("runs/own/metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    if page == "recipes.md":  # what `make demo` leaves
        model = AutoModelForCausalLM.from_pretrained(small["smollm2-135m"])
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
        adapted.save_pretrained("runs/demo/best")
        Path("runs/demo/summary.json").write_text('{"best_checkpoint": "runs/demo/best"}')
        Path("glove.6B.300d.txt").write_text("soup 0.5 1.0\nwarm 1.0 0.25\n")
    if page == "scorers.md":
        blocks = re.findall(r"```yaml\n(.*?)```", Path("docs", page).read_text("utf-8"), re.DOTALL)
        for name, key in (("politeness.yaml", "answers:"), ("tone.yaml", "criteria:")):
            Path(name).write_text(next(block for block in blocks if key in block))
        server = serving(lambda message: JUDGED)
        address = server.__enter__().address
        request.addfinalizer(lambda: server.__exit__(None, None, None))
        patch.setattr("ctrlreward.scorers.judge.check_address", lambda *_: address)
