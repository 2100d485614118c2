"""CTRLEval (Ke et al., ACL 2022): Tables 3 to 5 and Figures 2 to 5 on a rated file.

    python -m ctrlreward.recipes.papers.ctrleval ctrleval/data_senti.txt \
        --systems ctrl pplm gedi cocon --baselines Perplexity --figure studies.png

A model explains the scores of all texts once; tables and figures are functions of the pattern
evaluators that it finds. https://aclanthology.org/2022.acl-long.164
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import ctrlreward
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.extras import import_extra
from ctrlreward.files import json_text, whole_file, write_whole
from ctrlreward.functional.ctrleval import weighted_mean
from ctrlreward.models.causal import CausalLM
from ctrlreward.ratings.correlations import STATISTICS, correlate
from ctrlreward.ratings.rated_files import Rated, read_rated
from ctrlreward.ratings.report import cell, print_table, report_correlations
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.ctrleval import SPECS, CTRLEval, Explanation
from ctrlreward.scorers.parts import score_parts
from ctrlreward.scorers.task import Task

BASELINES = ("BARTScore", "LexiconSentiment", "Perplexity", "Repetition")
ASPECTS = ("coherence", "consistency", "attribute_relevance")
RELEVANCE = ASPECTS[2]
LEVELS = 4  # of quality, in Figure 3

# Scores and weights of a text's evaluators; both are empty if it failed.
Evaluators: TypeAlias = tuple[Scores, Scores]
Fold: TypeAlias = Callable[[Scores, Scores], float]
Row: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[str, str, Scores]  # rating, score, values

# Table 5: scores of a text's evaluators, and their weights β → its score.
FOLDS: Mapping[str, Fold] = {
    "beta": weighted_mean,
    "mean": lambda scores, _: float(scores.mean()),
    "max": lambda scores, _: float(scores.max()),
    "min": lambda scores, _: float(scores.min()),
}


def published(file: str) -> Iterator[tuple[str, str, dict[tuple[str, str], float]]]:
    """Yield model, table, and correlation by aspect and statistic, of the paper's on a file."""
    head = [""]
    for line in Path(__file__).with_name("ctrleval_tables.txt").read_text("utf-8").splitlines():
        if line.startswith("# "):
            head = line.removeprefix("# ").split(" | ")
        elif line[0] not in "%!" and head[0] == file:
            model, cells = line.split(": ")
            columns = zip(product(head[1].split(", "), STATISTICS), cells.split(), strict=True)
            yield model, head[3], {key: float(cell) for key, cell in columns if cell != "-"}


def evaluators_of(explained: Sequence[Mapping[str, Explanation]], aspect: str) -> list[Evaluators]:
    """Return scores and weights of each text's evaluators of an aspect."""
    rows = ([(e.score, e.weight) for e in each[aspect].evaluators] for each in explained)
    return [(table[:, 0], table[:, 1]) for table in (np.array(row).reshape(-1, 2) for row in rows)]


def folded(texts: Sequence[Evaluators], fold: Fold) -> Scores:
    """Return the score of each text, shape (n,); NaN for one that failed."""
    return np.array([fold(*text) if len(text[0]) else np.nan for text in texts])


def take_turns(systems: Sequence[str], samples: Samples) -> tuple[str, ...]:
    """Return the system of each row: systems take turns within a label and prefix."""
    turns: Counter[tuple[Any, str]] = Counter()
    assigned = []
    for key in zip(samples.labels or (), samples.prefixes or (), strict=True):
        assigned.append(systems[turns[key] % len(systems)])
        turns[key] += 1
    return tuple(assigned)


def table_5(file: Rated, evaluators: Mapping[str, Sequence[Evaluators]]) -> list[Row]:
    """Correlate each aspect with its rating by four aggregations; the paper's is Pearson's r."""
    theirs = {model: cells for model, _, cells in published("data_topic.txt")}
    rows = []
    for name, fold in FOLDS.items():
        model = "CTRLEval PEGASUS-568M" + ("" if name == "beta" else f" weights={name}")
        for aspect, texts in evaluators.items():
            row = {"weights": name, "score": aspect, "published": theirs[model][aspect, "pearson"]}
            rows.append(row | correlate(folded(texts, fold), file.ratings[aspect]))
    return rows


def figure_2(file: Rated, pairs: Sequence[Pair]) -> list[Row]:
    """Correlate the scores of each rating with it on the texts of each system."""
    rows = []
    for rating, score, values in pairs:
        for system in dict.fromkeys(file.systems or ()):
            chosen = np.array(file.systems) == system
            row = {"score": score, "rating": rating, "system": system}
            rows.append(row | correlate(values[chosen], file.ratings[rating][chosen]))
    return rows


