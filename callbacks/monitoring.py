"""Metrics read by callbacks: which are fresh, which are better when higher, which come late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ctrlreward.callbacks.generation import GenerationScorerMixin
from ctrlreward.callbacks.overlap import late_score_error
from ctrlreward.lightning_package import Callback, Trainer, misconfigured, mixed, package_of


class RuleErrorMixin(RuntimeError):
    """A rule of `ctrlreward.selection` rejects its settings, or misses a metric.

    Mixed into `MisconfigurationException`. It is a RuntimeError, too, since Lightning's
    `EarlyStopping` raises one for a missing metric.
    """


@contextmanager
def rule_errors(callback: Callback) -> Iterator[None]:
    """Raise the ValueError of a rule as a `RuleErrorMixin`, with the name of the callback."""
    try:
        yield
    except ValueError as error:
        base = "utilities.exceptions.MisconfigurationException"
        rule_error = mixed(RuleErrorMixin, package_of(callback), base)
        raise rule_error(f"{type(callback).__name__}: {error}") from error


def find_scorer(trainer: Trainer, key: str) -> GenerationScorerMixin | None:
    """Return the trainer's `GenerationScorer` that logs this key, None if there is none."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GenerationScorerMixin) and key in callback.specs:
            return callback
    return None


def read_metrics(trainer: Trainer) -> tuple[dict[str, float], set[str]]:
    """Return all logged metrics, and the keys that the last validation did not log.

    `trainer.callback_metrics` keeps the values of earlier validations. Keys that no
    `GenerationScorer` logs are assumed to be logged by every validation.
    """
    metrics = {key: value.item() for key, value in trainer.callback_metrics.items()}
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    scorers = [callback for callback in callbacks if isinstance(callback, GenerationScorerMixin)]
    return metrics, {key for scorer in scorers if not scorer.fresh for key in scorer.specs}


def is_fitting(trainer: Trainer) -> bool:
    """Return whether a validation is part of training: not the sanity check, not `validate`."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def check_mode(trainer: Trainer, key: str, mode: str) -> None:
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
        raise misconfigured(
            trainer,
            f"mode = {mode!r} for monitor = {key!r}, which is better when {better}: "
            f"give mode={right!r}",
        )


def check_timely(trainer: Trainer, callback: Callback, keys: Iterable[str]) -> None:
    """Raise if checkpoints would be selected by scores of earlier weights.

    Raises:
        MisconfigurationException: A `GenerationScorer` logs one of the keys a validation late.
    """
    for key in keys:
        scorer = find_scorer(trainer, key)
        if scorer is not None and scorer.overlap:
            raise misconfigured(trainer, late_score_error(callback, key))
