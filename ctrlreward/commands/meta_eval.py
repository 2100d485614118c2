"""Command `ctrlreward meta-eval`: agreement of scores with human ratings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Unpack

from ctrlreward.arguments import one_of
from ctrlreward.commands.command_parser import command_parser, gather_words
from ctrlreward.commands.formats.rated_files import Rated, read_ctc, read_ctrleval, read_li2018
from ctrlreward.commands.formats.tables import (
    Columns,
    Row,
    explained_columns,
    number_column,
    read_rows,
    to_samples,
)
from ctrlreward.commands.meta_report import (
    Outputs,
    fit_gm_held_out,
    report_correlations,
    report_gm_fit,
    score_rated,
)
from ctrlreward.commands.score import name_components
from ctrlreward.commands.terminal import user_errors
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment, AspectName, Method
from ctrlreward.scorers.base import Scorer
from ctrlreward.scorers.ctrleval import CTRLEval
from ctrlreward.scorers.model_scorer import ModelOptions
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.transfer import TransferQuality

_DESCRIPTION = """Score a file with human ratings, and print how well the scores agree with the
ratings: Pearson's r, Spearman's rho and Kendall's tau-b, with 95 % intervals."""

_COMMAND = "ctrlreward meta-eval"
_EXAMPLES = {
    "ctrleval": f"{_COMMAND} ctrleval data_senti.txt --task sentiment",
    "ctc": f"{_COMMAND} ctc persona_chat.json --output correlations.json",
    "li2018": f"{_COMMAND} li2018 human_ratings_yelp.csv --aligner minilm-l6",
    "rated": f"{_COMMAND} rated rated.jsonl --ratings fluency overall --scorers Perplexity",
}


def run(arguments: list[str]) -> None:
    """Score a rated file, and report the correlations of scores and ratings."""
    evaluations: dict[str, Callable[..., None]] = {
        "ctrleval": ctrleval,
        "ctc": ctc,
        "li2018": li2018,
        "rated": rated,
    }
    purposes = {name: str(e.__doc__).splitlines()[0] for name, e in evaluations.items()}
    kinds = "\n".join(f"  {name:<10}{purpose}" for name, purpose in purposes.items())
    usage = f"{{{','.join(evaluations)}}} FILE [options]"
    overview = command_parser(_COMMAND, usage, f"{_DESCRIPTION}\n\n{kinds}", [*_EXAMPLES.values()])
    overview.add_argument("kind", type=str, help="kind of file")
    with user_errors(overview):
        kind = one_of("kind of file", overview.parse_args(arguments[:1]).kind, evaluations)
    ratings = "--ratings COLUMN [COLUMN ...] " if kind == "rated" else ""
    parser = command_parser(
        f"{_COMMAND} {kind}", f"FILE {ratings}[options]", purposes[kind], [_EXAMPLES[kind]]
    )
    parser.add_argument("--config", action="config", help="YAML file with options")
    parser.add_function_arguments(evaluations[kind], as_group=False, as_positional=True)
    config = parser.parse_args(_as_parsed(arguments[1:]))
    with user_errors(parser):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        evaluations[kind](**options)


