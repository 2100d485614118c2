"""What a callback that acts on a score has to know of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException

from ctrlreward.callbacks.generation import GenerationScorer, late_score


def find_scorer(trainer: pl.Trainer, key: str) -> GenerationScorer | None:
    """The trainer's `GenerationScorer` that logs this key, if one does."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GenerationScorer) and key in callback.specs:
            return callback
    return None


def is_fresh(trainer: pl.Trainer, key: str) -> bool:
    """Whether the validation that just ended has logged this key; for `on_validation_end`.

    A key that no `GenerationScorer` logs is taken for one that every validation logs.
    """
    scorer = find_scorer(trainer, key)
    return scorer is None or scorer.fresh


def check_mode(trainer: pl.Trainer, key: str, mode: str) -> None:
    """Refuses to look for the worst value of a score.

    Raises:
        MisconfigurationException: The mode contradicts the direction that the scorer declares.
    """
    scorer = find_scorer(trainer, key)
    if scorer is None:
        return
    right = "max" if scorer.specs[key].higher_is_better else "min"
    if mode != right:
        better = "higher" if right == "max" else "lower"
        raise MisconfigurationException(
            f"mode = {mode!r} for monitor = {key!r}, which is better when {better}: "
            f"give mode={right!r}"
        )


def check_timely(trainer: pl.Trainer, callback: pl.Callback, keys: Iterable[str]) -> None:
    """Refuses to choose checkpoints by scores that earlier weights earned.

    Raises:
        MisconfigurationException: A `GenerationScorer` logs one of the keys a validation late.
    """
    for key in keys:
        scorer = find_scorer(trainer, key)
        if scorer is not None and scorer.overlap:
            raise MisconfigurationException(late_score(callback, key))
