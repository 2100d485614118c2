"""`ctrlreward meta-eval ctrleval`: CTRLEval on its rated files."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from ctrlreward.commands.formats.rated_files import read_ctrleval
from ctrlreward.commands.meta_eval.rated_report import Outputs, report_correlations, score_rated
from ctrlreward.commands.score import name_components
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.model_scorer import ModelOptions


def ctrleval(
    data: Path,
    task: str = "sentiment",
    model: str = "smollm2-135m",
    iwf: str | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate CTRLEval on its rated files (label, prefix, text and three ratings).

    Args:
        data: Tab-separated file without a header, such as data_senti.txt.
        task: Task that defines the file's labels: sentiment, topic, or a YAML file.
        model: Encoder-decoder or decoder-only model: a local folder, Hugging Face id or short name.
        iwf: Table of inverse word frequencies; by default from the wordfreq package.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
        options: Device, dtype and token budget of the model.
    """
    outputs = Outputs(output, scores, plot, resamples, seed)
    scorer = CTRLEval(model, task, iwf=iwf, **options)
    file = read_ctrleval(data)
    components = name_components([scorer], None)
    report_correlations(file, score_rated(file, components, outputs), components, outputs)
