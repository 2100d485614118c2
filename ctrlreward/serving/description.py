"""Description of a reward: its scores, weights and fingerprint, and how two of them differ."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ctrlreward.files import changed_items
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.scorers.base import Scorer
from ctrlreward.serving.contract import PROTOCOL
from ctrlreward.serving.fingerprint import digest_of, fingerprint


def describe(reward: Reward) -> dict[str, Any]:
    """Return the names, directions, ranges, weights and fingerprint of a reward; loads no model.

    Equal rewards have equal descriptions in all processes.

    Returns:
        Data for JSON: `protocol`; `scorers`, each with `id`, `class`, `pointwise`, `of_groups`,
        `required_columns` (score → column → scorer that needs it), `scores` (name →
        `higher_is_better` and `range`, with null for no bound) and `folds` (score of a corpus →
        names of its parts); `components` (name → id of its scorer, score, and the condition, if
        any); `derived`, the names of further columns, if any; `aggregate`, `weights`, `thresholds`,
        `accuracy_score` as in `Reward`; `fingerprint` (dotted key → value); `fingerprint_id`, a
        SHA-256.
    """
    scorers = scorers_by_id(reward)
    ids = {scorer: id_ for id_, scorer in scorers.items()}
    aggregate = "weighted" if reward.weights is not None else "custom"
    aggregate = aggregate if reward.thresholds is None else "gm"
    function = reward.aggregate if aggregate == "custom" else aggregate
    described: dict[str, Any] = {
        "protocol": PROTOCOL,
        "scorers": [_describe_scorer(id_, scorer) for id_, scorer in scorers.items()],
        "components": {
            name: {"scorer": ids[c.scorer], "score": c.name}
            | ({} if c.given is None else {"given": c.given, "at_least": c.at_least})
            for name, c in reward.components.items()
        },
        **({"derived": list(reward.derived)} if reward.derived else {}),
        "aggregate": aggregate,
        "weights": None if reward.weights is None else dict(reward.weights),
        "thresholds": None if reward.thresholds is None else list(reward.thresholds),
        "accuracy_score": reward.accuracy_score,
        "fingerprint": fingerprint(scorers, function),
    }
    described["fingerprint_id"] = digest_of(described)
    return described


def scorers_by_id(reward: Reward) -> dict[str, Scorer]:
    """Return the scorers of a reward by id: `"0"`, `"1"`, … in the order of the components."""
    scorers = dict.fromkeys(component.scorer for component in reward.components.values())
    return {str(i): scorer for i, scorer in enumerate(scorers)}


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


def _describe_scorer(id_: str, scorer: Scorer) -> dict[str, Any]:
    folds = {name: list(fold.parts) for name, fold in scorer.corpus_folds.items()}
    names = dict.fromkeys((*scorer.specs, *(part for parts in folds.values() for part in parts)))
    return {
        "id": id_,
        "class": type(scorer).__name__,
        "pointwise": scorer.pointwise,
        "of_groups": scorer.of_groups,
        "required_columns": {name: dict(scorer.required_columns((name,))) for name in names},
        "scores": {
            name: {
                "higher_is_better": bool(spec.higher_is_better),
                "range": [float(b) if math.isfinite(b) else None for b in spec.range],
            }
            for name, spec in scorer.specs.items()
        },
        "folds": folds,
    }


def reward_id(reward: AnyReward) -> str:
    """Return a digest of settings and weights."""
    described = describe(reward) if isinstance(reward, Reward) else reward.description  # type: ignore[attr-defined]
    return str(described["fingerprint_id"])
