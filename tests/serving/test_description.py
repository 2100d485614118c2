"""Description of a reward and its fingerprint: what changes them."""

from __future__ import annotations

import json
from typing import Any

from ctrlreward import Distinct, Perplexity, Reward
from ctrlreward.models.identity import digest
from ctrlreward.serving.description import describe


def block(**options: Any) -> dict[str, Any]:
    return {"components": {"fluency": {"scorer": "Perplexity", "score": "perplexity", **options}}}


def test_what_is_written_in_the_file_counts() -> None:
    assert digest(block()) == digest(json.loads(json.dumps(block())))
    changed = [block(), block(model="minilm-l6"), block(max_tokens=7), block(weight=0.5)]
    assert len({*map(digest, changed)}) == 4
    reward = Reward({"fluency": Perplexity()["perplexity"]})
    assert describe(reward, block())["fingerprint_id"] == digest(block())


def test_a_reward_of_python_counts_by_its_description() -> None:
    first, second = Perplexity(), Perplexity()
    components = (first["perplexity"], (first["perplexity"], -0.1), Distinct()["distinct_2"])
    ids = [describe(Reward({"x": component}))["fingerprint_id"] for component in components]
    assert len({*ids}) == 3
    assert describe(Reward({"x": second["perplexity"]}))["fingerprint_id"] == ids[0]
