"""Reward functions in another process, as TRL's asynchronous trainers use them.

The scores of a function in this process are the reference. Its models have been used before it is
pickled. A spawned process would get the same bytes, after seconds of imports.
"""

from __future__ import annotations

import inspect
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from coroutines import run_coroutine

from ctrlreward import Reward, Samples
from ctrlreward.adapters import openrlhf, trl, verl
from ctrlreward.scorers import CTRLEval, Perplexity

PROMPTS = ["The food was", "A dog slept"]
COMPLETIONS = [" good, and the staff was quick.", ""]
COLUMNS = {"prefixes": "prompt"}
TRL = {"prompts": PROMPTS, "completions": COMPLETIONS}
VERL = {"data_source": "d", "ground_truth": "", "extra_info": {"prompt": PROMPTS[0]}}


@pytest.fixture(scope="module")
def reward(tiny_causal: Callable[..., str]) -> Reward:
    """A reward of two scorers that share a tiny model, with everything in use that has state."""
    folder = tiny_causal("llama")
    fluency, ctrleval = Perplexity(folder), CTRLEval(folder, aspects=["coherence"])
    used = Reward({"fluency": fluency["log_likelihood"], "coherence": (ctrleval["coherence"], 0.5)})
    used.submit(Samples(["A dog slept under the table. The lake froze over."])).result()
    return used


@pytest.fixture(scope="module")
def child() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as pool:
        yield pool


def check(values: list[Any], expected: list[Any]) -> None:
    assert len(values) == len(expected)
    for value, other in zip(values, expected, strict=True):
        assert value == (None if other is None else pytest.approx(other, rel=1e-6, nan_ok=True))
    assert any(isinstance(other, float) and other != 0 for other in expected)


def test_trl_scores_the_same_in_another_process(reward: Reward, child) -> None:
    functions = trl.as_reward_funcs(reward, COLUMNS, name="r")
    functions += trl.as_component_funcs(reward, COLUMNS).functions
    for function in functions:
        check(child.submit(function, **TRL).result(), function(**TRL))
    (coroutine,) = trl.as_async_reward_funcs(reward, COLUMNS, name="r")
    check(child.submit(run_coroutine, coroutine, TRL).result(), functions[0](**TRL))


def test_openrlhf_scores_the_same_in_another_process(reward: Reward, child) -> None:
    function = openrlhf.as_reward_func(reward, ["<|endoftext|>"], -9.0, COLUMNS)
    queries = [f"{p}{c}<|endoftext|>" for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    given = (queries, PROMPTS, ["", ""])
    there, here = child.submit(function, *given).result(), function(*given)
    check(there["rewards"].tolist(), here["rewards"].tolist())
    check(there["extra_logs"]["coherence"].tolist(), here["extra_logs"]["coherence"].tolist())


def test_verl_scores_the_same_in_another_process(reward: Reward, child) -> None:
    single = verl.as_compute_score(reward, -9.0, COLUMNS)
    coroutine = verl.as_async_compute_score(reward, -9.0, COLUMNS, wait=0.01)
    given = {**VERL, "solution_str": COMPLETIONS[0]}
    here = single(**given)
    for there in (
        child.submit(single, **given).result(),
        child.submit(run_coroutine, coroutine, given).result(),
    ):
        assert list(there) == list(here)
        check(list(there.values()), list(here.values()))


def test_copies_of_coroutine_functions_are_coroutine_functions(reward: Reward) -> None:
    from trl.trainer.utils import get_callable_name, is_async_callable  # what TRL itself asks

    (function,) = trl.as_async_reward_funcs(reward, name="r")
    for copy in (function, pickle.loads(pickle.dumps(function))):
        assert is_async_callable(copy)
        assert get_callable_name(copy) == "r"
    compute_score = verl.as_async_compute_score(reward, -9.0)
    for copy in (compute_score, pickle.loads(pickle.dumps(compute_score))):
        assert inspect.iscoroutinefunction(copy)


def test_a_used_reward_is_pickled_without_models(reward: Reward) -> None:
    reward(Samples(PROMPTS))
    assert len(pickle.dumps(trl.as_reward_funcs(reward))) < 20_000  # the weights take 130,000


def test_copied_component_functions_score_a_batch_once_between_them(letters) -> None:
    given = {"prompts": ["p", "p"], "completions": ["ab", "b"]}
    lengths = Reward({"share": letters["share"], "length": letters["length"]})
    functions, _ = trl.as_component_funcs(lengths)
    before = [function(**given) for function in functions]
    copies, counted = pickle.loads(pickle.dumps((functions, letters)))
    counted.scored.clear()
    assert [copy(**given) for copy in copies] == before == [[0.5, 0.0], [2.0, 1.0]]
    assert len(counted.scored) == 1


def test_component_functions_in_threads_score_a_batch_once(letters, monkeypatch) -> None:
    """TRL's asynchronous trainer runs each function in a thread of its own."""
    quick = type(letters).score_samples

    def slow(self: Any, samples: Samples) -> Any:
        time.sleep(0.1)
        return quick(self, samples)

    monkeypatch.setattr(type(letters), "score_samples", slow)
    reward = Reward({"share": letters["share"], "length": letters["length"]})
    functions, _ = trl.as_component_funcs(reward)
    with ThreadPoolExecutor(4) as pool:
        for text in ("ab", "aab"):
            given = {"prompts": ["p"], "completions": [text]}
            results = [pool.submit(function, **given) for function in functions]
            assert [r.result() for r in results] == [[text.count("a") / len(text)], [len(text)]]
    assert [samples.texts for samples in letters.scored] == [("ab",), ("aab",)]
