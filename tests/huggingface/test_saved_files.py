"""What a trainer saves with our callbacks, and what it restores from another folder."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Scripted
from trainer_runs import add
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback
from transformers.trainer_utils import SaveStrategy

from ctrlreward.huggingface import (
    GenerationScorer,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

pytestmark = pytest.mark.usefixtures("one_thread")
EACH = {"save_strategy": "steps", "save_steps": 1, "metric_for_best_model": "eval_loss"}


class Alike(TrainerCallback):
    """Notes what a callback behind ours sees at an evaluation."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        shown = args.to_dict()["save_strategy"], str(args.save_strategy)
        self.seen.append((*shown, copy.copy(args.save_strategy).value))


@pytest.mark.parametrize("strategy", ["steps", "best"])
def test_each_checkpoint_has_the_strategy_of_the_user(
    make_trainer: Callable[..., Trainer], strategy: str
) -> None:
    trainer = make_trainer(max_steps=2, **EACH | {"save_strategy": strategy})
    alike = Alike()
    trainer.add_callback(RewardCheckpoint("eval_loss"))
    trainer.add_callback(alike)
    trainer.train()
    files = list(Path(trainer.args.output_dir or "").glob("checkpoint-*/training_args.bin"))
    assert files
    for file in files:
        saved = torch.load(file, weights_only=False).save_strategy
        assert saved is SaveStrategy(strategy)
    assert trainer.args.save_strategy is SaveStrategy(strategy)
    expected = (strategy, f"SaveStrategy.{strategy.upper()}", strategy)
    assert set(alike.seen) == {expected}


def restoring(make: Callable[..., Trainer], steps: int) -> tuple[Trainer, list[Any]]:
    trainer = make(max_steps=steps, restore_callback_states_from_checkpoint=True, **EACH)
    ours = [
        RewardEarlyStopping("score/a", patience=9),
        ProxyGuard("score/b", "score/a", name="one"),
        ProxyGuard("score/b", "score/a", name="two"),
        RewardCheckpoint("score/a"),
        ParetoCheckpoint(["score/a", "score/b"]),
    ]
    trainer.add_callback(EarlyStoppingCallback(9))
    row = [0.1, 0.2, 0.6, 0.3, 0.4, 0.5]
    add(trainer, Scripted(lambda _, step: [row[step]] * 2, trainer, "max"), 2, *ours)
    return trainer, ours


def test_restored_callbacks_are_the_ones_that_were_passed(
    make_trainer: Callable[..., Trainer],
) -> None:
    uncut, expected = restoring(make_trainer, 5)
    uncut.train()
    shutil.rmtree(uncut.args.output_dir or "")
    restoring(make_trainer, 3)[0].train()
    trainer, ours = restoring(make_trainer, 5)
    given = [each for each in trainer.callback_handler.callbacks if each in ours]
    trainer.train(resume_from_checkpoint=True)
    assert [each for each in trainer.callback_handler.callbacks if each in ours] == given
    assert [each.state for each in ours] == [each.state for each in expected]
    kinds = [type(each) for each in trainer.callback_handler.callbacks]
    assert kinds.count(GenerationScorer) == kinds.count(RewardCheckpoint) == 1
    assert trainer.state.best_global_step == 2


@pytest.mark.parametrize("lost", [False, True])
def test_a_run_resumed_in_another_folder_names_the_best_where_it_is(
    make_trainer: Callable[..., Trainer], tmp_path: Path, lost: bool
) -> None:
    """Of 3 steps the first is the best; the run goes on in another folder, with it or without."""
    row = [0.0, 0.9, 0.5, 0.3, 0.4, 0.4]

    def train(steps: int, last: str | None, **more: Any) -> tuple[Trainer, RewardCheckpoint]:
        trainer, keeper = make_trainer(max_steps=steps, **EACH | more), RewardCheckpoint("score/a")
        add(trainer, Scripted(lambda _, step: [row[step]] * 2, trainer, "max"), 2, keeper)
        trainer.train(resume_from_checkpoint=last)
        return trainer, keeper

    train(3, None)
    first = tmp_path / "run" / "checkpoint-1"
    if lost:
        shutil.rmtree(first)
    more = {"load_best_model_at_end": True, "output_dir": str(tmp_path / "other")}
    trainer, keeper = train(5, str(tmp_path / "run" / "checkpoint-3"), **more)
    # Whatever is selected is on disk, and is what was loaded.
    assert keeper.selected_step == trainer.state.best_global_step
    path = Path(str(trainer.state.best_model_checkpoint))
    assert path.is_dir()
    assert path.name == f"checkpoint-{keeper.selected_step}"
    assert path == first or (lost and keeper.selected_step in (2, 4))
