"""The batch type `Samples`, and its conversion from lists, records, columns and data frames."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from itertools import compress
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ctrlreward.arguments import kind_of, one_of
from ctrlreward.failures import Failures, ItemError, rows_named
from ctrlreward.files import json_line, read_jsonl, write_whole

# What becomes of a completion without an answer.
Unfinished: TypeAlias = Literal["score", "fail"]


class Field(NamedTuple):
    """A column of `Samples`, its key in a record, and whether its items may be integers."""

    name: str
    key: str
    integers: bool = False


COLUMNS = (
    Field("texts", "text"),
    Field("prefixes", "prefix"),
    Field("labels", "label", integers=True),
    Field("sources", "source"),
    Field("references", "reference"),
    Field("contexts", "context"),
    Field("histories", "history"),
    Field("prompts", "prompt"),
    Field("groups", "group", integers=True),
    Field("answer_after", "answer_after"),
    Field("unfinished", "unfinished"),
)

# Columns that say which part of a text is scored.
_SETTINGS = ("answer_after", "unfinished")

# Column → key in a record of one sample.
JSON_KEYS = {column.name: column.key for column in COLUMNS}

# Column, by its own name and by its key in a record.
COLUMN_OF = {**{name: name for name in JSON_KEYS}, **{key: name for name, key in JSON_KEYS.items()}}

# Names of generated texts without their prompts, which become texts; TRL has `completion`.
OUTPUT_NAMES = ("outputs", "output", "completions", "completion")


class MissingColumn(ValueError):
    """Samples lack a column that a `reader`, a scorer or function, needs; they have `present`."""

    def __init__(self, column: str, reader: str, present: Iterable[str]) -> None:
        self.column, self.reader, self.present = column, reader, tuple(present)
        super().__init__(column, reader, self.present)  # the arguments, so that it pickles

    def __str__(self) -> str:
        return f"{self.reader} needs the column {self.column!r}, got {', '.join(self.present)}"


def columns_from_records(records: Sequence[Any]) -> dict[str, Any]:
    """Return the columns of records; an `ItemError` for one without the keys of the first."""
    keys = [*COLUMN_OF, *OUTPUT_NAMES]
    first = records[0] if isinstance(records[0], Mapping) else {}
    present = [key for key in keys if key in first]
    for i, record in enumerate(records):
        if not isinstance(record, Mapping) or [key for key in keys if key in record] != present:
            must = f"must be an object with the keys of the first, {', '.join(present)}"
            raise ItemError("samples", i, f"= {shortened(record)} {must}")
    return _known_columns({key: [record[key] for record in records] for key in present}, first)


def shortened(item: object, width: int = 40) -> str:
    """Return an item's `repr` for an error message, truncated to `width` characters."""
    text = repr(item).replace("\n", "")  # of a tensor
    return text if len(text) <= width else text[: width - 2] + "…" + text[-1]


def table_of(data: object) -> Mapping[Any, Any] | None:
    """Return the columns of a mapping, a DataFrame or a Dataset by name; None for other data."""
    if isinstance(data, Mapping):
        return data
    # The caller of such an object has imported its package; this package needs neither.
    pandas, datasets = sys.modules.get("pandas"), sys.modules.get("datasets")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        if not data.columns.is_unique:
            raise ValueError(f"a column has a name twice in {', '.join(map(str, data.columns))}")
        return {name: data[name].tolist() for name in data.columns}
    if datasets is not None and isinstance(data, datasets.Dataset):
        return {name: data[name] for name in data.column_names}
    return None


def _known_columns(table: Mapping[Any, Any], given: Iterable[Any] | None = None) -> dict[str, Any]:
    columns = {}
    for name, key in JSON_KEYS.items():
        names = [each for each in dict.fromkeys((name, key)) if each in table]
        if len(names) > 1:
            raise ValueError(f"the data must have one of {name!r} and {key!r}, not both")
        if names:
            columns[name] = table[names[0]]
    if "texts" in columns:
        return columns
    outputs = [name for name in OUTPUT_NAMES if name in table]
    if len(outputs) != 1:
        found = ", ".join(map(str, given or table)) or "none"
        raise ValueError(f"the data must have a column 'text', or one 'output', got {found}")
    return columns | {"outputs": table[outputs[0]]}