def _as_parsed(arguments: Sequence[str]) -> list[str]:
    """Write `--data FILE` as the positional argument that it is, and a flag and lists in full."""
    given = []
    for argument in arguments:
        if argument == "--fit_gm":
            given.append("--fit_gm=true")
        elif argument != "--data":
            given.append(argument.removeprefix("--data="))
    return gather_words(given, {"--ratings", "--scorers", "--names", "--metrics"})


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
        options: Device, dtype and token budget of the model.
    """
    outputs = Outputs(output, scores, plot, resamples, seed)
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
    report_correlations(file, score_rated(file, components, outputs), components, outputs)


def li2018(
    data: Path,
    classifier: str | None = None,
    model: str = "smollm2-135m",
    similarity: str = "minilm-l6",
    aligner: str = "minilm-l6",
    method: Method = "embedding",
    fit_gm: bool = False,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate preservation and GM on the rated style transfers of Li et al. (2018).

    Args:
        data: Their rated sentences, human_ratings_yelp.csv.
        classifier: Style classifier with the labels positive and negative: a local folder or
            Hugging Face id. Without one, only preservation is evaluated.
        model: Language model for the perplexity.
        similarity: Sentence encoder for the similarity.
        aligner: Model for preservation: an encoder, or an aligner trained for the method.
        method: Alignment method: embedding, discriminative or regression.
        fit_gm: Also fit GM's thresholds to the preferences of every other item, and compare them
            with the paper's on the rest.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap, and of the search for thresholds.
        options: Device, dtype and token budget of the models.
    """
    if fit_gm and classifier is None:
        raise ValueError("--fit-gm needs GM: give a --classifier")
    outputs = Outputs(output, scores, plot, resamples, seed)
    scorers: list[Scorer] = [Alignment(aligner, "preservation", method, **options)]
    if classifier is not None:
        scorers.append(
            TransferQuality(
                Accuracy(classifier, **options),
                Similarity(similarity, **options),
                Perplexity(model, **options),
            )
        )
    file = read_li2018(data)
    components = name_components(scorers, None)
    for name in ("accuracy", "log_likelihood"):  # not inputs of GM
        components.pop(name, None)
    values = score_rated(file, components, outputs)
    record = report_correlations(file, values, components, outputs)
    if fit_gm:
        report_gm_fit(fit_gm_held_out(file, values, seed), record, outputs)


def rated(
    data: Path,
    ratings: Sequence[str] = (),
    scorers: Sequence[Scorer] = (),
    names: list[str] | None = None,
    metrics: Sequence[str] = (),
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    cluster: str | None = None,
    system: str | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> None:
    """Evaluate any scores on your own rated file.

    Args:
        data: The texts and ratings: a .jsonl, .csv or .parquet file.
        ratings: Columns of the ratings: `--ratings fluency overall`.
        scorers: The scorers and their options, as in `ctrlreward score`.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`).
        metrics: Columns of scores that the file already has, for example from `ctrlreward score`.
        columns: Column names of the file; null ignores a column (`--columns.prefix=null`).
        cluster: Column that related rows share, such as a prefix or document; the bootstrap draws
            clusters.
        system: Column of the system that wrote each text, for correlations at system level.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
    """
    if not (ratings and (scorers or metrics)):
        raise ValueError("give --ratings, and --scorers, --metrics (columns of the file) or both")
    if scores and not scorers:
        raise ValueError("--scores needs --scorers: the file already has its --metrics")
    outputs = Outputs(output, scores, plot, resamples, seed)
    rows = read_rows(data)
    existing = {name: number_column(rows, name) for name in metrics}
    components = name_components(scorers, names) if scorers else {}
    duplicates = sorted(existing.keys() & components.keys())
    if duplicates:
        raise ValueError(f"{', '.join(duplicates)} is both a column and a score: give --names")
    file = Rated(
        data.name,
        to_samples(rows, columns) if scorers else Samples([""] * len(rows)),  # texts are not used
        {name: number_column(rows, name) for name in ratings},
        _clusters(rows, cluster) if cluster else None,
        _optional_cells(rows, system) if system else None,
    )
    with explained_columns(rows):
        values = existing | score_rated(file, components, outputs)
    report_correlations(file, values, components, outputs)


def _clusters(rows: list[Row], name: str) -> tuple[str, ...]:
    column = _optional_cells(rows, name)
    for i, cluster in enumerate(column):
        if cluster is None:
            raise ValueError(f"{name}[{i}] is empty: give each row its cluster")
    return tuple(str(cluster) for cluster in column)


def _optional_cells(rows: list[Row], name: str) -> tuple[str | None, ...]:
    """Return a column as strings; None for rows that lack it or have an empty cell."""
    if not any(name in row for row in rows):
        raise ValueError(f"there is no column {name!r}: the file has {', '.join(rows[0])}")
    cells = (row.get(name) for row in rows)
    return tuple(None if cell in ("", None) else str(cell) for cell in cells)
