"""Command `ctrlreward meta-eval`: agreement of scores with human ratings."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ctrlreward.arguments import one_of
from ctrlreward.command_line.parser import command_parser, gather_words, import_scorers
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.preferences.accuracy import preferences
from ctrlreward.recipes.papers.ctc.rated_ctc import ctc
from ctrlreward.recipes.papers.ctrleval.rated_ctrleval import ctrleval
from ctrlreward.recipes.papers.li2018.rated_li2018 import li2018
from ctrlreward.recipes.papers.meta_eval.rated import rated
from ctrlreward.recipes.papers.meta_eval.rater_agreement import raters

_DESCRIPTION = """Score a file with human ratings, and print how well the scores agree with the
ratings: Pearson's r, Spearman's rho and Kendall's tau-b, with 95 % intervals; or a file of
preferences, and print how often the chosen text scores higher; or the agreement of raters."""

_COMMAND = "ctrlreward meta-eval"
_EXAMPLES = {
    "ctrleval": f"{_COMMAND} ctrleval ctrleval/data_senti.txt --task sentiment",
    "ctc": f"{_COMMAND} ctc ctc/persona_chat.json --output correlations.json",
    "li2018": f"{_COMMAND} li2018 li2018/human_ratings_yelp.csv --aligner minilm-l6",
    "rated": f"{_COMMAND} rated rated.jsonl --ratings fluency overall --scorers Perplexity",
    "preferences": f"{_COMMAND} preferences chosen.jsonl --reward reward.yaml",
    "raters": f"{_COMMAND} raters rated.csv --ratings anna ben carla",
}

# Options that take lists of words.
_LISTS = {"--ratings", "--scorers", "--names", "--metrics", "--systems", "--baselines"}


def run(arguments: list[str]) -> None:
    """Score a rated file, and report the correlations of scores and ratings."""
    import_scorers()
    functions: Sequence[Callable[..., None]] = (ctrleval, ctc, li2018, rated, preferences, raters)
    evaluations = {function.__name__: function for function in functions}
    purposes = {name: str(e.__doc__).splitlines()[0] for name, e in evaluations.items()}
    kinds = "\n".join(f"  {name:<12}{purpose}" for name, purpose in purposes.items())
    usage = f"{{{','.join(evaluations)}}} FILE [options]"
    overview = command_parser(_COMMAND, usage, f"{_DESCRIPTION}\n\n{kinds}", [*_EXAMPLES.values()])
    overview.add_argument("kind", type=str, help="kind of file")
    with user_errors():
        kind = one_of("kind of file", overview.parse_args(arguments[:1]).kind, evaluations)
    ratings = "--ratings COLUMN [COLUMN ...] " if kind in ("rated", "raters") else ""
    parser = command_parser(
        f"{_COMMAND} {kind}", f"FILE {ratings}[options]", purposes[kind], [_EXAMPLES[kind]]
    )
    parser.add_argument("--config", action="config", help="YAML file with options")
    skip: set[str | int] = {"log"} if kind != "raters" else set()
    parser.add_function_arguments(evaluations[kind], as_group=False, as_positional=True, skip=skip)
    config = parser.parse_args(_as_parsed(arguments[1:]))
    log = _log_path(config, parser.dump(config, format="json"))
    with user_errors(lambda: log is not None and log.exists()):
        options = parser.instantiate(config).as_dict()
        options.pop("config")
        evaluations[kind](**options, **{str(name): log for name in skip})
        if log:
            log.unlink(missing_ok=True)


def _log_path(config: Any, options: str) -> Path | None:
    """Return the file of the scores of these options, None where it can't be written."""
    data, output = Path(config.data), config.get("scores") or config.get("output")
    digest = hashlib.sha256(options.encode()).hexdigest()[:8]
    folder = Path(output).parent if output else Path()
    log = folder / f"{data.name}.{digest}.partial.jsonl"
    return log if os.access(folder, os.W_OK) else None


def _as_parsed(arguments: Sequence[str]) -> list[str]:
    """Write `--data FILE` as the positional argument that it is, and flags and lists in full."""
    given = []
    for argument in arguments:
        if argument in ("--fit_gm", "--ablation", "--score_end"):
            given.append(f"{argument}=true")
        elif argument != "--data":
            given.append(argument.removeprefix("--data="))
    return gather_words(given, _LISTS)
