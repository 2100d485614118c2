"""Description of a reward: components, weights, and a digest that tells it from others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ctrlreward.aggregates import AGGREGATES
from ctrlreward.models.identity import digest
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.serving.contract import PROTOCOL


def describe(reward: Reward, block: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a client needs of a reward; loads no model.

    Data for JSON: of each component the `range`, null for no bound, and `required_columns`;
    `derived`, the names of further columns; `given`, the
    conditions; `fingerprint_id`, the `digest` of the YAML block that built the reward, or without
    one, of the other entries.
    """
    names = {kind: name for name, kind in AGGREGATES.items()}
    described: dict[str, Any] = {
        "protocol": PROTOCOL,
        "components": {
            name: {
                "class": type(c.scorer).__name__,
                "score": c.name,
                "higher_is_better": bool(c.spec.higher_is_better),
                "range": [float(b) if math.isfinite(b) else None for b in c.spec.range],
                "pointwise": c.scorer.pointwise,
                "of_groups": c.scorer.of_groups,
                "required_columns": list(c.scorer.required_columns((c.name,))),
            }
            for name, c in reward.components.items()
        },
        "derived": list(reward.derived),
        "given": {name: list(condition) for name, condition in reward.given.items()},
        "aggregate": names.get(type(reward.aggregate), "custom"),  # type: ignore[arg-type]
        "weights": None if reward.weights is None else dict(reward.weights),
    }
    return described | {"fingerprint_id": digest(described if block is None else block)}


def reward_id(reward: AnyReward, block: Mapping[str, Any]) -> str:
    """Return the digest of a reward of a YAML block; a served reward has its server's."""
    if isinstance(reward, Reward):
        return digest(block)
    return str(reward.description["fingerprint_id"])  # type: ignore[attr-defined]
