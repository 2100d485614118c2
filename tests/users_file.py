"""A user's file for `mypy --strict`, by `make lint`; pages and docstrings run such calls.

A comment about a type that is not needed is an error of mypy, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning as L
import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
from pytorch_lightning.demos.boring_classes import BoringModel
from torch import Tensor

import ctrlreward as cr
from ctrlreward import callbacks, lightning, policy
from ctrlreward.adapters import torchmetrics, trl
from ctrlreward.reward import AnyReward

Floats = npt.NDArray[np.float64]

VECTORS = cr.WordVectors({"soup": [1, 0], "broth": [3, 4]})
TEXTS = ["cold soup", "cold broth"]


class Words(cr.Scorer):
    """A scorer of one's own."""

    @property
    def specs(self) -> Mapping[str, cr.ScoreSpec]:
        return {"words": cr.ScoreSpec(higher_is_better=False, range=(0.0, np.inf))}

    def score_samples(self, samples: cr.Samples) -> dict[str, Floats]:
        return {"words": np.array([float(len(text.split())) for text in samples.texts])}


class Writer(BoringModel):
    """A module that completes prompts."""

    def complete(self, prompts: Sequence[str]) -> list[str]:
        return [" broth" for _ in prompts]


def brevity(texts: list[str]) -> list[float | None]:
    return [-float(len(text)) or None for text in texts]


def calls() -> None:
    ctrleval = cr.CTRLEval("smollm2-135m", task="sentiment", aspects="attribute_relevance")
    scores: dict[str, Floats] = ctrleval.score(TEXTS, labels="positive", prefixes=["cold", "cold"])
    column: Floats = cr.Perplexity(dtype="bfloat16", batch_tokens=512)["perplexity"](TEXTS)
    content = cr.Similarity(VECTORS)
    reward = cr.Reward({"content": (content, 1.0), "words": Words(), "short": brevity})
    batch: cr.RewardBatch = reward(TEXTS, sources="soup")
    later: Floats = reward.submit(cr.Samples(TEXTS, sources=["soup", "soup"])).result().total
    anywhere: AnyReward = cr.RemoteReward("http://127.0.0.1:8700")
    functions = trl.as_reward_funcs(anywhere, {"sources": "original"})
    value: Tensor = torchmetrics.ScoreMean(content).compute()
    writer: callbacks.TextGenerator = Writer()
    samples: cr.Samples = callbacks.generate(writer, ["The cold"], repeats=2, seed=1)
    stopper = callbacks.RewardEarlyStopping("score/content", mode="max", patience=2)
    cause: str | None = stopper.stopped_by
    trainer = pl.Trainer(callbacks=[callbacks.GenerationScorer({"c": content}, TEXTS), stopper])
    ours: list[L.Callback] = [lightning.GenerationScorer({"c": content}, samples)]
    tuner = policy.PolicyTuner("smollm2-135m", reward, lora=policy.LoRA(r=2), beta=0.1)
    trainer.fit(tuner)
    completions: list[str] = tuner.complete(["cold"])
    print(scores, column, batch, later, functions, value, cause, ours, completions)


def mistakes() -> None:
    cr.CTRLEval(aspects="coherense")  # type: ignore[arg-type]
    cr.Perplexity(devise="cpu")  # type: ignore[call-arg]
    cr.Similarity().score(3)  # type: ignore[arg-type]
    cr.Reward({"fluency": "perplexity"})  # type: ignore[dict-item]
    cr.Reward({"content": cr.Similarity()}, aggregate="weigthed")  # type: ignore[arg-type]
    cr.CtrlEval()  # type: ignore[attr-defined]
    callbacks.GenerationScorer(cr.Similarity(), ["soup"])  # type: ignore[arg-type]
    lightning.RewardEarlyStopping("score/content", mode="up")  # type: ignore[arg-type]
    policy.PolicyTuner("smollm2-135m", brevity, baseline="rloo")  # type: ignore[arg-type]
    trl.as_reward_funcs(3)  # type: ignore[arg-type]
