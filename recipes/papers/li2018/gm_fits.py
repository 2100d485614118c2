"""GM's thresholds and a learned aggregate, judged on preferences of held-out items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ctrlreward.functional.bootstrap import Estimate, cluster_numbers, paired_bootstrap
from ctrlreward.functional.preferences import (
    LearnedAggregate,
    Preferences,
    agreement_of_gains,
    fit_aggregate,
    pairwise_preferences,
)
from ctrlreward.functional.transfer import GM_THRESHOLDS, gm_of
from ctrlreward.recipes.papers.li2018.preferences import (
    GMFit,
    PairwiseAgreement,
    Thresholds,
    best_scale,
    fit_gm,
    gm_of_rows,
    hinge_loss,
    pairwise_agreement,
)
from ctrlreward.recipes.papers.meta_eval.correlations import print_rows
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated
from ctrlreward.recipes.papers.textual_transfer.published_tables import PUBLISHED

Floats = npt.NDArray[np.float64]
Pairs = tuple[Floats, Floats]  # preferred and rejected sides


@dataclass(frozen=True)
class JudgedThresholds:
    """GM under some thresholds, judged on preferences of held-out items.

    Attributes:
        thresholds: t1 to t4.
        paper_loss: Hinge loss of the paper (c = 1) per preference of the other half, 0 or more,
            lower is better; 1 where nothing is preferred.
        scaled_loss: The same with the best c, 0 to 1.
        scale: The best c, 0 or more.
        agreement: Agreement with the held-out preferences.
        above_zero: Share of the held-out outputs whose GM is above 0, 0 to 1.
        problems: Signs of a degenerate fit, see `GMFit`.
    """

    thresholds: Thresholds
    paper_loss: float
    scaled_loss: float
    scale: float
    agreement: PairwiseAgreement
    above_zero: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeldOutFits:
    """Thresholds fitted to preferences of half of the items, and judged on the rest.

    Attributes:
        fitted_pairs: Number of preferences that thresholds were fitted to.
        judged_pairs: Number of held-out preferences, of the other items.
        judged: GM under each of the thresholds, by their name.
    """

    fitted_pairs: int
    judged_pairs: int
    judged: Mapping[str, JudgedThresholds]


def fit_held_out(
    rated: Rated, inputs: Floats, given: Thresholds | None, margin: float, seed: int
) -> HeldOutFits:
    """Fit GM's thresholds on every other item, and judge them and the paper's on the rest.

    A preference is a pair of outputs for the same item whose mean ratings differ. All four
    thresholds are fitted under the paper's loss and under the one with c fitted, and t2 alone
    under the latter with the other three from the paper.

    Args:
        rated: The rated file, with the rating `mean` and items as clusters.
        inputs: Accuracy, similarity and perplexity of each row, shape (n, 3); NaN where a score
            failed.
        given: User-defined thresholds to evaluate as well.
        margin: Mean ratings that differ by no more than this express no preference; 0 or more.
        seed: Seed of the search for thresholds.

    Raises:
        ValueError: A half of the items has no preferences, or the margin is negative.
    """
    items = rated.clusters or ()
    halves = _halves(rated, inputs)
    training, held_out = (_pairs(inputs, half, items, margin) for half in halves)
    t1, _, t3, t4 = GM_THRESHOLDS
    fits: dict[str, GMFit | Thresholds] = {"paper": GM_THRESHOLDS}
    if given is not None:
        fits["given"] = given
    fits["t2 refitted"] = fit_gm(*training, fixed=(t1, None, t3, t4), seed=seed)
    fits["all, c = 1"] = fit_gm(*training, scale=1.0, seed=seed)
    fits["all, c fitted"] = fit_gm(*training, seed=seed)
    outputs = inputs[~np.isnan(halves[1])]
    judged = {name: _judge(fit, training, held_out, outputs) for name, fit in fits.items()}
    return HeldOutFits(len(training[0]), len(held_out[0]), judged)


class JudgedAggregate(NamedTuple):
    """An aggregate, judged on preferences of held-out items.

    Attributes:
        agreement: Share of the preferences with the higher total on the preferred side, ties
            counted as one half, in [0, 1], with an interval over items.
        tied: Share of the preferences with equal totals.
        ahead: Agreement minus the agreement of GM with all thresholds fitted, with an interval over
            items.
    """

    agreement: Estimate
    tied: float
    ahead: Estimate


def judge_learned(
    rated: Rated,
    scores: Mapping[str, Floats],
    inputs: Sequence[str],
    fits: HeldOutFits,
    margin: float,
    seed: int,
) -> tuple[dict[str, JudgedAggregate], LearnedAggregate]:
    """Judge aggregates that `fit_aggregate` learns from every other item, and GM, on the rest.

    The items, which are the source sentences, are as in `fit_held_out`: no sentence is on both
    sides.

    Args:
        rated: The rated file, with the rating `mean` and items as clusters.
        scores: Scores of each row by name, shape (n,); all are better when higher except the
            perplexity.
        inputs: Names of accuracy, similarity and perplexity.
        fits: GM's thresholds by name, fitted to the same items.
        margin: See `fit_held_out`.
        seed: Seed of the bootstrap.

    Returns:
        What is judged, by name, and the aggregate of all scores.
    """
    halves = _halves(rated, np.stack([*scores.values()], axis=1))

    def preferences(names: Iterable[str], half: Floats) -> Preferences:
        chosen = {name: scores[name] for name in names}
        directions = {name: name != "perplexity" for name in chosen}
        return Preferences.of_ratings(chosen, directions, half, rated.clusters or (), margin)

    training, held_out = (preferences(scores, half) for half in halves)
    everything = fit_aggregate(training, seed=seed)
    totals: dict[str, Callable[[Mapping[str, Floats]], Floats]] = {
        f"GM, {name}": partial(gm_of, tuple(inputs), fits.judged[name].thresholds)
        for name in ("paper", "all, c fitted")
    }
    of_inputs = fit_aggregate(preferences(inputs, halves[0]), seed=seed)
    totals[f"learned of {', '.join(inputs)}"] = of_inputs
    totals[f"learned of {', '.join(scores)}"] = everything
    gains = {
        name: total(held_out.preferred) - total(held_out.rejected) for name, total in totals.items()
    }
    groups = held_out.groups or ()
    right = {name: (np.sign(gain) + 1) / 2 for name, gain in gains.items()}
    fitted = right["GM, all, c fitted"]
    judged = {
        name: JudgedAggregate(
            agreement_of_gains(gain, groups, seed=seed),
            float((gain == 0).mean()),
            paired_bootstrap(fitted, right[name], groups, seed=seed, within=(-most, most)),
        )
        for name, gain in gains.items()
        for most in [0.0 if right[name] is fitted else 1.0]
    }
    return judged, everything


def learned_record(
    judged: Mapping[str, JudgedAggregate], learned: LearnedAggregate
) -> dict[str, Any]:
    """Return the comparison as JSON values."""
    rows = {
        name: {"agreement": agreement._asdict(), "tied": tied, "ahead": ahead._asdict()}
        for name, (agreement, tied, ahead) in judged.items()
    }
    weights = {name: weight._asdict() for name, weight in (learned.weights or {}).items()}
    return {"judged": rows, "weights": weights}


def print_learned(judged: Mapping[str, JudgedAggregate], learned: LearnedAggregate) -> None:
    """Print agreement with held-out preferences, and the weights of the learned aggregate."""
    title = "Held-out preferences: agreement (ties as one half) and 95 % interval over items"
    cells = []
    for name, each in judged.items():
        first, last = each.agreement, each.ahead
        agreement = f"{first.value:.1%} ({first.low:.1%} to {first.high:.1%})"
        ahead = f"{last.value:+.1%} ({last.low:+.1%} to {last.high:+.1%})"
        cells.append([name, agreement, percent(each.tied), ahead])
    print_rows(title, ("aggregate", "agreement", "ties", "ahead of GM, all fitted"), cells)
    weights = ", ".join(
        f"{name} {weight.value:.2f} ({weight.low:.2f} to {weight.high:.2f})"
        for name, weight in (learned.weights or {}).items()
    )
    print(f"Learned, log-odds from the worst to the best of each score: {weights}")


def _halves(rated: Rated, inputs: Floats) -> list[Floats]:
    """Return the mean ratings of every other item and of the rest; NaN for the other half."""
    first_half = cluster_numbers(rated.clusters or ()) % 2 == 0
    ratings = np.where(np.isnan(inputs).any(axis=1), np.nan, rated.ratings["mean"])
    return [np.where(half, ratings, np.nan) for half in (first_half, ~first_half)]


def _judge(
    fit: GMFit | Thresholds, training: Pairs, held_out: Pairs, outputs: Floats
) -> JudgedThresholds:
    thresholds, problems = (fit.thresholds, fit.problems) if isinstance(fit, GMFit) else (fit, ())
    preferred, rejected = (gm_of_rows(side, thresholds) for side in training)
    gains = preferred - rejected
    scale = best_scale(gains)
    return JudgedThresholds(
        thresholds,
        hinge_loss(gains, 1.0) / len(gains),
        hinge_loss(gains, scale) / len(gains),
        scale,
        pairwise_agreement(*held_out, thresholds=thresholds),
        float((gm_of_rows(outputs, thresholds) > 0).mean()),
        problems,
    )


def _pairs(inputs: Floats, ratings: Floats, items: Sequence[str], margin: float) -> Pairs:
    preferred, rejected = pairwise_preferences(ratings, items, margin)
    return inputs[preferred], inputs[rejected]


def fits_record(fits: HeldOutFits) -> dict[str, Any]:
    """Return the fits as JSON values; NaN is null."""
    judged = {}
    for name, fit in fits.judged.items():
        untied = fit.agreement.untied
        shares = {**fit.agreement._asdict(), "untied": None if np.isnan(untied) else untied}
        judged[name] = {**asdict(fit), "agreement": shares}
    pairs = {"fitted_pairs": fits.fitted_pairs, "judged_pairs": fits.judged_pairs}
    return {**pairs, "published_agreement": PUBLISHED["gm_agreement"], "judged": judged}


def print_fits(fits: HeldOutFits) -> None:
    """Print losses and agreements of `fit_held_out`, and its degenerate fits."""
    title = (
        f"GM: thresholds fitted to {fits.fitted_pairs} preferences, judged on "
        f"{fits.judged_pairs} of other items"
    )
    headings = ("loss, c = 1", "loss, best c", "c", "GM > 0", "agreed", "ties", "of the untied")
    cells = []
    for name, fit in fits.judged.items():
        shares = (fit.above_zero, fit.agreement.agreed, fit.agreement.tied, fit.agreement.untied)
        numbers = ", ".join(f"{threshold:.1f}" for threshold in fit.thresholds)
        losses = (f"{fit.paper_loss:.3f}", f"{fit.scaled_loss:.3f}", f"{fit.scale:.3g}")
        cells.append([f"{name}\n  ({numbers})", *losses, *map(percent, shares)])
    print_rows(title, ("thresholds", *headings), cells, whole=True)
    print(
        "t2 refitted: the other three are the paper's. all: all four are fitted, under the paper's "
        "loss (c = 1) and with c fitted.\n"
        "Losses per fitted preference, 1 where nothing is preferred. Ties count as disagreement.\n"
        f"The paper reports {PUBLISHED['gm_agreement']:.0%} for its own judges and preferences."
    )
    for name, fit in fits.judged.items():
        for problem in fit.problems:
            print(f"Degenerate ({name}): {problem}")


def percent(share: float) -> str:
    """Return a share of 0 to 1 in per cent, or a dash for NaN."""
    return "–" if np.isnan(share) else f"{share:.1%}"
