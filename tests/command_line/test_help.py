"""The help of each command, whose examples parse as they are printed."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from command_lines import parse_only

from ctrlreward.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_every_help_parse(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    with suppress(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: ctrlreward {command}")
    examples = text.partition("examples:\n")[2].splitlines()
    commands = [shlex.split(line) for line in examples if line.startswith("  ")]
    assert commands
    for words in commands:  # one has a variable before the program
        parse_only(words[words.index("ctrlreward") + 1 :])
