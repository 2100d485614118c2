from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from lightning_choice import (
    GenerationScorer,
    MisconfigurationException,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
)
from word_classifiers import FirstWord

from ctrlreward import (
    Accuracy,
    AttributeClassifier,
    Perplexity,
    Samples,
    Similarity,
    TransferQuality,
    WordVectors,
)
from ctrlreward.functional.transfer import adjusted_gm
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.scorers.base import Scores

# Completions of three prompts at steps 1 to 4. The last text of step 2 is one that nobody says.
COMPLETIONS = {
    1: ["bad food", "bad slow food", "bad"],
    2: ["good food", "good slow food", "good odd odd odd odd"],
    3: ["good food", "bad odd", ""],
    4: ["bad slow odd", "bad odd food", "bad"],
}
SOURCES = ["bad food", "bad slow food", "bad"]
WORDS = ("good", "bad", "slow", "food", "odd")
THRESHOLDS = (40.0, 10.0, 200.0, -200.0)


def chances(text: str) -> list[float]:
    """Probability of each word under the language model below."""
    return [0.0001 if word == "odd" else 1 / (4 + len(word)) for word in text.split()]


class Words:
    """Language model of single words."""

    tokenizer = None  # only long texts are tokenized

    def answer(self, tasks: Sequence[Continuation]) -> list[TokenScores]:
        texts = ["".join(piece for _, text in each.targets for piece in text) for each in tasks]
        rows = [np.log(chances(text)) for text in texts]
        return [TokenScores(np.arange(len(row)), row, np.array([len(row)])) for row in rows]


@pytest.fixture
def rewriter(counter: type[pl.LightningModule]) -> pl.LightningModule:
    """A module that writes the completions of its step."""

    class Rewriter(counter):  # type: ignore[misc, valid-type]
        def complete(self, prompts: Sequence[str]) -> list[str]:
            texts = COMPLETIONS[round(self.weight.item())]
            return [texts[int(prompt)] for prompt in prompts]

    return Rewriter()


def quality() -> TransferQuality:
    words = dict(zip(WORDS, np.eye(5).tolist(), strict=True))
    similarity, perplexity = Similarity(WordVectors(words)), Perplexity()
    vars(perplexity)["loaded_model"] = Words()
    perplexity.release = lambda: None  # type: ignore[method-assign]  # it has no other model
    return TransferQuality(Accuracy(FirstWord()), similarity, perplexity, THRESHOLDS)


def watcher(scores: Sequence[str] = ("gm", "perplexity"), **options: bool) -> GenerationScorer:
    scorer = quality()
    prompts = Samples(["", "", ""], labels=["positive"] * 3, sources=SOURCES, prompts=list("012"))
    return GenerationScorer({name: scorer[name] for name in scores}, prompts, **options)


def by_hand(texts: Sequence[str]) -> dict[str, float]:
    """Figures of a corpus by their definitions."""
    written = [(text, source) for text, source in zip(texts, SOURCES, strict=True) if text]
    accuracy = sum(text.startswith("good") for text, _ in written) / len(written)
    cosines = []
    for pair in written:  # the mean of one-hot vectors counts words
        counts = [[text.split().count(word) for word in WORDS] for text in pair]
        cosines.append(np.dot(*counts) / math.prod(np.linalg.norm(c) for c in counts))
    tokens = [chance for text, _ in written for chance in chances(text)]
    perplexity = math.prod(tokens) ** (-1 / len(tokens))
    similarity = sum(cosines) / len(cosines)
    gm = float(adjusted_gm(accuracy, similarity, perplexity, THRESHOLDS))
    return {"gm": gm, "accuracy": accuracy, "similarity": similarity, "perplexity": perplexity}


