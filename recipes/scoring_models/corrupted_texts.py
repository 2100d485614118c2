"""Texts whose sentences are shuffled, dropped, repeated or replaced, for a judge of soundness.

A classifier that tells them from sound ones judges a text without ratings, as UNION (Guan and Huang
2020, https://arxiv.org/abs/2009.07602) does. `configs/scoring_models/soundness_minilm.yaml` uses
this module. Copy this file to change it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from ctrlreward.arguments import some_of
from ctrlreward.models.sentences import split_sentences
from ctrlreward.recipes.scoring_models.model_trainer import split_off
from ctrlreward.recipes.scoring_models.text_cnn import LabelledSentences, Sentence
from ctrlreward.recipes.text_files import read_lines

Kind: TypeAlias = Literal["shuffled", "dropped", "repeated", "replaced"]

# Sentences of a passage, a sentence of another one, and a generator → the corrupted sentences.
Corruption: TypeAlias = Callable[[list[str], str, random.Random], list[str]]

LABELS = ("corrupted", "sound")


def shuffle(sentences: list[str], foreign: str, draw: random.Random) -> list[str]:
    """Return the sentences in another order.

    Examples:
        >>> import random
        >>> shuffle(["One.", "Two."], "", random.Random(0))
        ['Two.', 'One.']
    """
    order = draw.sample(range(len(sentences)), len(sentences))
    if order == sorted(order):
        order = [*order[1:], order[0]]
    return [sentences[i] for i in order]


def drop(sentences: list[str], foreign: str, draw: random.Random) -> list[str]:
    """Leave out a sentence between the first and the last.

    Examples:
        >>> import random
        >>> drop(["One.", "Two.", "Three."], "", random.Random(0))
        ['One.', 'Three.']
    """
    place = draw.randrange(1, len(sentences) - 1)
    return sentences[:place] + sentences[place + 1 :]


def repeat(sentences: list[str], foreign: str, draw: random.Random) -> list[str]:
    """Put a copy of a sentence in the place of another one.

    Examples:
        >>> import random
        >>> repeat(["One.", "Two."], "", random.Random(0))
        ['Two.', 'Two.']
    """
    copied, place = draw.sample(range(len(sentences)), 2)
    return [*sentences[:place], sentences[copied], *sentences[place + 1 :]]


def exchange(sentences: list[str], foreign: str, draw: random.Random) -> list[str]:
    """Put a sentence of another text in the place of one.

    Examples:
        >>> import random
        >>> exchange(["One.", "Two."], "A dog.", random.Random(0))
        ['One.', 'A dog.']
    """
    place = draw.randrange(len(sentences))
    return [*sentences[:place], foreign, *sentences[place + 1 :]]


# By kind, the corruption and the fewest sentences that it takes.
CORRUPTIONS: Mapping[Kind, tuple[Corruption, int]] = {
    "shuffled": (shuffle, 2),
    "dropped": (drop, 3),
    "repeated": (repeat, 2),
    "replaced": (exchange, 2),
}


class CorruptedTexts(LabelledSentences):
    """Passages of running text, `"sound"` as they are and `"corrupted"` in one way each.

    Lines are cut into passages of consecutive sentences. A corrupted passage and the sound one that
    it was made of are in the same split, and so is the sentence that replaces another one.

    Args:
        train: Files of running text for training, one paragraph per line.
        test: Files for the final accuracy.
        sentences: Smallest and largest number of sentences of a passage, 2 or more.
        kinds: Kinds of corruption; each passage gets one of them at random.
        validation_share: Share of the passages for validation, above 0 and below 1.
        batch_size: Passages per batch.
        seed: Seed of the passages, their corruption, the split and the order.

    Raises:
        ValueError: A kind is unknown, a number is out of range, or the files of a split contain
            fewer than two passages.
    """

    def __init__(
        self,
        train: Sequence[str],
        test: Sequence[str],
        sentences: tuple[int, int] = (2, 5),
        kinds: Sequence[Kind] = tuple(CORRUPTIONS),
        validation_share: float = 0.05,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(LABELS, validation_share, batch_size, seed)
        if not 2 <= sentences[0] <= sentences[1]:
            raise ValueError(f"sentences = {sentences} must be two ascending numbers, 2 or more")
        self.files = {"train": train, "test": test}
        self.range = sentences
        self.kinds = some_of("kinds", kinds, CORRUPTIONS)
        if self.kinds == ("dropped",) and sentences[0] < 3:
            raise ValueError("kinds = ('dropped',) needs passages of 3 sentences or more")

    def setup(self, stage: str) -> None:
        """Read the files, split their passages, and corrupt each of them."""
        draw = random.Random(self.seed)
        passages = {
            split: {" ".join(passage): passage for passage in self._passages(files, draw)}
            for split, files in self.files.items()
        }
        if len(passages["test"]) < 2:
            raise ValueError(f"{', '.join(self.files['test'])} contain fewer than two passages")
        known = [text for text in passages["train"] if text not in passages["test"]]
        train, validation = split_off(
            known, self.validation_share, self.seed, list(self.files["train"])
        )
        texts = {"train": train, "validation": validation, "test": list(passages["test"])}
        for split, chosen in texts.items():
            source = passages["test" if split == "test" else "train"]
            self.sentences[split] = list(self._pairs([source[text] for text in chosen], draw))

    def _passages(self, files: Sequence[str], draw: random.Random) -> Iterator[list[str]]:
        fewest, most = self.range
        for line in read_lines(files):
            rest = split_sentences(line)
            while len(rest) >= fewest:
                count = draw.randint(fewest, most)
                yield rest[:count]
                rest = rest[count:]

    def _pairs(self, passages: list[list[str]], draw: random.Random) -> Iterator[Sentence]:
        """Yield each passage unchanged and corrupted."""
        for i, passage in enumerate(passages):
            other = passages[(i + 1) % len(passages)]
            kinds = [kind for kind in self.kinds if len(passage) >= CORRUPTIONS[kind][1]]
            corruption, _ = CORRUPTIONS[draw.choice(kinds)]
            corrupted = corruption(list(passage), draw.choice(other), draw)
            if corrupted == passage:  # of equal sentences
                continue
            for label, sentences in zip(LABELS, (corrupted, passage), strict=True):
                yield Sentence(" ".join(sentences), label=LABELS.index(label))
