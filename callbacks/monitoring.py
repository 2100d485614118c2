"""Metrics read by callbacks: which are fresh, which are better when higher, which come late."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import pytorch_lightning as pl
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.trainer.states import TrainerFn

from ctrlreward.callbacks.generation import GenerationScorer, late_score


class MissingMetric(MisconfigurationException, RuntimeError):
    """A callback reads a key that is not logged."""


def find_scorer(trainer: pl.Trainer, key: str) -> GenerationScorer | None:
    """Return the trainer's `GenerationScorer` that logs this key, None if there is none."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GenerationScorer) and key in callback.specs:
            return callback
    return None


def is_fresh(trainer: pl.Trainer, key: str) -> bool:
    """Return whether the validation that just ended has logged this key.

    A key that no `GenerationScorer` logs is assumed to be logged by every validation.
    """
    scorer = find_scorer(trainer, key)
    return scorer is None or scorer.fresh


def read_metrics(
    trainer: pl.Trainer, callback: pl.Callback, keys: Collection[str]
) -> tuple[dict[str, float], set[str]]:
    """Return the values of logged keys, and the keys without a new value.

    Args:
        trainer: The trainer, at the end of a validation.
        callback: The callback that reads, named in the error.
        keys: The keys. One that is not fresh may have no value yet.

    Raises:
        MissingMetric: A key is not logged; lists those that are.
    """
    logged = trainer.callback_metrics
    stale = {key for key in keys if not is_fresh(trainer, key)}
    for key in keys:
        if key not in logged and key not in stale:
            raise MissingMetric(
                f"{type(callback).__name__} reads {key!r}, which is not logged when a validation "
                f"ends: choose one of {sorted(logged)}"
            )
    return {key: logged[key].item() for key in keys if key in logged}, stale


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
            raise MisconfigurationException(late_score(callback, key))


@contextmanager
def as_misconfiguration() -> Iterator[None]:
    """Raise the ValueError of a rule as Lightning's `MisconfigurationException`."""
    try:
        yield
    except ValueError as error:
        raise MisconfigurationException(str(error)) from error
