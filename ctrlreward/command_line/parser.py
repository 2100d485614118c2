"""Parser of the commands: short usage, and examples in the help."""

from __future__ import annotations

import json
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, get_loader, set_loader

from ctrlreward import scorers
from ctrlreward.command_line.terminal import examples_epilog
from ctrlreward.files import ShallowLoader

_load = get_loader("yaml")


def _load_checked(text: str) -> Any:
    """Return a value, or raise a YAMLError; nested deeply, the loader overflows the stack of C."""
    try:
        if len(text) > 1000:
            yaml.compose(text, ShallowLoader)
        value = _load(text)
        if "&" in text:
            json.dumps(value, default=str, skipkeys=True)  # raises if it contains itself
        return value
    except (RecursionError, ValueError) as error:  # an integer of thousands of digits
        raise yaml.YAMLError(str(error) or "nested too deeply") from None


set_loader("yaml", _load_checked, (yaml.YAMLError,))


def import_scorers() -> None:
    """Import all scorers, which the parser takes by their short names from then on."""
    for name in dir(scorers):
        getattr(scorers, name)


class ExampleFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Help with wrapped options, and unchanged description and examples."""


class CommandParser(ArgumentParser):
    """Parser, also of scorers, without abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def add(self, name: str, help_: str, *others: str, **options: Any) -> None:
        """Add an option, by default one of text that may be absent."""
        if "action" not in options:
            options = {"type": str | None, "default": None, **options}
        self.add_argument(name, *others, help=help_, **options)


def command_parser(
    command: str, usage: str, description: str, examples: Sequence[str]
) -> CommandParser:
    """Return a parser without options for `"ctrlreward score"`; its help ends with examples."""
    return CommandParser(
        prog=command,
        usage=f"{command} {usage}",
        description=description,
        epilog=examples_epilog(examples),
        formatter_class=ExampleFormatter,
    )
