"""A user's file that uses every public name in the calls they are made for.

`test_users_file.py` runs it, and `make lint` checks it with `mypy --strict`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import lightning as L
import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel as LightningBoringModel
from pytorch_lightning.demos.boring_classes import BoringModel
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import ctrlreward as cr
from ctrlreward import callbacks, functional, lightning, policy, scorers, selection, serving
from ctrlreward.adapters import openrlhf, torchmetrics, trl, verl
from ctrlreward.adapters.best_checkpoint import BestCheckpoint
from ctrlreward.plots.curves import draw_front
from ctrlreward.recipes.controlled_generation.label_descriptions import LabelDescriptions
from ctrlreward.recipes.papers.ctrleval.evaluator_chart import bar_chart
from ctrlreward.reward import AnyReward
from ctrlreward.runs import read_stored_run
from ctrlreward.serving import get_reward

Floats = npt.NDArray[np.float64]

VECTORS = cr.WordVectors({"soup": [1, 0], "broth": [3, 4], "cold": [0, 1]})
TEXTS = ["cold soup", "cold broth"]


# Scores


class Words(cr.Scorer):
    """A scorer of one's own."""

    @property
    def specs(self) -> Mapping[str, cr.ScoreSpec]:
        return {"words": cr.ScoreSpec(higher_is_better=False, range=(0.0, np.inf))}

    @property
    def corpus_folds(self) -> Mapping[str, cr.CorpusFold]:
        return {"words": scorers.CorpusFold(("words",), lambda words: float(np.nanmedian(words)))}

    def score_samples(self, samples: cr.Samples) -> dict[str, Floats]:
        return {"words": np.array([float(len(text.split())) for text in samples.texts])}


class Characters(cr.Scorer):
    """A scorer whose specs never change."""

    specs = {"characters": cr.ScoreSpec(False, (0.0, np.inf))}  # noqa: RUF012

    def score_samples(self, samples: cr.Samples) -> dict[str, Floats]:
        return {"characters": np.array([float(len(text)) for text in samples.texts])}


class CharactersPerWord(scorers.CompositeScorer):
    """A combination of both."""

    @property
    def specs(self) -> Mapping[str, scorers.ScoreSpec]:
        return {"width": scorers.ScoreSpec(higher_is_better=False, range=(0.0, np.inf))}

    @property
    def parts(self) -> Sequence[scorers.Scorer]:
        return [Characters(), Words()]

    def score_samples(self, samples: cr.Samples) -> dict[str, Floats]:
        characters, words = (part.score(samples) for part in self.parts)
        return {"width": characters["characters"] / words["words"]}


class Rare(scorers.ModelScorer[cr.InverseFrequency]):
    """A scorer with a model."""

    @property
    def specs(self) -> Mapping[str, cr.ScoreSpec]:
        return {"rare": cr.ScoreSpec(higher_is_better=True, range=(0.0, np.inf))}

    def build_model(self, name: str) -> cr.InverseFrequency:
        return cr.InverseFrequency.from_file(name)

    def score_samples(self, samples: cr.Samples) -> dict[str, Floats]:
        with self.locked_model() as table:
            weights = [table.sentence_weight([len(text)]) for text in samples.texts]
        return {"rare": np.array(weights)}


class Sentiment:
    """A classifier of one's own."""

    labels = ("negative", "positive")

    def probabilities(self, texts: Sequence[str]) -> Floats:
        return np.array([[0.9, 0.1] if "cold" in text else [0.2, 0.8] for text in texts])


