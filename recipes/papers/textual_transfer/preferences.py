"""GM and its parts against people: eq. 1's thresholds, Tables 4 and 5 of Pang & Gimpel (2019).

    python -m ctrlreward.recipes.papers.textual_transfer.preferences ratings \
        li2018/human_ratings_yelp.csv --classifier runs/yelp_classifier
    python -m ctrlreward.recipes.papers.textual_transfer.preferences sheet \
        --system m0=m0.jsonl --system m2=m2.jsonl --output sheets
    python -m ctrlreward.recipes.papers.textual_transfer.preferences rates \
        anna.csv ben.csv --key sheets/key.csv

https://arxiv.org/abs/1810.11878. The ratings are from Li et al. (2018), of other outputs by
other people than the paper's.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Hashable, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from scipy.optimize import differential_evolution, minimize

from ctrlreward import scorers
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.files import json_text, read_jsonl, write_whole
from ctrlreward.functional.bootstrap import Estimate, bootstrap, cluster_numbers, unless_alike
from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.models.words import separate_words
from ctrlreward.ratings.correlations import correlate
from ctrlreward.ratings.rated_files import read_rated
from ctrlreward.ratings.report import print_table, report_correlations
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.recipes.text_files import matching_key
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import score_parts
from ctrlreward.tables.rows import encode_rows, read_placed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Thresholds = tuple[float, float, float, float]

PUBLISHED: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("published_tables.yaml").read_text("utf-8")
)
INPUTS = ("label_probability", "similarity", "perplexity")  # of a sentence's GM

# Thresholds fitted to preferences


def pairwise_preferences(ratings: npt.ArrayLike, items: Sequence[Hashable]) -> tuple[Ints, Ints]:
    """Return the indices of the preferred and the rejected outputs of the same item, both (pairs,).

    Equal ratings express no preference; NaN excludes an output.

    Examples:
        >>> pairwise_preferences([5, 3, 4], ["menu", "menu", "lake"])
        (array([0]), array([1]))
    """
    rated, numbers = np.asarray(ratings, dtype=np.float64), cluster_numbers(items)
    pairs: list[Ints] = [np.empty((0, 2), dtype=np.int64)]
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number)
        ahead = rated[members][:, None] > rated[members][None, :]
        pairs.append(members[np.argwhere(ahead)])
    preferred, rejected = np.concatenate(pairs).T
    return preferred, rejected


def hinge_loss(gains: Floats, scale: float) -> float:
    """Return Σ max(0, 1 - c · gain) over pairs, where gain is GM(preferred) - GM(rejected).

    Examples:
        >>> hinge_loss(np.array([2.0, 0.5, -1.0]), scale=1.0)  # 0 + 0.5 + 2
        2.5
    """
    return float(np.maximum(0.0, 1.0 - scale * gains).sum())


def best_scale(gains: Floats) -> float:
    """Return the c ≥ 0 with the smallest `hinge_loss`, exactly.

    The loss is convex and piecewise linear in c with kinks at 1 / gain of the positive gains. Its
    minimum is at the first kink after which it no longer falls.

    Examples:
        >>> best_scale(np.array([2.0, 0.5]))  # no loss is left from 1 / 0.5 on
        2.0
    """
    rising = np.sort(gains[gains > 0])  # the largest gain has the first kink
    # fall[k] is how fast the loss falls while only the k smallest gains miss the margin.
    fall = np.concatenate([[0.0], rising.cumsum()]) + gains[gains < 0].sum()
    if fall[-1] <= 0:
        return 0.0
    return float(1.0 / rising[np.flatnonzero(fall <= 0)[-1]])


def gm_of_rows(outputs: Floats, thresholds: Thresholds) -> Floats:
    """Return GM of rows of label probability, similarity and perplexity, shape (n, 3) → (n,)."""
    probability, similarity, perplexity = outputs.T
    return adjusted_gm(probability, similarity, perplexity, thresholds)


def agreement(
    better: npt.ArrayLike, worse: npt.ArrayLike, thresholds: Thresholds = GM_THRESHOLDS
) -> tuple[float, float]:
    """Return the share of pairs whose preferred side has the higher GM, and the share of ties.

    The sides, shape (pairs, 3), are as in `gm_of_rows`; two GM of 0 are a tie.

    Examples:
        >>> agreement([[0.9, 0.9, 50], [0.7, 0.9, 50]], [[0.8, 0.9, 50], [0.9, 0.9, 50]])
        (0.5, 0.0)
    """
    first, second = (gm_of_rows(np.asarray(side), thresholds) for side in (better, worse))
    return float((first > second).mean()), float((first == second).mean())


class GMFit(NamedTuple):
    """Fitted t1 to t4, the factor c of GM in the loss (0 if nothing was learned), and the loss."""

    thresholds: Thresholds
    scale: float
    loss: float


def fit_gm(
    preferred: npt.ArrayLike,
    rejected: npt.ArrayLike,
    scale: float | None = None,
    fixed: Sequence[float | None] = (None, None, None, None),
    seed: int = 0,
) -> GMFit:
    """Fit t1 to t4 of eq. 1 to pairwise preferences, as Pang & Gimpel (2019) did.

    Minimizes the hinge loss over t, and over c unless `scale` is given:

        Σ max(0, -c · GM(preferred) + c · GM(rejected) + 1)

    The paper has c = 1. Where perplexities are high, as for single sentences, a margin of 1 is
    small, and the best t makes every GM 0, which prefers nothing. A factor c changes no preference.

    Differential evolution, started from the paper's and random thresholds, finds a good region and
    Nelder-Mead refines it. t1 and t2 stay within ±100, t3 and t4 within twice the largest
    perplexity.

    Args:
        preferred: Label probability, similarity and perplexity of the preferred side of each pair,
            shape (pairs, 3), in the units of `adjusted_gm`.
        rejected: The same for the rejected side.
        scale: c; 1 is the paper's loss. None fits it.
        fixed: t1 to t4; None for those to fit.
        seed: Seed of the evolution.
    """
    sides = [np.asarray(side, np.float64) for side in (preferred, rejected)]
    # An output occurs in many pairs; its GM is computed once.
    outputs, places = np.unique(np.concatenate(sides), axis=0, return_inverse=True)
    first, second = places.reshape(2, -1)
    start = np.array([d if t is None else t for t, d in zip(fixed, GM_THRESHOLDS, strict=True)])
    free = np.array([threshold is None for threshold in fixed])

    def fit(searched: Floats) -> GMFit:
        thresholds = start.copy()
        thresholds[free] = searched
        t1, t2, t3, t4 = thresholds.tolist()
        gm = gm_of_rows(outputs, (t1, t2, t3, t4))
        gains = gm[first] - gm[second]
        factor = best_scale(gains) if scale is None else scale
        return GMFit((t1, t2, t3, t4), factor, hinge_loss(gains, factor))

    def loss(searched: Floats) -> float:
        return fit(searched).loss

    draws = np.random.default_rng(seed)
    perplexities = outputs[np.isfinite(outputs[:, 2]), 2]
    reach = 2 * perplexities.max(initial=GM_THRESHOLDS[2])
    high = np.array([100.0, 100.0, reach, reach])
    bounds = list(zip(-high[free], high[free], strict=True))
    candidates = [start[free]]
    # Most perplexities are far below the largest. One population starts near typical values and
    # one covers the whole box, since they find different minima.
    far = high[2:3] / 2
    for typical in (perplexities if perplexities.size else far, far):
        population = draws.uniform(-high, high, size=(60, 4))
        # t3 is between 0 and twice a typical perplexity, t4 between minus that and 0.
        shares = draws.uniform([0.0, -2.0], [2.0, 0.0], size=(60, 2))
        population[:, 2:] = draws.choice(typical, size=(60, 2)) * shares
        population[0] = start
        options: dict[str, Any] = {"maxiter": 200, "tol": 1e-6, "polish": False, "seed": seed}
        options["init"] = population.clip(-high, high)[:, free]
        evolved = differential_evolution(loss, bounds, **options).x
        # The gradient of a loss over GM is 0 beyond a threshold.
        candidates += [evolved, minimize(loss, evolved, method="Nelder-Mead", bounds=bounds).x]
    return fit(min(candidates, key=loss))


# Table 5, and GM's agreement with the preferences of rated outputs


def style_match(decisions: Floats, ratings: Floats) -> tuple[float, int]:
    """Return the share of texts whose rated style the classifier matches, and their number.

    A rating of 1 to 5 says neither at 3, which is left out, as is NaN on either side. A decision is
    1 where the classifier finds the target style, else 0.

    Examples:
        >>> share, judged = style_match(np.array([1.0, 1.0, 0.0, 0.0]), np.array([5, 2, 1, 3]))
        >>> f"{share:.2f} of {judged}"
        '0.67 of 3'
    """
    judged = ~np.isnan(decisions) & ~np.isnan(ratings) & (ratings != 3)
    matches = ((decisions > 0.5) == (ratings > 3))[judged]
    return float(matches.mean()) if judged.any() else float("nan"), int(judged.sum())


def table_5(scores: Mapping[str, Floats], ratings: Mapping[str, Floats]) -> dict[str, Any]:
    """Print Table 5, each metric against the rating that it stands for, and return its figures."""
    share, judged = style_match(scores["accuracy"], ratings["sentiment"])
    similar = correlate(scores["similarity"], ratings["topic"])["spearman"]
    fluent = correlate(-scores["perplexity"], ratings["grammaticality"])["spearman"]
    figures, lines = {}, []
    for name, metric, value in (
        ("accuracy", f"Acc, {judged} ratings of style above or below 3", share),
        ("similarity", "Sim with content (topic), Spearman ρ", similar),
        ("perplexity", "-PP with fluency (grammaticality), Spearman ρ", fluent),
    ):
        theirs = PUBLISHED["table_5"][name]
        figures[name] = {"value": value, "published": theirs[0]}
        lines.append([metric, *(f"{figure:.3f}" for figure in (value, *theirs))])
    print_table("Table 5", ["metric", "here", "paper, Yelp", "paper, Literature"], lines)
    return figures


def gm_preferences(
    inputs: Floats, ratings: Floats, items: Sequence[Hashable], seed: int
) -> dict[str, Any]:
    """Print how often GM agrees with preferences between outputs of an item; return the figures.

    By the paper's thresholds, with t2 fitted, and with all fitted to these very preferences.
    `inputs` are as in `gm_of_rows`, `ratings` and `items` have shape (n,).
    """
    rated = np.where(np.isnan(inputs).any(axis=1), np.nan, ratings)
    preferred, rejected = pairwise_preferences(rated, items)
    pairs = inputs[preferred], inputs[rejected]
    t1, _, t3, t4 = GM_THRESHOLDS
    fits = {"t2": fit_gm(*pairs, fixed=(t1, None, t3, t4), seed=seed)}
    fits["all"] = fit_gm(*pairs, seed=seed)
    fitted = {name: fit.thresholds for name, fit in fits.items()}
    agreed, lines = {}, []
    for name, thresholds in {"paper": GM_THRESHOLDS, **fitted}.items():
        share, tied = agreement(*pairs, thresholds)
        agreed[name] = {"agreed": share, "tied": tied}
        numbers = ", ".join(f"{threshold:.1f}" for threshold in thresholds)
        lines.append([f"{name} ({numbers})", f"{share:.1%}", f"{tied:.1%}"])
    title = f"GM's agreement with {len(preferred)} preferences, which thresholds were fitted to"
    print_table(title, ["thresholds", "agreed", "ties"], lines)
    print(f"The paper: {PUBLISHED['gm_agreement']:.0%} of 300 preferences between its models.")
    return {"pairs": len(preferred), "agreement": agreed, "fits": fits}


def rate(given: Namespace) -> dict[str, Any]:
    """Score a rated file, and print correlations, Table 5 and GM's agreement with preferences."""
    file = read_rated(local_file(given.data))
    samples = file.samples
    if given.separate:  # as in the corpora that judges of sentences are trained on
        sides = (samples.texts, samples.sources or ())
        texts, sources = ([separate_words(text) for text in side] for side in sides)
        samples = samples.replace(texts=texts, sources=sources)
    classifier = given.classifier
    if ":" in classifier:
        path, _, folder = classifier.partition(":")
        module, _, name = path.rpartition(".")
        classifier = getattr(import_module(module), name)(*filter(None, [folder]))
    judges: list[scorers.Scorer] = [
        scorers.Accuracy(classifier),
        scorers.Similarity(given.similarity),
        scorers.Perplexity(given.model, score_end=given.score_end),
    ]
    components = name_components(judges, None)
    del components["log_likelihood"]  # not an input of GM
    scores = score_parts(components, samples)
    inputs = np.stack([scores[name] for name in INPUTS], axis=1)
    scores["gm"] = gm_of_rows(inputs, GM_THRESHOLDS)
    specs = {name: component.spec for name, component in components.items()}
    record = report_correlations(file, scores, specs, seed=given.seed)
    record["table_5"] = table_5(scores, file.ratings)
    means, items = file.ratings["mean"], file.clusters or ()
    record["gm"] = gm_preferences(inputs, means, items, given.seed)
    return record


