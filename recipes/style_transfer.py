"""Style transfer: rewriting a sentence into the other style, with its content kept.

The pieces of `configs/style_transfer/yelp_*.yaml`: sentences as prompts, the reward, the held-out
scores and the picture of Pang & Gimpel (2019), https://arxiv.org/abs/1810.11878, Fig. 1. Copy this
file to change them.
"""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from ctrlreward.callbacks import BeforeAfter, GenerationScorer
from ctrlreward.callbacks.curves import draw_trajectories
from ctrlreward.callbacks.history import read_history
from ctrlreward.functional.transfer import GM_THRESHOLDS
from ctrlreward.recipes.prompt_data import one_item, training_batches
from ctrlreward.recipes.text_files import read_texts
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers import Accuracy, Perplexity, Similarity, TransferQuality
from ctrlreward.scorers.base import Component

log = logging.getLogger(__name__)


def prompts(
    files: Mapping[str, str],
    template: str,
    count: int,
    exclude: Sequence[str] = (),
    words: tuple[int, int] = (4, 15),
    seed: int = 0,
) -> Samples:
    """Sentences of two styles, each to be rewritten into the other one.

    Args:
        files: Style → file of such sentences, one a line; see `text_files.lines`.
        template: What the policy reads, with `{source}`, `{style}` (the wanted one) and, if
            wanted, `{source_style}`.
        count: Sentences of each style.
        exclude: Files whose sentences are left out.
        words: Shortest and longest sentence.
        seed: Of the choice.

    Returns:
        Prompts whose texts begin with nothing; `labels` are the wanted styles. Those of the first
        file come first.

    Raises:
        ValueError: There are not two styles, the template lacks a field, or a file is too short.
    """
    if len(files) != 2:
        raise ValueError(f"files has the styles {', '.join(files)}: give two")
    if "{source}" not in template or "{style}" not in template:
        raise ValueError(f"template = {template!r}: it must hold {{source}} and {{style}}")
    wanted = dict(zip(files, reversed(list(files)), strict=True))
    rows = [
        (source, style)
        for style, file in files.items()
        for source in read_texts([file], exclude, count, words, seed)
    ]
    return Samples(
        texts=[""] * len(rows),
        prefixes=[""] * len(rows),
        labels=[wanted[style] for _, style in rows],
        sources=[source for source, _ in rows],
        prompts=[
            template.format(source=source, style=wanted[style], source_style=style)
            for source, style in rows
        ],
    )


class TransferData(pl.LightningDataModule):
    """Training sentences in batches, half of each style, shuffled anew when all have been used.

    Args:
        files: See `prompts`.
        template: See `prompts`.
        count: See `prompts`.
        exclude: See `prompts`.
        words: See `prompts`.
        batch_size: Sentences per step.
        steps: Length of the data; `max_steps` of the trainer may end sooner.
        seed: Of choice and order.
        judge: Folder of the classifier that judges the style.
        judge_config: The configuration that it is trained by first, where the folder is not there
            yet; None: it has to be.
    """

    def __init__(
        self,
        files: dict[str, str],
        template: str,
        count: int,
        exclude: Sequence[str] = (),
        words: tuple[int, int] = (4, 15),
        batch_size: int = 8,
        steps: int = 1000,
        seed: int = 0,
        judge: str | None = None,
        judge_config: str | None = None,
    ) -> None:
        super().__init__()
        self.arguments = (files, template, count, exclude, words, seed)
        self.judge = judge
        self.judge_config = judge_config
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed

    def prepare_data(self) -> None:
        """Trains the judge where there is none.

        Raises:
            CalledProcessError: Its training failed; what it said stands above.
        """
        if self.judge is None or self.judge_config is None or Path(self.judge).is_dir():
            return
        log.warning("%s is not there: %s trains it first", self.judge, self.judge_config)
        job = ["train", "--config", self.judge_config, "--model.init_args.folder", self.judge]
        # A process of its own: a trainer within a trainer would share its seeds and signals.
        subprocess.run([sys.executable, "-m", "ctrlreward", *job], check=True)

    def setup(self, stage: str) -> None:
        """Reads the files."""
        self.prompts = prompts(*self.arguments)

    def train_dataloader(self) -> DataLoader[Samples]:
        """`Samples` of `batch_size` prompts a step."""
        return training_batches(self.prompts, self.batch_size, self.steps, self.seed)

    def val_dataloader(self) -> DataLoader[Samples]:
        """One item."""
        return one_item(self.prompts)


