"""Drift of a policy's rollouts from its first steps, in the ways of reward hacking.

There is an alarm if the reward has risen and at the same time a statistic of the completions has
drifted by more than its tolerance: their length, their repetition, the share of completions with
one phrase, or the agreement of the reward's components. No held-out score is needed.

The first `reference_steps` steps are the reference. Later steps are compared with it in blocks of
as many steps. The unit is a group, the completions of a prompt in one step: a group is paired with
a group of the reference with the same prompt where there is one, else with a free one, so that
under the null a pair's difference is as likely to have the opposite sign, and flips of signs test
it (`ctrlreward.functional.sequential`). The null of a statistic: the policy of each step has a
mean reward of at most the reference's, or a statistic within its tolerance. The k-th block has
6 / (π² k²) of the level of the run, shared by the statistics (Bonferroni). The reward's rise is
tested at all of it: an alarm needs both tests (intersection-union, Berger 1982).

The phrase is chosen by half of the pairs, and tested on the other half.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import one_of, positive
from ctrlreward.functional.agreement import concordance
from ctrlreward.functional.diversity import repetition
from ctrlreward.functional.sequential import check_level, level_of_test, rise_p_value
from ctrlreward.text.words import split_words

Floats: TypeAlias = npt.NDArray[np.float64]

# Drifts that do not matter: completions up to twice as long or half as long, a tenth more repeated
# trigrams, a phrase in a fifth more of the completions, γ lower by a fifth.
TOLERANCES = {"length": 2.0, "repetition": 0.1, "phrase_share": 0.2, "agreement": 0.2}
REFERENCE_STEPS = 10
LEVEL = 0.05
# A block also waits for this many groups: half of them test a phrase, and 20 pairs have p-values
# down to 1e-6, enough for hundreds of tests.
GROUPS = 40
# Words of a phrase, and of the n-grams whose repetition is counted.
SHORTEST, LONGEST = 3, 5
# A longer phrase replaces a shorter one if it keeps this share of its growth.
KEPT_GROWTH = 0.9
_EXPECTED = "\n"  # in place of an expected phrase: never a word


class Rollouts(NamedTuple):
    """Completions of one step of the trainer, n of them, with their rewards.

    `prompts` are the prompt of each completion, or a key of it. `rewards`, shape (n,), are NaN
    where they failed. `components` has the reward's components by name, shape (n,) each.

    Examples:
        >>> Rollouts(1, ["The soup"], ["was cold."], np.array([0.5]), {}).step
        1
    """

    step: int
    prompts: Sequence[Hashable]
    texts: Sequence[str]
    rewards: Floats
    components: Mapping[str, Floats]


class DriftAlarm(NamedTuple):
    """An alarm: the reward has risen while a statistic of the completions has drifted.

    Attributes:
        statistic: `"length"`, `"repetition"`, `"phrase_share"` or `"agreement"`.
        step: Last step of the block that was compared with the reference.
        reference: Mean of the statistic in the reference; of lengths the geometric mean, in words.
        value: The same in the block.
        p_value: Smallest level of the whole run at which this test would raise an alarm.
        phrase: The phrase that has spread; "" for other statistics.
        example: Completion of the block with the most extreme value, or with the highest reward.

    Examples:
        >>> str(DriftAlarm("phrase_share", 30, 0.02, 0.6, 0.001, "as an expert", "As an expert, …"))
        'phrase_share was 0.02 in the first steps and is 0.6 at step 30 ("as an expert"), while...
    """

    statistic: str
    step: int
    reference: float
    value: float
    p_value: float
    phrase: str
    example: str

    def __str__(self) -> str:
        phrase = f' ("{self.phrase}")' if self.phrase else ""
        return (
            f"{self.statistic} was {self.reference:.3g} in the first steps and is {self.value:.3g} "
            f"at step {self.step}{phrase}, while the reward has risen. "
            f"An example: {self.example[:300]!r}"
        )


@dataclass(frozen=True)
class _Group:
    """Completions of a prompt in one step; `values` are the reward's mean and the statistics."""

    prompt: Hashable
    texts: tuple[str, ...]
    padded: tuple[str, ...]  # words with single spaces between and around them
    rewards: tuple[float, ...]
    values: Mapping[str, float]

    def value(self, statistic: str, phrase: str) -> float:
        if statistic != "phrase_share":
            return self.values[statistic]
        return sum(f" {phrase} " in text for text in self.padded) / len(self.padded)


