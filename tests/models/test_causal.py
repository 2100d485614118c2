from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from asked_models import Pair, continued, inputs_seen
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_models import PlainCausal

from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import Continuation

TEXT = "The food was good, and the staff was friendly."
CONTINUATIONS = [
    Pair(TEXT + " In summary, it was", " good"),
    Pair(TEXT + " In summary, it was", " terrible"),
    Pair(TEXT + " All in all, it was", " good"),
    Pair("", TEXT),
    Pair("", "A"),
    Pair(TEXT, ""),
    Pair("", ""),
    Pair("Good", "ness me"),  # a token across the border belongs to the target
    Pair("The soup ☕", " 🐕 slept ☕"),  # several tokens to a character
    Pair(TEXT + " In summary, it was", " good"),
    Pair("The", " food was good"),
]
WORDS = st.lists(st.sampled_from([" the", " food", " good", ".", " x"]), max_size=4)


def assert_equals_twin(lm: CausalLM, twin: PlainCausal, continuations: list[Pair]) -> None:
    for (context, target), found in zip(continuations, continued(lm, continuations), strict=True):
        ids, context_tokens = twin.tokens(context, target)
        assert found.ids.dtype == np.int64
        assert found.ids.tolist() == ids[context_tokens:]
        assert found.log_probs.dtype == np.float64
        expected = twin.log_probs([0, *ids], context_tokens + 1)
        np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 100, 8192])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "bloom", "falcon", "mamba", "lfm2"])
def test_equals_one_plain_pass_per_continuation(
    family: str, batch_tokens: int, tiny_causal: Callable[..., str]
) -> None:
    folder = tiny_causal(family)
    twin = PlainCausal(folder)
    assert_equals_twin(CausalLM(folder, batch_tokens=batch_tokens), twin, CONTINUATIONS)
    spread = twin.log_probs([0, *twin.tokens("", TEXT)[0]], 1).std()
    assert spread > 0.1  # the tokens are told apart


@pytest.fixture(scope="module")
def llama(tiny_causal: Callable[..., str]) -> CausalLM:
    return CausalLM(tiny_causal("llama"))


@pytest.fixture(scope="module")
def llama_twin(tiny_causal: Callable[..., str]) -> PlainCausal:
    return PlainCausal(tiny_causal("llama"))


@settings(max_examples=25)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=6))
def test_any_continuations_equal_one_plain_pass_each(
    llama: CausalLM, llama_twin: PlainCausal, words: list[tuple[list[str], list[str]]]
) -> None:
    continuations = [Pair("".join(left), "".join(right)) for left, right in words]
    assert_equals_twin(llama, llama_twin, continuations)


def test_a_context_goes_through_the_model_once(llama: CausalLM) -> None:
    words = [(p, w) for p in (" It was", " It seems", " Just") for w in (" good", " bad")]
    targets = tuple(((p,), (w,)) for p, w in words)
    with inputs_seen(llama.model) as seen:
        (together,) = llama.answer([Continuation((TEXT,), targets)])
        (alike,) = llama.answer([Continuation((TEXT,), targets)])
    read = [[0, *llama.tokenizer(TEXT + a + b).input_ids][:-1] for a, b in words]
    beginnings = {tuple(ids[: n + 1]) for ids in read for n in range(len(ids))}
    assert seen[0]["attention_mask"].dim() == 4
    assert [inputs["input_ids"].numel() for inputs in seen] == [len(beginnings)] * 2
    for (begin, target), *found in zip(
        words, together.split([1] * 6), alike.split([1] * 6), strict=True
    ):
        (alone,) = continued(llama, [(TEXT + begin, target)])
        for scores in found:
            np.testing.assert_array_equal(scores.ids, alone.ids)
            np.testing.assert_allclose(scores.log_probs, alone.log_probs, atol=1e-5)


TARGETS = (((), (" me too",)), ((" It",), ("self",)))


