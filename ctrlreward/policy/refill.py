"""Dynamic sampling (DAPO, Yu et al. 2025, section 3.2): groups without signal are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, IterableDataset

from ctrlreward.functional.advantages import zero_signal
from ctrlreward.policy.rollouts import Rollout
from ctrlreward.reward import RewardBatch
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


class ScoredRollout(NamedTuple):
    """Completions with their rewards; completions of a prompt are consecutive.

    Attributes:
        samples: n samples with all columns.
        rollout: Their completions.
        seconds: Duration of sampling.
        rewards: Their rewards.
        credit: Reward of each token of each completion, if it is spread over them.
    """

    samples: Samples
    rollout: Rollout
    seconds: float
    rewards: RewardBatch
    credit: list[Scores] | None = None

    def lacks_signal(self, score: str, size: int) -> Tensor:
        """Return True for each group of `size` in which a score, or the total, doesn't differ."""
        rewards = self.rewards
        values = rewards.total if score == "total" else rewards.components[score]
        known = torch.from_numpy(values).masked_fill(torch.from_numpy(rewards.failed), torch.nan)
        return zero_signal(known, torch.arange(len(known)) // size)[::size]


def refill(
    scored: ScoredRollout,
    lacks_signal: Callable[[ScoredRollout], Tensor],
    sample: Callable[[int], ScoredRollout],
    most: int,
    padding: int,
    left: bool,
) -> tuple[ScoredRollout, Tensor, int]:
    """Replace groups without signal by new ones with signal, in at most `most` rounds.

    `sample(n)` samples and scores the groups of n other prompts. `padding` is the id of padding,
    and `left` whether prompts have it on the left.

    Returns as many groups, True for those that still have no signal, shape (groups,), and the
    number of rounds.
    """
    lacking = lacks_signal(scored)
    count, size = len(lacking), len(scored.samples) // len(lacking)
    parts, groups = [scored], torch.arange(count)
    while lacking.any() and len(parts) <= most:
        parts.append(sample(int(lacking.sum())))
        found = (~lacks_signal(parts[-1])).nonzero()[:, 0]
        places = lacking.nonzero()[: len(found), 0]
        groups[places], lacking[places] = count + found, False
        count += len(parts[-1].samples) // size
    if len(parts) == 1:
        return scored, lacking, 0
    rows = (groups[:, None] * size + torch.arange(size)).flatten()
    joined = ScoredRollout(
        Samples.concat(part.samples for part in parts)[rows.tolist()],
        joined_rollouts([part.rollout for part in parts], padding, left)[rows],
        sum(part.seconds for part in parts),
        RewardBatch.concat([part.rewards for part in parts])[rows.numpy()],
    )
    return joined, lacking, len(parts) - 1


def joined_rollouts(rollouts: Sequence[Rollout], padding: int, left: bool) -> Rollout:
    """Concatenate rollouts, padded to the longest prompt and the longest completion."""
    new = max(r.mask.shape[1] for r in rollouts)
    old = max(r.ids.shape[1] - r.mask.shape[1] for r in rollouts)

    def padded(rollout: Rollout, ids: Tensor, value: int) -> Tensor:
        width = rollout.mask.shape[1]
        missing = old - (ids.shape[1] - width)
        prompts = pad(ids[:, :-width], (missing, 0) if left else (0, missing), value=value)
        return torch.cat([prompts, pad(ids[:, -width:], (0, new - width), value=value)], dim=1)

    return Rollout(
        [completion for r in rollouts for completion in r.completions],
        torch.cat([padded(r, r.ids, padding) for r in rollouts]),
        torch.cat([padded(r, r.attention, 0) for r in rollouts]),
        torch.cat([pad(r.mask, (0, new - r.mask.shape[1])) for r in rollouts]),
        torch.cat([r.ended for r in rollouts]),
    )


def unfit_loader(loader: object) -> str | None:
    """Return why prompts can't be drawn from a training dataloader; None if they can."""
    if not isinstance(loader, DataLoader):
        return f"a {type(loader).__name__}"
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        return f"a DataLoader of a {type(loader.dataset).__name__}, which does not have a length"
    return None


def drawn_batch(loader: DataLoader[Any], prompts: int) -> object:
    """Return a batch of the training set at random, by torch's global generator.

    It has `prompts` items; if each item of the dataset is a batch, it is one of these.
    """
    dataset: Any = loader.dataset
    places = torch.randint(len(dataset), (prompts,)).tolist()
    if loader.batch_sampler is None:
        return loader.collate_fn(dataset[places[0]])
    return loader.collate_fn([dataset[place] for place in places])
