"""`ctrlreward meta-eval`: how well scores agree with human ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, auto_cli

import ctrlreward.scorers  # noqa: F401 — so that scorers are known by their short names
from ctrlreward.commands.meta_report import Outputs, fit_halves, report, report_halves, score_rated
from ctrlreward.commands.formats.rated_files import Rated, read_ctc, read_ctrleval, read_li2018
from ctrlreward.commands.score import name_components
from ctrlreward.commands.formats.tables import Columns, Record, numbers, read_records, to_samples
from ctrlreward.commands.terminal import user_errors
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment
from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.transfer import TransferQuality


def run(arguments: list[str]) -> None:
    """Scores a rated file and says how well the scores agree with the ratings."""
    commands: dict[str, Any] = {"ctrleval": ctrleval, "ctc": ctc, "li2018": li2018, "rated": rated}
    prog = "ctrlreward meta-eval"
    given = ["--fit_gm=true" if argument == "--fit_gm" else argument for argument in arguments]
    with user_errors(ArgumentParser(prog=prog)):
        auto_cli(commands, args=given, prog=prog, description=__doc__, as_positional=False)


def ctrleval(
    data: Path,
    task: str = "sentiment",
    model: str = "smollm2-135m",
    iwf: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> None:
    """CTRLEval's aspects on a file of its form: label, prefix, text and the three ratings.

    Args:
        data: Tab-separated, without a header, such as data_senti.txt.
        task: Whose labels the file has: sentiment, topic, or a YAML file.
        model: Local folder, hub id or short name of an encoder-decoder or decoder-only model.
        iwf: Table of inverse word frequencies; by default those of the wordfreq package.
        device: Where the model runs.
        dtype: float32, bfloat16 or float16; by default what suits the device.
        batch_tokens: Token budget of one forward pass; None picks by device.
        output: File for the correlations, .json.
        scores: File for the scores of each row, .jsonl, .csv or .parquet.
        plot: File for scatter plots, .png.
        resamples: Draws of the bootstrap for the 95 % intervals.
        seed: Of the draws.
    """
    outputs = Outputs(output, scores, plot, resamples, seed)
    scorer = CTRLEval(model, task, iwf=iwf, device=device, dtype=dtype, batch_tokens=batch_tokens)
    file = read_ctrleval(data)
    components = name_components([scorer], None)
    report(file, score_rated(file, components, outputs), components, outputs)


def ctc(
    data: Path,
    model: str = "minilm-l6",
    method: str = "embedding",
    stop_words: str | None = None,
    aggregate: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> None:
    """CTC's aspects on its rated files: dialog responses (persona_chat) or summaries (qags_xsum).

    Of responses, engagingness and groundedness are judged as sums over tokens, as in the paper,
    and also as means over tokens, unless `--aggregate` is given.

    Args:
        data: A JSON list, such as persona_chat.json or qags_xsum.json.
        model: Local folder, hub id or short name: an encoder, or an aligner trained for `method`.
        method: embedding, discriminative or regression.
        stop_words: File of the words that engagingness and groundedness leave out, one a line.
        aggregate: mean or sum; by default the paper's for each aspect.
        device: Where the model runs.
        dtype: float32, bfloat16 or float16; by default what suits the device.
        batch_tokens: Token budget of one forward pass; None picks by device.
        output: File for the correlations, .json.
        scores: File for the scores of each row, .jsonl, .csv or .parquet.
        plot: File for scatter plots, .png.
        resamples: Draws of the bootstrap for the 95 % intervals.
        seed: Of the draws.
    """
    outputs = Outputs(output, scores, plot, resamples, seed)
    file = read_ctc(data)
    dialog = file.samples.histories is not None
    aspects = ("engagingness", "groundedness") if dialog else ("consistency",)

    def alignment(how: str | None) -> Alignment:
        return Alignment(aspects, model, method, stop_words, how, device, dtype, batch_tokens)

    components = name_components([alignment(aggregate)], None)
    if dialog and aggregate is None:
        means = name_components([alignment("mean")], None)
        components |= {f"{name}_mean": component for name, component in means.items()}
    report(file, score_rated(file, components, outputs), components, outputs)


def li2018(
    data: Path,
    classifier: str | None = None,
    model: str = "smollm2-135m",
    similarity: str = "minilm-l6",
    aligner: str = "minilm-l6",
    method: str = "embedding",
    fit_gm: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> None:
    """Preservation, and GM with its parts, on the rated style transfers of Li et al. (2018).

    Args:
        data: Their rated sentences, human_ratings_yelp.csv.
        classifier: Local folder or hub id of a style classifier with the labels positive and
            negative; without one, only preservation is judged.
        model: Language model of the perplexity.
        similarity: Sentence encoder of the similarity.
        aligner: Model of preservation: an encoder, or an aligner trained for `method`.
        method: How it aligns: embedding, discriminative or regression.
        fit_gm: Also learn the thresholds of GM from one half of the items (every other one), and
            compare them with the paper's on the other half.
        device: Where the models run.
        dtype: float32, bfloat16 or float16; by default what suits the device.
        batch_tokens: Token budget of one forward pass; None picks by device.
        output: File for the correlations, .json.
        scores: File for the scores of each row, .jsonl, .csv or .parquet.
        plot: File for scatter plots, .png.
        resamples: Draws of the bootstrap for the 95 % intervals.
        seed: Of the draws, and of the search for thresholds.
    """
    if fit_gm and classifier is None:
        raise ValueError("--fit-gm takes a --classifier")
    outputs = Outputs(output, scores, plot, resamples, seed)
    scorers: list[Scorer] = [
        Alignment(
            ("preservation",),
            aligner,
            method,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
        )
    ]
    if classifier is not None:
        scorers.append(
            TransferQuality(
                Accuracy(classifier, device, dtype, batch_tokens),
                Similarity(similarity, device, dtype, batch_tokens),
                Perplexity(model, device, dtype, batch_tokens),
            )
        )
    file = read_li2018(data)
    components = name_components(scorers, None)
    for name in ("accuracy", "log_likelihood"):  # what GM does not look at
        components.pop(name, None)
    values = score_rated(file, components, outputs)
    record = report(file, values, components, outputs)
    if fit_gm:
        report_halves(fit_halves(file, values, seed), record, outputs)


def rated(
    data: Path,
    ratings: list[str],
    scorers: list[Scorer] | None = None,
    names: list[str] | None = None,
    metrics: list[str] | None = None,
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    cluster: str | None = None,
    system: str | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> None:
    """Any scores on a rated file of your own.

    Args:
        data: A file that ends in .jsonl, .csv or .parquet.
        ratings: Columns of the ratings: `--ratings=[fluency,overall]`.
        scorers: What to score, by class and options, as in `ctrlreward score`.
        names: A name for each scorer, put before those of its scores with a dot.
        metrics: Columns of scores that the file has already, such as those that `ctrlreward
            score` wrote, to be judged as well.
        columns: Which column of the file holds what.
        cluster: Column of what rows that are alike have in common, such as a prefix or document.
        system: Column of the system that wrote each text.
        output: File for the correlations, .json.
        scores: File for the scores of each row, .jsonl, .csv or .parquet.
        plot: File for scatter plots, .png.
        resamples: Draws of the bootstrap for the 95 % intervals.
        seed: Of the draws.
    """
    if not (ratings and (scorers or metrics)):
        raise ValueError("give --ratings, and --scorers or --metrics (columns of the file) or both")
    if scores and not scorers:
        raise ValueError("--scores takes --scorers: the file has its --metrics already")
    outputs = Outputs(output, scores, plot, resamples, seed)
    records = read_records(data)
    found = {name: numbers(records, name) for name in metrics or ()}
    components = name_components(scorers, names) if scorers else {}
    twice = sorted(found.keys() & components.keys())
    if twice:
        raise ValueError(f"{', '.join(twice)} is both a column and a score: give --names")
    file = Rated(
        data.name,
        to_samples(records, columns) if scorers else Samples([""] * len(records)),  # none is read
        {name: numbers(records, name) for name in ratings},
        _clusters(records, cluster) if cluster else None,
        _systems(records, system) if system else None,
    )
    report(file, found | score_rated(file, components, outputs), components, outputs)


def _clusters(records: list[Record], name: str) -> tuple[str, ...]:
    column = _systems(records, name)
    for row, cluster in enumerate(column):
        if cluster is None:
            raise ValueError(f"{name}[{row}] is empty: give each row its cluster")
    return tuple(str(cluster) for cluster in column)


def _systems(records: list[Record], name: str) -> tuple[str | None, ...]:
    """The cells as text; None where a row has none."""
    if not any(name in record for record in records):
        raise ValueError(f"there is no column {name!r}: the file has {', '.join(records[0])}")
    cells = (record.get(name) for record in records)
    return tuple(None if cell in ("", None) else str(cell) for cell in cells)