# Table 4: sheets for judges, and win rates from filled ones

# Column of a sheet → question that it answers with A, B or tie.
QUESTIONS = {
    "transfer": "which output has the target style",
    "semantics": "which output keeps the meaning of the source",
    "fluency": "which output is the more fluent sentence",
}
RATES = ("first_better", "second_better", "tie", "difference")


def write_sheet(given: Namespace) -> None:
    """Write `sheet.csv` for the judges, and `key.csv`, which they don't see.

    Rows of all pairs of systems are mixed, and each system of a pair is A in half of its rows.
    """
    outputs: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
    for name, _, file in (system.partition("=") for system in given.system):
        outputs[name] = {}
        for row in read_jsonl(file):
            key = matching_key(row["source"]), row.get("label") or ""
            if key in outputs[name]:
                raise ValueError(f"{file} must have each sentence once, got {key[0]!r} twice")
            outputs[name][key] = row["source"], row["text"]
    draws = random.Random(given.seed)
    items = []
    for pair in combinations(outputs, 2):
        first, second = (outputs[name] for name in pair)
        common = [key for key in first if key in second]
        if len(common) < given.count:
            raise ValueError(f"{pair} have {len(common)} sentences in common, not {given.count}")
        swaps = draws.sample([i % 2 for i in range(given.count)], given.count)
        for key, swap in zip(draws.sample(common, given.count), swaps, strict=True):
            step = -1 if swap else 1
            texts = (first[key][1], second[key][1])[::step]
            items.append((pair, pair[::step], first[key][0], key[1], texts))
    draws.shuffle(items)
    sheet, keys = [], []
    for item in items:
        pair, (a, b), source, label, texts = item
        # A name that does not reveal the systems, and is unique to this sheet.
        code = hashlib.sha256(json.dumps([given.seed, *item]).encode()).hexdigest()[:12]
        shown = {"item": code, "source": source, "target": label, "A": texts[0], "B": texts[1]}
        sheet.append({**shown, **dict.fromkeys(QUESTIONS, "")})
        keys.append({"item": code, "A": a, "B": b, "first": pair[0], "second": pair[1]})
    write_whole(given.output / "sheet.csv", encode_rows(".csv", sheet, {}))
    write_whole(given.output / "key.csv", encode_rows(".csv", keys, {}))
    print(f"{given.output}/sheet.csv: answer each question with A, B or tie")
    for column, question in QUESTIONS.items():
        print(f"  {column:<10}{question}")
    print(f"{given.output}/key.csv is for `rates`. Do not show it to the judges.")