# Everything that `as_samples` converts: data frames and data sets are iterable as well.
SamplesLike: TypeAlias = "Samples | Iterable[Any] | Mapping[str, Iterable[Any]]"

# Advice for samples without prefixes whose texts may not be beginnings.
REWRITES_OR_CONTINUES = (
    'Use as_samples(samples, prefixes="", prompts=samples.texts) if the model reads the texts and '
    "writes new ones, or as_samples(samples, prefixes=samples.texts) if it continues them"
)


@dataclass(frozen=True)
class Samples:
    """Texts to score, with optional columns that some scorers need.

    Every column is a sequence of n strings, one per sample, and is kept as a tuple. One string, or
    one integer as a label or group, stands for all samples, except as texts and outputs.

    Args:
        texts: Generated texts, prefix included. The scores of an empty string are NaN.
        prefixes: The beginning of each text, character for character (content prefix).
        labels: Target attribute, as the scorer's task names it (`"positive"`), or an integer.
            Labels of several attributes are a mapping, attribute → labels, one per sample or one
            for all, kept in the format of `attribute_label`; a scorer with an `attribute` reads
            that one.
        sources: Input of a transfer or a summary.
        references: Human-written target, or a sequence of several.
        contexts: Knowledge that the text should draw on (a fact, a document).
        histories: Dialog before the text.
        prompts: Input of the generator, for reward models, judges, tables and adapters. It may be
            a conversation, a list of messages with role and content, kept as a `Conversation`.
        groups: Group ids, strings or integers, equal for samples of the same prompt.
        answer_after: End of a completion's reasoning, such as `"</think>"`. Only the answer is
            scored: what follows the last one. "" for the whole.
        unfinished: Whether a completion without an answer counts as a whole (`"score"`, which is
            the default) or fails (`"fail"`).
        outputs: Generated texts without their prefixes, in place of `texts`. A text becomes prefix
            + output, with a space where neither side has one (`joined`). Without prefixes, the
            prompts are the prefixes, except for conversations. A blank output is an empty text.
        extra: Name → n items of any type that functions may read (`FunctionScorer`), such as TRL's
            `completion_ids`. They are not stored.

    Wrong data is an `ItemError`, which is a ValueError.

    Examples:
        >>> samples = Samples(["The soup was good.", "The view"], prefixes=["The soup", "The view"])
        >>> samples.as_prompts().completed([" was cold.", " was fine."]).texts
        ('The soup was cold.', 'The view was fine.')
        >>> Samples(outputs=["was cold.", ""], prompts=["The soup", "The view"]).texts
        ('The soup was cold.', '')
    """

    texts: Sequence[str] = ()
    prefixes: Sequence[str] | None = None
    labels: Sequence[str] | Mapping[str, Any] | None = None
    sources: Sequence[str] | None = None
    references: Sequence[str | Sequence[str]] | None = None
    contexts: Sequence[str] | None = None
    histories: Sequence[str] | None = None
    prompts: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    answer_after: str | Sequence[str] | None = None
    unfinished: Unfinished | Sequence[Unfinished] | None = None
    outputs: InitVar[Sequence[str] | None] = None
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self, outputs: Sequence[str] | None) -> None:
        if outputs is not None:
            if len(self.texts):
                raise TypeError("pass texts, with their prefixes, or outputs, not both")
            object.__setattr__(self, "texts", outputs)
        for name, _, integers in COLUMNS:
            column = getattr(self, name)
            given = "outputs" if name == "texts" and outputs is not None else name
            if column is None and name != "texts":
                continue
            if not isinstance(column, list | tuple):
                column = _listed(given, column, self.texts)
            items = [
                item if isinstance(item, str) else _item(given, i, item, integers)
                for i, item in enumerate(column)
            ]
            object.__setattr__(self, name, tuple(items))
            if len(items) != len(self.texts):
                raise ValueError(f"{name} has {len(items)} items for {len(self.texts)} texts")
        extra = {name: tuple(column) for name, column in self.extra.items()}
        object.__setattr__(self, "extra", extra)
        for name, column in extra.items():
            if len(column) != len(self.texts):
                raise ValueError(
                    f"extra[{name!r}] has {len(column)} items for {len(self.texts)} texts"
                )
        if outputs is not None:
            self._join()
        for each in {*(self.unfinished or ())} - {""}:  # an empty cell of a table
            one_of("unfinished", each, get_args(Unfinished))
        for i, (text, prefix) in enumerate(zip(self.texts, self.prefixes or (), strict=False)):
            if not text.startswith(prefix):
                must = f"must be the beginning of its text {shortened(text)}"
                raise ItemError("prefixes", i, f"= {shortened(prefix)} {must}")

    def _join(self) -> None:
        starts = self.prefixes
        if starts is None and self.prompts is not None:
            starts = ["" if parse_conversation(prompt) else prompt for prompt in self.prompts]
        if starts is None or not any(starts):
            return
        rows = [(s, o) if o.strip() else ("", "") for s, o in zip(starts, self.texts, strict=True)]
        object.__setattr__(self, "prefixes", tuple(start for start, _ in rows))
        object.__setattr__(self, "texts", tuple(joined(*row) for row in rows))

    @staticmethod
    def _checked(
        columns: Mapping[str, tuple[Any, ...]], extra: Mapping[str, Sequence[Any]]
    ) -> Samples:
        """Return samples with columns of other samples, which need no checks again."""
        samples = object.__new__(Samples)
        object.__setattr__(samples, "extra", extra)
        for name in JSON_KEYS:
            object.__setattr__(samples, name, columns.get(name))
        return samples

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, rows: slice | Sequence[int] | Sequence[bool]) -> Samples:
        """Return the samples at a slice, at indices in their order, or where a mask is True."""
        if isinstance(rows, int):
            raise TypeError(f"samples[{rows}] is one row. Use samples[{rows}:{rows + 1}].")
        indices = range(len(self))[rows] if isinstance(rows, slice) else rows
        if not isinstance(indices, range | list):
            indices = list(_plain(indices))
        if len(indices) and isinstance(indices[0], bool):
            if len(indices) != len(self):
                raise ValueError(f"a mask must have {len(self)} items, got {len(indices)}")
            indices = list(compress(range(len(self)), indices))
        columns, extra = (
            {name: tuple(column[i] for i in indices) for name, column in table.items()}
            for table in (self.columns(), self.extra)
        )
        return self._checked(columns, extra)

    def to(self, *_: Any, **__: Any) -> Samples:
        """Return the samples: text needs no device. Lightning and Accelerate move batches by it."""
        return self

    def columns(self) -> dict[str, tuple[Any, ...]]:
        """Return the columns that are present by name, in declaration order."""
        columns = {name: getattr(self, name) for name in JSON_KEYS}
        return {name: column for name, column in columns.items() if column is not None}

    def require(self, name: str, scorer: str) -> tuple[str, ...]:
        """Return a column that a scorer needs, one string a sample."""
        columns = self.columns()
        if name not in columns:
            raise MissingColumn(name, scorer, columns)
        rows = [(item,) if isinstance(item, str) else item for item in columns[name]]
        for i, row in enumerate(rows):
            if len(row) > 1:
                found = f"{shortened(row)} must be one string for {scorer}, got {len(row)}"
                raise ItemError(name, i, f"= {found}")
        return tuple(row[0] for row in rows)

    def require_references(self, scorer: str) -> tuple[tuple[str, ...], ...]:
        """Return the references of each sample, one or several, or raise `MissingColumn`."""
        if self.references is None:
            raise MissingColumn("references", scorer, self.columns())
        return tuple((item,) if isinstance(item, str) else tuple(item) for item in self.references)

    def labels_of(self, attribute: str | None, reader: str) -> tuple[str, ...]:
        """Return the label of each sample, or of one attribute, for a `reader` in errors."""
        labels = self.require("labels", reader)
        if attribute is None:
            return labels
        found = []
        for i, label in enumerate(labels):
            named = parse_attributes(label) or {}
            if attribute not in named:
                what = f"does not name the attribute {attribute!r}, which {reader} reads"
                raise ItemError("labels", i, f"= {shortened(label, 80)} {what}")
            found.append(named[attribute])
        return tuple(found)

    def label_indices(
        self, known: Sequence[str], reader: str, attribute: str | None = None
    ) -> list[int]:
        """Return the index of each label of `labels_of` among the `known` ones of a `reader`."""
        labels = self.labels_of(attribute, reader)
        indices = {label: index for index, label in enumerate(known)}
        for i, label in enumerate(labels):
            if label not in indices:
                must = f"must be a label of {reader}: {', '.join(known)}"
                raise ItemError("labels", i, f"= {shortened(label, 80)} {must}")
        return [indices[label] for label in labels]

    def replace(self, **columns: Iterable[Any] | None) -> Samples:
        """Return the samples with some columns replaced, added or (None) removed."""
        changes: dict[str, Any] = {**columns}  # mypy: texts can't be None, other columns can
        return replace(self, **changes)

    def as_prompts(self) -> Samples:
        """Return the samples reduced to prompts: the prefixes, or without these the whole texts.

        `texts` and `prefixes` become the prompts; `prompts` and `groups` are filled in if absent.
        """
        if self.prefixes is None:
            for i, (text, source) in enumerate(zip(self.texts, self.sources or (), strict=False)):
                if text and text == source:
                    equal = f"= {shortened(text)} equals the text, which has no prefix"
                    raise ItemError("sources", i, f"{equal}. {REWRITES_OR_CONTINUES}")
        beginnings = self.texts if self.prefixes is None else self.prefixes
        numbers = [str(i) for i in range(len(self.texts))]
        return replace(
            self,
            texts=beginnings,
            prefixes=beginnings,
            prompts=beginnings if self.prompts is None else self.prompts,
            groups=numbers if self.groups is None else self.groups,
        )

    @property
    def completions(self) -> list[str]:
        """The part of each text after its prefix; without prefixes the whole text."""
        prefixes = self.prefixes or [""] * len(self)
        return [text[len(prefix) :] for text, prefix in zip(self.texts, prefixes, strict=True)]

    def completed(self, completions: Sequence[str]) -> Samples:
        """Return the samples with texts replaced by prefix + completion, as a model writes it.

        A space between the two belongs to the completion. If the prefix ends with it as well, it
        is in the text once: `"The food "` and `" was good"` give `"The food was good"`.
        """
        prefixes = self.prefixes
        if prefixes is None:
            raise MissingColumn("prefixes", "Samples.completed", self.columns())
        if len(completions) != len(prefixes):
            raise ValueError(f"got {len(completions)} completions for {len(prefixes)} prompts")
        return replace(self, texts=list(map(_once_spaced, prefixes, completions)))

    def read_after(self, answer_after: str | None, unfinished: Unfinished | None = None) -> Samples:
        """Return the samples with these settings of all; None leaves what they have."""
        given = {"answer_after": answer_after, "unfinished": unfinished}
        settings: Any = {name: value for name, value in given.items() if value is not None}
        return replace(self, **settings) if settings else self

    def answers(self) -> tuple[Samples, Failures]:
        """Return the samples as they are scored, and those that fail for want of an answer.

        Each text with an `answer_after` becomes prefix + answer, with a space where neither side
        has one. A completion without it is kept; one that ends with it becomes an empty text.

        Examples:
            >>> texts = ["So 2?</think> It is 4.", "Let me think"]
            >>> samples = Samples(texts, answer_after="</think>", unfinished="fail")
            >>> answers, failures = samples.answers()
            >>> answers.texts, failures
            (('It is 4.', 'Let me think'), {1: "the completion has no answer after '</think>'"})
        """
        if self.answer_after is None:
            return self, Failures()
        prefixes, texts = list(self.prefixes or [""] * len(self)), list(self.texts)
        failures = Failures()
        for i, completion in enumerate(self.completions):
            tag = self.answer_after[i]
            _, ending, answer = completion.rpartition(tag) if tag else ("", "", completion)
            answer = answer.strip()
            if ending and answer:
                texts[i] = joined(prefixes[i], answer)
            elif ending:
                prefixes[i] = texts[i] = ""
            without = tag and not (ending and answer)
            if without and self.unfinished is not None and self.unfinished[i] == "fail":
                failures.add(i, f"the completion has no answer after {tag!r}")
        columns = {name: c for name, c in self.columns().items() if name not in _SETTINGS}
        columns["texts"] = tuple(texts)
        if self.prefixes is not None:
            columns["prefixes"] = tuple(prefixes)
        return self._checked(columns, self.extra), failures

    def distinct(self) -> tuple[Samples, list[int]]:
        """Return the distinct samples (the samples themselves if all are), and each one's index.

        Groups and `extra` are not compared: no pointwise scorer reads them, unless it
        `reads_extra`.
        """
        keys = [column for name, column in self.columns().items() if name != "groups"]
        keys.append(tuple(map(type, self.prompts or self.texts)))  # a text may spell a conversation
        index_of: dict[tuple[Any, ...], int] = {}
        first_rows: list[int] = []
        inverse: list[int] = []
        for i, key in enumerate(zip(*keys, strict=True)):
            if key not in index_of:
                index_of[key] = len(first_rows)
                first_rows.append(i)
            inverse.append(index_of[key])
        return (self[first_rows] if len(first_rows) < len(inverse) else self), inverse

    def unreadable(self, empty: bool = True) -> Failures:
        """Return the samples that no scorer can read, and why: not valid Unicode, or empty."""
        failures = Failures()
        for name, column in self.columns().items():
            flat = [item if isinstance(item, str) else "".join(item) for item in column]
            try:
                "".join(flat).encode()
            except UnicodeEncodeError:  # an unpaired surrogate
                for i in (i for i, text in enumerate(flat) if _SURROGATE.search(text)):
                    failures.add(i, f"the {JSON_KEYS[name]} is not valid Unicode")
        for i, text in enumerate(self.texts if empty else ()):
            if not text.strip() and i not in failures:
                failures.add(i, "the text is empty")
        return failures

    @staticmethod
    def concat(parts: Iterable[Samples]) -> Samples:
        """Concatenate samples in order; parts without samples may have any columns."""
        parts = list(parts)
        parts = [part for part in parts if len(part)] or parts[:1]
        names = [*parts[0].columns(), *parts[0].extra]
        for i, part in enumerate(parts):
            if [*part.columns(), *part.extra] != names:
                raise ValueError(f"parts[{i}] must have the columns of parts[0], {names}")
        columns, extra = (
            {name: tuple(item for table in tables for item in table[name]) for name in tables[0]}
            for tables in ([part.columns() for part in parts], [part.extra for part in parts])
        )
        return Samples._checked(columns, extra)

    def to_jsonl(self, path: str | PathLike[str]) -> None:
        """Write one JSON record per sample, with singular keys (`text`, `prefix`, …)."""
        write_whole(Path(path), "".join(map(json_line, records_of(self))))

    @staticmethod
    def from_jsonl(path: str | PathLike[str]) -> Samples:
        """Read records in the format of `to_jsonl`, ignoring other keys."""
        return samples_of(read_jsonl(path), path)