def transfer_reward(
    weights: dict[str, float],
    classifier: str,
    encoder: str = "minilm-l6",
    language_model: str = "smollm2-135m",
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
    device: str = "cpu",
    dtype: str | None = None,
) -> Reward:
    """A weighted sum of the sentence's GM and of the sides that it is made of.

    The GM alone is 0 wherever one side is beyond its threshold, as with most texts of an untuned
    policy, and equal rewards teach nothing. The sides have no such dead zone: a warm-up rewards
    them and hands over to the GM by `RewardShaping`'s schedules of these weights.

    Args:
        weights: Scores of `TransferQuality` → their weights at the start, 0 included.
        classifier: Judge of the style; see `Accuracy`.
        encoder: Judge of the content; see `Similarity`.
        language_model: Judge of the fluency; see `Perplexity`.
        thresholds: Of the GM; see `TransferQuality`.
        device: Where all three run.
        dtype: Of the language model's weights; None picks by device.
    """
    quality = _quality(classifier, encoder, language_model, thresholds, device, dtype)
    return Reward({name: (quality[name], weight) for name, weight in weights.items()})


@cache  # two callbacks, one set of models
def held_out_scores(
    classifier: str,
    encoder: str = "minilm-l6",
    language_model: str = "smollm2-135m",
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
    device: str = "cpu",
    dtype: str | None = None,
) -> dict[str, Component]:
    """GM and its three sides, as `transfer_reward` has them; selection is by GM alone."""
    quality = _quality(classifier, encoder, language_model, thresholds, device, dtype)
    names = ("gm", "accuracy", "similarity", "perplexity", "log_likelihood")
    return {name: quality[name] for name in names}


def held_out_scorer(
    files: dict[str, str],
    template: str,
    count: int,
    classifier: str,
    exclude: Sequence[str] = (),
    words: tuple[int, int] = (4, 15),
    seed: int = 0,
    generations_per_prompt: int = 1,
    encoder: str = "minilm-l6",
    language_model: str = "smollm2-135m",
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
    device: str = "cpu",
    dtype: str | None = None,
) -> GenerationScorer:
    """Scores rewritings of validation sentences while training; see `prompts`."""
    return GenerationScorer(
        held_out_scores(classifier, encoder, language_model, thresholds, device, dtype),
        prompts(files, template, count, exclude, words, seed),
        generations_per_prompt=generations_per_prompt,
    )


def before_after(
    files: dict[str, str],
    template: str,
    count: int,
    classifier: str,
    exclude: Sequence[str] = (),
    words: tuple[int, int] = (4, 15),
    seed: int = 0,
    generations_per_prompt: int = 1,
    encoder: str = "minilm-l6",
    language_model: str = "smollm2-135m",
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS,
    device: str = "cpu",
    dtype: str | None = None,
) -> BeforeAfter:
    """Compares the selected policy with the untuned one and with copying, on test sentences."""
    sentences = prompts(files, template, count, exclude, words, seed)
    copies = sentences.replace(texts=sentences.require("sources", "before_after"))
    return BeforeAfter(
        held_out_scores(classifier, encoder, language_model, thresholds, device, dtype),
        sentences,
        generations_per_prompt=generations_per_prompt,
        others={"copying": copies},
    )


class Trajectories(pl.Callback):
    """Draws `trajectories.png` when training ends: error rate against similarity, and similarity
    against perplexity, a point for each validation, as Pang & Gimpel (2019), Fig. 1.

    Error rate is 1 - accuracy; perplexity is that of the mean log-likelihood, since a mean of
    perplexities is that of the oddest sentence.

    Args:
        folder: Of the run's `HistoryLogger`; the picture is put beside its `metrics.jsonl`.
        name: Of the `GenerationScorer`.
    """

    def __init__(self, folder: str, name: str = "score") -> None:
        super().__init__()
        self.folder = Path(folder)
        self.name = name

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draws what was validated; nothing where there was no validation."""
        keys = [f"{self.name}/{score}" for score in ("accuracy", "similarity", "log_likelihood")]
        history = read_history(self.folder / "metrics.jsonl")
        rows = [row for row in history if all(row.get(key) is not None for key in keys)]
        if not rows or not trainer.is_global_zero:
            return
        accuracy, similarity, likelihood = ([row[key] for row in rows] for key in keys)
        errors = [1 - value for value in accuracy]
        perplexity = [math.exp(-value) for value in likelihood]
        panels = [
            (("similarity", "error rate"), (similarity, errors)),
            (("perplexity", "similarity"), (perplexity, similarity)),
        ]
        try:
            path = self.folder / "trajectories.png"
            draw_trajectories([row["step"] for row in rows], panels, path)
        except ImportError as error:  # no reason to fail a run that is done
            log.warning("%s", error)


def _quality(
    classifier: str,
    encoder: str,
    language_model: str,
    thresholds: tuple[float, float, float, float],
    device: str,
    dtype: str | None,
) -> TransferQuality:
    return TransferQuality(
        Accuracy(classifier, device=device),
        Similarity(encoder, device=device),
        Perplexity(language_model, device=device, dtype=dtype),
        thresholds=thresholds,
    )
