"""Faults around a run: checkpoints that are cut off, scorers that hang or diverge, full disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning_choice import GenerationScorer, RewardCheckpoint


@pytest.fixture
def kept(fit, counter, curve, held_out, tmp_path: Path) -> Path:
    """The folder of checkpoints of a run of two steps."""
    fit(counter(), callbacks(curve, held_out, tmp_path), max_steps=2)
    return tmp_path / "kept"


def callbacks(curve, held_out, tmp_path: Path) -> list[Any]:
    scorer = GenerationScorer({"value": curve([0.125 * i for i in range(9)])["value"]}, held_out)
    return [scorer, RewardCheckpoint("score/value", "max", dirpath=str(tmp_path / "kept"))]


@pytest.mark.parametrize("keep", [0.5, 0.99, 0.0])
def test_a_checkpoint_that_was_cut_off_is_named(
    keep: float, kept: Path, fit, counter, curve, held_out, tmp_path: Path
) -> None:
    last = kept / "last.ckpt"
    content = last.read_bytes()
    last.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(Exception) as raised:  # noqa: PT011 — EOFError, OSError or RuntimeError
        fit(counter(), callbacks(curve, held_out, tmp_path), ckpt_path="last", max_steps=4)
    size = last.stat().st_size
    (note,) = raised.value.__notes__
    assert note == (
        f"{last} is damaged or was cut off at {size} bytes: resume from one of "
        "step=000002-value=0.250.ckpt (ckpt_path), or start again without"
    )
    best = kept / "step=000002-value=0.250.ckpt"
    trainer = fit(counter(), callbacks(curve, held_out, tmp_path), ckpt_path=best, max_steps=4)
    assert trainer.global_step == 4
