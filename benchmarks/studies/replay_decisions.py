"""At which validation each alarm speaks in finished runs, and a figure of their bands.

    python benchmarks/studies/replay_decisions.py RUN [RUN …] [--proxy attribute_relevance:max]
        [--held-out distinct_2:max perplexity:min] [--name score] [--draw PNG]

Reads what a `GenerationScorer` has written, RUN/samples/<name>/step=*.jsonl.
Each rule of `alarms.py` watches each held-out score; its alarm counts from the first validation on
at which the mean of the proxy is better than at the first one. The figure shows the first run: the
mean of each score, its difference to the first validation with an interval that holds at all
validations together, and the first alarm of `AlarmRule`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from alarms import NEVER, RULES

from ctrlreward.functional.sequential import level_of_test, paired_difference
from ctrlreward.plots.style import FIRST, SECOND, finish_panel, new_figure, save_figure
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.scorers.base import Scores
from ctrlreward.selection.alarm import LEVEL

ALARMS = ("ours, first", "ours, best", "t", "random walk", "3 sigma", "ratio", "Mann-Kendall",
          "CUSUM", "3 in a row")  # fmt: skip


def read_run(folder: Path, name: str, keys: list[str]) -> tuple[list[int], dict[str, Scores]]:
    """Return the steps of a run's validations, and the values by prompt, (validations, prompts)."""
    names = {key: f"{name}/{key}" for key in keys}
    steps = [
        each
        for each in read_stored_run(folder).steps
        if all(logged in each.evidence for logged in names.values())
    ]
    if not steps:
        raise SystemExit(f"{folder} has no samples with values by prompt of {', '.join(keys)}")
    rows = {key: np.stack([each.evidence[names[key]] for each in steps]) for key in keys}
    return [each.step for each in steps], rows


def speaks(run: Scores, proxy: Scores, rule: str) -> int:
    """Return the first validation, from 2 on, at which a rule speaks and the proxy has risen."""
    for end in range(2, len(run) + 1):
        if RULES[rule](run[:end]) == end and proxy[end - 1] > proxy[0]:
            return end
    return NEVER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--proxy", default="attribute_relevance:max")
    parser.add_argument("--held-out", nargs="+", default=["distinct_2:max", "perplexity:min"])
    parser.add_argument("--name", default="score")
    parser.add_argument("--draw", metavar="PNG")
    options = parser.parse_args()
    signs = {
        key: 1.0 if mode == "max" else -1.0
        for key, _, mode in (given.partition(":") for given in [options.proxy, *options.held_out])
    }
    proxy, *held_out = signs
    print(f"| run | held-out score | first → last | {' | '.join(ALARMS)} |")
    print("|---" * (3 + len(ALARMS)) + "|")
    drawn = None
    for folder in options.runs:
        steps, evidence = read_run(folder, options.name, list(signs))
        drawn = drawn or (steps, evidence)
        means = {key: rows.mean(axis=1) for key, rows in evidence.items()}
        for key in held_out:
            found = [speaks(signs[key] * evidence[key], signs[proxy] * means[proxy], rule)
                     for rule in ALARMS]  # fmt: skip
            cells = ["silent" if place == NEVER else f"step {steps[place - 1]}" for place in found]
            change = f"{means[key][0]:.3f} → {means[key][-1]:.3f}"
            print(f"| {folder.name} | {key} | {change} | {' | '.join(cells)} |", flush=True)
    if options.draw and drawn:
        draw(*drawn, signs, Path(options.draw))


def draw(
    steps: list[int], evidence: dict[str, Scores], signs: dict[str, float], path: Path
) -> None:
    """Draw the difference of each score to the first validation, with its interval."""
    figure = new_figure(4.2 * len(evidence), 3.2)
    axes = figure.subplots(1, len(evidence), squeeze=False)[0]
    for axis, (key, rows) in zip(axes, evidence.items(), strict=True):
        differences = [
            paired_difference(rows[0], rows[k], level_of_test(LEVEL, k))
            for k in range(1, len(rows))
        ]
        values = [d.value for d in differences]
        low, high = [d.low for d in differences], [d.high for d in differences]
        axis.fill_between(steps[1:], low, high, color=FIRST, alpha=0.15, linewidth=0)
        axis.plot(steps[1:], values, color=FIRST, marker="o", markersize=3)
        axis.axhline(0, color="0.5", linewidth=0.8)
        place = RULES["ours, first"](signs[key] * rows)
        if place != NEVER:
            axis.axvline(steps[place - 1], color=SECOND, linestyle="--")
            axis.annotate("declined", (steps[place - 1], max(values)), color=SECOND)
        finish_panel(axis, f"{key}, difference to step {steps[0]}", "step")
    save_figure(figure, path)


if __name__ == "__main__":
    main()
