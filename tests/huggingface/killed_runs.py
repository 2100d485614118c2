"""Script of test_killed.py: runs of TRL's trainer, uncut, and killed and resumed.

Each run is a forked process, so imports happen once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trainer_runs
from transformers import TrainerState

from ctrlreward.huggingface import (
    GenerationScorer,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from ctrlreward.scorers.components import FunctionScorer

LLAMA = sys.argv[2]
KILLS = "scoring", "saving"
PROMPTS = ["ab", "cd", "ef", "fa"]
AT = 4  # the step at whose evaluation, or checkpoint, a run is killed
SETTINGS = {
    **trainer_runs.SAVING,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 2,
    "save_total_limit": 2,
    "load_best_model_at_end": True,
    "learning_rate": 0.05,
    "max_steps": 9,
    "num_generations": 2,
    "max_completion_length": 6,
    "reward_funcs": lambda completions, **_: letters(completions),
}


def letters(texts: list[str]) -> list[float]:
    """Share of letters of the second half of the alphabet."""
    return [sum(c > "c" for c in text) / max(1, len(text)) for text in texts]


def length(texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


def run(folder: Path, kill: str = "") -> None:
    """Train, from the last whole checkpoint if there is one, and write what was decided."""
    torch.manual_seed(0)
    trainer = trainer_runs.tiny_trl(LLAMA, folder, ["ab", "cd", "ef"] * 6, **SETTINGS)

    def scored(texts: list[str]) -> list[float]:
        if kill == "scoring" and trainer.state.global_step == AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return letters(texts)

    if kill == "saving":

        def save_to_json(self: TrainerState, path: str) -> None:
            if self.global_step == AT:
                os.kill(os.getpid(), signal.SIGKILL)
            whole(self, path)

        whole = TrainerState.save_to_json
        TrainerState.save_to_json = save_to_json
    scores = {"a": FunctionScorer(scored), "length": FunctionScorer(length)}
    used = {
        "stop": RewardEarlyStopping("score/a", patience=3),
        "best": RewardCheckpoint("score/a", constraints={"score/length": (1, None)}),
        "alarm": ProxyGuard("score/a", "score/length"),
    }
    held_out = GenerationScorer(trainer, scores, PROMPTS, generation={"max_new_tokens": 6})
    for callback in (held_out, *used.values()):
        trainer.add_callback(callback)
    states = [*folder.glob("checkpoint-*/trainer_state.json")]
    last = max(states, key=lambda path: int(path.parent.name.split("-")[1]), default=None)
    trainer.train(resume_from_checkpoint=last and str(last.parent))
    decided = trainer_runs.outcome(trainer, used)
    assert trainer.model is not None
    weights = {
        key: value.double().sum().item() for key, value in trainer.model.state_dict().items()
    }
    texts = {p.name: p.read_text() for p in (folder / "samples" / "score").iterdir()}
    found = {"decided": decided, "weights": weights, "texts": texts}
    (folder / "found.json").write_text(json.dumps(found))


def forked(work: Callable[..., None], *arguments: Any) -> int:
    """Return the exit code of a function in a fork, negative for a signal."""
    child = os.fork()
    if child == 0:
        work(*arguments)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    codes = {"uncut": forked(run, root / "run")}
    (root / "run").rename(root / "uncut")
    for kill in KILLS:
        codes[kill] = forked(run, root / "run", kill)
        codes[f"{kill}, resumed"] = forked(run, root / "run")
        (root / "run").rename(root / kill)
    (root / "codes.json").write_text(json.dumps(codes))
