"""Command `ctrlreward meta-eval`: agreement of scores with human ratings and preferences."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ctrlreward.arguments import not_negative, one_of, positive
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.parser import command_parser, gather_words, import_scorers
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.failures import rows_named
from ctrlreward.files import check_writable, json_text, write_whole
from ctrlreward.models.identity import digest
from ctrlreward.preferences.accuracy import preferences
from ctrlreward.ratings.agreement import fleiss_kappa, krippendorff_alpha
from ctrlreward.ratings.rated_files import CTC_ASPECTS, read_rated, text_column
from ctrlreward.ratings.report import report_correlations
from ctrlreward.scorers import Scorer
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import samples_log, score_parts
from ctrlreward.tables.columns import Columns, explained_columns, number_column
from ctrlreward.tables.rows import read_placed

_COMMAND = "ctrlreward meta-eval"
_DESCRIPTION = """Score a file with human ratings, and print how well the scores agree with the
ratings: Pearson's r, Spearman's rho and Kendall's tau-b, with 95 % intervals; or a file of
preferences, and print how often the chosen text scores higher; or the agreement of raters."""

# Kind of file → what is measured, and an example.
_KINDS = {
    "ctrleval": ("CTRLEval on its rated files", "ctrleval/data_senti.txt --task sentiment"),
    "ctc": ("alignment on CTC's rated files", "ctc/persona_chat.json --output correlations.json"),
    "li2018": ("preservation on the transfers of Li et al.", "li2018/human_ratings_yelp.csv"),
    "rated": ("any scores on your file", "rated.jsonl --ratings fluency --scorers Perplexity"),
    "preferences": ("accuracy on pairs", "chosen.jsonl --reward reward.yaml"),
    "raters": ("Fleiss' κ and Krippendorff's α", "rated.csv --ratings anna ben carla"),
}
# Kind of a published file → its scorer, whose options need no `--scorers.` before them.
_SCORERS = {"ctrleval": "CTRLEval", "ctc": "Alignment", "li2018": "Alignment"}

# Options that take lists of words, and the others that are not a scorer's.
_LISTS = ("--ratings", "--scorers", "--names", "--metrics")
_OTHERS = "--help --columns --cluster --system --output --resamples --seed"


def run(arguments: list[str]) -> None:
    """Evaluate a file of ratings or preferences."""
    purposes = "\n".join(f"  {kind:<12}{purpose}" for kind, (purpose, _) in _KINDS.items())
    examples = {kind: f"{_COMMAND} {kind} {example}" for kind, (_, example) in _KINDS.items()}
    usage = f"{{{','.join(_KINDS)}}} FILE [options]"
    description = f"{_DESCRIPTION}\n\n{purposes}"
    overview = command_parser(_COMMAND, usage, description, [*examples.values()])
    overview.add_argument("kind", type=str, help="kind of file")
    with user_errors():
        kind = one_of("kind of file", overview.parse_args(arguments[:1]).kind, _KINDS)
    purpose, _ = _KINDS[kind]
    if kind in _SCORERS:
        purpose += f". Other options go to {_SCORERS[kind]}: --scorers.help {_SCORERS[kind]}"
    parser = command_parser(f"{_COMMAND} {kind}", "FILE [options]", purpose, [examples[kind]])
    own: Mapping[str, Callable[..., None]] = {"preferences": preferences, "raters": raters}
    function = own.get(kind, rated)
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip={"log"})
    with user_errors():
        words = _words(kind, arguments[1:])
        if kind == "ctc" and not any(re.match(r"--scorers\.(aspects|help)", w) for w in words):
            others = parser.parse_args([word for word in words if not word.startswith("--scorers")])
            ratings = read_rated(Path(others.data)).ratings
            aspects = [CTC_ASPECTS[name] for name in ratings if name in CTC_ASPECTS]
            words.append(f"--scorers.aspects={json.dumps(aspects)}")
        if function is rated:
            import_scorers(words)
    config = parser.parse_args(words)
    with user_errors():
        options = json.loads(parser.dump(config, format="json"))
        log = None if kind == "raters" else _log_path(options)
    with user_errors(lambda: log is not None and log.exists()):
        chosen = parser.instantiate(config).as_dict()
        function(**chosen, **({"log": log} if log else {}))
        if log:
            log.unlink(missing_ok=True)


def _words(kind: str, arguments: Sequence[str]) -> list[str]:
    """Write lists in full; for a published file, add the scorer and the prefix of its options."""
    if kind not in _SCORERS:
        return gather_words(arguments, _LISTS)
    words = [f"--scorers={_SCORERS[kind]}"]
    for word in arguments:
        option = word.partition("=")[0].partition(".")[0].removesuffix("+")
        own = option in (*_LISTS, *_OTHERS.split()) or not word.startswith("--")
        words.append(word if own else f"--scorers.{word[2:]}")
    return gather_words(words, _LISTS)


def _log_path(options: dict[str, Any]) -> Path | None:
    """Return the file of the scores of these options, None where it can't be written."""
    data, output = Path(options.pop("data")), options.pop("output", None)
    if str(options.get("reward")).endswith((".yaml", ".yml")):
        options["reward"] = read_reward(Path(options["reward"]))
    folder = Path(output).parent if output else Path()
    path = folder / f"{data.name}.{digest(options)[:8]}.partial.jsonl"
    return path if os.access(folder, os.W_OK) else None


