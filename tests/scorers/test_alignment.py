from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from failed_rows import failures_of

from ctrlreward.failures import UnreadableText
from ctrlreward.models.aligner import TokenAlignment
from ctrlreward.models.neutral_texts import neutral_texts
from ctrlreward.samples import Samples, as_samples
from ctrlreward.scorers.alignment import ASPECTS, Alignment
from ctrlreward.scorers.records import explain_some


@pytest.fixture(scope="module")
def scorer() -> Alignment:
    """All aspects with one model; small batches are the fastest on a CPU."""
    scorer = Alignment(aspects=tuple(ASPECTS), batch_tokens=1024)
    scorer.load()
    return scorer


def with_model_of(scorer: Alignment, *aspects: str, **settings: Any) -> Alignment:
    """Scorer with other settings that shares the model."""
    return Alignment(aspects=aspects, batch_tokens=1024, dtype=scorer.dtype, **settings)


def dialog(
    *texts: str, context: str = "I have two dogs.", history: str = "Who are you?"
) -> Samples:
    n = len(texts)
    return Samples(texts, contexts=[context] * n, histories=[history] * n)


def test_stop_words_count_in_no_dialog_aspect_and_in_all_others(scorer: Alignment) -> None:
    samples = dialog("my dogs and i").replace(sources=["my dogs and i"])
    explained = with_model_of(scorer, "groundedness", "consistency").explain(samples)[0]
    counted = {name: [t.counted for t in part.tokens] for name, part in explained.items()}
    assert counted == {
        "groundedness": [False, True, False, False],
        "consistency": [True] * 4,
    }
    other = with_model_of(scorer, "groundedness", stop_words=["Dogs"])
    tokens = other.explain(samples)[0]["groundedness"].tokens
    assert [t.counted for t in tokens] == [True, False, True, True]
    assert with_model_of(scorer, "groundedness").score(dialog("you and i"))["groundedness"] == 0
    every = with_model_of(scorer, "groundedness", stop_words=[])
    values = [t.value for t in every.explain(samples)[0]["groundedness"].tokens]
    assert every.score(samples)["groundedness"] == pytest.approx([sum(values)])


def test_groundedness_counts_what_cosines_have_above_chance(scorer: Alignment) -> None:
    """Chance is the mean over tokens of neutral texts, compared with all other neutral texts."""
    samples = dialog("two dogs bark at the moon", "hi")
    raw = with_model_of(scorer, "groundedness", calibration=False, stop_words=[])
    texts, align = neutral_texts(), raw.loaded_model.align
    best = [
        np.max([next(iter(align([(text, other)]))).values for other in texts if other != text], 0)
        for text in texts
    ]
    chance = np.mean(np.concatenate(best))
    assert 0.2 < chance < 0.5
    cosines = [
        [token.value for token in row["groundedness"].tokens] for row in raw.explain(samples)
    ]
    expected = [sum(max(0.0, cosine - chance) for cosine in row) for row in cosines]
    calibrated = with_model_of(scorer, "groundedness", stop_words=[]).score(samples)
    np.testing.assert_allclose(calibrated["groundedness"], expected, atol=1e-5)
    assert raw.score(samples)["groundedness"] == pytest.approx([sum(row) for row in cosines])
    same = ("engagingness", "consistency")
    samples = samples.replace(sources=samples.contexts)
    both = (with_model_of(scorer, *same, calibration=on).score(samples) for on in (True, False))
    np.testing.assert_equal(*map(dict, both))


def test_engagingness_takes_what_context_and_history_say(scorer: Alignment) -> None:
    both = dialog("two dogs", "who are you", context="two dogs", history="who are you")
    score = with_model_of(scorer, "engagingness", stop_words=[]).score
    alone = score(dialog("two dogs", history="", context="who are you\n\n\ntwo dogs"))
    assert np.isfinite(alone["engagingness"]).all()
    explained = with_model_of(scorer, "engagingness").explain(both)
    assert [parts["engagingness"].other for parts in explained] == ["two dogs\n\n\nwho are you"] * 2
    assert (score(both)["engagingness"] > [1.0, 1.5]).all()


def test_equal_texts_keep_everything(scorer: Alignment) -> None:
    texts = ["the staff was friendly", "  the staff was friendly\n"]
    result = with_model_of(scorer, "preservation").score(Samples(texts, sources=texts[::-1]))
    for values in result.values():
        np.testing.assert_allclose(values, 1, atol=1e-5)
        assert (values <= 1).all()


# Aspects; columns beside the text "good food"; the scores that are NaN.
BOTH = "preservation_output preservation_source"
NOTHING: list[tuple[str, dict[str, Any], str]] = [
    ("preservation", {"texts": "", "sources": "food"}, BOTH),
    ("preservation", {"texts": "\u200b", "sources": "food"}, BOTH),
    ("preservation", {"sources": " "}, BOTH),
    ("relevance", {"sources": "food", "references": ""}, "relevance_reference"),
    ("relevance", {"sources": "food", "references": [["food", " "]]}, "relevance_reference"),
    ("engagingness", {"contexts": "", "histories": " "}, "engagingness"),
]


