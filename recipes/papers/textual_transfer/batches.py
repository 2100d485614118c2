"""Batches of sentences of two styles, as Shen et al. (2017) train on them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from ctrlreward.models.batching import pad_rows
from ctrlreward.recipes.papers.textual_transfer.paraphrases import Paraphrases
from ctrlreward.recipes.papers.textual_transfer.vocabulary import (
    PAD,
    subword_vocabulary,
    word_vocabulary,
)
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines
from ctrlreward.recipes.trained_first import TrainedFirst
from ctrlreward.recipes.training_batches import EpochOrder, ResumableLoader

Row = list[int]
Item = TypeVar("Item")


@dataclass
class TransferBatch:
    """Token ids of k sentences of each style, and of m paraphrase pairs.

    All are int64 and padded on the right, without `<go>` and `<eos>`. A dataclass, so that
    Lightning moves it to the device.

    Attributes:
        words: Sentences of style 0, then of style 1, shape (2k, T).
        noisy: The same words in a locally shuffled order, for the encoder, shape (2k, T).
        lengths: Numbers of words, shape (2k,).
        styles: 0 or 1, shape (2k,).
        source_pairs: Sentences u of the pairs ⟨u, v⟩, shape (m, S); (0, 1) without paraphrases.
        target_pairs: Sentences v, shape (m, S).
        source_lengths: Numbers of words of u, shape (m,).
        target_lengths: Numbers of words of v, shape (m,).
    """

    words: Tensor
    noisy: Tensor
    lengths: Tensor
    styles: Tensor
    source_pairs: Tensor
    target_pairs: Tensor
    source_lengths: Tensor
    target_lengths: Tensor


class TransferSentences(pl.LightningDataModule):
    """Sentences of two styles, their vocabulary, and batches of both by length.

    Sentences that differ only in case and white space count as one; held-out ones are never trained
    on. The sentences of a style are sorted by length, the smaller corpus is repeated, so that a
    batch has as many of each style and of about equal length. Order and noise depend on the seed,
    the epoch and the batch alone, and a resumed run continues exactly, in mid-epoch as well.

    Args:
        files: Style → file of one tokenized sentence per line; see `text_files.read_lines`. The
            first style is style 0 of the paper, the second style 1.
        exclude: Files of held-out sentences; a line may contain several, separated by tabs.
        words: Smallest and largest number of words of a sentence; the paper has 1 to 15 for Yelp, 6
            to 25 for Literature.
        count: Number of sentences of each style, drawn at random; None for all.
        min_count: Words that occur less often are unknown words.
        max_words: Largest number of words of the vocabulary; None for no limit.
        subwords: Number of tokens of a byte-pair encoding that is used in place of words; None for
            words.
        batch_size: Sentences of each style per batch, and paraphrase pairs.
        paraphrases: Paraphrase pairs for the loss of eq. 5; None for a model without it.
        models: Models that are trained first where their folder does not exist.
        shuffle_distance: Words are sorted by i + `shuffle_distance` · U[0, 1) for the encoder, so
            that each moves by less than this many places; 0 for no noise.
        seed: Seed of the choice of sentences, of their order and of the noise.

    Attributes:
        tokenizer: Vocabulary of the training sentences; see `vocabulary`.
        styles: The two styles, in order.
        sentences: Style → training sentences, in lower case.
        pairs: Paraphrase pairs.
        batches_per_epoch: Number of batches of an epoch.

    Raises:
        ValueError: `files` does not have exactly two styles, both `subwords` and `max_words` are
            given, or a number is out of range. In `setup`: a style has no sentence, or fewer than
            `count`.
    """

    def __init__(
        self,
        files: dict[str, str],
        exclude: Sequence[str] = (),
        words: tuple[int, int] = (1, 15),
        count: int | None = None,
        min_count: int = 5,
        max_words: int | None = None,
        subwords: int | None = None,
        batch_size: int = 64,
        paraphrases: Paraphrases | None = None,
        models: Sequence[TrainedFirst] = (),
        shuffle_distance: float = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if len(files) != 2:
            raise ValueError(f"files must have two styles, got {', '.join(files) or 'none'}")
        if subwords is not None and max_words is not None:
            raise ValueError(
                f"subwords = {subwords} and max_words = {max_words} exclude each other: a "
                "vocabulary has subwords or words"
            )
        if batch_size < 1 or (count is not None and count < 1):
            raise ValueError(
                f"batch_size and count must be 1 or more, got {batch_size} and {count}"
            )
        if not 1 <= words[0] <= words[1]:
            raise ValueError(f"words must be two numbers of 1 or more in order, got {words}")
        if not shuffle_distance >= 0:
            raise ValueError(f"shuffle_distance must be 0 or more, got {shuffle_distance}")
        first, second = files
        self.files, self.exclude = files, exclude
        self.styles: tuple[str, str] = (first, second)
        self.words, self.count = words, count
        self.min_count, self.max_words, self.subwords = min_count, max_words, subwords
        self.batch_size = batch_size
        self.paraphrases = paraphrases
        self.models = models
        self.shuffle_distance = shuffle_distance
        self.seed = seed
        self.sentences: dict[str, list[str]] = {}
        self.pairs: list[tuple[str, str]] = []

    def prepare_data(self) -> None:
        """Train the models whose folders do not exist, in one process per node."""
        for model in self.models:
            model.train_if_absent()

    def setup(self, stage: str) -> None:
        """Read the files, and build vocabulary and paraphrase pairs; once per object."""
        if self.sentences:
            return
        held_out = read_held_out(self.exclude)
        sentences = {style: self._read(style, held_out) for style in self.styles}
        texts = [text for style in self.styles for text in sentences[style]]
        self.tokenizer: PreTrainedTokenizerFast = (
            word_vocabulary(texts, self.min_count, self.max_words)
            if self.subwords is None
            else subword_vocabulary(texts, self.subwords)
        )
        if self.paraphrases is not None:
            self.pairs = self.paraphrases.pairs(*sentences.values())
        self.sentences = sentences
        sizes = ", ".join(f"{len(sentences[style])} {style}" for style in self.styles)
        rank_zero_info(
            f"training sentences: {sizes}; {len(self.tokenizer)} tokens; "
            f"{self.batches_per_epoch} batches an epoch"
        )

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches of an epoch, all of about equal size."""
        return -(-max(map(len, self.sentences.values())) // self.batch_size)

    def train_dataloader(self) -> DataLoader[TransferBatch]:
        """Return the training batches, in a new order and with new noise each epoch."""
        order = EpochOrder(self, self.batches_per_epoch, self.seed, numbered=True)
        return ResumableLoader(_Batches(self), batch_size=None, sampler=order)

    def val_dataloader(self) -> DataLoader[int]:
        """Return a loader of one item, which makes the trainer run its validation loop.

        `GenerationScorer` brings its own sentences, so the item is not used.
        """
        return DataLoader([0], batch_size=None)  # type: ignore[arg-type]

    def _read(self, style: str, held_out: set[str]) -> list[str]:
        """Return the sentences of a style, of which `count` are drawn."""
        shortest, longest = self.words
        texts = [
            text
            for text in dict.fromkeys(map(matching_key, read_lines([self.files[style]])))
            if shortest <= len(text.split()) <= longest and text not in held_out
        ]
        if len(texts) < (self.count or 1):
            raise ValueError(
                f"{self.files[style]} has {len(texts)} sentences of {shortest} to {longest} words "
                f"that are not held out, fewer than {self.count or 1}. Use a larger file, a "
                "smaller count, or other limits of words."
            )
        return texts if self.count is None else random.Random(self.seed).sample(texts, self.count)


class _Batches(Dataset[TransferBatch]):
    """Batch by its number counted over all epochs, from which its noise follows."""

    def __init__(self, data: TransferSentences) -> None:
        self.seed, self.shuffle_distance = data.seed, data.shuffle_distance
        self.count = data.batches_per_epoch
        most = max(map(len, data.sentences.values()))
        self.rows: list[list[Sequence[Row]]] = []  # of each style, the rows of each batch
        for texts in (data.sentences[style] for style in data.styles):
            rows = _encode(data, [texts[i % len(texts)] for i in range(most)])
            # Equally long rows are in random order.
            rows = sorted(random.Random(data.seed).sample(rows, len(rows)), key=len)
            self.rows.append(_in_parts(rows, self.count))
        sides = [_encode(data, [pair[i] for pair in data.pairs]) for i in range(2)]
        pairs = sorted(zip(*sides, strict=True), key=lambda pair: max(map(len, pair)))
        self.pairs = _in_parts(pairs, max(1, -(-len(pairs) // data.batch_size)))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> TransferBatch:
        rows = [row for style in self.rows for row in style[number % self.count]]
        draws = np.random.default_rng((self.seed, number))
        words, lengths = _padded(rows)
        pairs = self.pairs[draws.integers(len(self.pairs))]
        source_pairs, source_lengths = _padded([u for u, _ in pairs])
        target_pairs, target_lengths = _padded([v for _, v in pairs])
        noisy = _shuffled(words, lengths, self.shuffle_distance, draws)
        styles = torch.arange(2).repeat_interleave(len(rows) // 2)
        sides = source_pairs, target_pairs, source_lengths, target_lengths
        return TransferBatch(words, noisy, lengths, styles, *sides)


def _encode(data: TransferSentences, texts: Sequence[str]) -> list[Row]:
    return data.tokenizer(list(texts)).input_ids if texts else []


def _in_parts(rows: Sequence[Item], parts: int) -> list[Sequence[Item]]:
    """Split into consecutive parts whose sizes differ by at most one."""
    bounds = [len(rows) * i // parts for i in range(parts + 1)]
    return [rows[start:end] for start, end in pairwise(bounds)]


def _padded(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Return ids padded on the right, shape (rows, longest), and lengths, shape (rows,)."""
    if not rows:
        return torch.zeros((0, 1), dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    ids, mask = pad_rows(list(map(tuple, rows)), PAD, torch.device("cpu"))
    return ids, mask.sum(1)


def _shuffled(
    words: Tensor, lengths: Tensor, distance: float, draws: np.random.Generator
) -> Tensor:
    """Sort the words of each row by i + distance · U[0, 1); padding stays at the end."""
    places = torch.arange(words.shape[1])
    moved = places + distance * torch.from_numpy(draws.random(words.shape))
    moved[places >= lengths[:, None]] = torch.inf
    return words.gather(1, moved.argsort(dim=1, stable=True))
