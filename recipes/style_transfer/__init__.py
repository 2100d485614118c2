"""Style transfer: rewriting a sentence into another style while keeping its content.

`configs/style_transfer/yelp_*.yaml` use this file: prompts, reward and held-out scores. Copy it to
change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ctrlreward.callbacks import AUC, BeforeAfter, GenerationScorer
from ctrlreward.functional.transfer import GM_THRESHOLDS
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.models.encoder import SentenceEncoder
from ctrlreward.recipes.text_files import sample_texts
from ctrlreward.recipes.trained_first import TrainedFirst
from ctrlreward.recipes.training_batches import PromptBatches
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers import Accuracy, Perplexity, Similarity, TransferQuality
from ctrlreward.scorers.base import Component, Scorer


@dataclass(frozen=True)
class Sentences:
    """Sentences of two styles, each to be rewritten into the other style.

    Args:
        files: Two styles → file of its sentences, one per line; see `text_files.read_lines`.
        template: Prompt of the policy, with `{source}`, `{style}` (the target style) and optionally
            `{source_style}`. A module that reads `sources` and `labels` needs none.
        count: Number of sentences of each style.
        exclude: Files of held-out sentences.
        words: Smallest and largest number of words of a sentence.
        seed: Seed of the choice of sentences.
    """

    files: Mapping[str, str]
    template: str = "{source_style}: {source}\n{style}:"
    count: int = 1000
    exclude: Sequence[str] = ()
    words: tuple[int, int] = (4, 15)
    seed: int = 0

    def __post_init__(self) -> None:
        if "{source}" not in self.template or "{style}" not in self.template:
            raise ValueError(
                f"template must contain {{source}} and {{style}}, got {self.template!r}"
            )

    def prompts(self) -> Samples:
        """Return one prompt per sentence, beginning with the first file.

        Texts and prefixes are empty, and `labels` are the target styles.
        """
        return self.prompts_for(
            [
                (source, style)
                for style, file in self.files.items()
                for source in sample_texts([file], self.exclude, self.count, self.words, self.seed)
            ]
        )

    def prompts_for(self, rows: Sequence[tuple[str, str]]) -> Samples:
        """Return one prompt per (sentence, its style); see `prompts`."""
        first, second = self.files
        target = {first: second, second: first}
        return Samples(
            texts=[""] * len(rows),
            prefixes=[""] * len(rows),
            labels=[target[style] for _, style in rows],
            sources=[source for source, _ in rows],
            prompts=[
                self.template.format(source=source, style=target[style], source_style=style)
                for source, style in rows
            ],
        )


@dataclass(frozen=True)
class ScoringModels:
    """Frozen models that score style transfer.

    Args:
        classifier: Style classifier; see `Accuracy`. In YAML also
            `class_path: ctrlreward.recipes.scoring_models.text_cnn.TextCNNClassifier`.
        encoder: Encoder or word vectors for content similarity; see `Similarity`. In YAML also
            `class_path: ctrlreward.recipes.scoring_models.word_vectors.sentence_vectors`.
        language_model: Language model for fluency; see `Perplexity`.
        score_end: Count the end of a text in the perplexity; see `Perplexity`.
        thresholds: Thresholds of the GM; see `TransferQuality`.
        device: Device of those that a name or folder is given for.
    """

    classifier: str | LabelProbabilities
    encoder: str | SentenceEncoder = "minilm-l6"
    language_model: str = "smollm2-135m"
    score_end: bool = False
    thresholds: tuple[float, float, float, float] = GM_THRESHOLDS
    device: str = "cpu"

    def quality(self) -> TransferQuality:
        """Return a new scorer over these models, which all such scorers share."""
        return TransferQuality(
            Accuracy(self.classifier, device=self.device),
            Similarity(self.encoder, device=self.device),
            Perplexity(self.language_model, score_end=self.score_end, device=self.device),
            thresholds=self.thresholds,
        )


class TransferData(PromptBatches):
    """Batches of sentences to rewrite; see `PromptBatches`."""

    def __init__(
        self,
        sentences: Sentences,
        batch_size: int = 8,
        steps: int = 1000,
        seed: int = 0,
        models: Sequence[TrainedFirst] = (),
    ) -> None:
        super().__init__(sentences.prompts, batch_size, steps, seed, models)


def transfer_reward(weights: dict[str, float], scoring_models: ScoringModels) -> Reward:
    """Return a weighted sum of a sentence's GM and of its components.

    The GM is 0 if one component misses its threshold, as for many texts of an untuned policy,
    and equal rewards have no gradient. The components do not have such a dead zone.

    Args:
        weights: Score of `TransferQuality` → weight at the start of training, 0 included.
        scoring_models: Models that compute the scores.
    """
    quality = scoring_models.quality()
    components = {name: (quality[name], weight) for name, weight in weights.items()}
    return Reward(components)


def held_out_scores(scoring_models: ScoringModels) -> dict[str, Component]:
    """Return the GM and its components; the GM of the corpus, `corpus/gm`, selects checkpoints."""
    quality = scoring_models.quality()
    names = ("gm", "accuracy", "similarity", "perplexity", "log_likelihood")
    return {name: quality[name] for name in names}


def held_out_scorer(
    sentences: Sentences,
    scoring_models: ScoringModels,
    others: Mapping[str, Component | Scorer] | None = None,
) -> GenerationScorer:
    """Return a callback that scores rewrites of validation sentences during training.

    `others` are scores by name that reward and selection don't have, for a `ProxyGuard` or for
    constraints. `Distinct` is over all rewrites of a style.
    """
    prompts = sentences.prompts()
    scores = {**held_out_scores(scoring_models), **(others or {})}
    return GenerationScorer(scores, prompts.replace(groups=prompts.labels))


def before_after(
    sentences: Sentences,
    scoring_models: ScoringModels,
    judges: Mapping[str, Component | Scorer | AUC] | None = None,
) -> BeforeAfter:
    """Return a callback that compares untuned and selected policy on test data.

    `judges` are scores that reward and selection do not use; see `BeforeAfter`.
    """
    return BeforeAfter(held_out_scores(scoring_models), sentences.prompts(), judges=judges)