def rated(
    data: Path,
    ratings: Sequence[str] = (),
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    cluster: str | None = None,
    system: str | None = None,
    scorers: Sequence[Scorer] = (),
    names: list[str] | None = None,
    metrics: Sequence[str] = (),
    output: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    log: Path | None = None,
) -> None:
    """Score a rated file, print the correlations, and write the requested files.

    Args:
        data: A .jsonl, .csv or .parquet file, or a file as published.
        ratings: Columns of the ratings: `--ratings fluency overall`. A published file has its own.
        columns: Column names of the file; null ignores a column (`--columns.prefix=null`).
        cluster: Column that related rows share, such as a prefix or document; the bootstrap draws
            clusters.
        system: Column of the system that wrote each text, for correlations at system level.
        scorers: The scorers and their options, as in `ctrlreward score`.
        names: One name per scorer, which prefixes the names of its scores (`small.coherence`).
        metrics: Columns of scores that the file already has, for example from `ctrlreward score`.
        output: JSON file for the correlations.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
        log: File of the scores so far, from which a repeated call continues.
    """
    if not (scorers or metrics):
        raise ValueError("--scorers, --metrics (columns of the file) or both are needed")
    positive("resamples", resamples)
    not_negative("seed", seed)
    if output is not None:
        check_writable(output)
    file = read_rated(data, ratings, columns, cluster, system, texts=bool(scorers))
    values = {name: number_column(file.rows, name, file.places) for name in metrics}
    components = {}
    with explained_columns(list(file.rows[0])), rows_named(file.places):
        if scorers:
            components = name_components(scorers, names, file.samples)
            kept = samples_log(log, components, file.samples) if log else None
            if both := sorted(values.keys() & components.keys()):
                raise ValueError(f"{', '.join(both)} is both a column and a score. Pass --names.")
            values |= score_parts(components, file.samples, kept, file.places)
    specs = {name: component.spec for name, component in components.items()}
    record = report_correlations(file, values, specs, resamples, seed)
    if output is not None:
        write_whole(output, json_text(record))


def raters(
    data: Path,
    ratings: Sequence[str] = (),
    level: Literal["nominal", "ordinal", "interval", "ratio"] = "nominal",
) -> None:
    """Print how well raters or runs agree on labels.

    Args:
        data: A row per item: a .jsonl, .csv or .parquet file. An empty cell is a missing rating.
        ratings: Column of each rater or run: `--ratings anna ben`.
        level: Level of measurement of α: nominal for labels, otherwise numbers. κ is of labels.
    """
    if len(ratings) < 2:
        raise ValueError(f"--ratings must be the columns of 2 raters or more, got {[*ratings]}")
    rows, places = read_placed(data)
    labels = list(zip(*(text_column(rows, name) for name in ratings), strict=True))
    complete = sum(None not in row for row in labels)
    print(f"Fleiss' κ: {fleiss_kappa(labels):.3f}, of {complete} items with {len(ratings)} ratings")
    items: Sequence[Sequence[Any]] = labels
    if level != "nominal":
        items = np.transpose([number_column(rows, name, places) for name in ratings]).tolist()
    alpha = krippendorff_alpha(items, level)
    print(f"Krippendorff's α: {alpha:.3f}, {level}, of {len(rows)} items")
