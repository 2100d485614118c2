"""CTRLEval's studies of itself on a rated file: Table 5 and Figures 2 to 4 of its paper.

All of them compute from scores of texts and of pattern evaluators that are there already: no model
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.ctrleval import weighted_mean
from ctrlreward.plots import SERIES, finish_panel, new_figure, save_figure
from ctrlreward.recipes.papers.ctrleval.recorded_evaluators import Recorded, evaluator_table
from ctrlreward.recipes.papers.meta_eval.correlations import STATISTICS, cell, print_rows
from ctrlreward.recipes.papers.meta_eval.published_figures import published
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.recipes.papers.meta_eval.rating_correlation import correlate
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.task import Task

Ints: TypeAlias = npt.NDArray[np.int64]

# A score and the rating that it is correlated with.
Pair: TypeAlias = tuple[str, str]

# Curves of one panel: by label, the means and standard deviations at each x; NaN leaves a gap.
Curves: TypeAlias = Mapping[str, tuple[Scores, Scores]]

# Quality levels of Figure 3.
LEVELS = 4

# Scores and weights β of a text's evaluators → its score, in Table 5.
_FOLDS: Mapping[str, Callable[[Scores, Scores], float]] = {
    "beta": weighted_mean,
    "mean": lambda scores, beta: float(scores.mean()),
    "max": lambda scores, beta: float(scores.max()),
    "min": lambda scores, beta: float(scores.min()),
}

# The file of Table 5.
_ABLATED_FILE = "data_topic.txt"
_MODEL = "CTRLEval PEGASUS-568M"


def ablate(rated: Rated, evaluated: Mapping[str, Sequence[Recorded]]) -> list[dict[str, Any]]:
    """Correlate each aspect with its rating under every aggregation of evaluators (Table 5).

    Args:
        rated: The rated file, n rows.
        evaluated: By aspect, scores and weights of each row's evaluators, the weights by the
            paper's β.

    Returns:
        One record for each aggregation and aspect: `weights`, `score`, the statistics of
        `correlate`, and `published`, the paper's Pearson's r on data_topic.txt with PEGASUS, or
        None.
    """
    rows: list[dict[str, Any]] = []
    for name, fold in _FOLDS.items():
        for aspect, texts in evaluated.items():
            scores = np.array([fold(*text) if len(text[0]) else np.nan for text in texts])
            row = {"weights": name, "score": aspect, **correlate(scores, rated.ratings[aspect])}
            rows.append({**row, "published": _table_5(aspect, name)})
    return rows


def print_ablation(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    """Print the result of `ablate` for a file, next to the paper's."""
    aspects = list(dict.fromkeys(row["score"] for row in rows))
    cells: dict[str, list[str]] = {}
    for row in rows:
        both = f"{row['pearson']:.4f} ({row['published']:.4f})"
        cells.setdefault(row["weights"], [row["weights"]]).append(both)
    title = f"{file}: Pearson r by aggregation; in brackets, {_MODEL} on {_ABLATED_FILE}"
    print_rows(title, ["weights", *aspects], cells.values())


def correlate_systems(
    rated: Rated, scores: Mapping[str, Scores], pairs: Sequence[Pair]
) -> list[dict[str, Any]]:
    """Correlate scores with ratings on the texts of each system (Figure 2).

    Args:
        rated: The rated file, n rows, with systems.
        scores: Scores by name, shape (n,) each.
        pairs: Scores and their ratings.

    Returns:
        For each pair and system: `score`, `rating`, `system` and the statistics of `correlate`.
    """
    systems = np.array(rated.systems)
    rows = []
    for score, rating in pairs:
        for system in dict.fromkeys(rated.systems or ()):
            chosen = systems == system
            row = {"score": score, "rating": rating, "system": system}
            found = correlate(scores[score][chosen], rated.ratings[rating][chosen])
            rows.append({**row, **found})
    return rows


