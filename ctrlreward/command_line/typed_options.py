"""Options as typed: short names of scorers, and lists of words; does not import PyTorch."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

# Words with these suffixes are never items of a list option: `--scorers CTRLEval in.jsonl out.csv`.
_FILES = (".jsonl", ".csv", ".parquet", ".json", ".tsv", ".txt")

# Scorers with short names.
SCORERS = (
    *("Accuracy", "Alignment", "AttributeClassifier", "BARTScore", "CTRLEval", "Distinct"),
    *("FunctionScorer", "Judge", "LexiconSentiment", "Perplexity"),
    *("RemoteRewardModel", "Repetition", "RewardModel", "Similarity", "TransferQuality"),
)
SCORERS_HINT = f"""The scorers are {", ".join(SCORERS[:7])},
{", ".join(SCORERS[7:])}, or the import path of a class.
The options of a scorer follow its name, and --scorers.help NAME lists them."""


def pairs(option: str, form: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return the pairs of an option, each NAME=VALUE; `form` shows one."""
    pairs = [pair.partition("=") for pair in given or ()]
    for pair in pairs:
        if not all(pair):
            raise ValueError(f"{option} = {''.join(pair)!r} must be {form}")
    return {name: value for name, _, value in pairs}


def gather_words(arguments: Sequence[str], lists: Collection[str]) -> list[str]:
    """Write list options in the format of the parser: `--names=["a", "b"]`.

    An option's words end at the next option or at the name of a table (`texts.jsonl`). Commas
    also separate words. An option that is repeated adds to its list. A value in brackets or
    braces and `null` are not changed.
    """
    gathered: list[str] = []
    seen: set[str] = set()
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        option, equals, value = argument.partition("=")
        words = [value] if equals else []
        if option in lists and not equals:
            while rest and rest[0][:1] != "-" and Path(rest[0]).suffix not in _FILES:
                words.append(rest.popleft())
        if option not in lists:
            gathered.append(argument)
        elif words and (words[0][:1] in tuple("[{") or words[0] == "null"):
            gathered += [f"{option}={words[0]}", *words[1:]]
        else:
            items = [item for word in words for item in word.split(",") if item]
            gathered.append(f"{option}{'+' if option in seen else ''}={json.dumps(items)}")
        seen.add(option.removesuffix("+"))
    return gathered
