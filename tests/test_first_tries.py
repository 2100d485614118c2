"""What a new user types first, from memory of other libraries: it works, or says what to type."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
from datasets import Dataset
from numpy.testing import assert_allclose, assert_array_equal

import ctrlreward as cr
from ctrlreward import CTRLEval, Perplexity, Reward, Samples, Similarity, WordVectors
from ctrlreward.callbacks import GenerationScorer, ParetoCheckpoint, Potential
from ctrlreward.policy import PolicyTuner

TEXTS = ["good soup", "cold broth"]
SOURCES = ["good broth", "cold soup"]
VECTORS = WordVectors({"soup": [1, 0], "broth": [3, 4], "good": [0, 1], "cold": [1, 1]})


@pytest.fixture
def similarity() -> Similarity:
    return Similarity(VECTORS)


@pytest.fixture
def model(tiny_llama: Callable[[str], str]) -> str:
    return tiny_llama("abcdefghijklmnopqrstuvwxyz .")


# Works.


@pytest.mark.parametrize("name", ["Accuracy", "Alignment", "CTRLEval", "Distinct", "Perplexity"])
def test_model_comes_first(name: str) -> None:
    assert next(iter(inspect.signature(getattr(cr, name)).parameters)) == "model"


@pytest.mark.parametrize(
    ("data", "columns"),
    [
        (Samples(TEXTS, sources=SOURCES), {}),
        (TEXTS, {"sources": SOURCES}),
        (tuple(TEXTS), {"sources": tuple(SOURCES)}),
        (np.array(TEXTS), {"sources": np.array(SOURCES)}),
        ((text for text in TEXTS), {"sources": iter(SOURCES)}),
        ([{"text": t, "source": s} for t, s in zip(TEXTS, SOURCES, strict=True)], {}),
        ([{"text": t, "rating": 3} for t in TEXTS], {"sources": SOURCES}),
        ({"texts": TEXTS, "sources": SOURCES}, {}),
        ({"text": TEXTS, "source": SOURCES, "stars": [1, 2]}, {}),
        (pd.DataFrame({"text": TEXTS, "source": SOURCES, "stars": [1, 2]}), {}),
        (pd.DataFrame({"texts": TEXTS}), {"sources": pd.Series(SOURCES)}),
        (Dataset.from_dict({"text": TEXTS, "source": SOURCES, "stars": [1, 2]}), {}),
    ],
)
def test_any_data(similarity: Similarity, data: Any, columns: dict[str, Any]) -> None:
    alone = [
        similarity.score([text], sources=source)["similarity"][0]
        for text, source in zip(TEXTS, SOURCES, strict=True)
    ]
    assert len(set(alone)) == 2
    # A generator can be read once: the reward gets another form of the same samples.
    scores = similarity.score(data, **columns)["similarity"]
    assert_array_equal(scores, alone)


def test_a_reward_takes_the_same(similarity: Similarity) -> None:
    reward = Reward({"similarity": similarity})
    scored = reward(TEXTS, sources=SOURCES)
    assert_array_equal(scored.total, similarity.score(TEXTS, sources=SOURCES)["similarity"])
    assert_array_equal(reward.submit({"text": TEXTS}, sources=SOURCES).result().total, scored.total)
    reward.release()


def test_one_string_stands_for_all(model: str) -> None:
    scorer = CTRLEval(model, "sentiment", "attribute_relevance")
    both = scorer.score(TEXTS, labels="positive")
    one_by_one = scorer.score(TEXTS, labels=["positive", "positive"])
    assert_array_equal(both["attribute_relevance"], one_by_one["attribute_relevance"])


def test_a_scorer_with_one_score_is_a_component(similarity: Similarity, model: str) -> None:
    assert Reward({"s": (similarity, 2.0)}).weights == {"s": 2.0}
    assert GenerationScorer({"s": similarity}, TEXTS).components["s"] == similarity["similarity"]
    assert Potential(similarity).phi == similarity["similarity"]
    coherence = CTRLEval(model, aspects="coherence")
    assert Reward({"c": coherence}).components["c"].name == "coherence"


def test_only_the_score_in_use_is_computed(model: str) -> None:
    ctrleval = CTRLEval(model)  # consistency would need prefixes
    relevance = Reward({"r": ctrleval["attribute_relevance"]})(TEXTS, labels="positive").total
    columns = {"labels": "positive", "prefixes": "", "sources": SOURCES}
    assert_allclose(relevance, ctrleval.score(TEXTS, **columns)["attribute_relevance"], rtol=1e-6)
    alignment = cr.Alignment(aspects=["preservation", "groundedness"])  # needs contexts, too
    kept = alignment["preservation_output"](TEXTS, sources=SOURCES)
    assert_allclose(kept, cr.Alignment()(TEXTS, **columns)["preservation_output"], rtol=1e-6)


def test_scores_whose_column_is_absent_are_left_out_and_named_once(
    model: str, tiny_bart: str, caplog: pytest.LogCaptureFixture
) -> None:
    ctrleval, alignment, none = CTRLEval(model), cr.Alignment(aspects="all"), {}
    bart = cr.BARTScore(tiny_bart, aspects="all")
    tries: list[tuple[cr.Scorer, dict[str, Any], str, str]] = [
        (ctrleval, none, "coherence",
         "consistency, attribute_relevance, because the samples lack the columns prefixes,"),
        (ctrleval, {"prefix": ""}, "coherence consistency",
         "attribute_relevance, because the samples lack the columns labels and have only"),
        (cr.LexiconSentiment(), none, "polarity",
         "accuracy, because the samples lack the columns labels"),
        (alignment, {"context": "A soup."}, "groundedness", "consistency, relevance_reference"),
        (bart, {"reference": "A b."}, "precision recall f_score",
         "faithfulness, because the samples lack the columns sources"),
    ]  # fmt: skip
    for scorer, columns, names, message in tries:
        caplog.clear()
        scores = scorer.score(TEXTS, **columns)
        assert " ".join(scores) == names
        scorer.score(TEXTS, **columns)
        (said,) = [m for m in caplog.messages if "leaves out" in m]
        assert said.startswith(f"{type(scorer).__name__} leaves out {message}")
        assert set(scorer.specs) > set(scores)
    assert [*ctrleval.explain(TEXTS)[0]] == ["coherence"]
    assert [*alignment.explain(["soup"], contexts="A soup.")[0]] == ["groundedness"]
    with pytest.raises(ValueError, match="Alignment needs the column 'sources'"):
        alignment.score(TEXTS)  # nothing is left
    with pytest.raises(ValueError, match="CTRLEval consistency needs the column 'prefixes'"):
        CTRLEval(model, aspects=["coherence", "consistency"]).score(TEXTS)


def test_defaults_need_no_model_of_the_user() -> None:
    assert cr.Accuracy().labels == ("negative", "positive")
    assert [*cr.AttributeClassifier(dtype="float32").classifiers] == ["sentiment", "topic"]
    assert cr.TransferQuality().required_columns().keys() == {"labels", "sources"}


def test_a_missing_column_is_found_before_a_model_is_loaded(tmp_path: Any) -> None:
    nowhere = str(tmp_path / "nowhere")  # loading it would raise another error
    scorers = {
        CTRLEval(nowhere, aspects="consistency"): "consistency needs the column 'prefixes'",
        CTRLEval(nowhere, aspects="attribute_relevance"): "attribute_relevance needs .* 'labels'",
        cr.Accuracy(nowhere): "Accuracy needs the column 'labels'",
        cr.AttributeClassifier({"a": nowhere}): "AttributeClassifier needs the column 'labels'",
        cr.Alignment(nowhere, aspects="relevance"): "Alignment needs the column '(sources|ref.*)'",
        cr.Alignment(nowhere, aspects="groundedness"): "Alignment needs the column 'contexts'",
        Similarity(nowhere): "Similarity needs the column 'sources'",
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


class Completing(pl.LightningModule):
    def complete(self, prompts: Any) -> list[str]:
        return list(prompts)


def test_text_that_is_no_unicode_fails_alone(model: str, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a cat.", "a \ud800 dog.", "a fox."]
    path = Path(model)  # a model may be a path, too
    for scorer in (Perplexity(path), CTRLEval(model, aspects="coherence"), cr.Distinct(model)):
        caplog.clear()
        expected = scorer.score([texts[0], "", texts[2]], groups="g")
        for found in (
            scorer.score(texts, groups="g"),
            Reward({n: scorer[n] for n in scorer.specs})(texts, groups="g").components,
        ):
            for name, values in found.items():
                assert_array_equal(values, expected[name])
                assert np.isnan(values).tolist() == [False, True, False]
        assert "texts[1] is not valid Unicode: the scores of the sample are NaN" in caplog.messages


def test_scorers_and_rewards_show_their_scores() -> None:
    sentiment = cr.LexiconSentiment()
    assert repr(sentiment) == "<LexiconSentiment: polarity, accuracy>"
    assert "scorer=<LexiconSentiment: polarity, accuracy>, name=" in repr(sentiment["polarity"])
    assert repr(Reward({"mood": sentiment["polarity"], "n": len})) == "<Reward: mood, n>"


# Errors: the attempt, given a similarity, and what the error says.
WRONG_TRIES = [
    (AttributeError, "a name in other letters", lambda _: cr.CtrlEval,
     r"no attribute 'CtrlEval' \(did you mean 'CTRLEval'\?\)"),
    (AttributeError, "a name of a trainer", lambda _: cr.GenerationScorer,
     r"Import it from ctrlreward.callbacks \(Lightning\) or"),
    (AttributeError, "a reward called as a scorer", lambda s: Reward(s).score(TEXTS),
     r"no method 'score'. Call reward\(texts, ...\).total"),
    (TypeError, "components one by one", lambda s: Reward(s["similarity"], s["similarity"]),
     r"aggregate = Component.*Pass several components as a list"),
    (TypeError, "Samples of a string", lambda _: Perplexity().score("good soup"),
     "is a str and not a list"),
    (TypeError, "a number", lambda _: Perplexity().score(3),
     r"3 is an int\. Pass Samples, a list of texts"),
    (TypeError, "a missing value of pandas", lambda _: Perplexity().score(["good", np.nan]),
     r"texts\[1\] = nan is a float, not a str. Pass '' for a text that is missing\.$"),
    (TypeError, "an unknown column", lambda _: Perplexity().score(["good"], lable="positive"),
     r"is not a column of Samples, must be one of texts, .* \(did you mean 'label"),
    (TypeError, "a class", lambda _: Reward({"ppl": Perplexity}),
     r"components\['ppl'\] is the class Perplexity"),
    (TypeError, "a function of one text", lambda _: Reward({"length": len})(["good"]),
     r"FunctionScorer returned 'len' = 1, an int, must be one number per sample"),
    (TypeError, "a pipeline of transformers",
     lambda _: Reward({"r": lambda texts: [{"label": "x", "score": 0.5} for t in texts]})(["a"]),
     r"'reward' = \{'label': .* for texts\[0\] = 'a', a dict, must be a number, or None for a"),
    (TypeError, "evaluate's keyword of the texts",
     lambda _: Perplexity().score(predictions=["good"]),
     "is not a column of Samples, pass the texts as the first"),
    (TypeError, "a lexicon as a classifier", lambda _: cr.Accuracy(cr.LexiconSentiment()),
     "is a LexiconSentiment, must be a folder, .* or an object with labels and probabilities"),
    (TypeError, "aspects in the place of the model", lambda _: cr.Alignment(["preservation"]),
     r"model must be a folder, a Hugging Face id, a short name .*, got \['preservation'\]"),
    (TypeError, "scores of a callback as a list", lambda s: GenerationScorer([s], ["The food"]),
     r"scores must be a mapping, \{'coherence': ctrleval\['coherence'\]\}, got a list"),
    (TypeError, "a tuner's reward that is none",
     lambda s: PolicyTuner("smollm2-135m", "similarity"),
     "the reward is a str, must be one score of a scorer, such as .*, or a function of texts"),
    (TypeError, "a tuner's objective as a string",
     lambda s: PolicyTuner("smollm2-135m", Reward({"s": s}), objective="grpo"),
     r"objective must be Objective\(\.\.\.\), got 'grpo', a str"),
    (TypeError, "a front of one metric", lambda _: ParetoCheckpoint("score/similarity"),
     "metrics must map two or more keys to their directions, .*, got 'score/similarity'"),
    (TypeError, "word vectors by name", lambda _: WordVectors("glove"),
     r"vectors must be a mapping, .*, got 'glove', a str\. Read a file with WordVectors"),
    (TypeError, "a scorer without a score",
     lambda _: type("Mine", (cr.Scorer,), {"specs": {}})().score(["good"]),
     "Can't instantiate abstract class Mine with abstract method '?score_samples'?"),
    (ValueError, "a DataFrame without a text",
     lambda _: Perplexity().score(pd.DataFrame({"sentence": ["good"]})),
     "no column 'texts' or 'text', only sentence. Rename the column of the texts to 'text'"),
    (ValueError, "a scorer with several scores", lambda _: Reward({"ppl": Perplexity()}),
     r"is a Perplexity with 2 scores. Choose one: Perplexity\(\.\.\.\)\['perplexity'\], Perpl"),
    (ValueError, "a lexicon as the accuracy",
     lambda s: cr.TransferQuality(cr.LexiconSentiment(), s, Perplexity()),
     r"accuracy is a LexiconSentiment, which does not have label_probability, .* Use Accuracy\("),
    (ValueError, "parts in another order",
     lambda s: cr.TransferQuality(cr.Accuracy(), Perplexity(), s),
     r"similarity is a Perplexity, which does not have similarity, .*. Use Similarity\(\.\.\.\)"),
    (ValueError, "three thresholds", lambda s: cr.TransferQuality(None, s, thresholds=(50, 0, 97)),
     r"must be four finite numbers, t1 to t4, with t3 above t4, got \(50\.0, 0\.0, 97\.0\)"),
    (ValueError, "an unknown method", lambda _: cr.Alignment("minilm-l6", method="discrim"),
     "method must be one of embedding, discriminative, regression"),
    (ValueError, "a model that does not exist", lambda _: Perplexity("smollm2").score(["good"]),
     r"model = 'smollm2' is neither a folder .* \(did you mean 'smollm2-135m'\?\)"),
    (ValueError, "a device of no kind", lambda _: Perplexity(device="gpu").score(["good"]),
     "device must be a device of torch, such as 'cpu' or 'cuda:1', got 'gpu'"),
    (ValueError, "a dtype of another library", lambda _: Perplexity(dtype="fp32"),
     "dtype must be one of float32, bfloat16, float16, float64, fastest"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "attempt", "message"), [pytest.param(e, a, m, id=i) for e, i, a, m in WRONG_TRIES]
)
def test_a_wrong_try_says_what_to_type(
    error: type[Exception], attempt: Any, message: str, similarity: Similarity
) -> None:
    with pytest.raises(error, match=message):
        attempt(similarity)
