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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytorch_lightning as pl
from torch.utils.data import DataLoader

from ctrlreward.callbacks import BeforeAfter, GenerationScorer
from ctrlreward.files import JsonLog
from ctrlreward.functional.transfer import GM_THRESHOLDS
from ctrlreward.plots.curves import draw_trajectories
from ctrlreward.recipes.prompt_data import one_item, training_batches
from ctrlreward.recipes.text_files import read_texts
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers import Accuracy, Perplexity, Similarity, TransferQuality
from ctrlreward.scorers.base import Component

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sentences:
    """Sentences of two styles, each to be rewritten into the other one.

    Args:
        files: Style → file of such sentences, one a line; see `text_files.lines`.
        template: What the policy reads, with `{source}`, `{style}` (the wanted one) and, if
            wanted, `{source_style}`.
        count: Sentences of each style.
        exclude: Files whose sentences are left out.
        words: Shortest and longest sentence.
        seed: Of the choice.

    Raises:
        ValueError: There are not two styles, or the template lacks a field.
    """

    files: Mapping[str, str]
    template: str
    count: int
    exclude: Sequence[str] = ()
    words: tuple[int, int] = (4, 15)
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.files) != 2:
            raise ValueError(f"files has the styles {', '.join(self.files)}: give two")
        if "{source}" not in self.template or "{style}" not in self.template:
            raise ValueError(f"template = {self.template!r}: it must hold {{source}} and {{style}}")

    def prompts(self) -> Samples:
        """Reads the files.

        Returns:
            Prompts whose texts begin with nothing; `labels` are the wanted styles. Those of the
            first file come first.

        Raises:
            ValueError: A file holds too few sentences.
        """
        first, second = self.files
        wanted = {first: second, second: first}
        rows = [
            (source, style)
            for style, file in self.files.items()
            for source in read_texts([file], self.exclude, self.count, self.words, self.seed)
        ]
        return Samples(
            texts=[""] * len(rows),
            prefixes=[""] * len(rows),
            labels=[wanted[style] for _, style in rows],
            sources=[source for source, _ in rows],
            prompts=[
                self.template.format(source=source, style=wanted[style], source_style=style)
                for source, style in rows
            ],
        )


@dataclass(frozen=True)
class Judges:
    """The frozen models that judge a transfer.

    Args:
        classifier: Of the style; see `Accuracy`.
        encoder: Of the content; see `Similarity`.
        language_model: Of the fluency; see `Perplexity`.
        thresholds: Of the GM; see `TransferQuality`.
        device: Where all three run.
        dtype: Of the language model's weights; None picks by device.
    """

    classifier: str
    encoder: str = "minilm-l6"
    language_model: str = "smollm2-135m"
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS
    device: str = "cpu"
    dtype: str | None = None

    def quality(self) -> TransferQuality:
        """A scorer with models of its own."""
        return TransferQuality(
            Accuracy(self.classifier, device=self.device),
            Similarity(self.encoder, device=self.device),
            Perplexity(self.language_model, device=self.device, dtype=self.dtype),
            thresholds=self.thresholds,
        )


class TransferData(pl.LightningDataModule):
    """Training sentences in batches, shuffled anew when all have been used.

    Args:
        sentences: What is rewritten.
        batch_size: Sentences per step.
        steps: Length of the data; `max_steps` of the trainer may end sooner.
        seed: Of the order.
        judge: Folder of the classifier that judges the style.
        judge_config: The configuration that it is trained by first, where the folder is not there
            yet; None: it has to be.
    """

    def __init__(
        self,
        sentences: Sentences,
        batch_size: int = 8,
        steps: int = 1000,
        seed: int = 0,
        judge: str | None = None,
        judge_config: str | None = None,
    ) -> None:
        super().__init__()
        self.sentences = sentences
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed
        self.judge = judge
        self.judge_config = judge_config

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
        self.prompts = self.sentences.prompts()

    def train_dataloader(self) -> DataLoader[Samples]:
        """`Samples` of `batch_size` prompts a step."""
        return training_batches(self.prompts, self.batch_size, self.steps, self.seed)

    def val_dataloader(self) -> DataLoader[Samples]:
        """One item."""
        return one_item(self.prompts)


def transfer_reward(weights: dict[str, float], judges: Judges) -> Reward:
    """A weighted sum of the sentence's GM and of the sides that it is made of.

    The GM alone is 0 wherever one side is beyond its threshold, as with many texts of an untuned
    policy, and equal rewards teach nothing. The sides have no such dead zone: a warm-up rewards
    them and hands over to the GM by `RewardShaping`'s schedules of these weights.

    Args:
        weights: Scores of `TransferQuality` → their weights at the start, 0 included.
        judges: Of the scores.
    """
    quality = judges.quality()
    return Reward({name: (quality[name], weight) for name, weight in weights.items()})


@cache  # two callbacks, one set of models
def held_out_scores(judges: Judges) -> dict[str, Component]:
    """GM and its sides; selection is by GM."""
    quality = judges.quality()
    names = ("gm", "accuracy", "similarity", "perplexity", "log_likelihood")
    return {name: quality[name] for name in names}


def held_out_scorer(
    sentences: Sentences, judges: Judges, generations_per_prompt: int = 1
) -> GenerationScorer:
    """Scores rewritings of validation sentences while training."""
    return GenerationScorer(
        held_out_scores(judges),
        sentences.prompts(),
        generations_per_prompt=generations_per_prompt,
    )


def before_after(
    sentences: Sentences, judges: Judges, generations_per_prompt: int = 1
) -> BeforeAfter:
    """Compares the selected policy with the untuned one and with copying, on test sentences."""
    prompts = sentences.prompts()
    return BeforeAfter(
        held_out_scores(judges),
        prompts,
        generations_per_prompt=generations_per_prompt,
        others={"copying": prompts.replace(texts=prompts.require("sources", "before_after"))},
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
        history = JsonLog(self.folder / "metrics.jsonl").read()
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