def print_systems(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    """Print the result of `correlate_systems` for a file: Pearson's r, a column for each system."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    cells = [
        [*pair, *(cell(row["pearson"]) for row in found)] for pair, found in _by_pair(rows).items()
    ]
    title = f"{file}: Pearson r on the texts of one system"
    print_rows(title, ["rating", "score", *systems], cells, left=2)


def count_evaluators(
    rated: Rated, relevance: Sequence[Recorded], task: Task, draws: int, seed: int
) -> list[dict[str, Any]]:
    """Correlate attribute relevance by k random evaluators with its rating (Figure 4).

    Draw d is `task.subset(k, seed + d)`.

    Args:
        rated: The rated file, n rows.
        relevance: Scores and weights of each row's evaluators of attribute relevance, all of the
            task's.
        task: The task.
        draws: Number of draws for each k, 1 or more.
        seed: Seed of the first draw.

    Returns:
        For each k from 1 to all: `evaluators` (k) and, by statistic, `mean` and `deviation` over
        the draws.
    """
    evaluators = task.evaluators
    places = {evaluator: place for place, evaluator in enumerate(evaluators)}
    scores, weights = evaluator_table(relevance, len(evaluators))
    rows = []
    for k in range(1, len(evaluators) + 1):
        drawn = []
        for d in range(draws):
            chosen = [places[evaluator] for evaluator in task.subset(k, seed + d)]
            subset = subset_means(scores, weights, chosen)
            drawn.append(correlate(subset, rated.ratings["attribute_relevance"]))
        rows.append({"evaluators": k, **_over_draws(drawn)})
    return rows


def sample_levels(
    rated: Rated, scores: Mapping[str, Scores], pairs: Sequence[Pair], draws: int, seed: int
) -> list[dict[str, Any]]:
    """Correlate scores with ratings on texts biased to a level of quality (Figure 3).

    The levels are quarters of the texts, sorted by the rating that is correlated. Scores with one
    rating are compared on the same draws.

    Args:
        rated: The rated file, n rows.
        scores: Scores by name, shape (n,) each.
        pairs: Scores and their ratings.
        draws: Number of draws of each subset, 1 or more.
        seed: Seed of the first draw.

    Returns:
        For each pair and level i: `score`, `rating`, `level`, `texts` (their mean number),
        `counts` (the mean number from each level) and, by statistic, `mean` and `deviation` over
        the draws.
    """
    rows = []
    for score, rating in pairs:
        values, ratings = scores[score], rated.ratings[rating]
        levels = quality_levels(ratings, LEVELS)
        for level in range(1, LEVELS + 1):
            samples = [biased_sample(levels, level, seed + d) for d in range(draws)]
            drawn = [correlate(values[sample], ratings[sample]) for sample in samples]
            each = [np.bincount(levels[s], minlength=LEVELS + 1) for s in samples]
            counts = np.mean(each, axis=0)
            row = {"score": score, "rating": rating, "level": level, "texts": float(counts.sum())}
            row["counts"] = counts[1:].tolist()
            rows.append({**row, **_over_draws(drawn)})
    return rows


def print_levels(rows: Sequence[Mapping[str, Any]], file: str, draws: int) -> None:
    """Print the result of `sample_levels`: Pearson's r and texts, a column for each level."""
    cells = []
    for (rating, score), found in _by_pair(rows).items():
        cells.append([rating, score, *(_plus_minus(row["pearson"]) for row in found)])
        if rating == score:
            cells.append([rating, "texts", *(f"{row['texts']:.0f}" for row in found)])
    title = f"{file}: Pearson r by favoured level, mean ± deviation of {draws} draws"
    print_rows(title, ["rating", "score", *map(str, range(1, LEVELS + 1))], cells, left=2)


def print_counts(
    rows: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, float | None]],
    file: str,
    draws: int,
) -> None:
    """Print `count_evaluators` for 1, 2, 4, … and all, and below other scores by name."""
    cells = [
        [str(row["evaluators"]), *(_plus_minus(row[name]) for name in STATISTICS)]
        for row in rows
        if row["evaluators"].bit_count() == 1 or row is rows[-1]
    ]
    cells += [[name, *_cells(found)] for name, found in baselines.items()]
    title = f"{file}: attribute_relevance by k evaluators, mean ± deviation of {draws} draws"
    print_rows(title, ["k", *STATISTICS.values()], cells)


