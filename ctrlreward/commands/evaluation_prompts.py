"""Prompts of `ctrlreward evaluate`: every prefix with every combination of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from string import Formatter
from typing import NamedTuple

from ctrlreward.arguments import did_you_mean
from ctrlreward.data import local_file
from ctrlreward.tables.locations import Location
from ctrlreward.tables.parsing import decode_utf8
from ctrlreward.tables.row_streams import SUFFIXES, RowStream

PPLM = "pplm"
_PREFIX = "prefix"
_COLUMNS = ("prefix", "prompt", "text")


class EvaluatedPrompt(NamedTuple):
    """A prompt: the prefix, the model's input, and the target labels by attribute."""

    prefix: str
    prompt: str
    targets: Mapping[str, str]


def read_labels(given: Mapping[str, Sequence[str]] | Sequence[str]) -> dict[str, list[str]]:
    """Return attribute → labels of `["sentiment=negative", "positive", "topic=world"]`.

    Raises:
        ValueError: `given` is empty, an attribute has no labels, or a label occurs twice.
    """
    labels: dict[str, list[str]] = {}
    if isinstance(given, Mapping):
        labels = {name: [str(label) for label in each] for name, each in given.items()}
    else:
        attribute = ""
        for word in given:
            name, equals, label = word.partition("=")
            if equals:
                attribute = name.strip()
                labels.setdefault(attribute, [])
            elif not attribute:
                raise ValueError(
                    f"labels = {word!r} has no attribute, must be like sentiment={word}"
                )
            labels[attribute] += [each for each in (label if equals else word).split(",") if each]
    for name, each in labels.items():
        if not name or not each or name == _PREFIX or len(set(each)) < len(each):
            raise ValueError(
                f"labels of {name!r} must be one or more different words, sentiment=negative,"
                f"positive, and the attribute not {_PREFIX!r}; got {', '.join(each) or 'none'}"
            )
    if not labels:
        raise ValueError("labels is empty, must be such as sentiment=negative,positive")
    return labels


def read_prefixes(given: str) -> list[str]:
    """Return the prefixes of a file: one per line, or a column of a JSONL, CSV or Parquet file.

    `pplm` are the 35 prefixes of PPLM, and `pplm/prompts35.csv` is their file.

    Raises:
        ValueError: The file has no prefix, a prefix twice, or none of the columns.
        OSError: The file does not exist.
    """
    path = local_file("pplm/prompts35.csv" if given == PPLM else given)
    if path.suffix in SUFFIXES:
        rows = list(RowStream(Location(str(path))))
        column = next((name for name in _COLUMNS if name in rows[0]), None)
        if column is None:
            raise ValueError(
                f"{path} has no column {' or '.join(_COLUMNS)}, only {', '.join(rows[0])}"
            )
        prefixes = [str(row[column]) for row in rows]
    elif path.is_file():
        lines = decode_utf8(path.read_bytes(), path).split("\n")
        prefixes = [line.rstrip("\r") for line in lines if line.strip()]
    else:
        hint = " (did you mean 'pplm'?)" if did_you_mean(given, [PPLM]) else ""
        raise FileNotFoundError(f"prefixes = {given!r} does not exist{hint}")
    repeated = next((each for i, each in enumerate(prefixes) if each in prefixes[:i]), None)
    if not prefixes or repeated is not None:
        found = f"{repeated!r} twice" if prefixes else "no prefix"
        raise ValueError(f"{path} has {found}, must have different prefixes")
    return prefixes


def build_prompts(
    prefixes: Sequence[str],
    labels: Mapping[str, Sequence[str]],
    template: str,
    continues: bool = True,
) -> list[EvaluatedPrompt]:
    """Return the prompts; prompts of a combination of labels are consecutive.

    Args:
        prefixes: Beginnings of texts.
        labels: Attribute → labels.
        template: Input of the model, with `{prefix}` and the name of each attribute in braces.
        continues: Whether a text is the prefix and its continuation, so that the template has to
            end in the prefix. False for a chat or an encoder-decoder, whose output is the text.

    Raises:
        ValueError: The template lacks a slot or has an unknown one.
    """
    wanted = [_PREFIX, *labels]
    try:
        slots = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"template = {template!r}: {error}. Write a brace as two.") from error
    for slot in slots:
        if slot not in wanted:
            raise ValueError(
                f"template = {template!r} has {{{slot}}}{did_you_mean(slot, wanted)}, must have "
                f"{', '.join(f'{{{name}}}' for name in wanted)} alone"
            )
    if missing := [name for name in wanted if name not in slots]:
        raise ValueError(
            f"template = {template!r} lacks {', '.join(f'{{{name}}}' for name in missing)}"
        )
    if continues and not template.endswith("{prefix}"):
        raise ValueError(
            f"template = {template!r} must end in {{prefix}}, which the model continues"
        )
    combinations = [dict(zip(labels, each, strict=True)) for each in product(*labels.values())]
    return [
        EvaluatedPrompt(prefix, template.format(prefix=prefix, **targets), targets)
        for targets in combinations
        for prefix in prefixes
    ]