def figure_3(file: Rated, pairs: Sequence[Pair], draws: int, seed: int) -> list[Row]:
    """Correlate the scores of each rating with it on texts biased to a level of quality.

    `texts` is the mean number of texts of a draw, `counts` that from each level.
    """
    rows = []
    for rating, score, values in pairs:
        ratings = file.ratings[rating]
        levels = quality_levels(ratings)
        for level in range(1, LEVELS + 1):
            drawn = [biased_sample(levels, level, seed + draw) for draw in range(draws)]
            counts = np.mean([np.bincount(levels[s], minlength=LEVELS + 1) for s in drawn], axis=0)
            row = {"score": score, "rating": rating, "level": level, "counts": [*counts[1:]]}
            row |= {"texts": counts.sum(), **_over_draws([(values[s], ratings[s]) for s in drawn])}
            rows.append(row)
    return rows


def figure_4(
    ratings: Scores, relevance: Sequence[Evaluators], task: Task, draws: int, seed: int
) -> list[Row]:
    """Correlate attribute relevance by k random evaluators with its rating."""
    places = {evaluator: place for place, evaluator in enumerate(task.evaluators)}
    rows = []
    for k in range(1, len(places) + 1):
        pairs = []
        for draw in range(draws):
            subset = [places[evaluator] for evaluator in task.subset(k, seed + draw)]
            texts = [(s[subset], w[subset]) if len(s) else (s, w) for s, w in relevance]
            pairs.append((folded(texts, weighted_mean), ratings))
        rows.append({"evaluators": k, **_over_draws(pairs)})
    return rows


def quality_levels(ratings: Scores) -> npt.NDArray[np.int64]:
    """Return the level of each text, 1 to 4: its quarter of the texts sorted by rating; 0 for NaN.

    Equal ratings are in the order of the rows.

    Examples:
        >>> quality_levels(np.array([1.0, 4.0, 4.0, 5.0, np.nan]))
        array([1, 2, 3, 4, 0])
    """
    rated = int(np.sum(~np.isnan(ratings)))
    levels = np.zeros(len(ratings), dtype=np.int64)
    order = np.argsort(ratings, kind="stable")[:rated]  # NaN is last
    levels[order] = 1 + np.arange(rated) * LEVELS // max(rated, 1)
    return levels


def biased_sample(levels: npt.NDArray[np.int64], favoured: int, seed: int) -> npt.NDArray[np.bool_]:
    """Draw each text of level j with probability 1 / (|j - favoured| + 1), none of level 0."""
    probability = np.where(levels > 0, 1 / (np.abs(levels - favoured) + 1), 0)
    return np.random.default_rng(seed).random(len(levels)) < probability


def draw(record: Mapping[str, Any], explanation: Explanation, path: Path) -> None:
    """Draw Figures 2 to 4, a row of panels each, and the evaluators of one text (Figure 5)."""
    studies = {"figure_2": "system", "figure_3": "level", "figure_4": "evaluators"}
    studies = {study: x for study, x in studies.items() if study in record}
    matplotlib = import_extra("matplotlib.figure", "a figure")
    figure = matplotlib.Figure(figsize=(11, 3 * len(studies) + 4), layout="constrained")
    grid = figure.add_gridspec(len(studies) + 1, 3)
    for place, (study, x) in enumerate(studies.items()):
        rows = [{"rating": RELEVANCE, "score": RELEVANCE, **row} for row in record[study]]
        for column, rating in enumerate(dict.fromkeys(row["rating"] for row in rows)):
            panel = figure.add_subplot(grid[place, column])
            for score in dict.fromkeys(r["score"] for r in rows if r["rating"] == rating):
                shown = [r for r in rows if (r["score"], r["rating"]) == (score, rating)]
                means = [r["pearson"] for r in shown]
                if study != "figure_2":
                    means, errors = ([r[end] for r in means] for end in ("mean", "deviation"))
                    panel.errorbar([r[x] for r in shown], means, errors, fmt="none", alpha=0.4)
                panel.plot([r[x] for r in shown], means, marker="o", markersize=2.5, label=score)
            panel.set(title=f"{study}: {rating}", xlabel=x, ylabel="Pearson r")
            panel.legend(fontsize=7)
    bars = sorted(explanation.evaluators, key=lambda e: -e.weight)[:12]
    for column, part in ((1, "score"), (2, "weight")):
        panel = figure.add_subplot(grid[-1, column])
        panel.barh(range(len(bars)), [getattr(e, part) for e in bars])
        panel.invert_yaxis()
        panel.set(title=f"figure_5: {explanation.score:.3f}", xlabel=part)
        labels = [f"{e.left[-24:]} [{e.target[:40]}] {e.right[:24]}" for e in bars]
        # A text with two dollar signs is not a formula.
        panel.set_yticks(range(len(bars)), labels if column == 1 else [], parse_math=False)
    with whole_file(path) as file:
        figure.savefig(file, dpi=130, format=path.suffix[1:] or "png")


def print_published(file: str) -> None:
    """Print the paper's figures for a file, Tables 3, 4 and 5, a table for each aspect."""
    for aspect in ASPECTS:
        lines = [
            [f"{model}, {table}", *(_cell(cells.get((aspect, name))) for name in STATISTICS)]
            for model, table, cells in published(file)
        ]
        print_table(f"{aspect}: the paper's figures", ["model", *STATISTICS.values()], lines)


