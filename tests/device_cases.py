"""Every scorer, built from folders of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from fakes import lengths

from ctrlreward import Samples
from ctrlreward.scorers import (
    Accuracy,
    Alignment,
    AttributeClassifier,
    BARTScore,
    CTRLEval,
    Distinct,
    FunctionScorer,
    Judge,
    LexiconSentiment,
    Perplexity,
    Repetition,
    RewardModel,
    Rubric,
    Scorer,
    Similarity,
    Task,
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
RUBRIC = Rubric("Good? {text}\nyes or no:", {"yes": 1, "no": 0})
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
        thresholds=(0, 0, 1e5, 0),  # wide, so that no sample earns exactly 0
    )


# A family of models for each way in which texts share a batch: prefix trees (Llama), positions by a
# bias (BLOOM), padded rows (Mamba), masked texts with merged decoder rows (PEGASUS, T5), texts,
# pairs of texts.
CASES: dict[str, Build] = {
    **{f"CTRLEval {m}": partial(ctrleval, m) for m in ("llama", "bloom", "mamba", "pegasus", "t5")},
    "Perplexity llama": lambda f, o: Perplexity(f["llama"], **o),
    "Perplexity mamba": lambda f, o: Perplexity(f["mamba"], **o),
    "Judge": lambda f, o: Judge(f["llama"], RUBRIC, **o),
    "BARTScore": lambda f, o: BARTScore(f["bart"], ["faithfulness", "f_score"], **o),
    "BARTScore llama": lambda f, o: BARTScore(f["llama"], ["faithfulness", "f_score"], **o),
    # Cosines of random weights are all at chance.
    "Alignment embedding": lambda f, o: Alignment(f["encoder"], DIALOG, calibration=False, **o),
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


WORDS = {"negative": ["bad", "awful"], "positive": ["good", "nice"]}
TASK = Task(["<gen_result> It was <mask_token>.", "Just <mask_token>! <gen_result>"], WORDS)
TOPICS = Task(
    ["<gen_result> It was about <mask_token>."],
    {"positive": ["tea"], "negative": ["rain"], "x": ["y"]},
)
NEUTRAL = ["A lake.", "Nobody said a word about the rain. " * 6]

POINTWISE: Mapping[str, Build] = {
    **CASES,
    "CTRLEval bart": lambda f, o: CTRLEval(f["bart"], TASK, **o),
    "CTRLEval calibrated": lambda f, o: CTRLEval(
        f["llama"], TOPICS, ["attribute_relevance"], calibration=NEUTRAL, **o
    ),
    "Perplexity gpt2 truncated": lambda f, o: Perplexity(f["gpt2"], **o),
}
# Without a model there is no batch: exactly the same.
EXACT: Mapping[str, Build] = {
    "FunctionScorer": lambda f, o: FunctionScorer(lengths, pointwise=True),
    "LexiconSentiment": lambda f, o: LexiconSentiment(),
    "Repetition": lambda f, o: Repetition(f["gpt2"], n=2),
    "Similarity of word vectors": lambda f, o: Similarity(f["vectors"]),
}
GROUPED: Mapping[str, Build] = {"Distinct": lambda f, o: Distinct(f["gpt2"])}
SCORERS: Mapping[str, Build] = {**POINTWISE, **EXACT, **GROUPED}


def few_evaluators(case: str) -> dict[str, int]:
    """Return the options by which a case has six of the 72 evaluators of the default task."""
    own_task = case in ("CTRLEval bart", "CTRLEval calibrated")
    whole = "ctrleval" in case.lower() and not own_task
    return {"evaluators": 6} if whole else {}


def samples_of(case: str, samples: Samples) -> Samples:
    """Return the samples with the labels that a case reads."""
    if case != "AttributeClassifier":
        return samples
    labels = [f"sentiment={label} tone={label}" for label in samples.labels or ()]
    return samples.replace(labels=labels)
