"""Description of a reward: its components, weights and fingerprint, and how two of them differ."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ctrlreward.aggregates import AGGREGATES
from ctrlreward.files import changed_items
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.scorers.base import Component
from ctrlreward.serving.contract import PROTOCOL
from ctrlreward.serving.fingerprint import digest_of, fingerprint


def describe(reward: Reward) -> dict[str, Any]:
    """Return the names, directions, ranges, weights and fingerprint of a reward; loads no model.

    Equal rewards have equal descriptions in all processes.

    Returns:
        Data for JSON: `protocol`; `components`, each with the `class` of its scorer, the `score`,
        `higher_is_better`, `range` (null for no bound), `pointwise`, `of_groups`,
        `required_columns` (column → scorer that needs it); `derived`, the names of further columns,
        if any; `given`, the conditions; `aggregate`, its name or "custom", and `weights`;
        `fingerprint` (dotted key → value); `fingerprint_id`, a SHA-256.
    """
    scorers = dict.fromkeys(component.scorer for component in reward.components.values())
    names = {kind: name for name, kind in AGGREGATES.items()}
    aggregate = names.get(type(reward.aggregate), "custom")  # type: ignore[arg-type]
    combined = aggregate if reward.weights is not None else reward.aggregate
    described: dict[str, Any] = {
        "protocol": PROTOCOL,
        "components": {name: _describe(c) for name, c in reward.components.items()},
        **({"derived": list(reward.derived)} if reward.derived else {}),
        "given": {name: list(condition) for name, condition in reward.given.items()},
        "aggregate": aggregate,
        "weights": None if reward.weights is None else dict(reward.weights),
        "fingerprint": fingerprint({str(i): s for i, s in enumerate(scorers)}, combined),
    }
    described["fingerprint_id"] = digest_of(described)
    return described


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return one line per difference of two descriptions: `weights.fluency: expected 1.0, …`.

    Only the expected top-level entries are compared: `{"weights": {"fluency": 1.0}}`
    expects these weights, and any scorers. `fingerprint_id` is left out if another line shows
    the difference.
    """
    expected, found = (json.loads(json.dumps(dict(each))) for each in (expected, found))
    compared = {key: value for key, value in found.items() if key in expected}
    changes = changed_items(expected, compared)
    lines = [f"{key}: expected {one}, found {other}" for key, one, other in changes]
    return [line for line in lines if not line.startswith("fingerprint_id: ")] or lines


def _describe(component: Component) -> dict[str, Any]:
    scorer, spec = component.scorer, component.spec
    return {
        "class": type(scorer).__name__,
        "score": component.name,
        "higher_is_better": bool(spec.higher_is_better),
        "range": [float(b) if math.isfinite(b) else None for b in spec.range],
        "pointwise": scorer.pointwise,
        "of_groups": scorer.of_groups,
        "required_columns": dict(scorer.required_columns((component.name,))),
    }


def reward_id(reward: AnyReward) -> str:
    """Return a digest of settings and weights."""
    described = describe(reward) if isinstance(reward, Reward) else reward.description  # type: ignore[attr-defined]
    return str(described["fingerprint_id"])
