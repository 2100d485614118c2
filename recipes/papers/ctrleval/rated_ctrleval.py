"""`ctrlreward meta-eval ctrleval`: CTRLEval on its rated files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ctrlreward.arguments import positive
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.papers.ctrleval import studies
from ctrlreward.recipes.papers.ctrleval.recorded_evaluators import RecordedCTRLEval
from ctrlreward.recipes.papers.meta_eval.correlations import require_plot
from ctrlreward.recipes.papers.meta_eval.rated_files import read_ctrleval
from ctrlreward.recipes.papers.meta_eval.rated_report import (
    Outputs,
    PublishedModels,
    report_correlations,
    score_rated,
    write_record,
)
from ctrlreward.recipes.papers.meta_eval.rating_correlation import correlate
from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.ctrleval import AspectName, CTRLEval
from ctrlreward.scorers.model_scorer import ModelOptions

_RELEVANCE: AspectName = "attribute_relevance"


def ctrleval(
    data: Path,
    task: str = "sentiment",
    model: str = "smollm2-135m",
    iwf: str | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    systems: Sequence[str] = (),
    baselines: Sequence[Scorer] = (),
    ablation: bool = False,
    by_system: Path | None = None,
    quality_levels: Path | None = None,
    evaluator_counts: Path | None = None,
    draws: int = 20,
    resamples: int = 1000,
    seed: int = 0,
    published: PublishedModels = "best",
    log: Path | None = None,
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
        systems: Systems that wrote the texts, which the file does not name: `--systems ctrl pplm
            gedi cocon`. Their rows are taken to take turns for each label and prefix.
        baselines: Scorers to compare with, and their options, as in `ctrlreward score`. One that
            reads `sources` gets the prefixes.
        ablation: Also correlate the plain mean, the maximum and the minimum over the pattern
            evaluators (Table 5 of the paper).
        by_system: PNG file for the correlations on the texts of each system (Figure 2).
        quality_levels: PNG file for the correlations on texts that are biased to each of four
            levels of quality (Figure 3).
        evaluator_counts: PNG file for the correlations of attribute relevance by fewer evaluators
            (Figure 4).
        draws: Random draws behind each point of these two figures.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap and of the first draw.
        published: Figures of the paper to print: best for its best model, or all for all in the
            package, baselines included, with a line on those that it lacks.
        log: File of the scores so far, from which a repeated call continues.
        options: Device, dtype and token budget of the model.
    """
    outputs = Outputs(output, scores, resamples, seed, published)
    for path in (by_system, quality_levels, evaluator_counts):
        if path is not None:
            require_plot(path)
    if by_system is not None and not systems:
        raise ValueError("--by-system needs --systems: the file names none")
    positive("draws", draws)
    table = None if iwf is None else local_file(iwf)
    scorer = CTRLEval(model, task, iwf=table, **options)
    if ablation or evaluator_counts is not None:
        scorer = recorded = RecordedCTRLEval(model, task, iwf=table, **options)
        log = None  # a scorer that records scores all
    file = read_ctrleval(data, systems)
    if baselines:  # BARTScore needs a source: the prefix
        samples = file.samples.replace(sources=file.samples.prefixes)
        file = replace(file, samples=samples)
    components = name_components([scorer, *baselines], None)
    scored = dict(components)
    if ablation:
        by_beta = RecordedCTRLEval(model, task, _RELEVANCE, weights="beta", **options)
        scored[f"{_RELEVANCE}_beta"] = by_beta[_RELEVANCE]
    values = score_rated(file, scored, outputs, log)
    values = {name: values[name] for name in components}
    record = report_correlations(file, values, components, outputs, kind="CTRLEval")
    others = [
        name
        for name, component in components.items()
        if name not in file.ratings and component.spec.higher_is_better
    ]
    pairs = [(score, rating) for rating in file.ratings for score in (rating, *others)]
    if ablation:
        evaluated = {name: recorded.evaluators_of(file.samples, name) for name in file.ratings}
        evaluated[_RELEVANCE] = by_beta.evaluators_of(file.samples, _RELEVANCE)
        record["ablation"] = studies.ablate(file, evaluated)
        studies.print_ablation(record["ablation"], file.file)
    if by_system is not None:
        record["by_system"] = studies.correlate_systems(file, values, pairs)
        studies.print_systems(record["by_system"], file.file)
        studies.draw_systems(record["by_system"], by_system)
    if quality_levels is not None:
        rows = studies.sample_levels(file, values, pairs, draws, seed)
        record["quality_levels"] = {"draws": draws, "rows": rows}
        studies.print_levels(rows, file.file, draws)
        studies.draw_levels(rows, quality_levels)
    if evaluator_counts is not None:
        relevance = recorded.evaluators_of(file.samples, _RELEVANCE)
        rows = studies.count_evaluators(file, relevance, scorer.task, draws, seed)
        ratings = file.ratings[_RELEVANCE]
        lines = {name: correlate(values[name], ratings) for name in others}
        record["evaluator_counts"] = {"draws": draws, "rows": rows, "baselines": lines}
        studies.print_counts(rows, lines, file.file, draws)
        studies.draw_counts(rows, lines, evaluator_counts)
    write_record(record, outputs)