_SURROGATE = re.compile("[\ud800-\udfff]")


def _once_spaced(prefix: str, completion: str) -> str:
    """Return prefix + completion, with the spaces that both have where they meet once."""
    own = len(completion) - len(completion.lstrip(" "))
    given = len(prefix) - len(prefix.rstrip(" "))
    return prefix + completion[min(own, given) :]


# After and before these no space is written: white space, brackets, signs; Chinese and Japanese.
_NO_SPACE = re.compile(
    r"(?:^|[\s(\[{“‘«/\-\u2e80-\u9fff\uff00-\uffef])\n|\n(?:$|[\s.,;:!?)\]}”’'»%/\-\u2e80-\u9fff\uff00-\uffef])"
)


def joined(prefix: str, output: str) -> str:
    """Return prefix + output, with one space where a writer leaves one and neither side has it.

    Examples:
        >>> joined("The soup", "was cold."), joined("The soup ", " was"), joined("The soup", ".")
        ('The soup was cold.', 'The soup was', 'The soup.')
    """
    gap = "" if _NO_SPACE.search(f"{prefix[-1:]}\n{output[:1]}") else " "
    return _once_spaced(prefix, gap + output)


def records_of(samples: Samples) -> list[dict[str, Any]]:
    """Return one record per sample, with the singular keys of the columns that are present.

    A conversation is a list of messages.
    """
    columns = {JSON_KEYS[name]: column for name, column in samples.columns().items()}
    if samples.prompts is not None:
        columns["prompt"] = tuple(parse_conversation(each) or each for each in samples.prompts)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def samples_of(records: Sequence[Any], path: str | PathLike[str]) -> Samples:
    """Return the samples of the records of a file, whose lines are named in errors."""
    with rows_named([f"{path}:{i + 1}" for i in range(len(records))]):
        return Samples(**columns_from_records(records)) if records else Samples([])