def win_rates(
    key: Path, sheets: Sequence[Path], resamples: int = 10_000, seed: int = 0
) -> dict[tuple[str, str, str], tuple[int, dict[str, Estimate]]]:
    """Return the number of judgements and the rates of each pair of systems and question.

    The `RATES` have percentile intervals over rows of the sheet: the answers of several people to
    one row are drawn together. If all rows agree, the interval is infinite. An empty cell is not an
    answer.
    """
    rows = {row["item"]: row for row in read_placed(key)[0]}
    pairs = dict.fromkeys((row["first"], row["second"]) for row in rows.values())
    # Item and gain of each answer, by pair and question.
    judged: dict[tuple[str, str, str], list[tuple[str, int]]] = {
        (*pair, question): [] for pair in pairs for question in QUESTIONS
    }
    for sheet in sheets:
        for row, place in zip(*read_placed(sheet), strict=True):
            if row["item"] not in rows:
                raise ValueError(f"{place}: the item must be one of {key}, got {row['item']!r}")
            sides = rows[row["item"]]
            gains = {sides["first"]: 1, sides["second"]: -1}
            for question in QUESTIONS:
                answer = row[question].strip().upper()
                if answer not in ("A", "B", "TIE", ""):
                    raise ValueError(f"{place}: {question} must be A, B or tie, got {answer!r}")
                if answer:
                    gain = 0 if answer == "TIE" else gains[sides[answer]]
                    judged[sides["first"], sides["second"], question].append((row["item"], gain))
    return {
        which: (len(answers), _rates(answers, resamples, seed)) for which, answers in judged.items()
    }


