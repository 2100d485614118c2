"""What is set for the whole process is as before after scorers were loaded and a model trained."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from counting_module import Counting
from lightning_choice import BeforeAfter as LightningBeforeAfter
from lightning_choice import GenerationScorer as LightningScorer
from lightning_choice import ModelCheckpoint, quiet_trainer
from lightning_choice import ProxyGuard as LightningGuard
from lightning_choice import RewardCheckpoint as LightningCheckpoint
from lightning_choice import RewardEarlyStopping as LightningStopping
from trainer_runs import tiny_trainer
from transformers.utils import logging as transformers_logging

from ctrlreward import Perplexity
from ctrlreward.huggingface import (
    BeforeAfter,
    GenerationScorer,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

RANDOM = {"random", "numpy", "torch"}


def process_state() -> dict[str, Any]:
    """Return the settings that all code of a process shares."""
    names = ("transformers", "transformers.modeling_utils", "torch", "wandb")
    loggers = [logging.root, *(logging.getLogger(name) for name in names)]
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "random": random.getstate(),
        "numpy": repr(np.random.get_state()),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "numbers": (torch.get_default_dtype(), torch.get_float32_matmul_precision()),
        "gradients": (torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        "hooks": (sys.excepthook, sys.stdout, sys.stderr, list(sys.path)),
        "filters": list(warnings.filters),
        "loggers": [(one.level, one.disabled, one.handlers[:], one.filters[:]) for one in loggers],
        "progress": transformers_logging.is_progress_bar_enabled(),
    }


class Writer(Counting):
    """Module that draws in training, and in its completions."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []
        self.dropout = torch.nn.Dropout()
        self.frozen = torch.nn.Dropout().eval()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.drawn.append(torch.rand(()).item() + random.random())
        assert (self.dropout.training, self.frozen.training) == (True, False)
        return super().training_step(batch, batch_idx)

    def complete(self, prompts: Any) -> list[str]:
        return ["abcdef"[torch.randint(6, ()).item()] for _ in prompts]


def test_a_run_of_lightning_draws_and_ends_as_without_callbacks(
    tiny_llama: Callable[[str], str], tmp_path: Path
) -> None:
    scores = {"v": Perplexity(tiny_llama("abcdef"))["perplexity"]}
    ours = [
        LightningScorer(scores, ["ab", "cd"]),
        LightningStopping("score/v", patience=99),
        LightningGuard("score/v", "score/fail_rate"),
        LightningCheckpoint("score/v", dirpath=str(tmp_path / "ours" / "kept")),
        LightningBeforeAfter(scores, ["ef", "fe"], 1),
    ]

    def run(name: str, callbacks: list[Any]) -> tuple[dict[str, Any], Writer]:
        theirs = ModelCheckpoint(str(tmp_path / name), every_n_train_steps=3, save_top_k=-1)
        trainer = quiet_trainer(
            callbacks=[*callbacks, theirs],
            enable_checkpointing=True,
            default_root_dir=tmp_path / name,
            max_steps=6,
            val_check_interval=2,
        )
        module = Writer()
        random.seed(3)
        torch.manual_seed(3)
        trainer.fit(module)
        return process_state(), module

    before = process_state()
    without, plain = run("plain", [])
    found, module = run("ours", ours)
    assert found == without
    assert {key for key in found if found[key] != before[key]} <= RANDOM
    assert module.drawn == plain.drawn
    assert modes(module) == modes(plain)
    names = [sorted(p.name for p in (tmp_path / n).glob("*.ckpt")) for n in ("plain", "ours")]
    assert names[0] == names[1] == ["epoch=0-step=3.ckpt", "epoch=0-step=6.ckpt"]


def modes(module: torch.nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def unpadded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}


def test_a_run_of_transformers_draws_and_ends_as_without_callbacks(
    tiny_llama: Callable[[str], str], tmp_path: Path
) -> None:
    folder = tiny_llama("abcdef")
    scores = {"v": Perplexity(folder)["perplexity"]}

    def run(name: str, with_ours: bool) -> tuple[dict[str, Any], Any]:
        trainer = tiny_trainer(folder, tmp_path / name, max_steps=4)
        trainer.processing_class.pad_token = None
        trainer.data_collator = unpadded
        trainer.model.lm_head.eval()
        for callback in ours(trainer) if with_ours else ():
            trainer.add_callback(callback)
        trainer.train()
        return process_state(), trainer

    def ours(trainer: Any) -> list[Any]:
        generation = {"max_new_tokens": 2, "do_sample": True}
        return [
            GenerationScorer(trainer, scores, ["ab", "cd"], generation=generation),
            ProxyGuard("loss", "score/v"),
            RewardCheckpoint("score/v"),
            RewardEarlyStopping("score/v", patience=99),
            BeforeAfter(trainer, scores, ["ef", "fe"], 1, generation=generation),
        ]

    before = process_state()
    without, plain = run("plain", with_ours=False)
    found, trainer = run("ours", with_ours=True)
    assert found == without
    assert {key for key in found if found[key] != before[key]} <= RANDOM
    assert trainer.processing_class.pad_token is None
    assert trainer.args.to_dict() | {"output_dir": ""} == plain.args.to_dict() | {"output_dir": ""}
    config = plain.model.generation_config.to_dict()
    assert trainer.model.generation_config.to_dict() == config
    assert modes(trainer.model) == modes(plain.model)
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value)
