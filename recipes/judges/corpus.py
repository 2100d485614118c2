"""Corpus of a language model: its sentences and its words."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytorch_lightning as pl
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from ctrlreward.recipes.epoch_order import EpochOrder, ResumableLoader
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines

END, UNKNOWN = "<|endoftext|>", "<unk>"

# Words as the Penn Treebank has them: "did n't", "it 's", and punctuation apart. Texts that are
# tokenized so already stay as they are.
_WORD = r"\w+(?=n't\b)|n't\b|'\w+|\w+(?:[-/]\w+)*|\.+|-+|`+|'+|[^\w\s]"


class Corpus(pl.LightningDataModule):
    """Sentences from files of one sentence per line.

    Sentences that differ only in case and white space count as one. A share of the training
    sentences is set aside for validation, to choose the best epoch. Held-out sentences are never
    trained on. Batches are lists of sentences of about equal length; their order in an epoch
    depends on the seed and the epoch alone, so a resumed run sees the same.

    Args:
        train: Files of training sentences; see `text_files.read_lines`.
        test: Files of test sentences, used only for the final perplexity; may be none.
        exclude: Files of further held-out sentences; a line may hold several, separated by tabs.
        validation_share: Share of the training sentences for validation, above 0 and below 1.
        batch_size: Sentences per batch.
        seed: Seed of the split and of the order.

    Raises:
        ValueError: The share is out of range, or fewer than two sentences are left for training and
            validation.
    """

    def __init__(
        self,
        train: Sequence[str],
        test: Sequence[str] = (),
        exclude: Sequence[str] = (),
        validation_share: float = 0.02,
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < validation_share < 1:
            raise ValueError(
                f"validation_share = {validation_share}: give a share above 0 and below 1"
            )
        self.train, self.test, self.exclude = train, test, exclude
        self.validation_share = validation_share
        self.batch_size = batch_size
        self.seed = seed
        self.sentences: dict[str, list[str]] = {}

    def setup(self, stage: str) -> None:
        """Read the files, drop held-out sentences, and split the others."""
        held_out = read_held_out([*self.test, *self.exclude])
        distinct = dict.fromkeys(map(matching_key, read_lines(self.train)))
        texts = [text for text in distinct if text and text not in held_out]
        if len(texts) < 2:
            raise ValueError(
                f"{', '.join(self.train)} hold {len(texts)} sentences that are not held out: "
                "give two or more, for training and for validation"
            )
        random.Random(self.seed).shuffle(texts)
        count = min(max(1, round(self.validation_share * len(texts))), len(texts) - 1)
        test = [text for text in map(matching_key, read_lines(self.test)) if text]
        self.sentences = {"train": texts[count:], "validation": texts[:count], "test": test}

    def train_dataloader(self) -> DataLoader[list[str]]:
        """Return the training batches, in a new order each epoch."""
        batches = self._batches("train")
        order = EpochOrder(self, len(batches), self.seed)
        return ResumableLoader(batches, batch_size=None, sampler=order)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[list[str]]:
        """Return the validation batches, in a fixed order."""
        return DataLoader(self._batches("validation"), batch_size=None)  # type: ignore[arg-type]

    def _batches(self, split: str) -> list[list[str]]:
        texts = sorted(self.sentences[split], key=lambda text: len(text.split()))
        return [texts[i : i + self.batch_size] for i in range(0, len(texts), self.batch_size)]


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of lower-cased words; tokens 0 and 1 are `<|endoftext|>` and `<unk>`."""
    vocabulary = {word: i for i, word in enumerate([END, UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace("’", "'")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=END, eos_token=END, pad_token=END
    )


def count_words(texts: Sequence[str]) -> Counter[str]:
    """Return how often each word occurs, as `word_tokenizer` splits texts."""
    backend = word_tokenizer([]).backend_tokenizer
    return Counter(
        word
        for text in texts
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(text)
        )
    )