def scores_of_texts() -> None:
    ctrleval = cr.CTRLEval("smollm2-135m", task="sentiment", aspects="attribute_relevance")
    scores: dict[str, Floats] = ctrleval.score(TEXTS, labels="positive", prefixes=["cold", "cold"])
    mean: float = scores["attribute_relevance"].mean()
    assert 0 <= mean <= 1
    assert ctrleval(TEXTS, labels="positive").keys() == scores.keys()
    word_by_label = {"negative": ["bad"], "positive": ["good"]}
    task = cr.Task(["<gen_result> It was <mask_token>."], word_by_label)
    scorers.CTRLEval(task=task, evaluators=1, weights="mean", dtype="float32")
    assert task.labels == scorers.Task.load("sentiment").labels

    named = LabelDescriptions({"food": ["a meal"], "travel": ["a trip"]})
    assert cr.Accuracy(named, attribute="topic").attribute == "topic"

    options = scorers.ModelOptions(device="cpu", dtype="bfloat16", batch_tokens=512)
    perplexity = cr.Perplexity("smollm2-135m", max_tokens=64, **options)
    assert perplexity.corpus(TEXTS)["perplexity"] >= 1
    alignment = cr.Alignment("minilm-l6", aspects=["consistency", "groundedness"])
    records = [{"text": "cold soup", "source": "hot soup", "context": "A menu."}]
    assert alignment.score(records).keys() == {"consistency", "groundedness"}
    assert alignment.explain(records)[0]["consistency"].tokens[0].start == 0
    (explained,) = ctrleval.explain(cr.as_samples(TEXTS[:1], labels="negative"))
    bar_chart(explained["attribute_relevance"]).savefig("evaluators.png")
    draw_front(["sim", "pp"], {20: [0.5, 40.0]}, {10: [0.4, 50.0]}, Path("front.png"))
    distinct = cr.Distinct("smollm2-135m").score({"texts": TEXTS, "groups": ["a", "a"]})
    assert set(distinct) == {"distinct_1", "distinct_2", "distinct_3", "distinct"}
    repeated: Floats = cr.Repetition("smollm2-135m", n=2).score(TEXTS)["repetition"]
    assert repeated.shape == (len(TEXTS),)
    polarity: Floats = cr.LexiconSentiment(labels=["bad", "good"])["polarity"](TEXTS)
    assert scorers.LexiconSentiment()(TEXTS, labels="positive")["polarity"].shape == polarity.shape
    polite: cr.Criterion = scorers.Criterion("Is it polite?", [1, 2, 3])
    assert cr.Rubric("Rate this: {text}", criteria={"polite": polite}).range == (1.0, 3.0)
    rubric = cr.Rubric("Is this warm? {text}\nAnswer yes or no:", {"yes": 1, "no": 0})
    warmth: Floats = cr.Judge("smollm2-135m", scorers.Rubric(rubric.prompt, rubric.answers))[
        "rating"
    ](TEXTS)
    assert scorers.Judge("m", rubric, address="http://127.0.0.1:8000/v1").devices == ()
    assert warmth.shape == (2,)
    similarity = cr.Similarity(VECTORS)
    cosine: Floats = similarity.score(TEXTS, sources="soup")["similarity"]
    VECTORS.save("vectors")
    loaded: cr.WordVectors = cr.WordVectors.load("vectors")
    assert loaded.embed(TEXTS).shape == (2, 2)
    assert cosine.shape == (2,)

    rated: cr.RewardModel = cr.RewardModel("folder", template="plain", weights={"helpful": 1.0})
    assert rated.required_columns() == {}
    remote = cr.RemoteRewardModel("http://127.0.0.1:8000", "rm", outputs=["helpful"])
    assert remote["helpful"].spec.higher_is_better
    assert (cr.Perplexity("smollm2-135m", max_tokens=64).score(TEXTS)["perplexity"] >= 1).all()
    assert not cr.BARTScore(aspects="f_score").specs["f_score"].range[1]
    both: Sequence[str] = ["faithfulness", "recall"]
    assert [*scorers.BARTScore("facebook/bart-large-cnn", ["faithfulness", "recall"]).specs] == both
    assert isinstance(scorers.Perplexity(), cr.ModelScorer)
    assert functional.label_bias([[[-1.0, -4.0]], [[-2.0, -3.0]]]).tolist() == [[1, -1]]

    label = cr.attribute_label({"sentiment": "negative", "tense": None})
    attributes = cr.AttributeClassifier({"sentiment": Sentiment()})
    assert attributes.corpus(cr.as_samples(TEXTS, labels=label))["accuracy"] == 1.0
    accuracy = cr.Accuracy(Sentiment())
    quality = cr.TransferQuality(accuracy, similarity, perplexity, thresholds=(63, 71, 97, -37))
    figures = quality.corpus(cr.Samples(TEXTS, labels=["negative"] * 2, sources=TEXTS))
    assert figures["gm"] >= 0

    table = cr.InverseFrequency(np.linspace(0, 1, 99))
    table.save("iwf.txt")
    assert Rare("iwf.txt").score(TEXTS)["rare"][0] == table.sentence_weight([9])
    assert cr.CompositeScorer.score(CharactersPerWord(), TEXTS)["width"].tolist() == [4.5, 5.0]
    classifier = cr.Classifier("distilbert/distilbert-base-uncased-finetuned-sst-2-english")
    probabilities: Floats = classifier.probabilities(TEXTS)
    assert isinstance(cr.Accuracy(classifier), cr.ModelScorer)
    assert probabilities.shape == (2, len(classifier.labels))


