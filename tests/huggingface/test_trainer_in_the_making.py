"""What ms-swift's trainers do otherwise than transformers': callbacks of a trainer in the making.

ms-swift 4.6 calls its plugins with `(args, trainer)` before `Trainer.__init__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trainer_runs
from fakes import Scripted
from transformers import Trainer, TrainerCallback

from ctrlreward.huggingface import BeforeAfter, GenerationScorer, RewardCheckpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def scripted(trainer: Trainer) -> Any:
    return Scripted(lambda key, step: [float(step == 2)] * 2, trainer, "max")["a"]


class Scores(TrainerCallback):
    """Adds the callbacks to a trainer that is complete, as a plugin of ms-swift does."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_init_end(self, *_: Any, **__: Any) -> None:
        scores = {"a": scripted(self.trainer)}
        self.trainer.add_callback(GenerationScorer(self.trainer, scores, ["ab", "cd"]))
        self.trainer.add_callback(RewardCheckpoint("score/a"))


class Swift(Trainer):
    """Makes its callbacks before it is complete, and has vLLM, but not TRL's."""

    use_vllm = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        for callback in (GenerationScorer, BeforeAfter):
            with pytest.raises(ValueError, match="still in its __init__"):
                callback(self, {"a": scripted(self)}, ["ab"])
        super().__init__(*arguments, callbacks=[Scores(self)], **settings)


def test_callbacks_of_a_trainer_that_makes_them_itself(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_runs, "Trainer", Swift)
    trainer = make_trainer(max_steps=3, save_strategy="steps", save_steps=1)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "eval_score/a" in row]
    assert [row["eval_score/a"] for row in rows] == [0.0, 1.0, 0.0]
    assert trainer.state.best_model_checkpoint == f"{trainer.args.output_dir}/checkpoint-2"
