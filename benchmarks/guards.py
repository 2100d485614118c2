"""Verdict of each guard of docs/guards.md on a reward with planted weaknesses, by its probes.

python benchmarks/guards.py
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import torch

from ctrlreward import MeanMinusDeviation, Minimum, Reward, Samples, fit_scales
from ctrlreward.callbacks import ReferenceReward, RewardShaping, UsefulRange
from ctrlreward.models.passages import passages
from ctrlreward.probing import examination as probing
from ctrlreward.scorers import FunctionScorer
from ctrlreward.scorers.base import Scores

PASSAGES = passages()[::2]
# Sound answers continue their source in words of their own.
SOUND = Samples(
    [each.text for each in PASSAGES],
    prefixes=[each.prefix for each in PASSAGES],
    sources=[f"{each.prefix} {each.remainder.split('.')[0]}." for each in PASSAGES],
    groups=[str(i) for i in range(len(PASSAGES))],
)


def words(completions: Sequence[str]) -> list[float]:
    """Planted weakness: a long text is worth more, up to 80 words."""
    return [min(len(text.split()), 80) / 80 for text in completions]


def overlap(completions: Sequence[str], sources: Sequence[str]) -> list[float]:
    """Planted weakness: the share of a text's words that the source has; a copy is perfect."""
    pairs = zip(completions, sources, strict=True)
    return [
        np.mean([word in source.split() for word in text.split()]) if text.split() else 0.0
        for text, source in pairs
    ]


def own(completions: Sequence[str], sources: Sequence[str]) -> list[float]:
    """Share of a text's words that its source lacks; NaN for an empty text."""
    pairs = zip(completions, sources, strict=True)
    return [
        np.mean([word not in source.split() for word in text.split()]) if text.split() else np.nan
        for text, source in pairs
    ]


def repeated(completions: Sequence[str]) -> list[float]:
    """Share of a text's pairs of words that repeat an earlier one."""
    rows = [list(zip(t.split(), t.split()[1:], strict=False)) for t in completions]
    return [1 - len(set(row)) / len(row) if row else np.nan for row in rows]


PLANTED: dict[str, Callable[..., list[float]]] = {"words": words, "overlap": overlap}


def on_one_scale(aggregate: type[Minimum]) -> Reward:
    return Reward(PLANTED, aggregate(fit_scales(PLANTED, SOUND)))


def with_conditions(**more: object) -> Reward:
    """Length counts where the source is taken up, and that where the words are not all its own."""
    return Reward(
        {"own": (own, 0.0), **PLANTED, **more},  # type: ignore[dict-item]
        given={"words": ("overlap", 0.25), "overlap": ("own", 0.5)},
    )


REPEATED = (FunctionScorer(repeated, higher_is_better=False), -1.0)
REWARDS: Mapping[str, Callable[[], Reward]] = {
    "none": lambda: Reward(PLANTED),
    "`min`": lambda: on_one_scale(Minimum),
    "`mean_minus_deviation`": lambda: on_one_scale(MeanMinusDeviation),
    "conditions": with_conditions,
    "repetition, weight -1": lambda: Reward({**PLANTED, "repeated": REPEATED}),
    "conditions and repetition": lambda: with_conditions(repeated=REPEATED),
}
RANGES = {
    "words": UsefulRange(high=0.0, from_start=True),
    "own": UsefulRange(low=0.0, from_start=True, component=FunctionScorer(own)),
}
SHAPINGS: Mapping[str, Callable[[], RewardShaping]] = {
    "`length_alpha=2`": lambda: RewardShaping(length_alpha=2.0),
    "`reference`": lambda: RewardShaping(reference=ReferenceReward()),
    "`ranges`": lambda: RewardShaping(ranges=RANGES, range_rate=0.2),
}


def shape(shaping: RewardShaping, samples: Samples) -> Scores:
    """Return the shaped rewards; the sound texts are those of the reference policy."""
    reward = Reward(PLANTED)
    prompts = [str(group) for group in samples.groups or ()]
    samples = samples.replace(prompts=prompts, prefixes=[""] * len(samples))
    lengths = torch.tensor([len(text.split()) for text in samples.texts])
    shaping._module = SimpleNamespace(
        reward=reward, complete_as_reference=lambda asked: [SOUND.texts[int(i)] for i in asked]
    )
    return shaping._shape(samples, reward(samples), lengths)


def shaped_verdicts(build: Callable[[], RewardShaping]) -> dict[str, str]:
    """Return the verdict on each probe, whose texts complete the same prompts as the sound ones.

    With ranges the policy first writes the sound texts alone, then as many degenerate ones for 30
    steps.
    """
    rows = probing._rows(SOUND, random.Random(0))
    verdicts = {}
    for probe in probing.PROBES:
        texts = {i: text for i, row in enumerate(rows) if (text := probe.degrade(row)) is not None}
        if not texts:
            continue
        shaping = build()
        both = Samples.concat([SOUND[[*texts]], probing._with_completions(SOUND, texts)])
        for batch in [SOUND, *[both] * 30] if shaping.ranges else []:
            shape(shaping, batch)
            shaping.ranges.end_step()
        sound, degenerate = np.split(shape(shaping, both), 2)
        finding = probing._finding(
            probe,
            {probing.TOTAL: sound},
            {probing.TOTAL: degenerate},
            [*texts],
            1 - 0.05 / len(probing.PROBES),
        )
        verdicts[probe.name] = finding.verdict
    return verdicts


def main() -> None:
    """Print the table of the page."""
    found = {
        guard: {f.probe: f.verdict for f in probing.examine(build(), SOUND).findings}
        for guard, build in REWARDS.items()
    }
    found |= {guard: shaped_verdicts(build) for guard, build in SHAPINGS.items()}
    probes = list(found["none"])
    print(f"| guard | {' | '.join(probes)} |")
    print("|---" * (1 + len(probes)) + "|")
    for guard, verdicts in found.items():
        print(f"| {guard} | {' | '.join(verdicts.get(probe, '') for probe in probes)} |")


if __name__ == "__main__":
    main()
