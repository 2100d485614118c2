"""Language models of the two styles, which the loss `lang` of textual transfer compares with."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities import rank_zero_info
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR
from transformers import PreTrainedTokenizerFast

from ctrlreward.files import read_json, whole_folder, write_whole
from ctrlreward.models.batching import pad_rows
from ctrlreward.progress import track
from ctrlreward.recipes.papers.textual_transfer.batches import TransferSentences
from ctrlreward.recipes.papers.textual_transfer.vocabulary import EOS, GO, PAD, vocabulary_from_json
from ctrlreward.recipes.trained_first import one_process

log = logging.getLogger(__name__)

_FILES = {"config.json", "model.safetensors", "tokenizer.json"}
_GRADIENT_NORM = 5.0
_SIZES = ("vocabulary_size", "embedding_size", "width", "dropout")


class StyleLanguageModel(nn.Module):
    """GRU language model of sentences, l of Pang & Gimpel (2019), eq. 6.

    Args:
        vocabulary_size: Number of tokens, V.
        embedding_size: Width of the word embeddings.
        width: Width of the GRU.
        dropout: Dropout probability of the GRU's inputs and before the output layer.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int = 100,
        width: int = 500,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        sizes = (vocabulary_size, embedding_size, width, dropout)
        self.sizes = dict(zip(_SIZES, sizes, strict=True))
        self.embedding = nn.Embedding(vocabulary_size, embedding_size)
        self.cell = nn.GRU(embedding_size, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, vocabulary_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return log-probabilities of the token after each input, shape (n, T, V).

        A position depends only on the inputs up to it, so padding may follow.

        Args:
            inputs: Token ids that begin with `<go>`, shape (n, T).
        """
        return self.output(self._states(inputs)).log_softmax(dim=-1)

    def loss(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, int]:
        """Return the cross-entropy of sentences with their ends, and the number of its terms.

        Args:
            rows: Token ids of each sentence, without `<go>` and `<eos>`.

        Returns:
            The sum over tokens and `<eos>` in nats, and the number of both.
        """
        device = self.output.weight.device
        inputs, mask = pad_rows([(GO, *row) for row in rows], PAD, device)
        targets, _ = pad_rows([(*row, EOS) for row in rows], PAD, device)
        counted = mask.bool()
        logits = self.output(self._states(inputs)[counted])
        return cross_entropy(logits, targets[counted], reduction="sum"), int(counted.sum())

    @torch.no_grad()
    def perplexity(self, rows: Sequence[Sequence[int]], batch_size: int = 256) -> float:
        """Return the perplexity of sentences with their ends as one corpus; lower is better.

        `<unk>` counts as one word. Dropout is off.

        Args:
            rows: Token ids of each of one or more sentences, without `<go>` and `<eos>`.
            batch_size: Sentences per forward pass.
        """
        mode = self.training
        losses = [self.eval().loss(batch) for batch in _batches(rows, batch_size)]
        self.train(mode)
        mean = sum(float(total) for total, _ in losses) / sum(count for _, count in losses)
        return math.exp(min(mean, 80.0))

    def save(
        self,
        folder: str | Path,
        tokenizer: PreTrainedTokenizerFast,
        training: dict[str, Any] | None = None,
    ) -> None:
        """Write `model.safetensors`, `config.json` and `tokenizer.json`; create the folder.

        Args:
            folder: The folder.
            tokenizer: Vocabulary of the model.
            training: JSON values about the training, written to `config.json`.
        """
        path = Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().contiguous() for name, value in self.state_dict().items()}
        save_file(weights, path / "model.safetensors")
        write_whole(path / "tokenizer.json", tokenizer.backend_tokenizer.to_str())
        config = {"model_type": "style_language_model", **self.sizes, "training": training or {}}
        write_whole(path / "config.json", json.dumps(config, indent=1))

    def _states(self, inputs: Tensor) -> Tensor:
        states, _ = self.cell(self.dropout(self.embedding(inputs)))
        dropped: Tensor = self.dropout(states)
        return dropped


def load_style_model(folder: str | Path) -> tuple[StyleLanguageModel, PreTrainedTokenizerFast]:
    """Return the model and the tokenizer of a folder that `StyleLanguageModel.save` wrote.

    Raises:
        ValueError: The folder does not contain such a model or is damaged.
    """
    model, tokenizer, _ = _read(Path(folder).expanduser())
    return model, tokenizer


@dataclass(frozen=True)
class StyleModels:
    """Folder and training of the language models of both styles.

    The paper does not state the sizes; the defaults follow Shen et al. (2017).

    Args:
        folder: Folder of the two models, in `style_0` and `style_1`.
        embedding_size: Width of the word embeddings.
        width: Width of the GRU.
        dropout: Dropout probability in training.
        epochs: Most epochs. Training stops at the first epoch that does not lower the perplexity of
            held-out sentences, and the weights of the best are kept.
        batch_size: Sentences per batch.
        learning_rate: First learning rate of Adam, with linear decay to 0 at the last epoch.
        validation_share: Share of a style's sentences that is held out, above 0 and below 1.
        seed: Seed of the first weights, of the held-out sentences, of the order and of dropout.
        device: Device of the training.

    Raises:
        ValueError: `epochs`, `batch_size` or `validation_share` is out of range.
    """

    folder: str = "runs/style_models"
    embedding_size: int = 100
    width: int = 500
    dropout: float = 0.5
    epochs: int = 5
    batch_size: int = 64
    learning_rate: float = 5e-3
    validation_share: float = 0.05
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            given = f"{self.epochs} and {self.batch_size}"
            raise ValueError(f"epochs and batch_size must be 1 or more, got {given}")
        if not 0 < self.validation_share < 1:
            given = f"{self.validation_share}"
            raise ValueError(f"validation_share must be between 0 and 1, exclusive, got {given}")

    def trained(self, data: TransferSentences) -> tuple[StyleLanguageModel, StyleLanguageModel]:
        """Return the frozen models of style 0 and style 1, on the CPU.

        A model is trained unless the folder has one of the same vocabulary, sentences and
        options. Of several processes one trains and the others wait. Equal arguments give equal
        models, and the caller's random state is restored.

        Args:
            data: Sentences of the two styles and their vocabulary, after `setup`.

        Raises:
            ValueError: A style has fewer than two sentences, a folder contains other files, which
                would be lost, or the training diverges.
        """
        first, second = (self._model(data, i) for i in range(2))
        return first, second

    def _model(self, data: TransferSentences, index: int) -> StyleLanguageModel:
        style = data.styles[index]
        folder = Path(self.folder).expanduser() / f"style_{index}"
        fingerprint = self._fingerprint(data, style)
        with one_process(folder):
            if not _holds(folder, fingerprint):
                model, report = self._train(data, style)
                with whole_folder(folder) as unfinished:
                    model.save(unfinished, data.tokenizer, {**report, "fingerprint": fingerprint})
            # From the file, so that the run that trained a model continues like one that found it.
            return load_style_model(folder)[0].eval().requires_grad_(False)

    def _fingerprint(self, data: TransferSentences, style: str) -> str:
        options = {k: v for k, v in asdict(self).items() if k not in ("folder", "device")}
        used = [options, data.tokenizer.backend_tokenizer.to_str(), data.sentences[style]]
        return hashlib.sha256(json.dumps(used).encode()).hexdigest()

    def _train(
        self, data: TransferSentences, style: str
    ) -> tuple[StyleLanguageModel, dict[str, Any]]:
        """Return the model of the best epoch, and the training record of `config.json`."""
        rows: list[list[int]] = data.tokenizer(data.sentences[style]).input_ids
        if len(rows) < 2:
            raise ValueError(
                f"the style {style} has {len(rows)} sentences, must have two or more, to train its "
                "language model and to validate it"
            )
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            count = min(max(1, round(self.validation_share * len(rows))), len(rows) - 1)
            order = torch.randperm(len(rows)).tolist()
            held_out, kept = ([rows[i] for i in part] for part in (order[:count], order[count:]))
            model = StyleLanguageModel(
                len(data.tokenizer), self.embedding_size, self.width, self.dropout
            ).to(self.device)
            _start_from_frequencies(model, kept)
            optimizer = torch.optim.Adam(model.parameters(), self.learning_rate)
            batches = list(_batches(kept, self.batch_size))
            decay = LinearLR(optimizer, 1.0, 0.0, total_iters=self.epochs * len(batches))
            best, best_epoch, weights = math.inf, 0, dict[str, Tensor]()
            for epoch in range(1, self.epochs + 1):
                title = f"language model of {style}, epoch {epoch} of {self.epochs}"
                model.train()
                with track(title, len(kept), "sentences") as progress:
                    for i in torch.randperm(len(batches)).tolist():
                        total, terms = model.loss(batches[i])
                        optimizer.zero_grad()
                        (total / terms).backward()
                        clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
                        optimizer.step()
                        decay.step()
                        progress.advance(len(batches[i]))
                perplexity = model.perplexity(held_out)
                rank_zero_info(f"{title}: held-out perplexity {perplexity:.1f}")
                if not perplexity < best:
                    break
                best, best_epoch = perplexity, epoch
                weights = {name: value.clone() for name, value in model.state_dict().items()}
        if not weights:
            raise ValueError(
                f"the language model of {style} has no finite perplexity after its first epoch. "
                f"Set a learning_rate below {self.learning_rate:g}."
            )
        model.load_state_dict(weights)
        report = {"style": style, "sentences": len(kept), "held_out_sentences": count}
        return model.cpu(), {**report, "perplexity": best, "epoch": best_epoch}


def _start_from_frequencies(model: StyleLanguageModel, rows: Sequence[list[int]]) -> None:
    """Set the output bias to the logarithm of each token's frequency, which saves an epoch."""
    ids = torch.tensor([token for row in rows for token in (*row, EOS)])
    counts = torch.bincount(ids, minlength=len(model.output.bias)).clamp(min=1).float()
    model.output.bias.data.copy_((counts / counts.sum()).log())


def _batches(rows: Sequence[Sequence[int]], size: int) -> Iterator[list[Sequence[int]]]:
    """Yield batches of about equally long rows."""
    by_length = sorted(rows, key=len)
    yield from (by_length[i : i + size] for i in range(0, len(rows), size))


def _holds(folder: Path, fingerprint: str) -> bool:
    """Return True if a folder contains the model with this fingerprint; otherwise log why not."""
    present = {path.name for path in folder.glob("*")}
    if others := sorted(present - _FILES):
        raise ValueError(
            f"{folder} contains {others[0]}, which does not belong to a style's language model and "
            "would be deleted. Use another folder."
        )
    if not present:
        return False
    try:
        _, _, training = _read(folder)
    except ValueError as error:
        log.warning("%s: training the model again", error)
        return False
    if training.get("fingerprint") != fingerprint:
        log.warning("%s is of other words, sentences or options: training it again", folder)
        return False
    return True


def _read(path: Path) -> tuple[StyleLanguageModel, PreTrainedTokenizerFast, dict[str, Any]]:
    try:
        config = read_json(path / "config.json")
        with torch.random.fork_rng():  # a module draws its first weights
            model = StyleLanguageModel(**{name: config[name] for name in _SIZES})
        model.load_state_dict(load_file(path / "model.safetensors"))
        tokenizer = vocabulary_from_json((path / "tokenizer.json").read_text(encoding="utf-8"))
        return model, tokenizer, dict(config["training"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"{path} does not contain a style's language model, or is damaged ({error})"
        ) from error