@pytest.mark.parametrize(("aspect", "columns", "nan"), NOTHING)
def test_what_has_no_token_is_nan_and_named_beside_what_has(
    scorer: Alignment, aspect: str, columns: dict[str, Any], nan: str
) -> None:
    rows = [{**columns}, dict.fromkeys(columns, "a dog")]
    both = Samples.concat([as_samples([row.pop("texts", "good food")], **row) for row in rows])
    one = with_model_of(scorer, aspect)
    result = one.score(both)
    for name, values in result.items():
        failed = name in (*nan.split(), aspect)
        assert np.isnan(values).tolist() == [failed, False], name
    assert failures_of(one, both).keys() == {0}


def test_explain_gives_what_the_scores_are_made_of(scorer: Alignment) -> None:
    preserved = with_model_of(scorer, "preservation")
    samples = Samples([" cold soup ", ""], sources=["hot soup", "hot soup"])
    explained = preserved.explain(samples)
    scores = preserved.score(samples)
    first = explained[0]["preservation_output"]
    assert (first.text, first.other) == ("cold soup", "hot soup")
    assert [first.text[t.start : t.end] for t in first.tokens] == ["cold", "soup"]
    assert first.score == np.mean([t.value for t in first.tokens])
    for i, parts in enumerate(explained):
        assert list(parts) == ["preservation_output", "preservation_source"]
        for name, part in parts.items():
            np.testing.assert_equal(part.score, scores[name][i])


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("embedding", [(-1, 1), (-1, 1), (0, 1), (0, np.inf)]),
        ("discriminative", [(0, 1), (0, 1), (0, 1), (0, np.inf)]),
        ("regression", [(-np.inf, np.inf)] * 2 + [(0, np.inf), (-np.inf, np.inf)]),
    ],
)
def test_ranges(method: Any, expected: list[tuple[float, float]]) -> None:
    specs = Alignment(aspects=("relevance", "preservation", "groundedness"), method=method).specs
    names = ("relevance_output", "relevance", "preservation", "groundedness")
    assert [specs[name].range for name in names] == expected
    assert all(spec.higher_is_better for spec in specs.values())
    others = {"relevance_reference", "preservation_output", "preservation_source"}
    assert {*specs} == {*names} | others


def test_regression_has_no_words_to_leave_out() -> None:
    class Whole:
        def align(self, pairs: Any) -> Any:
            return [TokenAlignment(((0, len(a)),), np.array([0.7])) for a, _ in pairs]

    regression = Alignment(aspects=("groundedness", "consistency"), method="regression")
    regression.__dict__["loaded_model"] = Whole()
    result = regression.score(dialog("you").replace(sources=["we"]))
    assert result["groundedness"].tolist() == result["consistency"].tolist() == [0.7]


WRONG_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("aspects", {"aspects": []}),
    ("layer", {"method": "regression", "layer": 2}),
    ("model", {"model": {"relevance_output": "a"}, "aspects": "relevance"}),
    ("stop_words", {"stop_words": "the"}),
]


@pytest.mark.parametrize(("name", "settings"), WRONG_SETTINGS)
def test_wrong_settings(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name):
        Alignment(**settings)


def test_a_text_that_cannot_be_read_has_no_explanation(scorer: Alignment, monkeypatch) -> None:
    def refusing(samples: Samples) -> list[dict[str, Any]]:
        if "odd" in samples.texts:
            raise UnreadableText("it is odd")
        return Alignment.explain(part, samples)

    part = with_model_of(scorer, "consistency")
    monkeypatch.setattr(part, "explain", refusing)
    samples = Samples(["a soup", "odd", "soup"], sources=["a soup"] * 3)
    assert [*explain_some({"kept": part["consistency"]}, samples)] == [0, 2]


def test_explanations_of_some_texts_are_plain_data(scorer: Alignment) -> None:
    samples = Samples([f"{i} warm soups" for i in range(9)], sources=["a soup"] * 8 + [""])
    part = with_model_of(scorer, "consistency", "preservation")
    found = explain_some({"kept": part["consistency"]}, samples, count=3)
    assert [(row, [*named]) for row, named in found.items()] == [
        (row, ["consistency"]) for row in (0, 4, 8)
    ]
    assert json.loads(json.dumps(found[8], allow_nan=False))["consistency"]["score"] is None
    tokens = found[4]["consistency"]["tokens"]
    score = part.score(samples)["consistency"][4]
    assert np.mean([token["value"] for token in tokens]) == pytest.approx(score)
