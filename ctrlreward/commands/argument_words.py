"""Words of a command line, before a parser reads them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

# Words with these suffixes are never items of a list option: `--scorers CTRLEval in.jsonl out.csv`.
_FILES = (".jsonl", ".csv", ".parquet", ".json", ".tsv", ".txt")


def gather_words(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """Write list options as the parser reads them: `--names a b` as `--names=["a", "b"]`.

    An option's words end at the next option or at the name of a table (`texts.jsonl`). Commas
    separate words too. An option that is given again adds to its list. A value in brackets or
    braces and `null` are left as they are.

    Args:
        arguments: Options and positional arguments of a command.
        lists: The options that take lists: `{"--scorers", "--names"}`.
    """
    gathered: list[str] = []
    given: set[str] = set()
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        option, equals, value = argument.partition("=")
        words = [value] if equals else []
        if option in lists and not equals:
            while rest and not _ends_words(rest[0]):
                words.append(rest.popleft())
        if option not in lists:
            gathered.append(argument)
        elif words and (words[0][:1] in tuple("[{") or words[0] == "null"):
            gathered += [f"{option}={words[0]}", *words[1:]]
        else:
            items = [item for word in words for item in word.split(",") if item]
            gathered.append(f"{option}{'+' if option in given else ''}={json.dumps(items)}")
        given.add(option.removesuffix("+"))
    return gathered


def _ends_words(argument: str) -> bool:
    return argument.startswith("-") or Path(argument).suffix in _FILES
