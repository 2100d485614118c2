"""Completeness of a loaded model: every weight is from the checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


def check_complete(model: str, report: Mapping[str, Any]) -> None:
    """Raise unless every weight of a model was loaded from its checkpoint.

    `report` is the `output_loading_info` of `from_pretrained`, which ignored mismatched sizes.
    """
    absent = sorted([*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    if absent:
        others = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise ValueError(
            f"model = {model!r} has no weights of the right shape for {', '.join(absent[:5])}"
            f"{others}. Use a model that was saved with all of its weights."
        )


@contextlib.contextmanager
def model_named(model: str) -> Iterator[None]:
    """Name the model in errors of loading it, most of which do not."""
    try:
        yield
    except (ImportError, MemoryError, RuntimeError):
        raise
    except Exception as error:  # of several libraries
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(
            f"model = {model!r} can't be loaded ({type(error).__name__}: {error}). Use a folder "
            "of save_pretrained, a Hugging Face id or a short name; code of a repository is never "
            "run."
        ) from error