def draw_systems(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the result of `correlate_systems` as a PNG, one panel per rating.

    Raises:
        ImportError: matplotlib is not installed.
    """
    systems = list(dict.fromkeys(row["system"] for row in rows))
    curves = [{**row, "pearson": {"mean": row["pearson"], "deviation": 0.0}} for row in rows]
    draw_deviations(_panels(curves), np.arange(float(len(systems))), "system", path, ticks=systems)


def draw_levels(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw `sample_levels` as a PNG, as `draw_systems`, below the numbers of texts."""
    x = np.arange(1.0, LEVELS + 1)
    counts = [
        [r["counts"] for r in rows if r["rating"] == r["score"] == rating]
        for rating in dict.fromkeys(r["rating"] for r in rows)
    ]
    draw_deviations(_panels(rows), x, "favoured level of quality", path, counts=np.array(counts))


def draw_counts(
    rows: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, float | None]],
    path: Path,
) -> None:
    """Draw `count_evaluators` as a PNG, as `draw_systems`, other scores as lines at one height."""
    x = np.array([float(row["evaluators"]) for row in rows])
    curves = {"attribute relevance": _curve(rows)}
    for name, found in baselines.items():
        height = np.nan if found["pearson"] is None else found["pearson"]
        curves[name.replace("_", " ")] = np.full(len(x), height), np.zeros(len(x))
    draw_deviations({"attribute relevance": curves}, x, "evaluators", path)


def _table_5(aspect: str, weights: str) -> float | None:
    model = _MODEL if weights == "beta" else f"{_MODEL} weights={weights}"
    for figure in published(_ABLATED_FILE, score=aspect, level="sample"):
        if (figure.model, figure.statistic) == (model, "pearson"):
            return figure.value
    return None


