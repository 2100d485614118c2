"""Text generation with a LightningModule (`ctrlreward.completion`), and refusals of a callback."""

from __future__ import annotations

from ctrlreward.completion import SampleGenerator, TextGenerator, generate
from ctrlreward.lightning_package import Callback, misconfigured

__all__ = ["SampleGenerator", "TextGenerator", "generate", "refuse"]


def refuse(callback: Callback, error: str) -> None:
    """Raise the error of `mismatch` or `unclear_input`, if there is one, for a callback.

    Lightning calls `configure_model` after `setup`, so the second is for `on_fit_start`.
    """
    if error:
        raise misconfigured(callback, f"{type(callback).__name__}: {error}")