_Pair: TypeAlias = tuple[_Group, _Group | None]


class DriftMonitor:
    """Statistics of each step's rollouts, and alarms on their drift from the first steps.

    Args:
        reference_steps: Number of first steps that later ones are compared with, in blocks of as
            many steps. Reference and blocks also wait for 40 groups.
        level: Probability of any false alarm in the whole run.
        tolerances: Largest drift that doesn't matter, by statistic: `"length"` (2) is a factor,
            `"repetition"` (0.1) and `"phrase_share"` (0.2) are increases of a share, `"agreement"`
            (0.2) is a decrease. Infinity leaves a statistic out.
        expected_phrases: Phrases that the task asks for, such as `"the answer is"`; no alarm is on
            their spread.

    Raises:
        ValueError: An unknown statistic, or a level, tolerance or number of steps out of range.

    Examples:
        >>> monitor = DriftMonitor(reference_steps=2)
        >>> rollouts = Rollouts(1, ["a", "a"], ["so so so so", "good"], np.array([1.0, 0.0]), {})
        >>> metrics, alarms = monitor.update(rollouts)
        >>> metrics
        {'length': 2.5, 'repetition': 0.5, 'agreement': nan, 'groups_without_signal': 0.0}
    """

    def __init__(
        self,
        reference_steps: int = REFERENCE_STEPS,
        level: float = LEVEL,
        tolerances: Mapping[str, float] | None = None,
        expected_phrases: Sequence[str] = (),
    ) -> None:
        self.reference_steps = positive("reference_steps", reference_steps)
        check_level(level)
        self.level = level
        self.tolerances = {**TOLERANCES, **(tolerances or {})}
        for name, tolerance in self.tolerances.items():
            one_of("statistic of tolerances", name, tuple(TOLERANCES))
            smallest = 1.0 if name == "length" else 0.0
            if not tolerance >= smallest:
                raise ValueError(
                    f"tolerances[{name!r}] must be at least {smallest:g}, got {tolerance}"
                )
        self.expected = [f" {' '.join(split_words(each))} " for each in expected_phrases]
        self.alarms: list[DriftAlarm] = []
        self.phrase = ""  # of the last block
        self.tests = 0
        self._reference: list[_Group] = []
        self._choosing: list[int] = []  # places of the reference that choose the phrase
        self._counted: Counter[tuple[str, ...]] = Counter()  # texts of them with each trigram
        self._block: list[_Group] = []
        self._steps = 0  # of the block

    def update(self, rollouts: Rollouts) -> tuple[dict[str, float], list[DriftAlarm]]:
        """Return the statistics of a step and new alarms, at most one per statistic in a run.

        Means over groups: `length` is in words at white space, `repetition` the share of word
        trigrams that repeat an earlier one of the completion, `agreement` the concordance of the
        components within groups, `groups_without_signal` the share of groups of two or more whose
        rewards are all equal, and `phrase_share` the share of completions with `phrase`, the one of
        the last block. NaN where undefined.
        """
        rows: dict[Hashable, list[int]] = {}
        for i, prompt in enumerate(rollouts.prompts):
            rows.setdefault(prompt, []).append(i)
        groups = [self._group(rollouts, each) for each in rows.values()]
        metrics = self._metrics(groups)
        self._block += groups
        self._steps += 1
        new: list[DriftAlarm] = []
        if self._steps >= self.reference_steps and len(self._block) >= GROUPS:
            if self._reference:
                new = self._compare(rollouts.step)
            else:
                self._start()
            self._block, self._steps = [], 0
        self.alarms += new
        return metrics, new

    def _group(self, rollouts: Rollouts, rows: list[int]) -> _Group:
        texts = tuple(rollouts.texts[i] for i in rows)
        words = [split_words(text) for text in texts]
        rewards = tuple(float(rollouts.rewards[i]) for i in rows)
        parts = [part[rows] for part in rollouts.components.values()]
        values = {
            "reward": _mean(rewards),
            "length": _mean([math.log1p(len(each)) for each in words]),
            "words": _mean(list(map(len, words))),
            "repetition": _mean([repetition(each, SHORTEST) for each in words]),
            "agreement": concordance(parts) if len(parts) > 1 and len(rows) > 1 else math.nan,
        }
        padded = tuple(f" {' '.join(each)} " for each in words)
        for phrase in self.expected:
            padded = tuple(text.replace(phrase, f" {_EXPECTED} ") for text in padded)
        return _Group(rollouts.prompts[rows[0]], texts, padded, rewards, values)

    def _metrics(self, groups: Sequence[_Group]) -> dict[str, float]:
        valid = [[each for each in group.rewards if math.isfinite(each)] for group in groups]
        spreads = [max(each) - min(each) for each in valid if len(each) > 1]
        metrics = {
            "length": _mean([group.values["words"] for group in groups]),
            "repetition": _mean([group.values["repetition"] for group in groups]),
            "agreement": _mean([group.values["agreement"] for group in groups]),
            "groups_without_signal": _mean([float(spread == 0) for spread in spreads]),
        }
        if self.phrase:
            shares = [group.value("phrase_share", self.phrase) for group in groups]
            metrics["phrase_share"] = _mean(shares)
        return metrics

    def _start(self) -> None:
        """Make the first block the reference, and choose the half of it that chooses phrases.

        A prompt's groups are in both halves in turn, so that both have the same prompts.
        """
        self._reference = self._block
        seen: dict[Hashable, int] = {}
        for i, group in enumerate(self._reference):
            seen[group.prompt] = seen.get(group.prompt, len(seen)) + 1  # a new prompt: by turns
            if seen[group.prompt] % 2:
                self._choosing.append(i)
        self._counted = count_trigrams(self._choosing_texts())

    def _choosing_texts(self) -> list[str]:
        return [text for i in self._choosing for text in self._reference[i].padded]

    def _compare(self, step: int) -> list[DriftAlarm]:
        """Return the alarms of the block that has ended."""
        self.tests += 1
        share = level_of_test(1.0, self.tests)
        pairs = _paired(self._reference, self._block)
        partners = [pairs[i][1] for i in self._choosing]
        after = [text for group in partners if group is not None for text in group.padded]
        self.phrase = spread_phrase(self._choosing_texts(), after, self._counted)
        choosing = set(self._choosing)
        testing = [pair for i, pair in enumerate(pairs) if i not in choosing]
        rise = rise_p_value(*_columns(pairs, "reward")) / share
        if rise > self.level:
            return []
        watched = [
            name
            for name, tolerance in self.tolerances.items()
            if math.isfinite(tolerance)
            and (name == "phrase_share" or np.isfinite(_columns(pairs, name)[0]).any())
        ]
        known = {alarm.statistic for alarm in self.alarms}
        alarms = []
        for name in watched:
            if name in known or (name == "phrase_share" and not self.phrase):
                continue
            tested = testing if name == "phrase_share" else pairs
            values = _columns(tested, name, self.phrase)
            p_value = max(rise, len(watched) * self._drift(name, *values) / share)
            if p_value <= self.level:
                alarms.append(self._alarm(name, step, values, p_value))
        return alarms

    def _drift(self, name: str, before: Floats, after: Floats) -> float:
        """Return the p-value of a drift beyond the tolerance."""
        tolerance = self.tolerances[name]
        if name == "agreement":
            return rise_p_value(after, before, tolerance)
        if name != "length":
            return rise_p_value(before, after, tolerance)
        margin = math.log(tolerance)
        either = (rise_p_value(before, after, margin), rise_p_value(after, before, margin))
        return min(1.0, 2 * min(either))

    def _alarm(
        self, name: str, step: int, values: tuple[Floats, Floats], p_value: float
    ) -> DriftAlarm:
        both = np.isfinite(values[0]) & np.isfinite(values[1])
        means = [float(column[both].mean()) for column in values]
        longer = means[1] > means[0]
        if name == "length":
            means = [math.expm1(mean) for mean in means]
        phrase = self.phrase if name == "phrase_share" else ""

        def rank(text: str, padded: str, reward: float) -> float:
            if name == "length":
                return len(text) if longer else -len(text)
            if name == "repetition":
                found = repetition(split_words(text), SHORTEST)
                return -1.0 if math.isnan(found) else found
            counts = math.isfinite(reward) and (not phrase or f" {phrase} " in padded)
            return reward if counts else -math.inf

        completions = [
            each
            for group in self._block
            for each in zip(group.texts, group.padded, group.rewards, strict=True)
        ]
        example, _, _ = max(completions, key=lambda each: rank(*each))
        return DriftAlarm(name, step, means[0], means[1], p_value, phrase, example)


