"""Hooks of a base class: an override does the work of its base, or is listed with its reason."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    pl,
    quiet_trainer,
)

import ctrlreward.callbacks
import ctrlreward.huggingface
import ctrlreward.lightning

KINDS = [
    kind
    for module in (ctrlreward.callbacks, ctrlreward.lightning, ctrlreward.huggingface)
    for name in dir(module)
    if isinstance(kind := getattr(module, name), type)
    and any(hasattr(kind, hook) for hook in ("on_train_end", "setup"))
]

# Our rule decides, not Lightning's.
REPLACED = {
    "RewardEarlyStoppingMixin.on_validation_end",
    "SelectingCheckpointMixin.on_validation_end",
}


def has_work(hook: Callable[..., Any]) -> bool:
    body = ast.parse(textwrap.dedent(inspect.getsource(hook))).body[0].body
    words = (ast.Pass, ast.Raise)
    return any(
        not isinstance(line, words)
        and not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in body
    )


def hides(kind: type) -> Iterator[str]:
    """Yield the overrides of a class of which no part is the hook of its base."""
    for place, owner in enumerate(kind.__mro__):
        for name, hook in vars(owner).items():
            is_hook = name.startswith("on_") or name in ("setup", "teardown")
            if not (is_hook and inspect.isfunction(hook)) or not owner.__module__.startswith(
                "ctrlreward"
            ):
                continue
            base = next((b for b in kind.__mro__[place + 1 :] if name in vars(b)), object)
            calls_base = f"super().{name}(" in inspect.getsource(hook)
            if base is not object and has_work(vars(base)[name]) and not calls_base:
                yield f"{owner.__name__}.{name}"


class Base:
    def setup(self) -> None:
        self.prepared = True

    def teardown(self) -> None:
        """Do nothing."""


class Careless(Base):
    __module__ = "ctrlreward.example"

    def setup(self) -> None:
        self.own = True

    def teardown(self) -> None:
        self.own = False


def test_the_search_finds_a_hidden_hook() -> None:
    assert list(hides(Careless)) == ["Careless.setup"]


def test_hooks_do_the_work_of_their_bases() -> None:
    assert len(KINDS) > 20
    assert {hook for kind in KINDS for hook in hides(kind)} == REPLACED


@pytest.mark.lightning
@pytest.mark.parametrize("kind", [BeforeAfter, GenerationScorer])
def test_callbacks_release_what_they_hold_after_a_run_and_after_its_error(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = []
    monkeypatch.setattr(kind, "release", lambda self: released.append(self))
    ours, trainer = kind({"length": lambda texts: list(map(len, texts))}, ["a"]), quiet_trainer()
    ours.on_exception(trainer, pl.LightningModule(), RuntimeError("falls"))
    assert released == [ours]
    ours.teardown(trainer, pl.LightningModule(), "fit")
    assert released == [ours, ours]
