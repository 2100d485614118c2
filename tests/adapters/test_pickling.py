"""Reward functions in another process, as TRL's asynchronous trainers use them.

The scores of a function in this process are the reference. Its models have been used before it is
pickled. The other process was forked before; a spawned one would get the same bytes, after seconds
of imports.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapters.watched_functions import call

from ctrlreward import Reward, Samples
from ctrlreward.adapters import openrlhf, trl, verl
from ctrlreward.scorers import CTRLEval, Perplexity

PROMPTS = ["The food was", "A dog slept"]
COMPLETIONS = [" good, and the staff was quick.", ""]
COLUMNS = {"prefixes": "prompt"}
TRL: dict[str, Any] = {"prompts": PROMPTS, "completions": COMPLETIONS}
OPENRLHF = {
    "queries": [f"{p}{c}<end>" for p, c in zip(PROMPTS, COMPLETIONS, strict=True)],
    "prompts": PROMPTS,
    "labels": ["", ""],
}
VERL = {
    "data_source": "d",
    "solution_str": COMPLETIONS[0],
    "ground_truth": "",
    "extra_info": {"prompt": PROMPTS[0]},
}


@pytest.fixture(scope="module")
def reward(tiny_causal: Callable[..., str]) -> Reward:
    """A reward of two scorers that share a tiny model, with everything in use that has state."""
    folder = tiny_causal("llama")
    fluency, ctrleval = Perplexity(folder), CTRLEval(folder, aspects=["coherence"])
    used = Reward({"fluency": fluency["log_likelihood"], "coherence": (ctrleval["coherence"], 0.5)})
    used.submit(Samples(["A dog slept under the table. The lake froze over."])).result()
    return used


def numbers(result: Any) -> list[float | None]:
    """All values of a result of any trainer's function."""
    if isinstance(result, dict) and "extra_logs" in result:
        columns = result["rewards"], *result["extra_logs"].values()
        return [value for column in columns for value in column.tolist()]
    return list(result.values() if isinstance(result, dict) else result)


SCRIPT = """
import pickle, sys
from adapters.watched_functions import call
with open("calls", "rb") as calls, open("results", "wb") as results:
    for content in pickle.load(calls):
        pickle.dump(call(*pickle.loads(content)), results)
"""


def test_scores_are_the_same_in_another_process(
    reward: Reward,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_script: Callable[..., None],
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = [(f, TRL) for f in trl.as_reward_funcs(reward, COLUMNS)]
    calls += [(openrlhf.as_reward_func(reward, "<end>", -9.0, COLUMNS), OPENRLHF)]
    calls += [(verl.as_compute_score(reward, -9.0, COLUMNS), VERL)]
    calls += [(verl.as_async_compute_score(reward, -9.0, COLUMNS, wait=0.01), VERL)]
    assert inspect.iscoroutinefunction(pickle.loads(pickle.dumps(calls[-1][0])))
    Path("calls").write_bytes(pickle.dumps([pickle.dumps(each) for each in calls]))
    Path("script.py").write_text(SCRIPT)
    run_script(Path("script.py"), timeout=120)
    with open("results", "rb") as results:
        for function, arguments in calls:
            there = pickle.load(results)
            here = numbers(call(function, arguments))
            expected = [None if each is None else pytest.approx(each, rel=1e-6) for each in here]
            assert numbers(there) == expected
            assert any(here)
    assert len(pickle.dumps(calls[0][0])) < 20_000  # the weights take 130,000