def empty_items(name: str, items: Sequence[str]) -> Failures:
    """Return the rows of a column's items that have no text, and why their samples fail."""
    why = f"the {JSON_KEYS[name]} is empty"
    return Failures({i: why for i, item in enumerate(items) if not item.strip()})


def _plain(values: Any) -> Any:
    """Return a tensor, an array or a pandas Series as a list, and a number of NumPy as Python's."""
    return values.tolist() if hasattr(values, "tolist") else values


def _listed(name: str, column: Any, texts: Sequence[str]) -> Iterable[Any]:
    """Return the items of a column that is not a list; a TypeError if it has no order."""
    column = _plain(column)
    if name == "labels" and isinstance(column, Mapping):
        return _attribute_rows(column, len(texts))
    if isinstance(column, str | Integral) and name not in ("texts", "outputs"):
        return [column] * len(texts)
    table, unordered = table_of(column), isinstance(column, str | set | frozenset | Mapping)
    if isinstance(column, Iterable) and not (unordered or table):
        return column
    hint = ". Use as_samples(...)." if table and name in ("texts", "outputs") else ""
    raise TypeError(
        f"{name} must be a list of strings, got {shortened(column)}, {kind_of(column)}{hint}"
    )


def _item(name: str, i: int, item: Any, integers: bool) -> Any:
    item = _plain(item)
    if isinstance(item, str):
        return item
    if integers and not isinstance(item, bool) and isinstance(item, Integral):
        return str(int(item))
    if name == "labels" and isinstance(item, Mapping):
        try:
            return attribute_label(item)
        except ValueError as error:
            raise ItemError(name, i, f": {error}") from None
    if name == "prompts" and isinstance(item, list | tuple):
        if not _are_messages(item):
            raise ItemError(name, i, f"= {shortened(item)} must be a text, or messages with a role")
        return conversation_prompt(item)
    if name == "outputs" and isinstance(item, list) and all(isinstance(m, Mapping) for m in item):
        said = [m.get("content") for m in item if m.get("role") == "assistant"]
        return "\n".join(map(str, filter(None, said)))
    if name == "references" and isinstance(item, Sequence) and item:
        wrong = [each for each in item if not isinstance(each, str)]
        if not wrong:
            return tuple(item)
        item = wrong[0]
    many = ", or one or more of them" if name == "references" else ""
    raise ItemError(name, i, f"= {shortened(item)} is {kind_of(item)}, must be a string{many}")


