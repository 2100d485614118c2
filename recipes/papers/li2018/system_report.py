"""Table, differences, checks, rewritings and picture of style transfer systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.files import JsonLog
from ctrlreward.functional.bootstrap import Estimate
from ctrlreward.functional.pareto import non_dominated
from ctrlreward.functional.transfer import paired_transfer_bootstrap
from ctrlreward.plots.curves import curve
from ctrlreward.plots.style import (
    FAINT,
    FIRST,
    SERIES,
    TEXT,
    finish_panel,
    new_figure,
    save_figure,
)
from ctrlreward.recipes.papers.li2018.system_figures import SystemFigures
from ctrlreward.recipes.papers.li2018.system_outputs import REFERENCES, SystemOutputs
from ctrlreward.recipes.papers.textual_transfer.markdown_table import markdown_table
from ctrlreward.samples import Samples

# Columns with intervals, and the headings of the others.
_COLUMNS = {
    "accuracy": ("Acc", 3),
    "independent": ("Acc, independent", 3),
    "similarity": ("Sim", 3),
    "uncentred": ("Sim, uncentred", 3),
    "perplexity": ("PP", 1),
    "gm": ("GM", 1),
}
_WITH_INTERVAL = ("independent", "similarity", "perplexity", "gm")
_SHOWN = 40

# Bounds of a system that is good enough, relative to the references but for the first.
_LEAST_ACCURACY, _SIMILARITY_LOSS, _LEAST_DISTINCT = 0.80, 0.05, 0.8


class Check(NamedTuple):
    """One requirement of the selected system.

    Attributes:
        claim: The requirement, in words.
        figures: The figures that it compares.
        met: Whether it is met; False if a figure is undefined.
    """

    claim: str
    figures: str
    met: bool


def differences(
    figures: Mapping[str, SystemFigures],
    selected: str | None,
    others: Sequence[str],
    thresholds: tuple[float, float, float, float],
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return the selected system's corpus GM minus each other one's, with paired 95 % intervals.

    Args:
        figures: Systems by name.
        selected: Name of one; None for no differences.
        others: Names of systems with the same sentences.
        thresholds: t1 to t4 of GM.
        resamples: Number of draws.
        seed: Seed of the draws.
    """
    if selected is None:
        return {}
    after = figures[selected].scores
    return {
        name: paired_transfer_bootstrap(
            figures[name].scores, after, thresholds, resamples=resamples, seed=seed
        )["gm"]
        for name in others
    }


def acceptance(
    figures: Mapping[str, SystemFigures], selected: str | None, found: Mapping[str, Estimate]
) -> list[Check]:
    """Return the requirements of the selected system; none without one.

    Args:
        figures: Systems by name, the references among them.
        selected: Name of one.
        found: Result of `differences`.
    """
    if selected is None:
        return []
    system, humans = figures[selected], figures[REFERENCES]
    mine, theirs = ({k: e.value for k, e in s.estimates.items()} for s in (system, humans))
    accuracy, least = mine["independent"], theirs["similarity"] - _SIMILARITY_LOSS
    sim, pp, most = mine["similarity"], mine["perplexity"], theirs["perplexity"]
    own, distinct = system.distinct_2, _LEAST_DISTINCT * humans.distinct_2
    share = f"Distinct-2 ≥ {_LEAST_DISTINCT:.1f} × Distinct-2 of the references"
    loss = f"Sim ≥ Sim of the references - {_SIMILARITY_LOSS:.2f}"
    bound = f"independent Acc ≥ {_LEAST_ACCURACY:.2f}"
    checks = [
        Check(bound, f"{accuracy:.3f}", accuracy >= _LEAST_ACCURACY),
        Check(loss, f"{sim:.3f}, at least {least:.3f}", sim >= least),
        Check("PP ≤ PP of the references", f"{pp:.1f}, at most {most:.1f}", pp <= most),
        Check(share, f"{own:.3f}, at least {distinct:.3f}", own >= distinct),
    ]
    for name, gm in found.items():
        claim = f"GM above the GM of {name}, with the interval above 0"
        checks.append(Check(claim, _signed(gm), gm.value > 0 and gm.low > 0))
    return checks


def systems_text(
    figures: Mapping[str, SystemFigures],
    selected: str | None,
    found: Mapping[str, Estimate],
    checks: Sequence[Check],
) -> str:
    """Return table, differences and checks in Markdown.

    Args:
        figures: Systems by name, all by the same judges.
        selected: Name of the system that is compared and checked.
        found: Result of `differences`.
        checks: Result of `acceptance`.
    """
    names = [name for name in _COLUMNS if name in next(iter(figures.values())).estimates]
    header = ["system", "n", *(_COLUMNS[name][0] for name in names), "BLEU", "METEOR", "Distinct-2"]
    rows = [
        [
            name,
            str(len(each.rows)),
            *(_cell(each, figure) for figure in names),
            *("" if value is None else f"{value:.1f}" for value in (each.bleu, each.meteor)),
            f"{each.distinct_2:.3f}",
        ]
        for name, each in figures.items()
    ]
    parts = [
        markdown_table(header, rows),
        "Acc, Sim, PP and GM are by the judges of the reward, Acc independent by a classifier that "
        "it does not use. 95 % intervals are by bootstrap over sentences. Texts are judged as "
        "tokenized corpora are written. Distinct-2 counts pairs of words and falls with the number "
        "of sentences, n: compare rows of equal n.",
    ]
    failed = [f"{each.failed} of {name}" for name, each in figures.items() if each.failed]
    if failed:
        parts.append(f"Outputs that a judge could not score, left out: {', '.join(failed)}.")
    if found:
        parts += [
            f"GM of {selected} minus GM of another system on the same sentences:",
            markdown_table(["other", "difference"], [[k, _signed(e)] for k, e in found.items()]),
        ]
    if checks:
        lines = [f"- {'met' if c.met else 'missed'}: {c.claim}: {c.figures}" for c in checks]
        parts += [f"Requirements of {selected}:", "\n".join(lines)]
    return "\n\n".join(parts)