def logged(trainer: pl.Trainer) -> dict[str, float]:
    return {key: value.item() for key, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_figures_of_the_corpus_stand_beside_the_means(
    fit, rewriter, tmp_path: Path, step: int
) -> None:
    names = ("gm", "accuracy", "similarity", "perplexity", "log_likelihood")
    callback = watcher(names)
    metrics = logged(fit(rewriter, [callback], max_steps=step))
    expected = by_hand(COMPLETIONS[step])
    for name, value in expected.items():
        assert metrics[f"score/corpus/{name}"] == pytest.approx(value, rel=1e-5)
    # Names and values of the means are the old ones, and the mean of a score is no corpus score.
    assert set(metrics) == set(callback.specs)
    assert set(metrics) == {
        *(f"score/{name}" for name in names),
        *(f"score/corpus/{name}" for name in expected),
        "score/fail_rate",
    }
    assert metrics["score/fail_rate"] == pytest.approx(COMPLETIONS[step].count("") / 3)
    (line, *_) = (tmp_path / "samples/score/step=000001.jsonl").read_text().splitlines()
    assert set(json.loads(line)["scores"]) == set(names)  # not the parts of the corpus
    texts = [text for text in COMPLETIONS[step] if text]
    mean = np.mean([math.prod(chances(text)) ** (-1 / len(text.split())) for text in texts])
    assert metrics["score/perplexity"] == pytest.approx(mean, rel=1e-5)


def test_accuracy_is_logged_over_combinations_of_labels(fit, counter, tmp_path: Path) -> None:
    """As a table of multi-aspect control has it: mean and deviation."""
    targets = [("positive", "food")] * 3 + [("negative", "food")]
    written = {
        1: ["good slow", "bad food", "bad food", "bad slow"],
        2: ["good food", "good slow", "good food", "good food"],
    }

    class LastWord(FirstWord):
        labels = ("food", "speed")

        def probabilities(self, texts: Sequence[str]) -> Scores:
            rows = [[1.0, 0.0] if text.endswith("food") else [0.0, 1.0] for text in texts]
            return np.array(rows).reshape(-1, 2)

    class Writer(counter):  # type: ignore[misc, valid-type]
        def complete(self, prompts: Sequence[str]) -> list[str]:
            return [written[round(self.weight.item())][int(prompt)] for prompt in prompts]

    judge = AttributeClassifier({"sentiment": FirstWord(), "topic": LastWord()})
    held_out = Samples(
        [""] * 4,
        labels={"sentiment": [s for s, _ in targets], "topic": [t for _, t in targets]},
        prompts=list("0123"),
    )
    scores = {"both": judge["accuracy"], "topic": judge["accuracy_topic"]}
    callback = GenerationScorer(scores, held_out)
    for step, texts in written.items():
        metrics = logged(fit(Writer(), [callback], max_steps=step))
        assert set(metrics) == set(callback.specs)
        expected = judge.corpus(held_out.replace(texts=texts))
        for name, score in (("both", "accuracy"), ("topic", "accuracy_topic")):
            for end in ("", "_deviation"):
                logged_key = f"score/corpus/{name}{end}"
                assert metrics[logged_key] == pytest.approx(expected[score + end])
                assert callback.specs[logged_key].higher_is_better == (end == "")
    assert callback.by_prompt["score/corpus/both_deviation"].shape == (4, 1)
    for most, selected in ((0.1, 1), (0.2, 2)):  # step 2 is better, and less even
        keeper = RewardCheckpoint(
            "score/corpus/both",
            dirpath=str(tmp_path / str(most)),
            constraints={"score/corpus/both_deviation": (None, most)},
        )
        fit(Writer(), [GenerationScorer(scores, held_out), keeper], max_steps=2)
        assert keeper.selected_step == selected


def test_decisions_follow_the_corpus(fit, rewriter, tmp_path: Path) -> None:
    keeper = RewardCheckpoint("score/corpus/gm", dirpath=str(tmp_path / "best"))
    front = ParetoCheckpoint(
        {"score/corpus/accuracy": "max", "score/corpus/perplexity": "min"},
        dirpath=str(tmp_path / "front"),
    )
    stopper = RewardEarlyStopping("score/corpus/gm", patience=1)
    guard = ProxyGuard("score/gm", "score/corpus/gm")
    callback = watcher(("gm", "accuracy", "perplexity"))
    trainer = fit(rewriter, [callback, stopper, keeper, front, guard], max_steps=4)
    gms = {step: by_hand(texts)["gm"] for step, texts in COMPLETIONS.items()}
    assert gms[1] == gms[4] == 0 < gms[3] < gms[2]
    assert keeper.selected_step == 2
    assert Path(keeper.best_model_path).name == f"step=000002-gm={gms[2]:.3f}.ckpt"
    # Step 1 has the best perplexity, step 2 the best accuracy.
    assert list(front.kept) == [1, 2, 3]
    assert trainer.global_step == 3  # no improvement after step 2
    with pytest.raises(MisconfigurationException, match="better when lower"):
        fit(rewriter, [watcher(), RewardCheckpoint("score/corpus/perplexity", "max")])
