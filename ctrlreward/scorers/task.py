"""What attribute relevance asks of a text: prompts with a blank, and each label's words for it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import yaml

# Slots of a prompt: the text and the label word.
TEXT_SLOT = "<gen_result>"
WORD_SLOT = "<mask_token>"

_BUILT_IN = resources.files("ctrlreward.scorers") / "prompts"


class Evaluator(NamedTuple):
    """A prompt with a verbalizer.

    Attributes:
        prompt: Holds the slots of the text and of the word.
        words: One word or phrase for each label, in the order of the task's labels.
    """

    prompt: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """Prompts and verbalizers; every prompt with every verbalizer is one evaluator.

    Args:
        prompts: Patterns that hold `<gen_result>` (the text) and `<mask_token>` (the blank) once.
        verbalizers: For each label its words or phrases, the same number for all labels; those
            at one place make up one verbalizer.

    Raises:
        ValueError: There is no prompt, one lacks a slot, labels have different numbers of words,
            or a prompt, a label or a word is no text.
    """

    prompts: Sequence[str]
    verbalizers: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError(f"prompts is empty: give patterns with {TEXT_SLOT} and {WORD_SLOT}")
        for i, prompt in enumerate(_texts("prompts", self.prompts)):
            for slot in (TEXT_SLOT, WORD_SLOT):
                if prompt.count(slot) != 1:
                    raise ValueError(
                        f"prompts[{i}] = {prompt!r} holds {slot} {prompt.count(slot)} times: "
                        "write it once"
                    )
        for label, words in _words_by_label(self.verbalizers).items():
            _require_text(f"label {label!r}", label)
            _texts(f"verbalizers[{label!r}]", words)
        counts = {label: len(words) for label, words in self.verbalizers.items()}
        if len(counts) < 2 or len(set(counts.values())) != 1 or 0 in counts.values():
            raise ValueError(
                f"verbalizers give {counts} words: give two labels or more, and each as many words"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order of the verbalizers."""
        return tuple(self.verbalizers)

    @property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """Every prompt with every verbalizer, those of one prompt side by side."""
        rows = list(zip(*self.verbalizers.values(), strict=True))
        return tuple(Evaluator(prompt, words) for prompt in self.prompts for words in rows)

    def subset(self, count: int, seed: int) -> tuple[Evaluator, ...]:
        """A random choice of the evaluators, in their order.

        Args:
            count: How many. With one seed, fewer of them are among more of them.
            seed: The same seed gives the same choice; no other random state is read or changed.

        Raises:
            ValueError: There are not so many.
        """
        everything = self.evaluators
        if not 1 <= count <= len(everything):
            raise ValueError(
                f"evaluators = {count}: the task has {len(everything)} (prompts × verbalizers), "
                f"give 1 to {len(everything)}, or None for all"
            )
        # Sorted by drawn numbers, which Python promises to keep; how it shuffles may change.
        draw = random.Random(seed)
        keys = [draw.random() for _ in everything]
        chosen = sorted(range(len(everything)), key=keys.__getitem__)[:count]
        return tuple(everything[i] for i in sorted(chosen))

    @staticmethod
    def load(name: str | PathLike[str]) -> Task:
        """A built-in task (`sentiment`, `topic`), or a YAML file of the same form: `verbalizers`,
        and `prompts` or, each put behind and before the text, `phrases`.

        Raises:
            ValueError: There is no such task or file, it lacks a key, or what it holds is no task.
        """
        built_in = _BUILT_IN / f"{name}.yaml"
        path = built_in if built_in.is_file() else Path(name).expanduser()
        if not path.is_file():
            known = sorted(f.name[:-5] for f in _BUILT_IN.iterdir() if f.name.endswith(".yaml"))
            raise ValueError(
                f"task = {str(name)!r} is neither a built-in task ({', '.join(known)}) nor a "
                "YAML file: name one, or pass Task(prompts=..., verbalizers=...)"
            )
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or "verbalizers" not in content:
            raise ValueError(f"{path} lacks the key 'verbalizers'")
        prompts = list(_texts(f"{path}: prompts", content.get("prompts", [])))
        for phrase in _texts(f"{path}: phrases", content.get("phrases", [])):
            prompts += [f"{TEXT_SLOT} {phrase}", f"{phrase} {TEXT_SLOT}"]
        return Task(prompts, content["verbalizers"])

    @staticmethod
    def from_published(prompts: str | PathLike[str], verbalizers: str | PathLike[str]) -> Task:
        """Reads the published format: one prompt a line; the labels, then one verbalizer a line,
        words separated by tabs."""
        labels, *rows = [line.split("\t") for line in _lines(verbalizers)]
        words = {label: [row[i] for row in rows if i < len(row)] for i, label in enumerate(labels)}
        return Task(_lines(prompts), words)


def _words_by_label(verbalizers: object) -> Mapping[object, object]:
    if not isinstance(verbalizers, Mapping):
        raise ValueError(f"verbalizers = {verbalizers!r}: give each label a list of words")
    return verbalizers


def _texts(name: str, values: object) -> Sequence[str]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name} = {values!r}: give a list of texts")
    for i, value in enumerate(values):
        _require_text(f"{name}[{i}] = {value!r}", value)
    return values


def _require_text(name: str, value: object) -> None:
    # YAML reads an unquoted no, yes, on or 1984 as something else, and a colon parts it.
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is no text: write a word or a phrase, in quotes")


def _lines(path: str | PathLike[str]) -> list[str]:
    return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line]
