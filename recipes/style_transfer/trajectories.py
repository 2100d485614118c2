"""Command `ctrlreward trajectories`: style transfer over training, run by run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ctrlreward.arguments import check_ending, did_you_mean
from ctrlreward.command_line.parser import command_parser
from ctrlreward.command_line.terminal import plain_console, user_errors
from ctrlreward.files import write_whole
from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.style_transfer.tradeoff import (
    GMPath,
    TransferPoint,
    draw_transfer_paths,
    transfer_path,
)
from ctrlreward.runs.results import Run, read_run

_DESCRIPTION = """Show how style transfer develops over training (Pang & Gimpel 2019, Figure 1 and
Table 2): accuracy, similarity, perplexity and GM of each run at its validation
nearest to a given accuracy and at its best by GM. A step is the number of
optimizer steps done, as in the names of checkpoints."""

_EXAMPLES = (
    "ctrlreward trajectories runs/seed0 runs/seed1 --plot trajectories.png",
    "ctrlreward trajectories runs/seed0 --accuracy 0.7 --thresholds 63 71 97 -37 "
    "--output trajectories.json",
)


@dataclass(frozen=True)
class MetricKeys:
    """Logged keys; None takes the score of the corpus that `GenerationScorer` logs, else the mean.

    Args:
        accuracy: Key of the accuracy (score/corpus/accuracy or score/accuracy).
        similarity: Key of the similarity (score/corpus/similarity or score/similarity).
        perplexity: Key of the perplexity (score/corpus/perplexity or score/perplexity).
        gm: Key of the GM (score/corpus/gm or score/gm; a run without it gets the GM of the
            other three).
    """

    accuracy: str | None = None
    similarity: str | None = None
    perplexity: str | None = None
    gm: str | None = None


@dataclass(frozen=True)
class Trajectory(GMPath):
    """Validations of one run.

    Attributes:
        name: The path as the user gave it.
        keys: Metric → logged key; without `gm` where that is computed.
        points: n validations with accuracy, similarity and perplexity, in the order of the steps.
        gm: GM of each, NaN where it was not logged.
        thresholds: t1 to t4 of a computed GM, else None.
    """

    name: str
    keys: Mapping[str, str]
    points: Sequence[TransferPoint]
    gm: Sequence[float]
    thresholds: tuple[float, ...] | None


def run(arguments: list[str]) -> None:
    """Read the runs, write the files that are requested, and print the rows."""
    usage = "RUN [RUN ...] [options]"
    parser = command_parser("ctrlreward trajectories", usage, _DESCRIPTION, _EXAMPLES)
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        type=str,
        help="the folder of a logger (HistoryLogger, CSVLogger, W&B), or a CSV file with steps",
    )
    parser.add_argument(
        "--accuracy", type=float, default=0.8, help="accuracy at which the runs are compared"
    )
    parser.add_argument("--metrics", type=MetricKeys, default=MetricKeys())
    parser.add_argument(
        "--thresholds",
        nargs=4,
        type=float,
        metavar="T",
        default=None,
        help="t1 to t4 of a GM that is computed for all runs instead of the logged one",
    )
    parser.add_argument("--output", type=str | None, default=None, help="JSON file for all numbers")
    parser.add_argument("--plot", type=str | None, default=None, help="PNG file for the figure")
    options = parser.parse_args(arguments)
    with user_errors():
        check_ending("--output", options.output, ".json")
        if not 0 <= options.accuracy <= 1:
            raise ValueError(f"accuracy must be a share, 0 to 1, got {options.accuracy}")
        found = [
            read_trajectory(read_run(name), options.metrics, options.thresholds)
            for name in options.runs
        ]
        if options.output:
            content = to_record(found, options.accuracy)
            write_whole(
                Path(options.output), json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            )
        if options.plot:
            draw_transfer_paths([(each.name, each.points) for each in found], options.plot)
    print_rows(found, options.accuracy)


def read_trajectory(
    run: Run, metrics: MetricKeys, thresholds: Sequence[float] | None = None
) -> Trajectory:
    """Return the validations of a run.

    Args:
        run: A run with steps.
        metrics: Keys of its metrics.
        thresholds: t1 to t4 of the GM to compute; None takes the logged one, or without it the
            paper's thresholds.

    Raises:
        ValueError: The run does not have steps, a metric, or a validation with all metrics; or
            a value is out of range.
    """
    if not run.curves:
        raise ValueError(f"{run.name} has no steps, must be the folder of a logger")
    if metrics.gm is not None and thresholds is not None:
        raise ValueError("metrics.gm and thresholds are both given: a GM is read or computed")
    names = ("accuracy", "similarity", "perplexity")
    keys = {name: _key(run, name, getattr(metrics, name)) for name in names}
    points = transfer_path(*(run.curves[keys[name]] for name in names))
    if not points:
        raise ValueError(f"{run.name} has no step with all of {', '.join(keys.values())}")
    logged = metrics.gm or {"score/corpus/gm", "score/gm"} & run.curves.keys()
    if logged and thresholds is None:
        keys["gm"] = _key(run, "gm", metrics.gm)
        gm = [run.curves[keys["gm"]].get(point.step, float("nan")) for point in points]
        return Trajectory(run.name, keys, points, gm, None)
    t1, t2, t3, t4 = thresholds or GM_THRESHOLDS
    try:
        values = [adjusted_gm(*point[1:], thresholds=(t1, t2, t3, t4)) for point in points]
    except ValueError as error:
        raise ValueError(f"{run.name}: {error}") from error
    return Trajectory(run.name, keys, points, list(map(float, values)), (t1, t2, t3, t4))


def print_rows(trajectories: Sequence[Trajectory], accuracy: float) -> None:
    """Print the keys of each run, and two rows of it in the form of the paper's Table 2."""
    console = plain_console()
    table = Table(show_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("validation")
    for heading in ("step", "Acc", "Sim", "PP", "GM"):
        table.add_column(heading, justify="right")
    for number, each in enumerate(trajectories, 1):
        line = f"run {number}: {each.name}, {len(each.points)} validations of "
        console.print(line + ", ".join(each.keys.values()), soft_wrap=True)
        if each.thresholds:
            used = " ".join(f"{value:g}" for value in each.thresholds)
            console.print(f"  GM computed with the thresholds {used}", soft_wrap=True)
        rows = {f"Acc nearest to {accuracy:g}": each.nearest(accuracy), "best GM": each.best()}
        for name, i in rows.items():
            point = each.points[i]
            values = f"{point.accuracy:.3f}", f"{point.similarity:.3f}", f"{point.perplexity:.1f}"
            table.add_row(str(number), name, str(point.step), *values, f"{each.gm[i]:.1f}")
        if not any(value > 0 for value in each.gm):
            console.print(
                "  GM is 0 at every validation, so its best is the first. See --thresholds.",
                soft_wrap=True,
            )
    console.print()
    console.print(table)


def to_record(trajectories: Sequence[Trajectory], accuracy: float) -> dict[str, Any]:
    """Return all validations and the two rows of each run as JSON values; NaN is None."""
    runs = [
        {
            "name": each.name,
            "metrics": each.keys,
            "thresholds": each.thresholds,
            "validations": [each.row(i) for i in range(len(each.points))],
            "nearest": each.row(each.nearest(accuracy)),
            "best": each.row(each.best()),
        }
        for each in trajectories
    ]
    return {"accuracy": accuracy, "runs": runs}


def _key(run: Run, name: str, named: str | None) -> str:
    """Return the key of a metric that the run has."""
    wanted = (named,) if named else (f"score/corpus/{name}", f"score/{name}")
    for key in wanted:
        if key in run.curves:
            return key
    hint = did_you_mean(named or name, run.curves, str)
    raise ValueError(
        f"{run.name} has no {' or '.join(wanted)}{hint}. Name its {name} by --metrics.{name}=KEY, "
        f"one of {', '.join(run.curves)}."
    )
