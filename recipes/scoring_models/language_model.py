"""Training of a small language model on a custom corpus, for perplexity in its domain.

`configs/style_transfer/language_model_yelp.yaml` uses these classes. Copy this file to change them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast

from ctrlreward.models.control_tokens import text_reader
from ctrlreward.recipes.scoring_models.model_trainer import ModelTrainer
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines, split_off
from ctrlreward.recipes.training_batches import EpochOrder, ResumableLoader
from ctrlreward.scorers import Perplexity

END, UNKNOWN = "<|endoftext|>", "<unk>"

# Words like in the Penn Treebank: "did n't", "it 's", and punctuation apart. Texts that are
# tokenized so already stay as they are.
_WORD = r"\w+(?=n't\b)|n't\b|'\w+|\w+(?:[-/]\w+)*|\.+|-+|`+|'+|[^\w\s]"


class Corpus(pl.LightningDataModule):
    """Sentences from files of one sentence per line.

    Sentences that differ only in case and white space count as one. A share of the training
    sentences is set aside for validation, to choose the best epoch. Held-out sentences are never
    trained on. Batches are lists of sentences of about equal length.

    Args:
        train: Files of training sentences; see `text_files.read_lines`.
        test: Files of test sentences, used only for the final perplexity; may be none.
        exclude: Files of further held-out sentences; a line may contain several, separated by tabs.
        validation_share: Share of the training sentences for validation, above 0 and below 1.
        batch_size: Sentences per batch.
        seed: Seed of the split and of the order.
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
        self.train, self.test, self.exclude = train, test, exclude
        self.validation_share = validation_share
        self.batch_size, self.seed = batch_size, seed
        self.sentences: dict[str, list[str]] = {}

    def setup(self, stage: str) -> None:
        held_out = read_held_out([*self.test, *self.exclude])
        distinct = dict.fromkeys(map(matching_key, read_lines(self.train)))
        texts = [text for text in distinct if text and text not in held_out]
        train, validation = split_off(texts, self.validation_share, self.seed, self.train)
        test = [text for text in map(matching_key, read_lines(self.test)) if text]
        self.sentences = {"train": train, "validation": validation, "test": test}

    def train_dataloader(self) -> DataLoader[list[str]]:
        batches = self._batches("train")
        order = EpochOrder(self, len(batches), self.seed)
        return ResumableLoader(batches, batch_size=None, sampler=order)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[list[str]]:
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


_IGNORED = -100  # of `cross_entropy`
_WORDS = 512  # that the model reads; longer texts are truncated in training


