"""Every scorer on a device that refuses tensors of another one."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from device_cases import CASES, SAMPLES, few_evaluators, samples_of
from second_device import memory, on_second_device

from ctrlreward import Reward, scorers
from ctrlreward.scorers import CTRLEval, Perplexity, Similarity

DEVICE = "second:0"


@on_second_device
def test_scores_are_those_of_the_cpu_and_release_frees(folders: dict[str, str]) -> None:
    for case, build in CASES.items():
        samples = samples_of(case, SAMPLES)
        few = few_evaluators(case)
        expected = build(folders, {"device": "cpu", **few}).score(samples)
        assert memory.live == [0, 0], case
        scorer = build(folders, {"device": DEVICE, **few})
        assert set(scorer.devices) <= {DEVICE}, case
        scores = scorer.score(samples)
        assert memory.live[0] > 1000, case  # the weights
        assert memory.live[1] == 0, case
        assert scores.keys() == expected.keys(), case
        for name, values in expected.items():
            assert not np.isnan(values).all(), (case, name)
            np.testing.assert_allclose(scores[name], values, 1e-5, 1e-5, err_msg=f"{case}: {name}")
        scorer.release()
        assert memory.live == [0, 0], case


@pytest.mark.parametrize("case", ["CTRLEval llama", "CTRLEval t5", "Similarity", "Accuracy bert"])
def test_scores_are_the_same_in_mixed_precision(case: str, folders: dict[str, str]) -> None:
    """Within a training step, which Lightning runs under autocast."""
    scorer = CASES[case](folders, {"device": "cpu"})
    expected = scorer.score(SAMPLES)
    with torch.autocast("cpu", torch.bfloat16):
        scores = scorer.score(SAMPLES)
        assert torch.is_autocast_enabled("cpu")
    for name, values in expected.items():
        np.testing.assert_array_equal(scores[name], values)


@on_second_device
def test_a_model_without_a_device_is_on_the_one_that_does_not_train(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = CTRLEval(folders["llama"])
    scorer.score(SAMPLES)
    assert scorer.devices == ("second:1",)
    assert "second:1" in repr(scorer)
    assert memory.live[0] == 0
    assert memory.live[1] > 1000
    # A trainer moves to another device later.
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    assert scorer.device == "second:1"
    scorer.release()
    assert scorer.device == "second:0"


@pytest.mark.parametrize("family", ["llama", "pegasus"])
@on_second_device
def test_a_full_device_halves_batches_and_lets_go_of_the_failed_one(
    family: str, folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = CTRLEval(folders[family], device=DEVICE, batch_tokens=2**14)  # one batch for all
    scorer.load()
    gc.collect()
    before = memory.live[0]
    expected = scorer.score(SAMPLES)
    need = memory.peak[0] - before
    assert need > 2**17
    held: list[int] = []
    monkeypatch.setattr("torch.second.empty_cache", lambda: held.append(memory.live[0]))
    with memory.limited(need // 2):
        scores = scorer.score(SAMPLES)
    assert held  # it ran out, and emptied the cache
    # The seq2seq models keep the states of a window, the tensors of the failed pass are gone.
    assert max(held) - before < need // 4
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name], values, rtol=1e-5, atol=1e-5)
    with memory.limited(2**10), pytest.raises(torch.OutOfMemoryError, match="bytes left"):
        scorer.score(SAMPLES)
    with memory.limited(need):  # the failure held nothing back
        scorer.score(SAMPLES)


@on_second_device
def test_a_reward_moves_its_scorers_shares_models_and_frees_them(folders: dict[str, str]) -> None:
    def parts() -> dict[str, scorers.Component]:
        return {
            "coherence": CTRLEval(folders["llama"])["coherence"],
            "perplexity": Perplexity(folders["llama"])["perplexity"],
            "similarity": Similarity(folders["encoder"])["similarity"],
        }

    expected = Reward(parts(), device="cpu")(SAMPLES)
    reward = Reward(parts(), device=DEVICE)
    np.testing.assert_allclose(reward(SAMPLES).total, expected.total, rtol=1e-5)
    both = memory.live[0]
    alone = [CTRLEval(folders["llama"]), Similarity(folders["encoder"])]
    for scorer in alone:
        scorer.to("second:1")
        scorer.load()
    assert memory.live[1] == both  # two of the three scorers share a model
    for _ in range(3):  # beside this thread
        scored = reward.submit(SAMPLES).result()
        np.testing.assert_allclose(scored.total, expected.total, rtol=1e-5)
    assert memory.live[0] == both  # scoring leaves nothing behind
    emptied = memory.emptied
    reward.release()
    assert memory.emptied > emptied
    gc.collect()
    assert memory.live == [0, both]
    np.testing.assert_allclose(reward(SAMPLES).total, expected.total, rtol=1e-5)


@pytest.mark.parametrize("case", ["Perplexity llama", "AttributeClassifier"])
@on_second_device
def test_a_scorer_moves_between_devices_with_its_parts(case: str, folders: dict[str, str]) -> None:
    scorer, samples = CASES[case](folders, {"device": "cpu"}), samples_of(case, SAMPLES)
    expected = scorer.score(samples)
    for device, live in (("second:1", 1), ("second", 0)):
        scorer.to(device)
        for name, values in scorer.score(samples).items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-5)
        gc.collect()
        assert memory.live[live] > 1000
        assert memory.live[1 - live] == 0