def _rates(answers: Sequence[tuple[str, int]], resamples: int, seed: int) -> dict[str, Estimate]:
    if not answers:
        return dict.fromkeys(RATES, Estimate(np.nan, np.nan, np.nan))
    items, gains = zip(*answers, strict=True)
    values, members = np.array(gains), cluster_numbers(items)

    def shares(weights: Floats) -> Mapping[str, Floats]:
        total = weights.sum(axis=1)
        first, second, tie = (weights @ (values == gain) / total for gain in (1, -1, 0))
        return dict(zip(RATES, (first, second, tie, first - second), strict=True))

    rates = bootstrap(shares, members, 0.95, resamples, seed)
    return {name: unless_alike(rate) for name, rate in rates.items()}


def print_rates(given: Namespace) -> list[dict[str, Any]]:
    """Print the rates beside the paper's, and return them as JSON values."""
    lines, records = [], []
    for (first, second, question), (n, rates) in win_rates(given.key, given.sheets).items():
        about = {"first": first, "second": second, "question": question, "judgements": n}
        records.append({**about, **rates})
        models = [re.search(r"m[0-7](?![0-9])", n, re.IGNORECASE) for n in (first, second)]
        names = [model.group().upper() for model in models if model]
        theirs = [
            f"{row['pair'][0]} {' / '.join(map(str, row[question]))}"
            for row in PUBLISHED["table_4"]
            if row["pair"][1:] == names
        ]
        shown = [
            "" if np.isnan(e.value) else "{:.1f} ({:.1f} to {:.1f})".format(*(100 * x for x in e))
            for e in rates.values()
        ]
        lines.append([f"{first}, {second}", question, str(n), *shown, "; ".join(theirs)])
    headings = ["first, second", "question", "n", "first better", "second better", "tie"]
    title = "Table 4, in %, with 95 % intervals over rows of the sheet"
    print_table(title, [*headings, "difference", "in the paper"], lines)
    return records


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Run one of the three commands."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    ratings = commands.add_parser("ratings", help="Table 5, and the fit of eq. 1's thresholds")
    ratings.add_argument("data", help="human_ratings_yelp.csv")
    judge = "folder or hub id, or MODULE.CLASS:FOLDER, of a classifier of positive and negative"
    ratings.add_argument("--classifier", required=True, help=judge)
    ratings.add_argument("--model", default="smollm2-135m", help="language model of PP")
    ratings.add_argument("--similarity", default="minilm-l6", help="encoder or word vectors of Sim")
    ratings.add_argument("--separate", action="store_true", help="lower-case, separate marks")
    ratings.add_argument("--score-end", action="store_true", help="count the end of a sentence")
    sheet = commands.add_parser("sheet", help="a sheet for judges of pairs of outputs")
    sheet.add_argument("--system", metavar="NAME=FILE", action="append", required=True)
    sheet.add_argument("--count", type=int, default=120, help="sentences of each pair")
    sheet.add_argument("--output", type=Path, required=True)
    rates = commands.add_parser("rates", help="Table 4, from filled sheets")
    rates.add_argument("sheets", type=Path, nargs="+", help="filled sheet, one per person")
    rates.add_argument("--key", type=Path, required=True)
    for command in (ratings, sheet):
        command.add_argument("--seed", type=int, default=0)
    for command in (ratings, rates):
        command.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    record = {"ratings": rate, "sheet": write_sheet, "rates": print_rates}[given.command](given)
    if record and given.json:
        write_whole(given.json, json_text(record))


if __name__ == "__main__":
    main(sys.argv[1:])
