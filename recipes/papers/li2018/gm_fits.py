"""GM's thresholds, the paper's and fitted ones, judged on preferences of held-out items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from ctrlreward.commands.terminal import plain_console
from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.papers.li2018.preferences import (
    GMFit,
    PairwiseAgreement,
    Thresholds,
    best_scale,
    fit_gm,
    hinge_loss,
    pairwise_agreement,
    pairwise_preferences,
)
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated

Floats = npt.NDArray[np.float64]
Pairs = tuple[Floats, Floats]  # preferred and rejected sides

# Agreement of GM with human preferences in Pang & Gimpel (2019): 258 of 300.
_PUBLISHED_AGREEMENT = 0.86


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
    """Thresholds fitted to preferences of half of the items, and judged on those of the rest.

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
        given: Thresholds of the user's own to judge as well.
        margin: Mean ratings that differ by no more than this express no preference; 0 or more.
        seed: Seed of the search for thresholds.

    Raises:
        ValueError: A half of the items has no preferences, or the margin is negative.
    """
    items = rated.clusters or ()
    order = {item: position for position, item in enumerate(dict.fromkeys(items))}
    first_half = np.array([order[item] % 2 == 0 for item in items])
    ratings = np.where(np.isnan(inputs).any(axis=1), np.nan, rated.ratings["mean"])
    halves = [np.where(half, ratings, np.nan) for half in (first_half, ~first_half)]
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


def _judge(
    fit: GMFit | Thresholds,
    training: Pairs,
    held_out: Pairs,
    outputs: Floats,
) -> JudgedThresholds:
    thresholds, problems = (fit.thresholds, fit.problems) if isinstance(fit, GMFit) else (fit, ())
    preferred, rejected = (_gm(side, thresholds) for side in training)
    gains = preferred - rejected
    scale = best_scale(gains)
    return JudgedThresholds(
        thresholds,
        hinge_loss(gains, 1.0) / len(gains),
        hinge_loss(gains, scale) / len(gains),
        scale,
        pairwise_agreement(*held_out, thresholds=thresholds),
        float((_gm(outputs, thresholds) > 0).mean()),
        problems,
    )


def _pairs(inputs: Floats, ratings: Floats, items: Sequence[str], margin: float) -> Pairs:
    preferred, rejected = pairwise_preferences(ratings, items, margin)
    return inputs[preferred], inputs[rejected]


def _gm(outputs: Floats, thresholds: Thresholds) -> Floats:
    accuracy, similarity, perplexity = outputs.T
    return adjusted_gm(accuracy, similarity, perplexity, thresholds)


def fits_record(fits: HeldOutFits) -> dict[str, Any]:
    """Return the fits as JSON values; NaN is null."""
    judged = {}
    for name, fit in fits.judged.items():
        untied = fit.agreement.untied
        shares = {**fit.agreement._asdict(), "untied": None if np.isnan(untied) else untied}
        judged[name] = {**asdict(fit), "agreement": shares}
    pairs = {"fitted_pairs": fits.fitted_pairs, "judged_pairs": fits.judged_pairs}
    return {**pairs, "published_agreement": _PUBLISHED_AGREEMENT, "judged": judged}


def print_fits(fits: HeldOutFits, width: int | None) -> None:
    """Print a table of losses and agreements, and what is degenerate.

    Args:
        fits: Result of `fit_held_out`.
        width: Columns of the output; None takes the terminal's.
    """
    title = (
        f"GM: thresholds fitted to {fits.fitted_pairs} preferences, judged on "
        f"{fits.judged_pairs} of other items"
    )
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column("thresholds", no_wrap=True)
    headings = ("loss, c = 1", "loss, best c", "c", "GM > 0", "agreed", "ties", "of the untied")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for name, fit in fits.judged.items():
        shares = (fit.above_zero, fit.agreement.agreed, fit.agreement.tied, fit.agreement.untied)
        numbers = ", ".join(f"{threshold:.1f}" for threshold in fit.thresholds)
        losses = (f"{fit.paper_loss:.3f}", f"{fit.scaled_loss:.3f}", f"{fit.scale:.3g}")
        table.add_row(f"{name}\n  ({numbers})", *losses, *map(percent, shares))
    plain_console(width).print(table)
    print(
        "t2 refitted: the other three are the paper's. all: all four are fitted, under the paper's "
        "loss (c = 1) and with c fitted.\n"
        "Losses per fitted preference, 1 where nothing is preferred. Ties count as disagreement.\n"
        f"The paper reports {_PUBLISHED_AGREEMENT:.0%} for its own judges and preferences."
    )
    for name, fit in fits.judged.items():
        for problem in fit.problems:
            print(f"Degenerate ({name}): {problem}.")


def percent(share: float) -> str:
    """Return a share of 0 to 1 in per cent, or a dash for NaN."""
    return "–" if np.isnan(share) else f"{share:.1%}"
