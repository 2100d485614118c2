"""Sentences of two styles: vocabulary and batches, as Shen et al. (2017) train on them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_info
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from ctrlreward.models.batching import pad_rows
from ctrlreward.models.words import split_words
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines
from ctrlreward.recipes.trained_first import TrainedFirst
from ctrlreward.recipes.training_batches import EpochOrder, ResumableLoader

Item = TypeVar("Item")

SPECIAL_TOKENS = ("<pad>", "<go>", "<eos>", "<unk>")
PAD, GO, EOS, UNK = range(4)


def word_vocabulary(
    sentences: Iterable[str], min_count: int = 5, max_words: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the lower-cased words of sentences, split at white space.

    Tokens 0 to 3 are `SPECIAL_TOKENS`, none of which is added to a text; then words by falling
    frequency. Words that occur less often than `min_count`, or beyond `max_words`, are unknown. A
    ValueError if no word is left.
    """
    counts = Counter(word for sentence in sentences for word in split_words(sentence))
    frequent = {w: n for w, n in counts.items() if n >= min_count and w not in SPECIAL_TOKENS}
    # Equally frequent words in alphabetical order: ids do not depend on the order of sentences.
    words = sorted(frequent, key=lambda word: (-frequent[word], word))[:max_words]
    if not words:
        raise ValueError(f"no word of the sentences occurs min_count = {min_count} times")
    ids = {word: i for i, word in enumerate([*SPECIAL_TOKENS, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL_TOKENS[UNK]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return vocabulary_from_json(tokenizer.to_str())


def vocabulary_from_json(text: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer from its `backend_tokenizer.to_str()`, as a checkpoint stores it."""
    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    special = dict(zip(names, SPECIAL_TOKENS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **special)


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

    Sentences that differ only in case and white space count as one. The smaller corpus is repeated,
    so that a batch has as many of each style, of about equal length. Order and noise depend on the
    seed, the epoch and the batch alone, and a resumed run continues exactly, in mid-epoch as well.

    Args:
        files: Two styles → file of one tokenized sentence per line; the first style is style 0.
        exclude: Files of held-out sentences; a line may contain several, separated by tabs.
        words: Smallest and largest number of words of a sentence; the paper has 1 to 15 for Yelp, 6
            to 25 for Literature.
        count: Number of sentences of each style, drawn at random; None for all.
        min_count: Words that occur less often are unknown words.
        max_words: Largest number of words of the vocabulary; None for no limit.
        batch_size: Sentences of each style per batch, and paraphrase pairs.
        models: Models that are trained first where their folder does not exist.
        shuffle_distance: Words are sorted by i + `shuffle_distance` · U[0, 1) for the encoder, so
            that each moves by less than this many places; 0 for no noise.
        seed: Seed of the choice of sentences, of their order and of the noise.

    Attributes:
        tokenizer: Vocabulary of the training sentences.
        styles: The two styles, in order.
        sentences: Style → training sentences, in lower case.
        pairs: Paraphrase pairs, which a model with the loss of eq. 5 sets.
    """

    tokenizer: PreTrainedTokenizerFast

    def __init__(
        self,
        files: dict[str, str],
        exclude: Sequence[str] = (),
        words: tuple[int, int] = (1, 15),
        count: int | None = None,
        min_count: int = 5,
        max_words: int | None = None,
        batch_size: int = 64,
        models: Sequence[TrainedFirst] = (),
        shuffle_distance: float = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        first, second = files
        self.files, self.exclude, self.styles = files, exclude, (first, second)
        self.words, self.count, self.min_count, self.max_words = words, count, min_count, max_words
        self.batch_size, self.models = batch_size, models
        self.shuffle_distance, self.seed = shuffle_distance, seed
        self.sentences: dict[str, list[str]] = {}
        self.pairs: list[tuple[str, str]] = []

    def prepare_data(self) -> None:
        for model in self.models:
            model.train_if_absent()

    def setup(self, stage: str) -> None:
        if self.sentences:
            return
        held_out = read_held_out(self.exclude)
        sentences = {style: self._read(style, held_out) for style in self.styles}
        texts = [text for style in self.styles for text in sentences[style]]
        self.tokenizer = word_vocabulary(texts, self.min_count, self.max_words)
        self.sentences = sentences
        sizes = ", ".join(f"{len(sentences[style])} {style}" for style in self.styles)
        rank_zero_info(f"training sentences: {sizes}; {len(self.tokenizer)} words")

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches of an epoch, all of about equal size."""
        return -(-max(map(len, self.sentences.values())) // self.batch_size)

    def train_dataloader(self) -> DataLoader[TransferBatch]:
        """Return the training batches, in a new order and with new noise each epoch."""
        order = EpochOrder(self, self.batches_per_epoch, self.seed, numbered=True)
        return ResumableLoader(_Batches(self), batch_size=None, sampler=order)

    def val_dataloader(self) -> DataLoader[int]:
        """Return one item, which makes the trainer validate: `GenerationScorer` has sentences."""
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
                f"{self.files[style]} must have {self.count or 1} sentences of {shortest} to "
                f"{longest} words that are not held out, got {len(texts)}"
            )
        return texts if self.count is None else random.Random(self.seed).sample(texts, self.count)


class _Batches(Dataset[TransferBatch]):
    """Batch by its number counted over all epochs, from which its noise follows."""

    def __init__(self, data: TransferSentences) -> None:
        self.seed, self.shuffle_distance = data.seed, data.shuffle_distance
        self.count = data.batches_per_epoch
        most = max(map(len, data.sentences.values()))
        self.rows = []  # of each style, the rows of each batch
        for texts in (data.sentences[style] for style in data.styles):
            rows = data.tokenizer([texts[i % len(texts)] for i in range(most)]).input_ids
            # Equally long rows are in random order.
            rows = sorted(random.Random(data.seed).sample(rows, len(rows)), key=len)
            self.rows.append(_in_parts(rows, self.count))
        sides = [data.tokenizer(list(side)).input_ids for side in zip(*data.pairs, strict=True)]
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
        places = torch.arange(words.shape[1])
        moved = places + self.shuffle_distance * torch.from_numpy(draws.random(words.shape))
        moved[places >= lengths[:, None]] = torch.inf  # padding stays at the end
        noisy = words.gather(1, moved.argsort(dim=1, stable=True))
        styles = torch.arange(2).repeat_interleave(len(rows) // 2)
        sides = source_pairs, target_pairs, source_lengths, target_lengths
        return TransferBatch(words, noisy, lengths, styles, *sides)


def _in_parts(rows: Sequence[Item], parts: int) -> list[Sequence[Item]]:
    """Split into consecutive parts whose sizes differ by at most one."""
    bounds = [len(rows) * i // parts for i in range(parts + 1)]
    return [rows[start:end] for start, end in pairwise(bounds)]


def _padded(rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Return ids padded on the right, shape (rows, longest), and lengths, shape (rows,)."""
    if not rows:
        return torch.zeros((0, 1), dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    ids, mask = pad_rows(list(map(tuple, rows)), PAD, torch.device("cpu"))
    return ids, mask.sum(1)
