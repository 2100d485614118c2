"""A user's file, with the calls that each package is made for.

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
from ctrlreward import callbacks, lightning, policy, scorers, selection, serving
from ctrlreward.adapters import openrlhf, torchmetrics, trl, verl
from ctrlreward.reward import AnyReward
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

    corpus_columns = ("words",)

    def corpus_of(self, columns: Mapping[str, Floats]) -> dict[str, float]:
        return {"words": float(np.nanmedian(columns["words"]))}

    def score_samples(self, samples: cr.Samples) -> dict[str, Floats]:
        return {"words": np.array([float(len(text.split())) for text in samples.texts])}


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
    task = cr.Task(["<gen_result> It was <mask_token>."], {"negative": ["bad"], "positive": ["ok"]})
    scorers.CTRLEval(task=task, evaluators=1, weights="mean", dtype="float32")
    options = scorers.ModelOptions(device="cpu", dtype="bfloat16", batch_tokens=512)
    perplexity = cr.Perplexity("smollm2-135m", max_tokens=64, **options)
    assert perplexity.corpus(TEXTS)["perplexity"] >= 1
    records = [{"text": "cold soup", "source": "hot soup", "context": "A menu."}]
    alignment = cr.Alignment("minilm-l6", aspects=["consistency", "groundedness"])
    assert alignment.explain(records)[0]["consistency"].tokens[0].start == 0
    distinct = cr.Distinct("smollm2-135m").score({"texts": TEXTS, "groups": ["a", "a"]})
    assert set(distinct) == {"distinct_1", "distinct_2", "distinct_3", "distinct"}
    polarity: Floats = cr.LexiconSentiment(labels=["bad", "good"])["polarity"](TEXTS)
    assert polarity.shape == (2,)
    VECTORS.save("vectors")
    loaded: cr.WordVectors = cr.WordVectors.load("vectors")
    label = cr.attribute_label({"sentiment": "negative", "tense": None})
    attributes = cr.AttributeClassifier({"sentiment": Sentiment()})
    assert attributes.corpus(cr.as_samples(TEXTS, labels=label))["accuracy"] == 1.0
    parts = cr.Accuracy(Sentiment()), cr.Similarity(loaded), perplexity
    quality = cr.TransferQuality(*parts, thresholds=(63, 71, 97, -37))
    figures = quality.corpus(cr.Samples(TEXTS, labels=["negative"] * 2, sources=TEXTS))
    assert figures["gm"] >= 0


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
    short = cr.Reward({"short": (cr.FunctionScorer(brevity), 0.5), "same": brevity})
    assert short(texts=TEXTS, label=[0, 1], label_map={0: "bad", 1: "good"}).total.shape == (2,)

    def smaller(scores: Mapping[str, Floats]) -> Floats:
        return np.minimum(scores["content"], 1 / scores["words"])

    members = {"content": cr.Similarity(VECTORS), "words": Words()}
    cr.Reward(members, aggregate=smaller)([{"text": "cold soup", "source": "soup"}])
    assert cr.best_of_n(brevity, TEXTS, labels=["bad"] * 2).samples.texts == ("cold soup",)
    scales: dict[str, tuple[float, float]] = cr.fit_scales(
        members, ["soup", "cold broth"], sources="soup"
    )
    cautious = cr.Reward(members, cr.MeanMinusDeviation(scales, penalty=0.5))
    assert "disagreement" in cautious(TEXTS, sources="soup").components
    twice = {"content": cr.Similarity(VECTORS), "again": cr.Similarity(VECTORS)}
    assert cr.Reward(twice, given={"again": ("content", 0.9)}).weights is not None
    reward.release()


# Other trainers


def other_trainers() -> None:
    reward = cr.Reward({"content": cr.Similarity(VECTORS)})
    sources = {"sources": "original"}
    (function,) = trl.as_reward_funcs(reward, sources, name="content")
    assert function(["Reword."], ["soup"], original=["broth"]) == [0.6]
    (waiting,) = trl.as_async_reward_funcs(reward, sources)
    assert asyncio.run(waiting(["Reword."], ["soup"], original=["broth"])) == [0.6]
    _, weights = trl.as_component_funcs(reward, sources)
    assert weights == [1.0]
    compute = verl.as_compute_score(reward, failed_score=-1.0, columns=sources)
    compute("menu", "soup", "", extra_info={"original": "broth"})
    openrlhf.as_reward_func(reward, "<eos>", -1.0, {"sources": "label"})(["a soup"], ["a "], ["b"])
    remote = cr.RemoteReward("http://127.0.0.1:8700", expect="f" * 64)
    anywhere: AnyReward = remote
    trl.as_reward_funcs(anywhere, sources)  # asks the server at its first call
    route = get_reward.GetReward(-1.0, columns={"sources": "label"})
    serving.create_app(reward, token="secret", get_reward=route)
    metric = torchmetrics.ScoreMean(cr.Similarity(VECTORS))
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
        baseline="leave_one_out",
        scale="none",
        beta=0.1,
        generation=policy.Generation(num_generations=2, max_completion_length=4, temperature=0.9),
        optimizer=policy.OptimizerConfig(lr_scheduler_type="cosine"),
        lora=policy.LoRA(r=2, target_modules=["q_proj"], dtype="float32"),
    )
    shaping = callbacks.RewardShaping(
        clip=(-5.0, None),
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
    judges: dict[str, cr.Component | cr.Scorer | lightning.AUC] = {"words": Words()}
    module = LightningWriter()
    ours: list[L.Callback] = [
        lightning.GenerationScorer({"content": content}, HELD_OUT),
        lightning.RewardEarlyStopping("score/content", min_delta=0.01),
        lightning.RewardCheckpoint("score/content", mode="max", save_top_k=2),
        lightning.BeforeAfter({"content": content}, HELD_OUT, judges=judges),
    ]
    logger = lightning.HistoryLogger("runs/lightning")
    L.Trainer(max_epochs=1, logger=logger, callbacks=ours, default_root_dir="runs").fit(module)
    writer: lightning.TextGenerator = module
    assert len(lightning.generate(writer, HELD_OUT)) == 2


# Decisions and formulas


def mistakes() -> None:
    """Calls that mypy refuses; a comment that is not needed is an error of mypy, too."""
    cr.CTRLEval(aspects="coherense")  # type: ignore[arg-type]
    cr.CTRLEval(dtype="float8")  # type: ignore[arg-type]
    cr.Perplexity(devise="cpu")  # type: ignore[call-arg]
    cr.Accuracy(labels=["bad", "good"])  # type: ignore[call-arg]
    cr.Similarity().score(3)  # type: ignore[arg-type]
    cr.Reward(3)  # type: ignore[arg-type]
    cr.Reward({"fluency": "perplexity"})  # type: ignore[dict-item]
    cr.Reward({"content": cr.Similarity()}, aggregate="weigthed")  # type: ignore[arg-type]
    cr.Reward({"content": cr.Similarity()})(3)  # type: ignore[arg-type]
    cr.CtrlEval()  # type: ignore[attr-defined]
    callbacks.GenerationScorer(cr.Similarity(), ["soup"])  # type: ignore[arg-type]
    callbacks.RewardCheckpoint("score/content", mode="maximum")  # type: ignore[arg-type]
    lightning.RewardEarlyStopping("score/content", mode="up")  # type: ignore[arg-type]
    policy.PolicyTuner("smollm2-135m", 3)  # type: ignore[arg-type]
    policy.PolicyTuner("smollm2-135m", brevity, baseline="rloo")  # type: ignore[arg-type]
    trl.as_reward_funcs(3)  # type: ignore[arg-type]
    selection.StopRule("score/content", mode="maximum")  # type: ignore[arg-type]


if __name__ == "__main__":
    scores_of_texts()
    rewards()
    other_trainers()
    own_module()
    policy_gradient()
    own_module_of_lightning()
