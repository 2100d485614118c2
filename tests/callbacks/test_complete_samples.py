"""Callbacks on a module that has only `complete_samples`, and is trained by hand."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from counting_module import Counting
from lightning_choice import (
    BeforeAfter,
    GenerationScorer,
    MisconfigurationException,
    ParetoCheckpoint,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
    pl,
    quiet_trainer,
)
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from ctrlreward import Samples, as_samples
from ctrlreward.completion import SampleGenerator, TextGenerator

PROXY = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
HELD_OUT = [0.5, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]  # best at step 1
PROMPTS = Samples(
    texts=["", "", ""],
    prefixes=["", "", ""],
    labels=["glad", "sad", "sad"],
    sources=["The food", "The film", "A dog"],
)


class Restyler(Counting):
    """Module of two optimizers, one of which counts steps; rewrites sources into other styles."""

    batches = 20

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = torch.nn.Parameter(torch.zeros(()))
        self.calls: list[tuple[Samples, bool, bool]] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        _, critic = self.optimizers(use_pl_optimizer=False)
        counted, _ = self.optimizers()
        for optimizer, weight in ((critic, self.critic), (counted, self.weight)):
            optimizer.zero_grad()
            self.manual_backward(-weight)
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([weight], lr=1.0) for weight in (self.weight, self.critic)]

    def complete_samples(self, samples: Samples) -> list[str]:
        self.calls.append((samples, self.training, torch.is_grad_enabled()))
        step = round(self.weight.item())
        rows = zip(samples.sources or (), samples.labels or (), strict=True)
        return [f"{source} at {step} {label}" for source, label in rows]


def texts_of(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.open()]


def transfers_at(step: int) -> list[str]:
    return [f"The food at {step} glad", f"The film at {step} sad", f"A dog at {step} sad"]


@pytest.mark.lightning
def test_all_callbacks_work_unchanged(fit, curve, tmp_path: Path) -> None:
    scores = {"proxy": curve(PROXY)["value"], "held_out": curve(HELD_OUT)["value"]}
    stopper = RewardEarlyStopping("score/held_out", patience=9)
    keeper = RewardCheckpoint("score/held_out", dirpath=str(tmp_path / "kept"))
    directions = {"score/proxy": "max", "score/held_out": "max"}
    front = ParetoCheckpoint(directions, dirpath=str(tmp_path / "front"), save_last=False)
    # Three prompts have a p-value of 1 / 8 at best, which is 0.2 for the whole run.
    guard = ProxyGuard("score/proxy", "score/held_out", level=0.25)
    report = BeforeAfter({"held_out": scores["held_out"]}, PROMPTS, generations_per_prompt=1)
    watch = GenerationScorer(scores, PROMPTS)
    module = Restyler()
    assert isinstance(module, SampleGenerator)
    assert not isinstance(module, TextGenerator)
    with pytest.warns(UserWarning, match="ProxyGuard at step 2"):
        trainer = fit(module, [watch, stopper, keeper, front, guard, report], max_steps=20)
    # Peak at step 1, and nine validations without improvement; the critic's steps don't count.
    assert (stopper.stopped_step, trainer.global_step) == (10, 10)
    assert Path(keeper.best_model_path).name == "step=000001-held_out=0.900.ckpt"
    for step in range(1, 11):
        file = tmp_path / "samples" / "score" / f"step={step:06d}.jsonl"
        assert texts_of(file) == transfers_at(step)
        # What one score gains the other one loses, so no checkpoint dominates another.
        assert front.kept[step] == pytest.approx([PROXY[step], HELD_OUT[step]])
    assert guard.alarm_step == 2
    assert texts_of(tmp_path / "before.jsonl") == transfers_at(0)
    assert texts_of(tmp_path / "after.jsonl") == transfers_at(1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["difference"] == pytest.approx(0.4)
    assert (module.weight.item(), module.critic.item()) == (1.0, 1.0)
    assert module.calls == [(PROMPTS.as_prompts(), False, False)] * 12


@pytest.mark.lightning
@pytest.mark.parametrize("kind", [GenerationScorer, BeforeAfter])
def test_what_cannot_generate_is_refused_before_training(
    fit, counter, curve, held_out, kind: type
) -> None:
    class Silent(Restyler):
        complete_samples = None

    data = PROMPTS.replace(texts=["A rewrite"] * 3, prefixes=None)
    for module, samples, named in (
        (Silent(), PROMPTS, "complete_samples"),
        (Restyler(), data, "prefixes"),
    ):
        callbacks = [kind({"v": curve(PROXY)["value"]}, samples), RewardCheckpoint("score/v")]
        with pytest.raises(MisconfigurationException, match=named):
            fit(module, callbacks)
    trainer = fit(counter(), [GenerationScorer({"v": curve(PROXY)["value"]}, data)], max_steps=1)
    assert trainer.callback_metrics["score/v"] == pytest.approx(PROXY[1])


TINY = {"vocab_size": 20, "pad_token_id": 0, "eos_token_id": 1}
T5 = partial(T5Config, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, **TINY)
GPT2 = partial(GPT2Config, n_embd=8, n_layer=1, n_head=2, **TINY)
SOURCES = ["The soup", "The view"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", [GenerationScorer, BeforeAfter])
def test_the_source_is_no_part_of_what_is_scored(fit, counter, curve, kind, late: bool) -> None:
    """The input of a rewrite that is passed as a text is refused, with a line that works."""

    class Rewriter(counter):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.models = [model]  # a list hides it from PyTorch
            if not late:
                self.model = model

        def configure_model(self) -> None:
            self.model = self.models[0]

    def callbacks(samples: Samples) -> list[pl.Callback]:
        return [kind({"v": scorer["value"]}, samples), RewardCheckpoint("score/v"), *watch]

    scorer = curve(PROXY)
    right = Samples(["", ""], prefixes=["", ""], prompts=SOURCES)
    watch = [GenerationScorer({"v": scorer["value"]}, right)] if kind is BeforeAfter else []
    same = Samples(SOURCES, sources=SOURCES)
    with pytest.raises(ValueError, match=r"sources\[0\]"):
        kind({"v": scorer["value"]}, same)
    module = Rewriter(T5ForConditionalGeneration(T5()))
    with pytest.raises((MisconfigurationException, ValueError), match="prefixes nor prompts"):
        fit(module, callbacks(Samples(SOURCES)))
    assert module.weight == 0  # before the first step
    for samples in (same, Samples(SOURCES)):  # the line of both messages
        fit(module, callbacks(as_samples(samples, prefixes="", prompts=samples.texts)), max_steps=1)
        assert all(text.startswith(" at ") for text in scorer.scored[-1].texts)
        assert module.calls[-1]["prompts"][:: 1 if kind is GenerationScorer else 4] == SOURCES
    decoder = Rewriter(GPT2LMHeadModel(GPT2()))
    decoder.judge = module.models[0]  # not all of its models are encoder-decoders
    fit(decoder, callbacks(Samples(SOURCES)), max_steps=1)


@pytest.mark.lightning
def test_samples_are_a_batch_of_any_module(tmp_path: Path) -> None:
    class Reader(Counting):
        def training_step(self, batch: Samples, batch_idx: int) -> torch.Tensor:
            assert batch.texts == ("a", "b")
            return super().training_step(batch, batch_idx)

    loader = DataLoader([Samples(["a", "b"])], batch_size=None)  # type: ignore[arg-type]
    trainer = quiet_trainer(default_root_dir=tmp_path, max_steps=1)
    trainer.fit(Reader(), loader)
    assert trainer.global_step == 1