@given(st.lists(st.sampled_from(["The food", " was", " good", "ness", ".", " ", "\n\n", "1", "2"])))
def test_a_context_in_pieces_is_the_context(llama: CausalLM, pieces: list[str]) -> None:
    whole, cut = llama.answer(
        [
            Continuation(("".join(pieces),) if pieces else (), TARGETS),
            Continuation(tuple(pieces), TARGETS),
        ]
    )
    np.testing.assert_array_equal(whole.ids, cut.ids)
    np.testing.assert_allclose(whole.log_probs, cut.log_probs, atol=1e-5)


@pytest.mark.parametrize("family", ["bloom", "falcon", "mamba", "lfm2"])
def test_a_model_that_cannot_read_trees_reads_one_sequence_a_row(
    family: str, tiny_causal: Callable[..., str]
) -> None:
    lm = CausalLM(tiny_causal(family), batch_tokens=2**13)  # one pass, whatever is padded
    with inputs_seen(lm.model) as seen:
        continued(lm, CONTINUATIONS)
    (inputs,) = seen
    assert inputs.keys() == {"input_ids", "attention_mask", "use_cache"}
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape
    different = {*CONTINUATIONS}
    assert len(inputs["input_ids"]) <= len(different)  # equal ones share their row all the same


# Longer than the model's context of 64 tokens.


def test_what_is_farthest_from_the_target_is_left_out(
    llama: CausalLM, llama_twin: PlainCausal, caplog: pytest.LogCaptureFixture
) -> None:
    long = Pair("good" + " good" * 4999, " the food")
    short, found = continued(llama, [CONTINUATIONS[0], long])
    ids = llama_twin.tokenizer("".join(long)).input_ids
    (message,) = caplog.messages
    assert str(len(ids)) in message
    targets = llama_twin.tokenizer(long.target).input_ids
    assert found.ids.tolist() == targets
    expected = llama_twin.log_probs(ids[-65:], 65 - len(targets))
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)
    (alone,) = continued(llama, CONTINUATIONS[:1])
    np.testing.assert_allclose(short.log_probs, alone.log_probs, atol=1e-5)


def test_of_a_target_that_is_too_long_itself_the_end_is_left_out(
    llama: CausalLM, llama_twin: PlainCausal
) -> None:
    (found,) = continued(llama, [Pair(TEXT, " good the" * 2500)])
    last = llama_twin.tokenizer(TEXT).input_ids[-1]
    kept = [last, *llama_twin.tokenizer(" good the" * 64).input_ids[:64]]
    assert found.ids.tolist() == kept[1:]
    np.testing.assert_allclose(found.log_probs, llama_twin.log_probs(kept, 1), atol=1e-5)


def test_a_text_of_exactly_the_context_is_whole(
    llama: CausalLM, llama_twin: PlainCausal, caplog: pytest.LogCaptureFixture
) -> None:
    ids = llama_twin.tokens("", " good" * 64)[0]
    assert len(ids) == 64  # with the start token 65, the last of which is not read
    (found,) = continued(llama, [Pair("", " good" * 64)])
    assert caplog.messages == []
    np.testing.assert_allclose(found.log_probs, llama_twin.log_probs([0, *ids], 1), atol=1e-5)


# The token that begins a document: tests/scorers/test_perplexity.py has the families.


def test_without_a_start_token_the_first_token_is_no_target(
    tiny_causal: Callable[..., str],
) -> None:
    folder = tiny_causal("llama", ())
    ids = PlainCausal(folder).tokens("", TEXT)[0]
    batch = [Pair("", TEXT), Pair("", "A"), Pair("", "")]
    found, one, none = continued(CausalLM(folder), batch)
    assert found.ids.tolist() == ids[1:]
    np.testing.assert_allclose(found.log_probs, PlainCausal(folder).log_probs(ids, 1), atol=1e-5)
    assert len(one.ids) == len(one.log_probs) == len(none.ids) == len(none.log_probs) == 0