class LanguageModelTrainer(ModelTrainer[Corpus]):
    """Trainer of a word-level language model on a `Corpus`; see `ModelTrainer`.

    The language model of X0 ∪ X1 of Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, whose
    architecture and unknown words the paper leaves open. `Perplexity(folder)` loads the folder.

    - **Words** are lower-cased, with punctuation and contractions apart (`did n't`).
    - **Sentence ends**: `<|endoftext|>` precedes the first word, and is predicted after the last.
    - **Unknown words**: `<unk>` as one word would make a string of nonsense likely, and a reward
      would find that out. So its probability is shared evenly among the distinct rare words.
    - **The network** is Phi's: two layers of a transformer with rotary positions, dropout, tied
      embeddings, and a bias per word in the output layer, which starts as the logarithm of the
      word's frequency.

    Logs `train_loss` and `val_loss`, nats a word or end, with `<unk>` as one word.
    `evaluation.json` has the number of known words and of distinct rare ones, and for the
    validation and the test sentences: `perplexity`, of the corpus as `Perplexity.corpus` returns
    it, `perplexity_with_ends`, and the share of `unknown_words`.

    Args:
        folder: Folder of the trained model.
        min_count: Words that occur less often in the training sentences are unknown; the paper's 5.
        width: Width of the embeddings and hidden states, a multiple of `4 * heads`.
        heads: Number of attention heads of each layer.
        learning_rate: Peak learning rate of AdamW, after linear warm-up over the first twentieth of
            the steps and before linear decay to 0.
    """

    model: PhiForCausalLM
    tokenizer: PreTrainedTokenizerFast

    def __init__(
        self,
        folder: str,
        min_count: int = 5,
        width: int = 128,
        heads: int = 4,
        learning_rate: float = 3e-3,
    ) -> None:
        super().__init__(folder)
        self.min_count, self.learning_rate = min_count, learning_rate
        self.width, self.heads = width, heads

    def setup(self, stage: str) -> None:
        self.check_replaceable(stage)
        counts = count_words(self.data.sentences["train"])
        words = [word for word, count in counts.most_common() if count >= self.min_count]
        self.rare_words = len(counts) - len(words)
        self.tokenizer = word_tokenizer(words)
        end = self.tokenizer.eos_token_id
        self.model = PhiForCausalLM(
            PhiConfig(
                vocab_size=len(self.tokenizer),
                hidden_size=self.width,
                intermediate_size=4 * self.width,
                num_hidden_layers=2,
                num_attention_heads=self.heads,
                embd_pdrop=0.1,
                resid_pdrop=0.1,
                max_position_embeddings=_WORDS,
                tie_word_embeddings=True,
                bos_token_id=end,
                eos_token_id=end,
                pad_token_id=end,
            )
        )
        rare = counts.total() - sum(counts[word] for word in words)
        frequencies = [len(self.data.sentences["train"]), rare, *(counts[word] for word in words)]
        bias = torch.tensor(frequencies, dtype=torch.float).clamp(min=1).log()
        self.model.lm_head.bias.data = bias - bias.logsumexp(0)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return self.warmed_adamw(self.learning_rate, 0.1, 1 / 20)

    def on_train_batch_start(self, batch: list[str], batch_idx: int) -> None:
        """Seed dropout by the step, so that a resumed run repeats an uninterrupted one."""
        torch.manual_seed(self.data.seed + self.trainer.global_step)

    def training_step(self, batch: list[str], batch_idx: int) -> Tensor:
        loss, _ = self._loss(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: list[str], batch_idx: int) -> None:
        """Log the mean cross-entropy of words and ends."""
        loss, words = self._loss(batch)
        self.log("val_loss", loss, prog_bar=True, batch_size=words, sync_dist=True)

    def write_model(self, folder: Path) -> dict[str, Any]:
        # In training, <unk> stands for any of the rare words.
        unknown = self.tokenizer.unk_token_id
        self.model.lm_head.bias.data[unknown] -= math.log(max(1, self.rare_words))
        self.model.float().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        known = len(self.tokenizer) - 2
        report: dict[str, Any] = {"known_words": known, "rare_words": self.rare_words}
        for split in ("validation", "test"):
            if texts := self.data.sentences[split]:
                report[split] = evaluate(str(folder), texts, str(self.device))
        return report

    def _loss(self, batch: list[str]) -> tuple[Tensor, int]:
        """Return the mean cross-entropy of words and ends, and their number."""
        end = self.tokenizer.eos_token_id
        reader = text_reader(self.tokenizer, batch)
        encoded = reader(batch, truncation=True, max_length=_WORDS - 1).input_ids
        rows = [torch.tensor([end, *ids, end]) for ids in encoded]
        # Padding comes after the words, which do not attend to it: it needs no mask.
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_IGNORED)
        ids = ids.to(self.device)
        logits = self.model(input_ids=ids[:, :-1].clamp(min=0), use_cache=False).logits
        targets = ids[:, 1:].flatten()
        loss = cross_entropy(logits.flatten(0, 1), targets, ignore_index=_IGNORED)
        return loss, sum(len(row) - 1 for row in rows)


def evaluate(folder: str, texts: Sequence[str], device: str) -> dict[str, float]:
    """Return the figures of `evaluation.json` of one or more texts."""
    options: Any = {"max_tokens": None, "device": device}
    scorer = Perplexity(folder, **options)
    tokenizer = scorer.loaded_model.tokenizer
    reader = text_reader(tokenizer, texts)
    ids = [token for row in reader(list(texts)).input_ids for token in row]
    with_ends = Perplexity(folder, score_end=True, **options)
    return {
        "texts": len(texts),
        "perplexity": scorer.corpus(list(texts))["perplexity"],
        "perplexity_with_ends": with_ends.corpus(list(texts))["perplexity"],
        "unknown_words": ids.count(tokenizer.unk_token_id) / len(ids),
    }
