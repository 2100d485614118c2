"""Metrics read by callbacks: which are fresh, which are better when higher, which come late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.trainer.states import TrainerFn

from ctrlreward.callbacks.generation import GenerationScorer
from ctrlreward.callbacks.overlap import late_score_error


class RuleError(MisconfigurationException, RuntimeError):
    """A rule of `ctrlreward.selection` rejects its settings, or misses a metric.

    Also a RuntimeError, which Lightning's `EarlyStopping` raises for a missing metric.
    """


@contextmanager
def rule_errors(callback: pl.Callback) -> Iterator[None]:
    """Raise the ValueError of a rule as `RuleError`, with the name of the callback."""
    try:
        yield
    except ValueError as error:
        raise RuleError(f"{type(callback).__name__}: {error}") from error


def find_scorer(trainer: pl.Trainer, key: str) -> GenerationScorer | None:
    """Return the trainer's `GenerationScorer` that logs this key, None if there is none."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GenerationScorer) and key in callback.specs:
            return callback
    return None


def read_metrics(trainer: pl.Trainer) -> tuple[dict[str, float], set[str]]:
    """Return all logged metrics, and the keys that the last validation did not log.

    `trainer.callback_metrics` keeps the values of earlier validations. Keys that no
    `GenerationScorer` logs are assumed to be logged by every validation.
    """
    metrics = {key: value.item() for key, value in trainer.callback_metrics.items()}
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    scorers = [callback for callback in callbacks if isinstance(callback, GenerationScorer)]
    return metrics, {key for scorer in scorers if not scorer.fresh for key in scorer.specs}


def is_fitting(trainer: pl.Trainer) -> bool:
    """Return whether a validation is part of training: not the sanity check, not `validate`."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking


def check_mode(trainer: pl.Trainer, key: str, mode: str) -> None:
    """Raise if the mode would select the worst value of a score.

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
    """Raise if checkpoints would be selected by scores of earlier weights.

    Raises:
        MisconfigurationException: A `GenerationScorer` logs one of the keys a validation late.
    """
    for key in keys:
        scorer = find_scorer(trainer, key)
        if scorer is not None and scorer.overlap:
            raise MisconfigurationException(late_score_error(callback, key))