def _over_draws(drawn: Sequence[Mapping[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """Return mean and standard deviation (divisor n) of each statistic where it is defined."""
    result: dict[str, dict[str, float | None]] = {}
    for name in STATISTICS:
        values = [value for row in drawn if (value := row[name]) is not None]
        found = (float(np.mean(values)), float(np.std(values))) if values else (None, None)
        result[name] = dict(zip(("mean", "deviation"), found, strict=True))
    return result


def _plus_minus(found: Mapping[str, float | None]) -> str:
    mean, deviation = found["mean"], found["deviation"]
    return "–" if mean is None else f"{mean:.3f} ± {deviation:.3f}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [cell(row[name]) for name in STATISTICS]


def _by_pair(rows: Sequence[Mapping[str, Any]]) -> dict[Pair, list[Mapping[str, Any]]]:
    """Return the rows of each rating and score."""
    found: dict[Pair, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["rating"], row["score"]), []).append(row)
    return found


def _panels(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curves]:
    """Return a panel for each rating, with a curve for each of its scores."""
    panels: dict[str, dict[str, tuple[Scores, Scores]]] = {}
    for (rating, score), chosen in _by_pair(rows).items():
        panel = panels.setdefault(rating.replace("_", " "), {})
        panel[score.replace("_", " ")] = _curve(chosen)
    return dict(panels)


def _curve(rows: Sequence[Mapping[str, Any]]) -> tuple[Scores, Scores]:
    """Return mean and deviation of Pearson's r, which the paper's figures show, in each row."""
    values = [(row["pearson"]["mean"], row["pearson"]["deviation"]) for row in rows]
    mean, deviation = np.array(values, dtype=np.float64).T
    return mean, deviation


def draw_deviations(
    panels: Mapping[str, Curves],
    x: Scores,
    x_label: str,
    path: Path,
    ticks: Sequence[str] | None = None,
    counts: Scores | None = None,
) -> None:
    """Draw mean curves of Pearson's r in bands of one standard deviation, as a PNG.

    Args:
        panels: Curves of each panel, arrays of shape (points,), by the panel's title.
        x: Positions of the points, shape (points,), the same in all panels.
        x_label: Label of the x axes.
        path: The PNG; its folder is made.
        ticks: Names of the positions; numbers by default.
        counts: Numbers of texts in bars above each panel, shape (panels, points, parts of a bar).

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(3.6 * len(panels), 3.0 if counts is None else 4.6)
    heights = [2] if counts is None else [1, 2]
    axes = figure.subplots(
        len(heights), len(panels), sharex=True, sharey="row", squeeze=False, height_ratios=heights
    )
    for panel, (title, curves) in zip(axes[-1], panels.items(), strict=True):
        for (label, (mean, deviation)), color in zip(curves.items(), cycle(SERIES), strict=False):
            panel.plot(x, mean, color=color, linewidth=1.4, marker="o", markersize=2.5, label=label)
            panel.fill_between(
                x, mean - deviation, mean + deviation, color=color, alpha=0.2, linewidth=0
            )
        if ticks is None:
            panel.xaxis.get_major_locator().set_params(integer=True)
        else:
            panel.set_xticks(x, ticks)
        finish_panel(panel, title, x_label, legend=len(curves) > 1)
    axes[-1, 0].set_ylabel("Pearson r with the rating", fontsize=8)
    for panel, bars in zip(axes[:-1].flat, () if counts is None else counts, strict=True):
        for level, (part, color) in enumerate(zip(bars.T, cycle(SERIES), strict=False)):
            below = bars[:, :level].sum(axis=1)
            panel.bar(x, part, bottom=below, color=color, label=f"level {level + 1}")
        finish_panel(panel, "", "", "texts" if panel is axes[0, 0] else None)
    if counts is not None:
        axes[0, 0].legend(
            fontsize=7, frameon=False, ncols=LEVELS, loc="lower left", bbox_to_anchor=(0, 1)
        )
    save_figure(figure, path)


def subset_means(scores: Scores, weights: Scores, chosen: Sequence[int]) -> Scores:
    """Return the scores of texts by some of their evaluators (Figure 4).

    Args:
        scores: Scores of the evaluators, shape (n, evaluators); rows of NaN stay NaN.
        weights: Weights ≥ 0 that need not sum to 1, same shape.
        chosen: Indices of one evaluator or more.

    Returns:
        Shape (n,): `weighted_mean` of each row over the chosen columns.

    Examples:
        >>> scores, weights = np.array([[0.5, 0.1, 0.9]]), np.array([[1.0, 5.0, 3.0]])
        >>> subset_means(scores, weights, [0, 2])  # (0.5 · 1 + 0.9 · 3) / 4
        array([0.8])
    """
    columns = list(chosen)
    rows = zip(scores[:, columns], weights[:, columns], strict=True)
    return np.array([weighted_mean(*row) if np.isfinite(row).all() else np.nan for row in rows])


def quality_levels(ratings: Scores, levels: int = 4) -> Ints:
    """Return the level of quality of each text: the quarter of the texts sorted by rating.

    Equal ratings are in the order of the rows, so that all levels have the same number of texts,
    or as many as differ by 1.

    Args:
        ratings: Shape (n,), higher is better; NaN for a text without a rating.
        levels: Number of levels, 1 or more.

    Returns:
        Shape (n,), from 1, the lowest quality, to `levels`; 0 for NaN.

    Examples:
        >>> quality_levels(np.array([1.0, 4.0, 4.0, 5.0, np.nan]))
        array([1, 2, 3, 4, 0])
    """
    rated = int(np.sum(~np.isnan(ratings)))
    found = np.zeros(len(ratings), dtype=np.int64)
    order = np.argsort(ratings, kind="stable")[:rated]  # NaN is last
    found[order] = 1 + np.arange(rated) * levels // max(rated, 1)
    return found


def biased_sample(levels: Ints, favoured: int, seed: int) -> npt.NDArray[np.bool_]:
    """Draw texts with a bias to one level of quality (Figure 3).

    A text of level j is drawn with probability 1 / (|j - i| + 1), where i is the favoured level;
    the draws are independent.

    Args:
        levels: Level of each text, shape (n,), as `quality_levels` returns them; 0 is never drawn.
        favoured: The level i, all of whose texts are drawn.
        seed: Seed of the draw; no other random state is read or changed.

    Returns:
        True for the texts that are drawn, shape (n,).

    Examples:
        >>> levels = np.array([1, 2, 3, 0] * 5000)
        >>> drawn = biased_sample(levels, favoured=1, seed=0)
        >>> drawn.reshape(5000, 4).mean(axis=0).round(1)  # 1, 1/2, 1/3 and never
        array([1. , 0.5, 0.3, 0. ])
    """
    probability = np.where(levels > 0, 1 / (np.abs(levels - favoured) + 1), 0)
    return np.random.default_rng(seed).random(len(levels)) < probability
