"""`ctrlreward meta-eval ctc`: alignment on the rated files of CTC."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Unpack

from ctrlreward.commands.scoring_job import name_components
from ctrlreward.recipes.papers.meta_eval.rated_files import read_ctc
from ctrlreward.recipes.papers.meta_eval.rated_report import (
    Outputs,
    PublishedModels,
    report_correlations,
    score_rated,
)
from ctrlreward.scorers.alignment import Alignment, AspectName, Method
from ctrlreward.scorers.model_scorer import ModelOptions


def ctc(
    data: Path,
    model: str = "minilm-l6",
    method: Method = "embedding",
    stop_words: str | None = None,
    aggregate: Literal["mean", "sum"] | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    published: PublishedModels = "best",
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate CTC on its rated files (dialog responses or summaries).

    Engagingness and groundedness of responses are evaluated as sums over tokens, as in the paper,
    and also as means over tokens (`engagingness_mean`), unless `--aggregate` is given.

    Args:
        data: JSON list, such as persona_chat.json or qags_xsum.json.
        model: Encoder, or aligner trained for the method: a local folder, Hugging Face id or short
            name.
        method: Alignment method: embedding, discriminative or regression.
        stop_words: File of words that engagingness and groundedness ignore, one per line.
        aggregate: mean or sum over tokens; by default the paper's choice for each aspect.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
        published: Models of the paper to print: the best of the same method, or all.
        options: Device, dtype and token budget of the model.
    """
    outputs = Outputs(output, scores, plot, resamples, seed, published)
    file = read_ctc(data)
    dialog = file.samples.histories is not None
    aspects: tuple[AspectName, ...] = ("consistency",)
    if dialog:
        aspects = ("engagingness", "groundedness")

    def alignment(fold: Literal["mean", "sum"] | None) -> Alignment:
        return Alignment(model, aspects, method, stop_words, fold, **options)

    components = name_components([alignment(aggregate)], None)
    if dialog and aggregate is None:
        means = name_components([alignment("mean")], None)
        components |= {f"{name}_mean": component for name, component in means.items()}
    values = score_rated(file, components, outputs)
    report_correlations(file, values, components, outputs, kind=f"CTC {method[0].upper()}")
