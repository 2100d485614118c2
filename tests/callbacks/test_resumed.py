"""Runs that resume with other prompts, and what a killed run leaves for the next one."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_module import Counting
from lightning_choice import (
    ParetoCheckpoint,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)

from ctrlreward import Samples
from ctrlreward.selection import BestRule

VALUES = [0.0, 0.9, 0.8, 0.7, 0.3, 0.4, 0.2, 0.1]  # by step; the best is at 1
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "prompts": ({"samples": Samples(["The wine", "A cat"])}, {}),
    "completions": ({"generations_per_prompt": 2}, {}),
    "length": ({}, {"max_new_tokens": 9}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_is_measured_starts_a_new_reference(
    fit, counter, watch, tmp_path: Path, change: str
) -> None:
    def run(steps: int, options: dict[str, Any], hparams: dict[str, Any], **resumed: Any) -> Any:
        module = counter()
        module.hparams.update({"max_new_tokens": 4, **hparams})
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "best"))
        front = ParetoCheckpoint({"score/v": "max", "score/l": "min"}, str(tmp_path / "front"))
        stopper = RewardEarlyStopping("score/v", patience=4)
        scorer = watch(VALUES, names="vl", **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(module, [scorer, stopper, keeper, front], max_steps=steps, **resumed)
        said = [str(each.message) for each in caught if "measured with" in str(each.message)]
        return keeper, front, stopper, said

    run(3, {}, {})
    last = str(tmp_path / "best" / "last.ckpt")
    keeper, front, stopper, said = run(7, *CHANGES[change], ckpt_path=last)
    first = tmp_path / "best" / "step=000001-v=0.900.ckpt"
    if change == "nothing":
        assert (keeper.selected_step, stopper.stopped_step, list(front.kept)) == (1, 5, [1])
        assert said == []
    else:
        # The best since the resume; the stop counts from there.
        assert (keeper.selected_step, stopper.stopped_step, list(front.kept)) == (5, -1, [5])
        assert len(said) == 1
    assert first.is_file()
    assert (Path(keeper.best_model_path).is_file(), len(keeper.best_k_models)) == (True, 1)
    again, *_ = run(7, *CHANGES[change], ckpt_path=last)  # the measure is in the checkpoint
    assert again.selected_step == keeper.selected_step


def test_what_a_killed_run_left_is_removed(fit, counter, watch, tmp_path: Path) -> None:
    """In the folder of the checkpoints, and among the texts of the version that is resumed."""

    def run(steps: int, **resumed: Any) -> None:
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path / "kept"))
        logger = pl.loggers.CSVLogger(tmp_path)
        fit(counter(), [watch(VALUES), keeper], max_steps=steps, logger=logger, **resumed)

    run(2)
    texts = tmp_path / "lightning_logs" / "version_0" / "samples" / "score"
    left = [tmp_path / "kept" / ".last.ckpt.unfinished", texts / ".step=000003.jsonl.unfinished"]
    for path in left:
        path.write_text("half of")
    (tmp_path / "kept" / ".step=3-adapter.unfinished").mkdir()
    run(4, ckpt_path=str(tmp_path / "kept" / "last.ckpt"))
    assert list(tmp_path.rglob(".*.unfinished")) == []
    for version in ("version_0", "version_1"):
        file = tmp_path / "lightning_logs" / version / "decisions.json"
        noted = json.loads(file.read_text())
        assert list(noted["folders"]) == ["../../kept"]
        assert BestRule(**noted["rules"]["BestRule"]) == BestRule("score/v", "max")
        assert noted["directions"] == {"score/v": "max", "score/fail_rate": "min"}


class Adapted(Counting):
    """Module with a frozen model, a buffer, and an adapter that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(500, 500).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen += 1
        return super().training_step(batch, batch_idx)

    def complete(self, prompts: Any) -> list[str]:
        return [f" at {round(self.weight.item())}" for _ in prompts]

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def test_dataloader(self) -> Any:
        return self.val_dataloader()


def test_a_checkpoint_of_adapters_alone(fit, watch, tmp_path: Path) -> None:
    def run(steps: int, **resumed: Any) -> tuple[Adapted, RewardCheckpoint, pl.Trainer]:
        module = Adapted()
        keeper = RewardCheckpoint("score/v", dirpath=str(tmp_path), trainable_only=True)
        return module, keeper, fit(module, [watch(VALUES), keeper], max_steps=steps, **resumed)

    _, keeper, _ = run(2)
    saved = torch.load(keeper.best_model_path, weights_only=True)["state_dict"]
    assert saved.keys() == {"weight", "seen"}
    assert max(path.stat().st_size for path in tmp_path.glob("*.ckpt")) < 20_000
    module, _, trainer = run(4, ckpt_path="last")
    assert (module.weight.item(), module.seen.item()) == (4, 4)
    trainer.test(module, ckpt_path="best", verbose=False)
    assert module.weight.item() == 1
    loaded = Adapted.load_from_checkpoint(keeper.best_model_path, strict=False)
    assert loaded.weight.item() == 1
    (tmp_path / "other.ckpt").write_bytes((tmp_path / "last.ckpt").read_bytes())
    content = torch.load(tmp_path / "other.ckpt", weights_only=True)
    del content["state_dict"]["weight"]
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="weight"):
        run(6, ckpt_path=str(tmp_path / "other.ckpt"))
