"""Parser of the commands: short usage, examples in the help, errors that suggest names."""

from __future__ import annotations

import re
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, get_loader, set_loader

import ctrlreward.scorers  # noqa: F401 — lets the parser accept scorers by their short names
from ctrlreward.arguments import did_you_mean
from ctrlreward.command_line.config_files import read_config, root_of
from ctrlreward.command_line.config_mistakes import one_line
from ctrlreward.command_line.terminal import examples_epilog
from ctrlreward.command_line.typed_options import SCORERS, SCORERS_HINT
from ctrlreward.files import ShallowLoader

# The option that an error of the parser is about, as typed or as a key: its name, or its group and
# its name in the group.
_UNKNOWN_OPTION = re.compile(
    r"^(?:unrecognized arguments:.*?(--)|Option '|Group ')([\w.]+)"
    r"(?:' does not accept option '(\w+))?",
    re.IGNORECASE,
)
# Names that other tools have for an option.
_HABITS = {"metric": "maximise", "monitor": "maximise"}

_load = get_loader("yaml")
_LONG = 1000  # characters; a shorter text without an anchor is small


def _load_checked(text: str) -> Any:
    """Return a value, or raise a YAMLError; the parser's loader overflows the stack of C."""
    if len(text) > _LONG or "&" in text:
        root_of(ShallowLoader(text))
    try:
        return _load(text)
    except ValueError as error:  # an integer of thousands of digits
        raise yaml.YAMLError(str(error)) from None


set_loader("yaml", _load_checked, (yaml.YAMLError,))


class ExampleFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Help with wrapped options, and unchanged description and examples."""


class CommandParser(ArgumentParser):
    """Parser, also of scorers, without abbreviations; its errors suggest the nearest name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def add(self, name: str, help_: str, *others: str, **options: Any) -> None:
        """Add an option, by default one of text that may be absent."""
        if "action" not in options:
            options = {"type": str | None, "default": None, **options}
        self.add_argument(name, *others, help=help_, **options)

    def parse_args(self, args: Iterable[str] | None = None, *others: Any, **options: Any) -> Any:
        """Read the YAML files first, as errors of the parser name neither their file nor a line."""
        words = list(sys.argv[1:] if args is None else args)
        paths = [word.partition("=")[2] for word in words if word.startswith("--config=")]
        paths += [path for word, path in pairwise(words) if word == "--config"]
        try:
            for path in paths:
                read_config(path)
        except (OSError, ValueError) as error:
            self.error(str(error))
        return super().parse_args(words, *others, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error with a hint, and exit with status 2."""
        unknown = _UNKNOWN_OPTION.search(message)
        if unknown:
            dashes, *names = unknown.groups(default="")
            options = [option.lstrip("-") for option in self._option_string_actions]
            option_typed = ".".join(filter(None, names))
            if any(option_typed == each.dest for each in self._actions if not each.option_strings):
                message += f"; leave out --{option_typed}: the usage has the order"
            habit = _HABITS.get(option_typed)
            meant = habit if habit in options else option_typed
            message += did_you_mean(meant, options, lambda option: f"{dashes}{option}")
        elif 'Parser key "columns"' in message:
            message += "\nname one column at a time: --columns.text=COLUMN"
        elif self.exit_on_error:  # else the caller, who knows the file, calls `one_line`
            unknown = re.search(r"import path string: (\S+)", message)
            meant = did_you_mean(unknown[1], SCORERS, str) if unknown else ""
            of_scorers = re.search(r'Parser key "scorers"|required:.*\bscorers\b', message)
            message = one_line(message, ()) + meant
            if of_scorers and not re.search(r"^scorers(\.| lacks)", message):
                message += f"\n{SCORERS_HINT}"
        super().error(message, ex)


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
