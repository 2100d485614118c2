"""Texts whose sentences are shuffled, dropped, repeated or replaced, for a judge of soundness.

A classifier that tells them from sound ones judges a text without ratings, as UNION (Guan and Huang
2020, https://arxiv.org/abs/2009.07602) does. `configs/scoring_models/soundness_minilm.yaml` uses
this module. Copy this file to change it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias, get_args

from ctrlreward.arguments import some_of
from ctrlreward.models.sentences import split_sentences
from ctrlreward.recipes.scoring_models.model_trainer import split_off
from ctrlreward.recipes.scoring_models.text_cnn import LabelledSentences, Sentence
from ctrlreward.recipes.text_files import read_lines

Kind: TypeAlias = Literal["shuffled", "dropped", "repeated", "replaced"]

LABELS = ("corrupted", "sound")


def corrupt(kind: Kind, sentences: list[str], foreign: str, draw: random.Random) -> list[str]:
    """Return two sentences or more, three to drop one, in another order or with another one.

    Args:
        kind: In another order; without a sentence between the first and the last; with a copy of a
            sentence in the place of another one; with `foreign` in the place of one.
        sentences: Sentences of a text.
        foreign: A sentence of another text.
        draw: Random numbers.

    Examples:
        >>> import random
        >>> draw = random.Random(0)
        >>> corrupt("shuffled", ["One.", "Two."], "", draw)
        ['Two.', 'One.']
        >>> corrupt("dropped", ["One.", "Two.", "Three."], "", draw)
        ['One.', 'Three.']
    """
    if kind == "shuffled":
        order = draw.sample(range(len(sentences)), len(sentences))
        if order == sorted(order):
            order = [*order[1:], order[0]]
        return [sentences[i] for i in order]
    if kind == "dropped":
        place = draw.randrange(1, len(sentences) - 1)
        return sentences[:place] + sentences[place + 1 :]
    if kind == "repeated":
        copied, place = draw.sample(range(len(sentences)), 2)
        foreign = sentences[copied]
    else:
        place = draw.randrange(len(sentences))
    return [*sentences[:place], foreign, *sentences[place + 1 :]]


class CorruptedTexts(LabelledSentences):
    """Passages of running text, `"sound"` as they are and `"corrupted"` in one way each.

    Lines are cut into passages of consecutive sentences. A corrupted passage and the sound one that
    it was made of are in the same split, and so is the sentence that replaces another one.

    Args:
        train: Files of running text for training, one paragraph per line.
        test: Files for the final accuracy.
        sentences: Smallest and largest number of sentences of a passage, 2 or more; 3 or more if
            `kinds` is `"dropped"` alone.
        kinds: Kinds of corruption; each passage gets one of them at random.
        validation_share: Share of the passages for validation, above 0 and below 1.
        batch_size: Passages per batch.
        seed: Seed of the passages, their corruption, the split and the order.

    Raises:
        ValueError: A kind is unknown, or the numbers of sentences are out of range.
    """

    def __init__(
        self,
        train: Sequence[str],
        test: Sequence[str],
        sentences: tuple[int, int] = (2, 5),
        kinds: Sequence[Kind] = get_args(Kind),
        validation_share: float = 0.05,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(LABELS, validation_share, batch_size, seed)
        self.files = {"train": train, "test": test}
        self.range = sentences
        self.kinds: tuple[Kind, ...] = some_of("kinds", kinds, get_args(Kind))
        fewest = 3 if self.kinds == ("dropped",) else 2
        if not fewest <= sentences[0] <= sentences[1]:
            raise ValueError(
                f"sentences must be two ascending numbers from {fewest} on, got {sentences}"
            )

    def setup(self, stage: str) -> None:
        """Read the files, split their passages, and corrupt each of them."""
        draw = random.Random(self.seed)
        passages = {
            split: {" ".join(passage): passage for passage in self._passages(files, draw)}
            for split, files in self.files.items()
        }
        known = [text for text in passages["train"] if text not in passages["test"]]
        train, validation = split_off(known, self.validation_share, self.seed, self.files["train"])
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
            kinds = [kind for kind in self.kinds if kind != "dropped" or len(passage) >= 3]
            corrupted = corrupt(draw.choice(kinds), list(passage), draw.choice(other), draw)
            if corrupted == passage:  # of equal sentences
                continue
            for label, sentences in zip(LABELS, (corrupted, passage), strict=True):
                yield Sentence(" ".join(sentences), label=LABELS.index(label))
