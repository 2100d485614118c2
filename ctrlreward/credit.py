"""Token credit: the reward of a text, assigned to the tokens that earned it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ctrlreward.engine.sharing import locked
from ctrlreward.reward import AnyReward, Reward, RewardBatch, RewardLike, as_reward
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Credit, Scorer, Scores, check_columns, named_error, score

Offsets = Sequence[tuple[int, int]]


def check_credit(reward: AnyReward) -> Reward:
    """Return the reward, or raise if no component of it can be split by token."""
    split = [name for name, c in reward.components.items() if c.name in c.scorer.credited]
    if not isinstance(reward, Reward) or not split:
        raise ValueError(
            f"no component of the reward ({', '.join(reward.components)}) can be given by token: "
            "must have CTRLEval's coherence, or a score of Alignment that reads the text, such as "
            "consistency, in this process"
        )
    if reward.weights is None:
        raise ValueError(
            "a reward by token is the sum of weighted components, but this reward has "
            "another aggregate, must be 'weighted'"
        )
    return reward


def token_credit(
    reward: RewardLike, samples: SamplesLike, offsets: Sequence[Offsets]
) -> tuple[RewardBatch, list[Scores]]:
    """Score samples, and spread each reward over the tokens of its text: dense rewards, as for PPO.

    A weighted component that has a value for each token or sentence (`Scorer.credited`) is assigned
    where these end: CTC's alignment (Deng et al. 2021, definition 3.1) at the aligned tokens, the
    coherence of CTRLEval at the last token of each sentence. Other components, and parts that end
    before the first token, are assigned to the last one. The tokens of a sample sum to its total.

    Args:
        reward: A weighted `Reward` with such a component, or that component.
        samples: n samples.
        offsets: For each text, start and end of each token in characters, in order, such as the
            `offset_mapping` of a tokenizer.

    Returns:
        The rewards as `reward(samples)` returns them, and n arrays of shape (tokens,), float64, NaN
        for a sample that failed.

    Raises:
        ValueError: The component does not exist, the aggregate is not a weighted sum, or offsets
            are missing.

    Example:
        >>> from ctrlreward import Alignment, Samples
        >>> consistency = Alignment("minilm-l6", aspects="consistency")["consistency"]
        >>> samples = Samples(["Hot soup."], sources=["The soup was hot."])
        >>> batch, (tokens,) = token_credit(consistency, samples, [[(0, 3), (3, 8), (8, 9)]])
        >>> tokens.shape, bool(abs(tokens.sum() - batch.total[0]) < 1e-6)
        ((3,), True)
    """
    reward, samples = check_credit(as_reward(reward)), as_samples(samples)
    if len(offsets) != len(samples):
        raise ValueError(
            f"offsets are for {len(offsets)} texts, and there are {len(samples)} samples"
        )
    for i, given in enumerate(offsets):
        if not len(given):
            raise ValueError(f"offsets[{i}] = []: must have one token or more")
    started, parts = time.perf_counter(), reward.components
    check_columns(parts, samples)
    split = {name: c for name, c in parts.items() if c.name in c.scorer.credited}
    found: dict[str, list[Credit]] = {}
    for scorer in dict.fromkeys(c.scorer for c in split.values()):
        own = {name: c.name for name, c in split.items() if c.scorer is scorer}
        by_score = _credits(scorer, samples, {*own.values()})
        found |= {name: by_score[score_name] for name, score_name in own.items()}
    rest = {name: c for name, c in parts.items() if name not in split}
    scores = score(rest, samples) if rest else {}
    scores |= {name: np.array([c.values.sum() for c in each]) for name, each in found.items()}
    batch = reward.combine({name: scores[name] for name in parts}, time.perf_counter() - started)
    weights = reward.weights or {}
    tokens = []
    for i, given in enumerate(offsets):
        ends = np.maximum.accumulate([end for _, end in given])
        row = np.full(len(ends), np.nan if batch.failed[i] else 0.0)
        row[-1] += sum(weights[name] * scores[name][i] for name in rest)
        for name, credits in found.items():
            places = np.searchsorted(ends, credits[i].ends)
            outside = (places == len(ends)) | (credits[i].ends <= given[0][0])
            np.add.at(
                row, np.where(outside, len(ends) - 1, places), weights[name] * credits[i].values
            )
        tokens.append(row)
    return batch, tokens


def _credits(scorer: Scorer, samples: Samples, names: set[str]) -> dict[str, list[Credit]]:
    """Split scores over each text; distinct samples are scored once, as in `score`."""
    distinct, inverse = samples.distinct()
    if invalid := distinct.invalid_unicode():
        distinct = distinct.blanked(invalid)
    with locked(scorer), named_error({scorer: names}, distinct):
        found = scorer.credit_samples(distinct, names)
    return {name: [found[name][row] for row in inverse] for name in names}