def spread_phrase(
    before: Sequence[str], after: Sequence[str], counted: Counter[tuple[str, ...]]
) -> str:
    """Return the phrase of 3 to 5 words whose share of texts has grown most; "" if none has.

    The trigram that has grown most is extended while it keeps nine tenths of its growth. Texts have
    single spaces between words, and around them; `counted` are the trigrams of the texts before.
    """

    def growth(phrase: str) -> float:
        now, then = (
            sum(f" {phrase} " in text for text in texts) / max(1, len(texts))
            for texts in (after, before)
        )
        return now - then

    found, grown = "", 0.0
    for gram, count in count_trigrams(after).items():
        increase = count / len(after) - counted.get(gram, 0) / max(1, len(before))
        if increase > grown and _EXPECTED not in gram:
            found, grown = " ".join(gram), increase
    while found and len(found.split(" ")) < LONGEST:
        longer = [(growth(each), each) for each in _extensions(found, after)]
        best, phrase = max(longer, default=(0.0, ""))
        if best < KEPT_GROWTH * grown:
            break
        found = phrase
    return found


def count_trigrams(texts: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Return the number of texts with each trigram of words, of texts as in `spread_phrase`."""
    grams: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = text.split(" ")[1:-1]
        grams.update(set(zip(*(words[start:] for start in range(SHORTEST)), strict=False)))
    return grams


def _extensions(phrase: str, texts: Sequence[str]) -> list[str]:
    """Return the most frequent phrases that are a word longer, one in each direction."""
    sides: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for text in texts:
        before, found, after = text.partition(f" {phrase} ")
        if found:
            sides[0][before.rpartition(" ")[2]] += 1
            sides[1][after.partition(" ")[0]] += 1
    left, right = (max(side, key=lambda word: side[word], default="") for side in sides)
    longer = [f"{left} {phrase}" if left else "", f"{phrase} {right}" if right else ""]
    return [each for each in longer if each and _EXPECTED not in each]


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, NaN if there is none; a numpy call costs more."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _paired(reference: Sequence[_Group], block: Sequence[_Group]) -> list[_Pair]:
    """Pair the groups of the reference with groups of the block, of the same prompt if possible."""
    free: dict[Hashable, deque[int]] = {}
    for i, group in enumerate(reference):
        free.setdefault(group.prompt, deque()).append(i)
    partners: list[_Group | None] = [None] * len(reference)
    others = []
    for group in block:
        places = free.get(group.prompt)
        if places:
            partners[places.popleft()] = group
        else:
            others.append(group)
    empty = [i for i, partner in enumerate(partners) if partner is None]
    for i, group in zip(empty, others, strict=False):
        partners[i] = group
    return list(zip(reference, partners, strict=True))


def _columns(pairs: Sequence[_Pair], name: str, phrase: str = "") -> tuple[Floats, Floats]:
    """Return a statistic of both groups of each pair."""
    before = np.array([first.value(name, phrase) for first, _ in pairs])
    after = [math.nan if second is None else second.value(name, phrase) for _, second in pairs]
    return before, np.array(after)
