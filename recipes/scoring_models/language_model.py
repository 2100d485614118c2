"""Training of a small language model on a corpus of one's own, for perplexity in its domain.

`configs/style_transfer/language_model_*.yaml` use these classes. Copy this file to change them.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.utilities import rank_zero_info
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import PhiConfig, PhiForCausalLM, PreTrainedTokenizerFast

from ctrlreward.files import whole_folder, write_whole
from ctrlreward.models.control_tokens import mark, text_reader
from ctrlreward.recipes.text_files import matching_key, read_held_out, read_lines
from ctrlreward.recipes.training_batches import EpochOrder, ResumableLoader
from ctrlreward.scorers import Perplexity

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


_IGNORED = -100  # of `cross_entropy`


class LanguageModelTrainer(pl.LightningModule):
    """Trainer of a word-level language model on a `Corpus`, which writes the best epoch's model.

    The language model of X0 ∪ X1 of Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, whose
    architecture the paper leaves open. The folder is plain transformers: it loads wherever a causal
    model does, as `Perplexity(folder)` for one.

    - **Words** are lower-cased, with punctuation and contractions apart (`did n't`), and known from
      `min_count` occurrences on, 5 as in the paper's vocabulary.
    - **Sentence ends**: `<|endoftext|>` precedes the first word, and is predicted after the last.
      `Perplexity` does not score the end, so that a text may also be a part of a sentence.
    - **Unknown words**: the paper is silent. `<unk>` as one word would make a string of nonsense
      likely, and a reward would find that out. So its probability is shared evenly among the
      distinct words of the corpus that are below `min_count`.
    - **The network** is Phi's: a transformer with rotary positions (no position is left untrained
      by short sentences), dropout on each sublayer, which a corpus of a million words needs, and a
      bias per word in the output layer, which Llama and GPT-2 lack. It starts as the logarithm of
      the word's frequency and takes the share of unknown words. Input and output embeddings are
      tied: with a small width they are most of the weights.

    Logs `train_loss`, and `val_loss` and `val_perplexity` with sentence ends and with `<unk>` as
    one word. The best epoch is that of the trainer's `ModelCheckpoint`; without one, it is the
    last. With `fast_dev_run`, nothing is written. `evaluation.json` in the folder holds the number
    of known words and of distinct rare ones, and for the validation and the test sentences:

    - `perplexity`: of the corpus, as `Perplexity.corpus` returns it; lower is better;
    - `perplexity_with_ends`: the same with sentence ends, which are easy to predict;
    - `unknown_words`: share of words that are unknown, 0 to 1.

    Args:
        folder: Folder of the trained model. An earlier model in it is replaced; a folder with other
            files is refused.
        min_count: Words that occur less often in the training sentences are unknown words.
        width: Width of the embeddings and hidden states, a multiple of `4 * heads`.
        layers: Number of layers.
        heads: Number of attention heads of each layer.
        dropout: Dropout probability of the embeddings and of each sublayer's output.
        learning_rate: Peak learning rate of AdamW, after linear warm-up over the first twentieth of
            the steps and before linear decay to 0.
        weight_decay: Weight decay of AdamW; biases and norms have none.
        max_words: Most words of a text that the model reads; longer ones are truncated.
        share_unknown: Share the probability of `<unk>` among the rare words; False leaves it one
            word.

    Raises:
        ValueError: The width does not fit the heads; at the start of training, the folder holds
            something other than a model.
    """

    model: PhiForCausalLM
    tokenizer: PreTrainedTokenizerFast

    def __init__(
        self,
        folder: str,
        min_count: int = 5,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.1,
        max_words: int = 512,
        share_unknown: bool = True,
    ) -> None:
        super().__init__()
        if width % (4 * heads):
            raise ValueError(f"width = {width}: give a multiple of 4 * heads = {4 * heads}")
        self.folder = Path(folder).expanduser()
        self.min_count = min_count
        self.width, self.layers, self.heads = width, layers, heads
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.max_words = max_words
        self.share_unknown = share_unknown

    def setup(self, stage: str) -> None:
        """Build the tokenizer and the network for the words of the data."""
        if stage == "fit":
            _check_replaceable(self.folder)
        counts = count_words(self._data.sentences["train"])
        words = [word for word, count in counts.most_common() if count >= self.min_count]
        self.rare_words = len(counts) - len(words)
        self.tokenizer = word_tokenizer(words)
        self.model = self._network()
        rare = counts.total() - sum(counts[word] for word in words)
        frequencies = [len(self._data.sentences["train"]), rare, *(counts[word] for word in words)]
        bias = torch.tensor(frequencies, dtype=torch.float).clamp(min=1).log()
        self.model.lm_head.bias.data = bias - bias.logsumexp(0)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW with linear warm-up and decay."""
        weights = list(self.parameters())
        groups = [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": self.weight_decay},
            {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, self.learning_rate, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = max(1, steps // 20)
        decay = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda k: min((k + 1) / warmup, (steps - k) / max(1, steps - warmup))
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    def on_train_batch_start(self, batch: list[str], batch_idx: int) -> None:
        """Seed dropout by the step, so that a resumed run repeats an uninterrupted one."""
        torch.manual_seed(self._data.seed + self.trainer.global_step)

    def on_validation_epoch_start(self) -> None:
        """Start the sums of `val_loss`."""
        self.total, self.count = 0.0, 0

    def training_step(self, batch: list[str], batch_idx: int) -> Tensor:
        """Return the mean cross-entropy of words and ends and log it as `train_loss`."""
        loss, _ = self._loss(batch)
        self.log("train_loss", loss, batch_size=len(batch))
        return loss

    def validation_step(self, batch: list[str], batch_idx: int) -> None:
        """Sum the cross-entropy over words and ends."""
        loss, words = self._loss(batch)
        self.total += loss.item() * words
        self.count += words

    def on_validation_epoch_end(self) -> None:
        """Log `val_loss` and `val_perplexity`."""
        loss = self.total / self.count
        self.log_dict({"val_loss": loss, "val_perplexity": math.exp(min(loss, 80))}, prog_bar=True)

    def on_fit_end(self) -> None:
        """Write the best epoch's model, load it as `Perplexity` does, and evaluate it."""
        trial = self.trainer.fast_dev_run  # type: ignore[attr-defined]
        if trial or not self.trainer.is_global_zero:
            return
        self._load_best()
        if self.share_unknown:
            # In training, <unk> stands for any of them.
            unknown = self.tokenizer.unk_token_id
            self.model.lm_head.bias.data[unknown] -= math.log(max(1, self.rare_words))
        with whole_folder(self.folder) as folder:
            self.model.float().save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            report: dict[str, Any] = {
                "known_words": len(self.tokenizer) - 2,
                "rare_words": self.rare_words,
            }
            scorer = Perplexity(str(folder), max_tokens=None)
            for split in ("validation", "test"):
                if texts := self._data.sentences[split]:
                    report[split] = evaluate(scorer, texts)
            scorer.release()
            write_whole(folder / "evaluation.json", json.dumps(report, indent=1))
        rank_zero_info(f"{self.folder}: {json.dumps(report)}")

    @property
    def _data(self) -> Corpus:
        data: Corpus = self.trainer.datamodule  # type: ignore[attr-defined]
        return data

    def _network(self) -> PhiForCausalLM:
        end = self.tokenizer.eos_token_id
        return PhiForCausalLM(
            PhiConfig(
                vocab_size=len(self.tokenizer),
                hidden_size=self.width,
                intermediate_size=4 * self.width,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                embd_pdrop=self.dropout,
                resid_pdrop=self.dropout,
                max_position_embeddings=self.max_words,
                tie_word_embeddings=True,
                **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end},
            )
        )

    def _loss(self, batch: list[str]) -> tuple[Tensor, int]:
        """Return the mean cross-entropy of words and ends, and their number."""
        end = self.tokenizer.eos_token_id
        reader = text_reader(self.tokenizer, batch)
        encoded = reader(batch, truncation=True, max_length=self.max_words - 1).input_ids
        rows = [torch.tensor([end, *ids, end]) for ids in encoded]
        # Padding comes after the words, which do not attend to it: it needs no mask.
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=_IGNORED)
        ids = ids.to(self.device)
        logits = self.model(input_ids=ids[:, :-1].clamp(min=0), use_cache=False).logits
        targets = ids[:, 1:].flatten()
        loss = cross_entropy(logits.flatten(0, 1), targets, ignore_index=_IGNORED)
        return loss, sum(len(row) - 1 for row in rows)

    def _load_best(self) -> None:
        checkpoint = self.trainer.checkpoint_callback
        if isinstance(checkpoint, ModelCheckpoint) and checkpoint.best_model_path:
            best = torch.load(checkpoint.best_model_path, weights_only=True)
            self.load_state_dict(best["state_dict"])


def evaluate(scorer: Perplexity, texts: Sequence[str]) -> dict[str, float]:
    """Return the perplexity of texts as one corpus and their share of unknown words.

    Args:
        scorer: Perplexity under a model of `LanguageModelTrainer`.
        texts: One or more non-empty texts.

    Returns:
        `texts`, `perplexity`, `perplexity_with_ends` and `unknown_words`; see
        `LanguageModelTrainer`.
    """
    tokenizer = scorer.loaded_model.tokenizer
    reader = text_reader(tokenizer, texts)
    ids = [token for row in reader(list(texts)).input_ids for token in row]
    end = mark(tokenizer.eos_token_id)
    return {
        "texts": len(texts),
        "perplexity": scorer.corpus(list(texts))["perplexity"],
        "perplexity_with_ends": scorer.corpus([text + end for text in texts])["perplexity"],
        "unknown_words": ids.count(tokenizer.unk_token_id) / len(ids),
    }


def _check_replaceable(folder: Path) -> None:
    """Raise if the folder holds something other than a model, which would be lost."""
    occupied = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if occupied and not (folder / "config.json").is_file():
        raise ValueError(
            f"folder = {str(folder)!r} exists and holds no model: it would be replaced, so give an "
            "empty or a new folder"
        )