def scores_of_tables() -> None:
    import datasets  # type: ignore[import-untyped,unused-ignore]
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

    columns = {"text": TEXTS, "source": ["soup", "soup"], "stars": [4, 2]}
    similarity = scorers.Similarity(VECTORS)
    frame = similarity.score(pd.DataFrame(columns), labels=np.array(["a", "b"]))["similarity"]
    rows = similarity.score(datasets.Dataset.from_dict(columns))["similarity"]
    assert frame.tolist() == rows.tolist()
    samples = cr.as_samples(pd.DataFrame(columns), labels="positive")
    samples.to_jsonl("samples.jsonl")
    assert cr.Samples.from_jsonl("samples.jsonl") == samples


def the_same_scorers_by_their_room() -> list[scorers.Component]:
    quality = scorers.TransferQuality(
        scorers.Accuracy(scorers.CTRLEval()), scorers.Similarity(), scorers.Perplexity()
    )
    attributes = scorers.AttributeClassifier({"topic": scorers.CTRLEval(task="topic")})
    assert scorers.attribute_label({"topic": "world"}) == "topic=world"
    alignment = scorers.Alignment(method="embedding", stop_words=["the"], aggregate="mean")
    similar = scorers.Similarity(VECTORS)
    names = ["gm", "accuracy", "preservation", "distinct_2", "repetition"]
    names += ["reward", "reward"]
    several: list[scorers.Scorer] = [quality, attributes, alignment, scorers.Distinct()]
    several += [scorers.Repetition(n=2)]
    served = scorers.RemoteRewardModel("http://127.0.0.1:8000")
    several += [served, scorers.RewardModel("folder", weights={"helpful": 1.0})]
    function: scorers.ComponentLike = scorers.FunctionScorer(brevity, pointwise=True)
    assert cr.Reward([function, similar]).weights == {"brevity": 1.0, "similarity": 1.0}
    return [scorer[name] for scorer, name in zip(several, names, strict=True)]


def brevity(texts: list[str]) -> list[float | None]:
    return [-float(len(text)) or None for text in texts]


# Rewards


def content_reward() -> cr.Reward:
    content = cr.Similarity(VECTORS)
    fluency: cr.Component = cr.Perplexity("smollm2-135m")["log_likelihood"]
    return cr.Reward({"content": (content, 1.0), "fluency": (fluency, 0.1), "words": Words()})