def print_figure_4(counts: Sequence[Row], baselines: Mapping[str, Row]) -> None:
    """Print Figure 4 for powers of two and all evaluators, and the baselines."""
    rows = {str(r["evaluators"]): r for r in counts if r["evaluators"].bit_count() == 1}
    rows |= {str(len(counts)): counts[-1], **baselines}
    lines = [[k, *(_cell(row[name]) for name in STATISTICS)] for k, row in rows.items()]
    print_table("Figure 4: relevance by k evaluators", ["k", *STATISTICS.values()], lines)


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Score a file, and print the tables and figures beside the paper's."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="label, prefix, text, three ratings, such as data_senti.txt")
    parser.add_argument("--task", default="sentiment", help="sentiment, topic, or a YAML file")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--iwf", help="table of inverse word frequencies")
    parser.add_argument("--systems", nargs="+", default=(), help="systems, which take turns")
    parser.add_argument("--baselines", nargs="+", default=(), choices=BASELINES, help="scorers")
    parser.add_argument("--draws", type=int, default=20, help="of each point of Figures 3 and 4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--example", type=int, default=0, help="row of Figure 5")
    parser.add_argument("--figure", type=Path, help="PNG")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    baselines = [getattr(ctrlreward, name)() for name in given.baselines]
    file = read_rated(local_file(given.data))
    if given.systems:
        file = replace(file, systems=take_turns(given.systems, file.samples))
    iwf = None if given.iwf is None else local_file(given.iwf)
    scorer = CTRLEval(given.model, given.task, iwf=iwf, weights="beta")
    explained = scorer.explain(file.samples)
    evaluators = {aspect: evaluators_of(explained, aspect) for aspect in ASPECTS}
    scores = {aspect: folded(texts, weighted_mean) for aspect, texts in evaluators.items()}
    relevance = evaluators[RELEVANCE]
    if isinstance(scorer.loaded_model, CausalLM):  # the scorer's default for a decoder-only model
        relevance = [(own, np.ones(len(own))) for own, _ in relevance]
        scores[RELEVANCE] = folded(relevance, weighted_mean)
    specs: dict[str, ScoreSpec] = dict(SPECS.items())
    others: dict[str, Scores] = {}
    if baselines:  # BARTScore needs a source: the prefix
        samples = file.samples.replace(sources=file.samples.prefixes)
        components = name_components(baselines, None)
        specs |= {name: component.spec for name, component in components.items()}
        others = score_parts(components, samples)
    record = report_correlations(file, {**scores, **others}, specs, seed=given.seed)
    print_published(file.file)
    better = {name: others[name] for name in others if specs[name].higher_is_better}
    pairs = [(a, name, v) for a in ASPECTS for name, v in {a: scores[a], **better}.items()]
    names = ["rating", "score"]
    record["table_5"] = table_5(file, evaluators)
    _print("Table 5 (data_topic.txt in the paper)", record["table_5"], ["weights"], "score")
    if given.systems:
        record["figure_2"] = figure_2(file, pairs)
        _print("Figure 2: by system", record["figure_2"], names, "system")
        print("The file names no systems: they are inferred from the order of its rows.")
    record["figure_3"] = figure_3(file, pairs, given.draws, given.seed)
    _print("Figure 3: by favoured level", record["figure_3"], names, "level")
    own = [row for row in record["figure_3"] if row["score"] == row["rating"]]
    _print("Figure 3: texts", own, ["rating"], "level", shown="texts")
    ratings = file.ratings[RELEVANCE]
    record["figure_4"] = figure_4(ratings, relevance, scorer.task, given.draws, given.seed)
    record["baselines"] = {name: correlate(values, ratings) for name, values in better.items()}
    print_figure_4(record["figure_4"], record["baselines"])
    example = explained[given.example][RELEVANCE]
    record["figure_5"] = [[e.target, e.score, e.weight] for e in example.evaluators]
    if given.json:
        write_whole(given.json, json_text(record))
    if given.figure:
        draw(record, example, given.figure)


def _over_draws(pairs: Sequence[tuple[Scores, Scores]]) -> Row:
    """Return mean and standard deviation (divisor n) of each statistic where it is defined."""
    drawn = [correlate(*pair) for pair in pairs]
    result = {}
    for name in STATISTICS:
        values = [row[name] for row in drawn if not np.isnan(row[name])] or [np.nan]
        result[name] = {"mean": np.mean(values), "deviation": np.std(values)}
    return result


def _print(
    title: str, rows: Sequence[Row], names: list[str], across: str, shown: str = "pearson"
) -> None:
    """Print Pearson's r of rows as a table, in which a key makes the columns."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        beside = f" ({_cell(row['published'])})" if "published" in row else ""
        lines.setdefault(key, [*key]).append(_cell(row[shown]) + beside)
    columns = dict.fromkeys(str(row[across]) for row in rows)
    print_table(title, [*names, *columns], [*lines.values()])


def _cell(value: float | dict[str, float] | None) -> str:
    if isinstance(value, dict):
        return "–" if np.isnan(value["mean"]) else f"{value['mean']:.3f} ± {value['deviation']:.3f}"
    return cell(value)


if __name__ == "__main__":
    main(sys.argv[1:])