_ATTRIBUTE = re.compile(r"(?:^|\s+)([^\s=]+)=")


def attribute_label(targets: Mapping[str, Any]) -> str:
    """Return the label of a sample with these attributes: `"sentiment=negative topic=world"`.

    None is a label that is not controlled, which is left out.

    Examples:
        >>> attribute_label({"sentiment": "negative", "tense": None, "topic": "world"})
        'sentiment=negative topic=world'
    """
    named = {str(name): str(label) for name, label in targets.items() if label is not None}
    text = " ".join(f"{name}={label}" for name, label in named.items())
    if parse_attributes(text) != named:
        raise ValueError(f"labels {shortened(dict(targets))} are ambiguous as {text!r}")
    return text


def parse_attributes(label: str) -> dict[str, str] | None:
    """Return attribute → label of a text of `attribute_label`, empty for an empty text.

    None for a plain label, and if an attribute is named twice.
    """
    start, *pieces = _ATTRIBUTE.split(label.strip())
    names, values = pieces[::2], pieces[1::2]
    if start or len(set(names)) < len(names):
        return None
    return {name: value.strip() for name, value in zip(names, values, strict=True)}


class Conversation(str):
    """A prompt that is a conversation: its messages as JSON. The same text alone is none."""


def conversation_prompt(messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """Return the prompt for a conversation of messages, each with a role."""
    return Conversation(json.dumps([dict(each) for each in messages], ensure_ascii=False))


def parse_conversation(prompt: str) -> list[dict[str, Any]] | None:
    """Return the messages of a prompt of `conversation_prompt`; None for a plain prompt."""
    return json.loads(prompt) if isinstance(prompt, Conversation) else None


def _are_messages(items: Sequence[Any]) -> bool:
    return bool(items) and all(
        isinstance(item, Mapping)
        and isinstance(item.get("role"), str)
        and isinstance(item.get("content"), str | list | None)
        for item in items
    )


def _attribute_rows(columns: Mapping[str, Any], n: int) -> list[dict[str, Any]]:
    """Return attribute → label for each of n samples, from a column or one label per attribute."""
    rows: list[dict[str, Any]] = [{} for _ in range(n)]
    for name, given in columns.items():
        column = [given] * n if isinstance(given, str | Integral | None) else list(_plain(given))
        if len(column) != n:
            raise ValueError(f"labels[{name!r}] has {len(column)} items for {n} texts")
        for row, label in zip(rows, column, strict=True):
            row[name] = label
    return rows


def as_samples(data: SamplesLike | None = None, **columns: Any) -> Samples:
    """Convert data to `Samples`.

    Args:
        data: `Samples`; a list of texts; a list of records (`{"text": …, "label": …}`); a mapping
            of columns (`{"texts": [...], "labels": [...]}`), a pandas DataFrame or a
            `datasets.Dataset`. Names may be plural or singular; others are ignored. Without texts,
            `output` or TRL's `completion` are outputs, which follow their prompts. None if the
            texts are a keyword.
        columns: Columns to add or replace, by a plural or singular name. `label_map` maps labels in
            the data to the scorer's labels: `{0: "negative", 1: "positive"}`.

    Examples:
        >>> as_samples([{"text": "Good soup.", "source": "Cold soup."}]).sources
        ('Cold soup.',)
        >>> as_samples(["Good soup."], labels=[1], label_map={0: "cold", 1: "good"}).labels
        ('good',)
        >>> as_samples(["Good soup."], labels={"sentiment": "positive", "topic": "food"}).labels
        ('sentiment=positive topic=food',)
    """
    label_map = columns.pop("label_map", None)
    table: dict[str, Any] = {} if data is None else _columns_of(data)
    known = COLUMN_OF | dict.fromkeys(OUTPUT_NAMES, "outputs")
    added = {known.get(name, name): column for name, column in columns.items()}
    if unknown := [name for name in added if name not in (*JSON_KEYS, "outputs")]:
        of_trl = "completions" in columns or "completion_ids" in columns
        raise TypeError(
            f"{unknown[0]} is not a column of Samples, must be one of {', '.join(JSON_KEYS)}"
            f"{'. Under TRL, use ctrlreward.adapters.trl.as_reward_funcs' * of_trl}"
        )
    if len(added) < len(columns):
        raise TypeError(f"one column has two names in {', '.join(columns)}")
    if isinstance(data, Samples) and not added and label_map is None:
        return data
    table |= added
    if table.get("texts") is None and table.get("outputs") is None:
        raise TypeError("texts must be given, as the first argument")
    samples = Samples(**table)
    return samples if label_map is None else _mapped(samples, label_map)


def _columns_of(data: Any) -> dict[str, Any]:
    if isinstance(data, Samples):
        return {**data.columns(), "extra": data.extra}
    table = None if isinstance(data, list | tuple) else table_of(data)
    if table is not None:
        return _known_columns(table)
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | set | frozenset):
        raise TypeError(
            f"texts = {shortened(data)} is {kind_of(data)}, must be Samples, a list of texts or "
            "of records, a mapping of columns, a pandas DataFrame or a datasets.Dataset"
        )
    items: list[Any] = list(data)
    are_records = bool(items) and all(isinstance(item, Mapping) for item in items)
    return columns_from_records(items) if are_records else {"texts": items}


def _mapped(samples: Samples, label_map: Mapping[Any, str]) -> Samples:
    targets = {str(label): target for label, target in label_map.items()}
    labels = samples.require("labels", "label_map")
    for i, label in enumerate(labels):
        if label not in targets:
            raise ItemError("labels", i, f"= {label!r} must be a key of label_map, {[*targets]}")
    return samples.replace(labels=[targets[label] for label in labels])
