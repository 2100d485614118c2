"""Command lines, and ones that fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ctrlreward.cli import main


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command, or a script's `main`, that fails: what it says."""

    def run(*arguments: object, code: int = 2, program: Callable[..., None] = main) -> str:
        with pytest.raises(SystemExit) as ended:
            program([str(argument) for argument in arguments])
        assert ended.value.code == code
        return capsys.readouterr().err

    return run


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command: its exit status and both outputs."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        return (status, *capsys.readouterr())

    return run
