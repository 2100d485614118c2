"""What a new user types first, from memory of other libraries: it works, or says what to type."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_lightning as pl

import ctrlreward as cr
from ctrlreward import CTRLEval, Similarity
from ctrlreward import huggingface as of_trainer
from ctrlreward.adapters.trl import as_reward_funcs
from ctrlreward.callbacks import (
    BeforeAfter,
    GenerationScorer,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)

TEXTS = ["good soup", "cold broth"]


@pytest.fixture
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama("abcdefghijklmnopqrstuvwxyz .")


def test_scores_whose_column_is_absent_are_left_out(
    model: str, tiny_bart: str, caplog: pytest.LogCaptureFixture
) -> None:
    ctrleval, alignment, none = CTRLEval(model), cr.Alignment(aspects="all"), {}
    bart = cr.BARTScore(tiny_bart, aspects="all")
    tries: list[tuple[cr.Scorer, dict[str, Any], str]] = [
        (ctrleval, none, "coherence"),
        (ctrleval, {"prefix": ""}, "coherence consistency"),
        (cr.LexiconSentiment(), none, "polarity"),
        (alignment, {"context": "A soup."}, "groundedness"),
        (bart, {"reference": "A b."}, "precision recall f_score"),
    ]
    for scorer, columns, names in tries:
        scores = scorer.score(TEXTS, **columns)
        assert " ".join(scores) == names
        assert set(scorer.specs) > set(scores)
    assert [*ctrleval.explain(TEXTS)[0]] == ["coherence"]
    assert [*alignment.explain(["soup"], contexts="A soup.")[0]] == ["groundedness"]
    with pytest.raises(ValueError, match="'sources'"):
        alignment.score(TEXTS)  # nothing is left
    with pytest.raises(ValueError, match="'prefixes'"):
        CTRLEval(model, aspects=["coherence", "consistency"]).score(TEXTS)


def test_a_missing_column_is_found_before_a_model_is_loaded(tmp_path: Any) -> None:
    nowhere = str(tmp_path / "nowhere")  # loading it would raise another error
    scorers = {
        CTRLEval(nowhere, aspects="consistency"): "'prefixes'",
        cr.Accuracy(nowhere): "'labels'",
        cr.Alignment(nowhere, aspects="relevance"): "'(sources|references)'",
        cr.Alignment(nowhere, aspects="groundedness"): "'contexts'",
        Similarity(nowhere): "'sources'",
    }
    for scorer, message in scorers.items():
        name = next(iter(scorer.specs))
        with pytest.raises(ValueError, match=message) as error:
            scorer[name](TEXTS)
        restored = pickle.loads(pickle.dumps(error.value))
        assert (str(restored), restored.column) == (str(error.value), error.value.column)
        trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        callback = GenerationScorer({"score": scorer[name]}, TEXTS)
        columns = {"labels", "sources", "references", "contexts", "histories"}
        if columns & set(scorer.required_columns()):  # prefixes are those of the prompts
            with pytest.raises(ValueError, match=message):
                callback.setup(trainer, Completing(), "validate")


async def awaited(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


DISTINCT = cr.Distinct()["distinct_2"]
MISTAKES: dict[str, Callable[[], object]] = {
    "'strict'": lambda: RewardEarlyStopping("score/a", strict=True),
    "'save_weights_only'": lambda: RewardCheckpoint("a", save_weights_only=True),
    "'top_k'": lambda: RewardCheckpoint("score/a", top_k=2),
    "'margins'": lambda: ProxyGuard("score/a", "score/b", margins=0.1),
    "'save_top_k'": lambda: of_trainer.RewardCheckpoint("score/a", save_top_k=2),
    "'patienc'": lambda: of_trainer.RewardEarlyStopping("a", patienc=2),
    "scores .*mapping.*list": lambda: GenerationScorer([DISTINCT], TEXTS),  # type: ignore[arg-type]
    "scores .*mapping.*Distinct": lambda: GenerationScorer(cr.Distinct(), TEXTS),  # type: ignore[arg-type]
    "scores .*mapping.*Samples": lambda: GenerationScorer(cr.Samples(TEXTS), {"a": DISTINCT}),  # type: ignore[arg-type, dict-item]
    "as_reward_funcs": lambda: cr.Reward({"a": DISTINCT})(  # a Reward in `reward_funcs` of TRL
        prompts=["a"], completions=["b"], completion_ids=[[1]]
    ),
    "columns .*labels": lambda: as_reward_funcs(cr.Reward({"a": DISTINCT}), ["labels"]),  # type: ignore[arg-type]
    "coroutine": lambda: cr.Reward({"a": awaited}),  # type: ignore[dict-item]
    "judges .*mapping": lambda: BeforeAfter({"a": DISTINCT}, TEXTS, judges=[DISTINCT]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", MISTAKES)
def test_an_error_has_the_names_that_the_user_knows(message: str) -> None:
    with pytest.raises(TypeError, match=message):
        MISTAKES[message]()


def test_a_function_that_returns_no_list_is_shown_what_it_returned() -> None:
    reward = cr.Reward({"a": lambda texts: None})
    with pytest.raises(ValueError, match="None"):
        reward(TEXTS)


def test_columns_the_wrong_way_round_name_the_one_that_is_unknown() -> None:
    with pytest.raises(ValueError, match=r"labels.*'tone'"):
        as_reward_funcs(cr.Reward({"a": DISTINCT}), {"tone": "labels"})


class Completing(pl.LightningModule):
    def complete(self, prompts: Any) -> list[str]:
        return list(prompts)
