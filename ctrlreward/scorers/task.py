"""Tasks of attribute relevance: prompts with a blank, and a verbalizer for each label."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from ctrlreward.files import read_yaml
from ctrlreward.models.tasks import TEXT_SLOT

# Placeholder of the label word in a prompt; the text's is `models.tasks.TEXT_SLOT`.
WORD_SLOT = "<mask_token>"

_BUILT_IN = resources.files("ctrlreward.scorers") / "prompts"


class Evaluator(NamedTuple):
    """A prompt and a verbalizer: a word or phrase per label, in the order of the task's labels."""

    prompt: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """Prompts and verbalizers; each pair of them is one evaluator.

    Args:
        prompts: Patterns that contain `<gen_result>` (the text) and `<mask_token>` (the blank)
            once each.
        verbalizers: Words or phrases of each label, the same number for all labels; the i-th
            words of all labels form the i-th verbalizer.
    """

    prompts: Sequence[str]
    verbalizers: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError(f"prompts is empty, must be patterns with {TEXT_SLOT} and {WORD_SLOT}")
        for i, prompt in enumerate(require_texts("prompts", self.prompts)):
            for slot in (TEXT_SLOT, WORD_SLOT):
                if prompt.count(slot) != 1:
                    raise ValueError(f"prompts[{i}] must have {slot} once, got {prompt!r}")
        table = self.verbalizers if isinstance(self.verbalizers, Mapping) else {}
        require_texts("labels", [*table])
        counts = {len(require_texts(f"verbalizers[{n!r}]", words)) for n, words in table.items()}
        if len(table) < 2 or len(counts) != 1 or 0 in counts:
            raise ValueError(
                "verbalizers must map two or more labels to the same number of words each, got "
                f"{self.verbalizers!r}"
            )

    def __hash__(self) -> int:
        """Return the same hash for equal tasks; their fields may be lists."""
        return hash((*self.prompts, *self.verbalizers))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.verbalizers)

    @property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """Every prompt with every verbalizer, grouped by prompt."""
        rows = list(zip(*self.verbalizers.values(), strict=True))
        return tuple(Evaluator(prompt, words) for prompt in self.prompts for words in rows)

    def subset(self, count: int, seed: int) -> tuple[Evaluator, ...]:
        """Return a random subset of the evaluators in order, nested in larger subsets."""
        evaluators = self.evaluators
        if not 1 <= count <= len(evaluators):
            raise ValueError(f"evaluators must be None or 1 to {len(evaluators)}, got {count}")
        # Python guarantees the sequence of random(), but not the algorithm of shuffle or sample.
        generator = random.Random(seed)
        keys = [generator.random() for _ in evaluators]
        chosen = sorted(range(len(evaluators)), key=keys.__getitem__)[:count]
        return tuple(evaluators[i] for i in sorted(chosen))

    @staticmethod
    def load(name: str | PathLike[str]) -> Task:
        """Load a built-in task (`sentiment`, `topic`) or a YAML file with the same keys.

        These are `verbalizers`, and `prompts` or `phrases`; a phrase is a prompt after the text and
        one before it.
        """
        built_in = _BUILT_IN / f"{name}.yaml"
        path = Path(str(built_in)) if built_in.is_file() else Path(name).expanduser()
        if not path.is_file():
            raise ValueError(f"task must be sentiment, topic or a YAML file, got {str(name)!r}")
        content = read_yaml(path)
        keys = list(content) if isinstance(content, dict) else []
        if "verbalizers" not in keys or {*keys} - {"prompts", "phrases", "verbalizers"}:
            wanted = "must have the keys verbalizers, and phrases or prompts"
            raise ValueError(f"{path} {wanted}; got {', '.join(map(str, keys)) or 'none'}")
        prompts = list(require_texts(f"{path}: prompts", content.get("prompts", [])))
        for phrase in require_texts(f"{path}: phrases", content.get("phrases", [])):
            prompts += [f"{TEXT_SLOT} {phrase}", f"{phrase} {TEXT_SLOT}"]
        return Task(prompts, content["verbalizers"])


def require_texts(name: str, values: object) -> Sequence[str]:
    """Return a list of non-empty strings, or raise an error that names the wrong item."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name} must be a list of strings, got {values!r}")
    for i, value in enumerate(values):
        # YAML reads an unquoted no, yes, on or 1984 as another type, and splits at a colon.
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{name}[{i}] must be a word or a phrase, in quotes, got {value!r}")
    return values
