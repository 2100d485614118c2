from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from asked_models import blank, filled, inputs_seen
from plain_models import PlainSeq2Seq

from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.models.tasks import Blank

TEXT = "The food was good, and the staff was friendly."
BLANKS = [
    blank(TEXT + " In summary, it was ", ".", ("good", "terrible", "good")),
    blank("", " " + TEXT, ("The soup came cold.",), ends=True),
    blank("", " " + TEXT, ("The soup came cold.",)),  # the same pattern, without the end
    blank("The food", "", (" was good", " was good, and the staff was slow")),
    blank("It seems ", "! " + TEXT, ("bad",)),
    blank(TEXT + " In summary, it was ", ".", ("bad",)),
]
FAMILIES = ["pegasus", "t5", "bart"]

Pair = tuple[Seq2SeqInfiller, PlainSeq2Seq]


@pytest.fixture(scope="module")
def pair_of(seq2seq_folders: dict[str, str]) -> Callable[[str], Pair]:
    folders = seq2seq_folders
    return cache(
        lambda family: (Seq2SeqInfiller(folders[family]), PlainSeq2Seq(family, folders[family]))
    )


def assert_equals_twin(
    infiller: Seq2SeqInfiller, twin: PlainSeq2Seq, blanks: Sequence[Blank]
) -> None:
    for each, found in zip(blanks, filled(infiller, blanks), strict=True):
        for target, scores in zip(each.targets, found, strict=True):
            source, decoder, first = twin.passes(each, target)
            assert scores.ids.dtype == np.int64
            assert scores.ids.tolist() == decoder[first:]
            assert scores.log_probs.dtype == np.float64
            expected = twin.log_probs(source, decoder, first)
            np.testing.assert_allclose(scores.log_probs, expected, atol=2e-5)


@pytest.mark.parametrize("batch_tokens", [1, 60, 8192])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_one_plain_pass_per_target(
    family: str,
    batch_tokens: int,
    pair_of: Callable[[str], Pair],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    infiller, twin = pair_of(family)
    monkeypatch.setattr(infiller, "batch_tokens", batch_tokens)
    assert_equals_twin(infiller, twin, BLANKS)
    words = [twin.log_probs(*twin.passes(BLANKS[0], word)).mean() for word in ("good", "terrible")]
    assert abs(words[0] - words[1]) > 0.1  # the words are told apart


@pytest.mark.parametrize("family", FAMILIES)
def test_each_distinct_pattern_is_encoded_once(family: str, pair_of: Callable[[str], Pair]) -> None:
    infiller, _ = pair_of(family)
    with inputs_seen(infiller.model.get_encoder()) as seen:
        filled(infiller, BLANKS * 3)
    assert sum(len(inputs["input_ids"]) for inputs in seen) == len(
        {(b.left, b.right) for b in BLANKS}
    )


# Longer than what the model reads.


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", [0, 2500, 5000])
def test_a_text_of_5000_words_keeps_its_blank_and_is_named(
    family: str,
    place: int,
    pair_of: Callable[[str], Pair],
    caplog: pytest.LogCaptureFixture,
) -> None:
    infiller, twin = pair_of(family)
    long = blank("good " * place, " food" * (5000 - place), ("slow",))
    source, decoder, first = twin.passes(long, "slow")
    limit = {"pegasus": 128, "t5": 512, "bart": 64}[family]
    _, (found,) = filled(infiller, [BLANKS[4], long])
    assert str(len(source)) in caplog.messages[0]
    mask = {"pegasus": 2, "t5": len(twin.tokenizer) - 1, "bart": 4}[family]
    # As much as fits of each side of the blank, and the end token.
    at = source.index(mask)
    before = min(at, max(limit // 2, limit - (len(source) - at)))
    cut = source[at - before :][: limit - 1] + source[-1:]
    assert mask in cut
    scored = len(decoder) - first
    if family == "bart":  # its decoder reads the end of what stands before the blank
        decoder = decoder[:2] + decoder[2:][-63:]
    expected = twin.log_probs(cut, decoder, len(decoder) - scored)
    np.testing.assert_allclose(found.log_probs, expected, atol=2e-5)


@pytest.mark.parametrize(("family", "limit"), [("pegasus", 128), ("bart", 64)])
def test_of_a_target_that_is_too_long_the_end_is_left_out(
    family: str,
    limit: int,
    pair_of: Callable[[str], Pair],
    caplog: pytest.LogCaptureFixture,
) -> None:
    infiller, twin = pair_of(family)
    long = blank("The food ", "", ("is good " * 2500,), ends=True)
    source, decoder, first = twin.passes(long, *long.targets)
    ((found,),) = filled(infiller, [long])
    assert str(len(decoder) - 1) in caplog.messages[0]
    if family == "bart":  # what stands before the blank goes first
        decoder, first = decoder[:2] + decoder[first:], 2
    kept = decoder[: limit + 1]
    assert found.ids.tolist() == kept[first:]
    np.testing.assert_allclose(found.log_probs, twin.log_probs(source, kept, first), atol=2e-5)


# Nothing to score, and models that can't.


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_gives_nothing(family: str, pair_of: Callable[[str], Pair]) -> None:
    infiller, _ = pair_of(family)
    assert filled(infiller, []) == []
    ((empty,), none) = filled(infiller, [blank("", ".", ("",)), blank("A", "", ())])
    assert empty.ids.shape == empty.log_probs.shape == (0,)
    assert none == []
