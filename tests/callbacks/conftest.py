"""Module whose texts name the training step, and a scorer that looks up a value for that step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counting_module import Counting
from lightning_choice import (
    GenerationScorer,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
    quiet_trainer,
)

from ctrlreward import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec


class Counter(Counting):
    """Counts optimizer steps, and completes with " at <weight> <noise>"."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[float] = []  # random numbers drawn in training steps
        self.calls: list[dict[str, Any]] = []  # arguments and modes of each `complete`

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.draws.append(torch.rand(()).item())
        return super().training_step(batch, batch_idx)

    def complete(self, prompts: Sequence[str]) -> list[str]:
        self.calls.append(
            {
                "prompts": list(prompts),
                "training": self.training,
                "gradients": torch.is_grad_enabled(),
            }
        )
        step = round(self.weight.item())
        return [f" at {step} {torch.rand(()).item():.6f}" for _ in prompts]


class Curve(Scorer):
    """Scorer that gives each text the value of a curve at the step that the text names."""

    pointwise = True

    def __init__(self, curve: Sequence[float]) -> None:
        self.curve = curve
        self.scored: list[Samples] = []
        self.releases = 0

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            "value": ScoreSpec(True, (-np.inf, np.inf)),
            "loss": ScoreSpec(False, (-np.inf, np.inf)),
        }

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        torch.rand(7)  # as loading a model does
        self.scored.append(samples)
        steps = [int(text.split(" at ")[1].split()[0]) for text in samples.texts]
        value = np.array([self.curve[min(step, len(self.curve) - 1)] for step in steps])
        return {"value": value, "loss": 1.0 - value}

    def release(self) -> None:
        self.releases += 1


@pytest.fixture
def counter() -> type[Counter]:
    return Counter


@pytest.fixture
def tuned(counter: type[Counter]) -> type[Counter]:
    """Return a counter whose adapter is a file with its weight."""

    class Tuned(counter):  # type: ignore[misc, valid-type]
        fails_at = -1

        def export_adapter(self, folder: str) -> None:
            assert os.listdir(folder) == []
            if round(self.weight.item()) == self.fails_at:
                raise OSError("no space left")
            (Path(folder) / "adapter.json").write_text(json.dumps(self.weight.item()))

    return Tuned


@pytest.fixture
def curve() -> type[Curve]:
    return Curve


@pytest.fixture
def by_prompt() -> Callable[..., list[pl.Callback]]:
    return callbacks_of


@pytest.fixture
def held_out() -> Samples:
    return Samples(
        texts=["The food", "The film", "A dog"],
        prompts=["Praise: The food", "Praise: The film", "Praise: A dog"],
        labels=["positive", "positive", "negative"],
    )


@pytest.fixture
def watch(held_out: Samples) -> Callable[..., GenerationScorer]:
    """Function that builds a `GenerationScorer`: of a curve, its value `v` and its loss `l`."""

    def build(values: Any, names: str = "v", **options: Any) -> Any:
        scores = values
        if not isinstance(values, Mapping):
            scorer = values if isinstance(values, Curve) else Curve(values)
            scores = {name: scorer[{"v": "value", "l": "loss"}[name]] for name in names}
        return GenerationScorer(scores, options.pop("samples", held_out), **options)

    return build


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., pl.Trainer]:
    """Function that trains for eight steps with a validation after each, by default."""

    def run(
        module: pl.LightningModule,
        callbacks: Sequence[pl.Callback],
        *,
        ckpt_path: str | Path | None = None,
        **changes: Any,
    ) -> pl.Trainer:
        options: dict[str, Any] = {
            "callbacks": list(callbacks),
            "check_val_every_n_epoch": None,
            "default_root_dir": tmp_path,
            "enable_checkpointing": any(
                isinstance(c, pl.callbacks.ModelCheckpoint) for c in callbacks
            ),
            "max_steps": 8,
            "num_sanity_val_steps": 0,
            "val_check_interval": 1,
        }
        trainer = quiet_trainer(**{**options, **changes})
        trainer.fit(module, ckpt_path=ckpt_path)
        return trainer

    return run


class ByPrompt(Curve):
    """Scorer that gives prompt `p3` its score of a case at the step that the text names."""

    def __init__(self, scores: Callable[[int], list[float]]) -> None:
        super().__init__([])
        self.scores = scores

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        words = [text.split() for text in samples.texts]  # p3 at 5 0.123
        value = np.array([self.scores(int(w[2]))[int(w[0][1:])] for w in words])
        return {"value": value, "loss": 1.0 - value}


def callbacks_of(case: Any, folder: Path) -> list[pl.Callback]:
    """Return the callbacks of a case by prompt."""
    scores = {key: ByPrompt(partial(case.scores, key))["value"] for key in "ab"}
    prompts = Samples([f"p{i}" for i in range(12)])
    guarding = {"proxy": "score/b", "held_out": "score/a", **case.guarding}
    keeper = RewardCheckpoint("score/a", dirpath=str(folder), **case.keeping)
    return [
        GenerationScorer(scores, prompts),
        ProxyGuard(**guarding),
        RewardEarlyStopping("score/a", **case.stopping),
        keeper,
    ]
