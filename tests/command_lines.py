"""Command lines, and ones that fail."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser

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


class Parsed(BaseException):
    """Raised once a command has parsed its arguments, in place of its work."""


def parse_only(arguments: list[str]) -> None:
    """Raise SystemExit unless a command takes these arguments."""
    if arguments[:1] == ["score"] and not Path(arguments[1]).exists():  # which it looks for first
        Path(arguments[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments[1]).touch()

    def stopped(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_and_stop(self: argparse.ArgumentParser, given: list[str], **inner: Any) -> Any:
            parsed = parse(self, given, **inner)
            # Of an option's class, or the kind of a command, which options follow.
            if inner or given == arguments[1:2] != arguments[1:]:
                return parsed
            raise Parsed

        return parse_and_stop

    with pytest.MonkeyPatch.context() as patch:
        if arguments[:1] == ["train"]:
            from ctrlreward.command_line.config_files import with_extended
            from ctrlreward.jobs.training_job import TrainCLI, build

            patch.setattr(TrainCLI, "instantiate_classes", lambda self: None)
            build(with_extended(arguments[1:]))
        else:
            for parser in (ArgumentParser, argparse.ArgumentParser):
                patch.setattr(parser, "parse_args", stopped(parser.parse_args))
            with pytest.raises(Parsed):
                main(arguments)