def rewards() -> None:
    reward = content_reward()
    batch: cr.RewardBatch = reward(TEXTS, sources="soup")
    total: Floats = batch.total
    later = reward.submit(cr.Samples(TEXTS, sources=["soup", "soup"])).result()
    assert np.array_equal(total, later.total)
    assert batch.statistics()["fail_rate"] == 0
    assert cr.RewardBatch.concat([batch, later]).failed.shape == (4,)
    short = cr.Reward({"short": (cr.FunctionScorer(brevity), 0.5), "same": brevity})
    assert short(texts=TEXTS, label=[0, 1], label_map={0: "bad", 1: "good"}).total.shape == (2,)

    def smaller(scores: Mapping[str, Floats]) -> Floats:
        return np.minimum(scores["content"], 1 / scores["words"])

    cr.Reward({"content": cr.Similarity(VECTORS), "words": Words()}, aggregate=smaller)(
        [{"text": "cold soup", "source": "soup"}]
    )
    parts: dict[str, cr.Component | cr.Scorer] = {
        "style": cr.Accuracy(Sentiment())["accuracy"],
        "content": cr.Similarity(VECTORS),
        "fluency": cr.Perplexity()["perplexity"],
    }
    gm = cr.Reward(parts, aggregate="gm", device="cpu", thresholds=(63, -20, 97, -37))
    assert (gm.accuracy_score, gm.thresholds) == ("accuracy", (63, -20, 97, -37))
    gm.release()
    assert cr.best_of_n(brevity, TEXTS, labels=["bad"] * 2).samples.texts == ("cold soup",)
    members = {"content": cr.Similarity(VECTORS), "words": Words()}
    scales: dict[str, tuple[float, float]] = cr.fit_scales(
        members, ["soup", "cold broth"], sources="soup"
    )
    cautious = cr.Reward(members, "mean_minus_deviation", scales=scales, penalty=0.5)
    assert "disagreement" in cautious(TEXTS, sources="soup").components
    again = cr.Component(cr.Similarity(VECTORS), "similarity", given="content", at_least=0.9)
    assert cr.Reward({"content": cr.Similarity(VECTORS), "again": again}).weights is not None
    pooled: cr.CorpusFold = cr.Perplexity(score_end=True).corpus_folds["perplexity"]
    assert pooled.parts == ("log_likelihood", "tokens")
    reward.release()


# Other trainers


def other_trainers() -> None:
    reward = cr.Reward({"content": cr.Similarity(VECTORS)})
    sources = {"sources": "original"}
    (function,) = trl.as_reward_funcs(reward, sources, name="content")
    assert function(["Reword."], ["soup"], original=["broth"]) == [0.6]
    (waiting,) = trl.as_async_reward_funcs(reward, sources)
    assert asyncio.run(waiting(["Reword."], ["soup"], original=["broth"])) == [0.6]
    parts: trl.ComponentFuncs = trl.as_component_funcs(reward, sources)
    assert parts.weights == [1.0]

    compute = verl.as_compute_score(reward, failed_score=-1.0, columns=sources)
    compute("menu", "soup", "", extra_info={"original": "broth"})
    several = verl.as_batch_compute_score(reward, -1.0, sources)
    several(["menu"], ["soup"], [""], [{"original": "broth"}])
    deferred = verl.as_async_compute_score(reward, -1.0, sources)
    asyncio.run(deferred("menu", "soup", "", extra_info={"original": "broth"}))
    openrlhf.as_reward_func(reward, "<eos>", -1.0, {"sources": "label"})(["a soup"], ["a "], ["b"])

    remote = cr.RemoteReward("http://127.0.0.1:8700", expect={"weights": {"content": 1.0}})
    anywhere: AnyReward = remote
    trl.as_reward_funcs(anywhere, sources)  # asks the server at its first call
    described = serving.describe(reward)
    assert serving.differences(described, serving.describe(reward)) == []
    route = get_reward.GetReward(-1.0, constants={"sources": "broth"})
    serving.create_app(reward, token="secret", get_reward=route)
    assert remote.url == "http://127.0.0.1:8700"
    lost: type[ConnectionError] = serving.ServerLost
    assert not issubclass(serving.OtherReward, lost | serving.ServerError)

    metrics = [
        torchmetrics.ScoreMean(cr.Similarity(VECTORS)),
        torchmetrics.FailRate(cr.Similarity(VECTORS)["similarity"]),
        torchmetrics.ScoreOfAll(cr.Similarity(VECTORS)),
    ]
    for metric in metrics:
        metric.update(["soup"], sources="broth", ids=[0])
        value: Tensor = metric.compute()
        assert value.shape == ()


# Lightning


class Writer(BoringModel):
    """A module of pytorch_lightning that completes prompts and exports an adapter."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [" broth" for _ in prompts]

    def export_adapter(self, folder: str) -> None:
        torch.save(self.state_dict(), Path(folder) / "adapter.pt")


class Restyler(BoringModel):
    """A module that rewrites sources into the styles of the labels."""

    def complete_samples(self, samples: cr.Samples) -> list[str]:
        rows = zip(samples.require("sources", ""), samples.require("labels", ""), strict=True)
        return [f"{label} {source}" for source, label in rows]


class LightningWriter(LightningBoringModel):
    """The same for lightning."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [" broth" for _ in prompts]


HELD_OUT = cr.Samples(["A cold", "The cold"], sources=["soup", "broth"])


