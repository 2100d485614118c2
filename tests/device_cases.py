"""Every scorer with a model, built from folders of models: what runs on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ctrlreward import Samples
from ctrlreward.scorers import (
    Accuracy,
    Alignment,
    AttributeClassifier,
    BARTScore,
    CTRLEval,
    Judge,
    Perplexity,
    RewardModel,
    Rubric,
    Scorer,
    Similarity,
    TransferQuality,
)
from ctrlreward.scorers.alignment import AspectName
from ctrlreward.scorers.model_scorer import ModelOptions

SAMPLES = Samples(
    [
        "The soup was good. It came hot! We liked it.",
        "The bread was old and the tea was cold.",
        "A long walk. The lake froze over in the night, and nobody had told us.",
        "The soup was good. It came hot! We liked it.",
    ],
    prefixes=["The soup", "The bread", "A long", "The soup"],
    labels=["positive", "negative", "positive", "negative"],
    sources=["The soup was bad.", "The bread was fresh.", "A walk in winter.", "Cold soup."],
    references=["Good soup.", "Old bread.", "The lake froze.", "Nice."],
    contexts=["A menu of soups."] * 4,
    histories=["How was the food?"] * 4,
)
LABELS = {0: "negative", 1: "positive"}
ALIGNED = {0: "aligned", 1: "hallucinated"}
RUBRIC = Rubric("Good? {text}\nyes or no:", {"yes": 1, "no": 0})
CAUSAL = ("llama", "bloom", "mamba")  # prefix trees, positions by a bias, padded rows
SEQ2SEQ = ("pegasus", "t5")
DIALOG: tuple[AspectName, ...] = (
    "preservation",
    "consistency",
    "relevance",
    "engagingness",
    "groundedness",
)

Build = Callable[[Mapping[str, str], ModelOptions], Scorer]


def ctrleval(name: str, folders: Mapping[str, str], options: ModelOptions) -> Scorer:
    return CTRLEval(folders[name], **options)


def quality(folders: Mapping[str, str], options: ModelOptions) -> Scorer:
    return TransferQuality(
        Accuracy(folders["classifier"], **options),
        Similarity(folders["encoder"], **options),
        Perplexity(folders["llama"], **options),
    )


CASES: dict[str, Build] = {
    **{f"CTRLEval {name}": partial(ctrleval, name) for name in (*CAUSAL, *SEQ2SEQ)},
    "Perplexity llama": lambda f, o: Perplexity(f["llama"], **o),
    "Perplexity mamba": lambda f, o: Perplexity(f["mamba"], **o),
    "Judge": lambda f, o: Judge(f["llama"], RUBRIC, **o),
    "BARTScore": lambda f, o: BARTScore(f["bart"], ["faithfulness", "f_score"], **o),
    "Alignment embedding": lambda f, o: Alignment(f["encoder"], DIALOG, **o),
    "Alignment discriminative": lambda f, o: Alignment(f["aligner"], DIALOG, "discriminative", **o),
    "Alignment regression": lambda f, o: Alignment(f["regression"], DIALOG, "regression", **o),
    "RewardModel llama": lambda f, o: RewardModel(f["reward"], **o),
    "RewardModel bert": lambda f, o: RewardModel(f["regression"], **o),
    "Accuracy bert": lambda f, o: Accuracy(f["classifier"], **o),
    "Accuracy ctrleval": lambda f, o: Accuracy(CTRLEval(f["llama"], **o)),
    "AttributeClassifier": lambda f, o: AttributeClassifier(
        {"sentiment": f["classifier"], "tone": CTRLEval(f["llama"], **o)}, **o
    ),
    "Similarity": lambda f, o: Similarity(f["encoder"], **o),
    "TransferQuality": quality,
}


def samples_of(case: str, samples: Samples) -> Samples:
    """Return the samples with the labels that a case reads."""
    if case != "AttributeClassifier":
        return samples
    labels = [f"sentiment={label} tone={label}" for label in samples.labels or ()]
    return samples.replace(labels=labels)