def rewritings(test: Samples, systems: Sequence[SystemOutputs], rows: int = _SHOWN) -> str:
    """Return a table of test sentences with reference and outputs, evenly spaced over all.

    Args:
        test: Test sentences; see `read_references`.
        systems: Systems with an output for each.
        rows: Number of sentences; all if there are fewer.
    """
    sources, labels = test.require("sources", "rewritings"), test.require("labels", "rewritings")
    humans = test.require("references", "rewritings")
    picked = np.linspace(0, len(test) - 1, min(rows, len(test))).round().astype(int).tolist()
    header = ["", "target", "source", "reference", *(system.name for system in systems)]
    body = [
        [str(i + 1), labels[i], sources[i], humans[i], *(each.samples.texts[i] for each in systems)]
        for i in picked
    ]
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(map(_inline, line))} |" for line in (header, rule, *body))


def validation_trail(folder: Path, scorer: str = "score") -> list[tuple[float, float]]:
    """Return (independent Acc, Sim) of each validation of a run, in their order.

    Args:
        folder: Folder of the run's `HistoryLogger`.
        scorer: Name of the `GenerationScorer`, whose other score `independent` is the Acc.

    Raises:
        ValueError: No validation has logged both.
    """
    history = JsonLog(folder / "metrics.jsonl").read()
    keys = f"{scorer}/independent", f"{scorer}/corpus/similarity"
    accuracy, similarity = (dict(zip(*curve(history, key), strict=True)) for key in keys)
    pairs = [(accuracy[step], similarity[step]) for step in accuracy if step in similarity]
    points = [pair for pair in pairs if all(map(isfinite, pair))]
    if not points:
        raise ValueError(
            f"{folder}/metrics.jsonl has no validation with {keys[0]} and {keys[1]}. Leave it out."
        )
    return points


def front(figures: Mapping[str, SystemFigures]) -> dict[str, tuple[float, float]]:
    """Return (independent Acc, Sim) of the systems that no other one dominates, by rising Acc."""
    points = _points(figures)
    kept = non_dominated(np.array(list(points.values())).reshape(-1, 2), ["max", "max"])
    on_front = [item for item, on in zip(points.items(), kept, strict=True) if on]
    return dict(sorted(on_front, key=lambda item: (item[1][0], -item[1][1])))


def draw_systems(
    figures: Mapping[str, SystemFigures],
    trails: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
) -> None:
    """Draw independent Acc against Sim as a PNG, with the Pareto front of both.

    Systems without an output for each sentence are hollow.

    Args:
        figures: Systems by name.
        trails: Run → (independent Acc, Sim) of its validations, which are of other sentences.
        path: The PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(6.4, 4.8)
    panel: Any = figure.subplots()
    most = max(len(each.rows) for each in figures.values())
    for number, (name, trail) in enumerate(trails.items(), 1):
        xs, ys = zip(*trail, strict=True)
        colour = SERIES[number % len(SERIES)]
        label = f"validations of {name}"
        panel.plot(xs, ys, color=colour, marker=".", markersize=4, linewidth=0.8, label=label)
    best = front(figures)
    if best:
        xs, ys = zip(*best.values(), strict=True)
        panel.plot(xs, ys, color=FIRST, linewidth=1, label="Pareto front")
    for name, point in _points(figures).items():
        colour = FIRST if name in best else FAINT
        filled = colour if len(figures[name].rows) == most else "none"
        panel.scatter(*point, s=24, facecolors=filled, edgecolors=colour, zorder=3)
        panel.annotate(
            name, point, xytext=(4, 4), textcoords="offset points", fontsize=7, color=TEXT
        )
    finish_panel(
        panel, "content against style", "independent Acc", "Sim", legend=bool(best or trails)
    )
    save_figure(figure, path)


def _points(figures: Mapping[str, SystemFigures]) -> dict[str, tuple[float, float]]:
    values = {
        name: (each.estimates["independent"].value, each.estimates["similarity"].value)
        for name, each in figures.items()
    }
    return {name: point for name, point in values.items() if all(map(isfinite, point))}


def _cell(system: SystemFigures, name: str) -> str:
    digits, (value, low, high) = _COLUMNS[name][1], system.estimates[name]
    if not isfinite(value):
        return ""
    ends = f" ({low:.{digits}f} to {high:.{digits}f})" if name in _WITH_INTERVAL else ""
    return f"{value:.{digits}f}{ends}"


def _signed(estimate: Estimate) -> str:
    value, low, high = estimate
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def _inline(text: str) -> str:
    """Return a text as a cell of a table: one line, without the mark that separates cells."""
    return " ".join(text.split()).replace("|", r"\|")
