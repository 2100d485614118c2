"""Parser of the commands: short usage, examples in the help, lists of words, names of scorers.

Importing this imports no torch.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import RawDescriptionHelpFormatter
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from ctrlreward import scorers
from ctrlreward.command_line.config_files import SCORERS
from ctrlreward.command_line.terminal import examples_epilog

# Words with these suffixes are never items of a list option: `--scorers CTRLEval in.jsonl out.csv`.
FILES = (".jsonl", ".csv", ".parquet", ".json", ".tsv", ".txt")

SCORERS_HINT = f"""The scorers are {", ".join(SCORERS[:7])},
{", ".join(SCORERS[7:])}, or the import path of a class.
The options of a scorer follow its name, and --scorers.help NAME lists them."""


def import_scorers(words: Sequence[str] = ("config",)) -> None:
    """Let the parser take scorers by the short names in words, and modules of the working folder.

    Some import transformers, which takes seconds. A YAML file may name any, so all are imported.
    """
    every = any(re.search(r"config|\.ya?ml", word) for word in words)
    for name in dir(scorers):
        if every or any(name in word for word in words):
            getattr(scorers, name)
    if "" not in sys.path:
        sys.path.append("")


class ExampleFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Help with wrapped options, and unchanged description and examples."""


def command_parser(
    command: str, usage: str, description: str, examples: Sequence[str]
) -> ArgumentParser:
    """Return a parser without options for `"ctrlreward score"`; its help ends with examples."""
    return ArgumentParser(
        prog=command,
        usage=f"{command} {usage}",
        description=description,
        epilog=examples_epilog(examples),
        formatter_class=ExampleFormatter,
        allow_abbrev=False,
    )


def gather_words(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """Write list options in the format of the parser: `--names=["a", "b"]`.

    An option's words end at the next option or at the name of a table (`texts.jsonl`). Commas
    also separate words. An option that is repeated adds to its list. A value in brackets or
    braces and `null` are not changed. An option of a scorer is joined to its value. A ValueError
    for a scorer that does not exist.
    """
    gathered: list[str] = []
    seen: set[str] = set()
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        option, equals, value = argument.partition("=")
        words = [value] if equals else []
        if option in lists and not equals:
            while rest and rest[0][:1] != "-" and Path(rest[0]).suffix not in FILES:
                words.append(rest.popleft())
        if option.startswith("--scorers.") and not equals and rest:
            gathered.append(f"{option}={rest.popleft()}")
        elif option not in lists:
            gathered.append(argument)
        elif words and (words[0][:1] in tuple("[{") or words[0] == "null"):
            gathered += [f"{option}={words[0]}", *words[1:]]
        else:
            items = [item for word in words for item in word.split(",") if item]
            unknown = [item for item in items if item.isidentifier() and item not in SCORERS]
            if option == "--scorers" and unknown:
                raise ValueError(f"there is no scorer {unknown[0]!r}. {SCORERS_HINT}")
            gathered.append(f"{option}{'+' if option in seen else ''}={json.dumps(items)}")
        seen.add(option.removesuffix("+"))
    return gathered