class Prompts(Dataset[cr.Samples]):
    """One batch of prompts for a policy."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, batch: int) -> cr.Samples:
        if batch:
            raise IndexError
        return cr.Samples(["cold soup", "hot soup"], sources=["soup", "soup"]).as_prompts()


def own_loop() -> None:
    held_out = cr.HeldOutScorer({"content": cr.Similarity(VECTORS)}, HELD_OUT)
    rule = selection.BestRule("score/content")
    metrics = held_out.evaluate(lambda prompts: [" soup" for _ in prompts])
    state, _ = rule.update(rule.start(), 10, metrics, evidence=held_out.evidence)
    stop = cr.huggingface.RewardEarlyStopping("score/content", patience=2)
    print(rule.best(state), stop.monitor)


def own_module() -> None:
    content = cr.Similarity(VECTORS)
    scorer = callbacks.GenerationScorer({"content": content}, HELD_OUT)
    stopper = callbacks.RewardEarlyStopping("score/content", mode="max", patience=2)
    best = callbacks.RewardCheckpoint("score/content", constraints={"score/fail_rate": (None, 0)})
    directions = {"score/content": "max", "score/fail_rate": "min"}
    front = callbacks.ParetoCheckpoint(directions, dirpath="front")
    guard = callbacks.ProxyGuard("score/content", "score/fail_rate", held_out_mode="min")
    judges: dict[str, cr.Component | cr.Scorer | callbacks.AUC] = {
        "sentiment_auc": callbacks.AUC(cr.LexiconSentiment()["polarity"], positive="positive"),
        "words": Words(),
    }
    test = HELD_OUT.replace(labels=["negative", "positive"])
    report = callbacks.BeforeAfter({"content": content}, test, 1, judges=judges)
    logger = callbacks.HistoryLogger("runs/own")
    module = Writer()
    trainer = pl.Trainer(
        max_epochs=1,
        logger=logger,
        enable_progress_bar=True,
        callbacks=[scorer, stopper, best, front, guard, report],
        default_root_dir="runs/own",
    )
    trainer.fit(module)
    kept: dict[int, tuple[float, ...]] = front.kept
    cause: str | None = stopper.stopped_by
    assert (len(kept), cause, guard.alarm) == (1, None, False)
    selected: int | None = best.selected_step
    assert selected == trainer.global_step
    assert Path(best.best_adapter_path, "adapter.pt").is_file()
    exporter: callbacks.AdapterExporter = module
    writer: callbacks.TextGenerator = module
    assert callable(exporter.export_adapter)
    samples = callbacks.generate(writer, ["The cold"], repeats=2, seed=1)
    assert len(samples) == 2
    restyler: callbacks.SampleGenerator = Restyler()
    transfer = cr.as_samples(HELD_OUT, prefixes="", labels="warm")
    assert callbacks.generate(restyler, transfer).texts == ("warm soup", "warm broth")


def policy_gradient() -> None:
    tuner = policy.PolicyTuner(
        "smollm2-135m",
        content_reward(),
        policy.Objective("rloo", beta=0.1),
        generation=policy.Generation(num_generations=2, max_completion_length=4, temperature=0.9),
        optimizer=policy.OptimizerConfig(lr_scheduler_type="cosine"),
        lora=policy.LoRA(r=2, target_modules=["q_proj"], dtype="float32"),
    )
    shaping = callbacks.RewardShaping(
        weights={"fluency": [(0, 0.1), (100, 0.2)]},
        potential=callbacks.Potential(cr.Similarity(VECTORS), start="sources"),
        clip=(-5.0, None),
        window=callbacks.LengthWindow(low=2, high=4, cost=0.1),
        overlong=callbacks.SoftOverlong(longest=4, cache=2),
        ranges={"content": callbacks.UsefulRange(high=0.99)},
    )
    rollouts = callbacks.RolloutSamples(every_n_batches=2)
    trainer = pl.Trainer(max_steps=1, callbacks=[shaping, rollouts])
    trainer.fit(tuner, DataLoader(Prompts(), batch_size=None))
    assert tuner.last_rollout is not None
    samples, scored = tuner.last_rollout
    assert len(samples) == len(scored.total) == 4
    completions: list[str] = tuner.complete(["cold"])
    assert len(completions) == 1


def own_module_of_lightning() -> None:
    content = cr.Similarity(VECTORS)
    directions = {"score/content": "max", "score/fail_rate": "min"}
    module = LightningWriter()
    front = lightning.ParetoCheckpoint(directions, dirpath="lightning-front")
    trainer = L.Trainer(
        max_epochs=1,
        logger=lightning.HistoryLogger("runs/lightning"),
        enable_progress_bar=True,
        callbacks=[
            lightning.GenerationScorer({"content": content}, HELD_OUT),
            lightning.RewardEarlyStopping("score/content", min_delta=0.01),
            lightning.RewardCheckpoint("score/content", mode="max", save_top_k=2),
            front,
            lightning.ProxyGuard("score/content", "score/fail_rate", held_out_mode="min"),
            lightning.BeforeAfter(
                {"content": content},
                HELD_OUT.replace(labels=["negative", "positive"]),
                judges={"auc": lightning.AUC(content, "positive"), "words": Words()},
            ),
        ],
        default_root_dir="runs/lightning",
    )
    trainer.fit(module)
    writer: lightning.TextGenerator = module
    assert len(lightning.generate(writer, HELD_OUT)) == 2
    assert not isinstance(module, lightning.SampleGenerator)
    assert not isinstance(module, lightning.AdapterExporter)
    assert len(front.kept) == 1


def policy_gradient_of_lightning() -> None:
    tuner = lightning.PolicyTuner(
        model="smollm2-135m",
        reward=content_reward(),
        objective=lightning.Objective("dapo", beta=0.1),
        generation=lightning.Generation(num_generations=2, max_completion_length=4),
        optimizer=lightning.OptimizerConfig(learning_rate=1e-4),
        lora=lightning.LoRA(r=2),
    )
    shaping = lightning.RewardShaping(
        potential=lightning.Potential(cr.Similarity(VECTORS)["similarity"], discount=0.0),
        window=lightning.LengthWindow(0, 4, 0.1),
        overlong=lightning.SoftOverlong(4, 2),
        normalise=True,
        reference=lightning.ReferenceReward(scale=2.0),
        clip=(0.0, None),
        length_alpha=0.1,
        ranges={"content": lightning.UsefulRange(low=-0.1, from_start=True)},
    )
    assert callbacks.ReferenceReward("sources").scale == 1.0
    more: list[L.Callback] = [lightning.RolloutSamples()]
    trainer = L.Trainer(max_steps=1, callbacks=[shaping, *more])
    trainer.fit(tuner, DataLoader(Prompts(), batch_size=None))
    assert shaping.moments.count > 0


# Decisions and formulas


def decisions() -> None:
    stop = selection.StopRule("sim", patience=1)
    rules = selection.RunRules(best=selection.BestRule("sim"), stop=stop)
    seen = [selection.RunValidation(10, {"sim": 0.5}), selection.RunValidation(20, {"sim": 0.4})]
    decided: selection.Decided = list(rules.replay(seen))[-1]
    assert decided.best == 10
    assert BestCheckpoint("named", rules)(10, {"sim": 0.5}).stopped is False
    assert read_stored_run("named").keys == ["sim"]
    stopping: selection.StopState = stop.start()
    halted: selection.StopDecision
    best = selection.BestRule("sim", top_k=1, constraints={"pp": (None, 100)})
    kept: selection.BestState = best.start()
    choice: selection.KeepDecision
    front = selection.ParetoRule({"sim": "max", "pp": "min"})
    points: selection.ParetoState = front.start()
    guard = selection.AlarmRule("sim", "pp", held_out_mode="min")
    watched: selection.AlarmState = guard.start()
    alarm: selection.AlarmDecision
    for step, sim in [(100, 0.5), (200, 0.4)]:
        metrics = {"sim": sim, "pp": 40.0}
        stopping, halted = stop.update(stopping, step, metrics)
        kept, choice = best.update(kept, step, metrics, stale=["loss"])
        points, choice = front.update(points, step, metrics)
        watched, alarm = guard.update(watched, step, metrics)
    assert (halted.stop, choice.keep, alarm.alarm) == (True, False, False)
    drift = selection.DriftMonitor(reference_steps=2)
    rollouts = selection.Rollouts(1, ["a", "a"], ["Soup.", "A soup."], np.array([0.5, 1.0]), {})
    drifts: list[selection.DriftAlarm] = drift.update(rollouts)[1]
    assert (drifts, cr.watch(brevity)(["A soup."])) == ([], brevity(["A soup."]))
    assert best.best(kept) == front.best(points) == 100


def formulas() -> None:
    gm: Floats = functional.adjusted_gm([0.9], np.array([0.8]), 50.0)
    assert gm.shape == (1,)
    table = {"sim": {"A": 0.5, "B": 0.6}}
    assert functional.compare_tables([table, table]).mean_cv_star == 0
    assert functional.correlate([1, 2, 3], [1, 2, 4]).n == 3
    assert functional.cv_star([0.5, 0.5]) == 0
    assert functional.distinct_n([[1, 2], [1, 2]], n=1) == 0.5
    assert functional.distinct_by_group([[1, 2], [1, 1]], 1, ["a", "b"]) == {"a": 1.0, "b": 0.5}
    assert functional.findings_upheld({"A": 0.5, "B": 0.6}, {"A": 0.4, "B": 0.6}).share == 1
    idf: dict[str, float] = functional.inverse_document_frequency([["cold", "soup"], ["soup"]])
    cr.WordVectors({"soup": np.array([1.0, 0.0])}, idf)
    weights: Floats = functional.inverse_frequency([1, 2], sentences=2)
    cr.InverseFrequency(weights)
    front: npt.NDArray[np.bool_] = functional.non_dominated([[0.5, 40], [0.6, 30]], ["max", "min"])
    assert front.tolist() == [False, True]
    change: functional.Estimate = functional.paired_bootstrap([0.1, 0.1], [0.2, 0.3], ["a", "b"])
    assert change.low <= change.value <= change.high
    ranked: float = functional.auc([0.9, 0.2], [True, False])
    gain = functional.paired_auc_bootstrap([0.1, 0.1], [0.2, 0.3], [False, True], ["a", "b"])
    assert (ranked, gain.value) == (1.0, 0.5)


def mistakes() -> None:
    """Calls that mypy refuses; a comment that is not needed is an error of mypy, too."""
    cr.CTRLEval(aspects="coherense")  # type: ignore[arg-type]
    cr.CTRLEval(dtype="float8")  # type: ignore[arg-type]
    cr.Perplexity(devise="cpu")  # type: ignore[call-arg]
    cr.Accuracy(labels=["bad", "good"])  # type: ignore[call-arg]
    cr.Similarity().score(3)  # type: ignore[arg-type]
    cr.Similarity().score(["soup"], sources=3)  # type: ignore[arg-type]
    cr.Reward(3)  # type: ignore[arg-type]
    cr.Reward({"fluency": "perplexity"})  # type: ignore[dict-item]
    cr.Reward({"content": cr.Similarity()}, aggregate="weigthed")  # type: ignore[arg-type]
    cr.Reward({"content": cr.Similarity()})(3)  # type: ignore[arg-type]
    cr.Similarity().score(["soup"], lable="good")  # type: ignore[call-arg]
    cr.CtrlEval()  # type: ignore[attr-defined]
    callbacks.GenerationScorer(cr.Similarity(), ["soup"])  # type: ignore[arg-type]
    callbacks.RewardCheckpoint("score/content", mode="maximum")  # type: ignore[arg-type]
    lightning.RewardEarlyStopping("score/content", patience="3")  # type: ignore[arg-type]
    policy.PolicyTuner("smollm2-135m", 3)  # type: ignore[arg-type]
    lightning.Objective("gpro")  # type: ignore[arg-type]
    trl.as_reward_funcs(3)  # type: ignore[arg-type]
    selection.StopRule("score/content", mode="maximum")  # type: ignore[arg-type]


if __name__ == "__main__":
    scores_of_texts()
    scores_of_tables()
    the_same_scorers_by_their_room()
    rewards()
    other_trainers()
    own_loop()
    own_module()
    policy_gradient()
    own_module_of_lightning()
    policy_gradient_of_lightning()
    decisions()
    formulas()
