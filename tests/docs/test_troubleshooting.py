"""Each message that docs/troubleshooting.md quotes is said: here by a run, or in another test."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
from counting_module import Counting
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import ctrlreward as cr
from ctrlreward import huggingface, lightning
from ctrlreward.callbacks import GenerationScorer, ProxyGuard, RewardCheckpoint, RewardEarlyStopping
from ctrlreward.lightning_package import check_whole_model
from ctrlreward.placement import shared_device
from ctrlreward.policy import PolicyTuner
from ctrlreward.weights import resolve

ROOT = Path(__file__).resolve().parents[2]


def quoted() -> list[str]:
    """Return the messages of the page's tables, with … for what varies."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    tables = page.partition("## Problems without a message")[0]
    return re.findall(r"^\| `(.+?)` \|", tables, re.MULTILINE)


def pattern(message: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, message.strip("… ").split("…"))), re.DOTALL)


def strings(folder: str) -> Iterator[str]:
    """Return the strings of a folder's modules but docstrings, with … for what is filled in."""
    for file in (ROOT / folder).rglob("*.py"):
        if file == Path(__file__):
            continue
        left_out = set()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):  # outer nodes come first
            if id(node) in left_out:
                continue
            if isinstance(node, ast.Expr):  # a docstring
                left_out.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                left_out |= {id(part) for part in node.values}
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                yield "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sdr]", "…", node.value)


@cache
def messages() -> list[str]:
    return [each for folder in ("ctrlreward", "callbacks", "recipes") for each in strings(folder)]


@pytest.mark.parametrize("message", quoted())
def test_the_message_is_in_the_code(message: str) -> None:
    assert any(pattern(message).search(each) for each in messages())


# What says it


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"enable_model_summary": False, "enable_progress_bar": False, "logger": False}
    return pl.Trainer(**{"accelerator": "cpu", "max_steps": 2, **quiet, **options})


def fit(*callbacks: Any, module: Any = None, **options: Any) -> None:
    trainer(callbacks=list(callbacks), **options).fit(module or Writer())


class Writer(Counting):
    def complete(self, prompts: list[str]) -> list[str]:
        return [" ab"] * len(prompts)


class Echo(Counting):
    def complete(self, prompts: list[str]) -> list[str]:
        return [f"{prompt} ab" for prompt in prompts]


class Short(Writer):
    """Its data end before their length says, and before the first validation."""

    def train_dataloader(self) -> DataLoader[int]:
        class Rows(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                yield from range(2)

            def __len__(self) -> int:
                return 8

        return DataLoader(Rows())


class Length(cr.Scorer):
    pointwise = True

    @property
    def specs(self) -> dict[str, cr.ScoreSpec]:
        return {"length": cr.ScoreSpec(True, (0.0, np.inf))}

    def score_samples(self, samples: cr.Samples) -> dict[str, Any]:
        return {"length": np.array([float(len(text)) for text in samples.texts])}


def watch() -> GenerationScorer:
    return GenerationScorer({"length": Length()}, ["a", "b"])


def folder(name: str, *files: str) -> str:
    Path(name).mkdir()
    for file in files:
        Path(name, file).write_text("{}")
    return f"./{name}"


def score(model: str, *texts: str, **options: Any) -> None:
    cr.Perplexity(model, **options).score(texts or ["a"])


def no_cuda() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        score("smollm2-135m", device="cuda")


def no_tokenizer() -> None:
    args = TrainingArguments("out", report_to="none", use_cpu=True)
    without = Trainer(AutoModelForCausalLM.from_pretrained(resolve("smollm2-135m")), args)
    huggingface.GenerationScorer(without, {"length": Length()}, ["a"])


def one_of_two_devices() -> None:
    raise ValueError(shared_device({"Perplexity": ["cuda:1"]}, "cuda", [0, 1], 2))


class FSDPStrategy(pl.strategies.FSDPStrategy):
    """Of the name that the check looks for, without processes."""

    def __init__(self) -> None: ...


class Sharded(pl.Trainer):
    strategy = FSDPStrategy()  # type: ignore[assignment]

    def __init__(self) -> None: ...


def tuner() -> PolicyTuner:
    return PolicyTuner("smollm2-135m", cr.Reward({"length": Length()}))


def relevance() -> cr.CTRLEval:
    return cr.CTRLEval("smollm2-135m", "sentiment", aspects="all")


SAID: dict[str, Callable[[], object]] = {
    "… could not be loaded as a Hugging Face id": lambda: score("nobody/such-a-model"),
    "… is neither a folder nor a short name of weights": lambda: score("smolm2-135m"),
    "… has neither *.safetensors nor *.gguf": lambda: score(folder("pickled", "config.json")),
    "… has no config.json": lambda: score(folder("adapter", "adapter_model.safetensors")),
    "… finds no CUDA device": no_cuda,
    "… needs the column …, but these samples have …": (
        lambda: relevance()["attribute_relevance"](["a"])
    ),
    "… leaves out …, because the samples lack the columns …": lambda: relevance().score(["a b"]),
    "labels[…] = … is not a label of …": lambda: relevance().score(["a"], labels="postive"),
    "prefixes[…] = … texts[…] = …": lambda: relevance().score(["a b"], prefixes="b"),
    "… is empty: … is NaN": lambda: score("smollm2-135m", "", "a"),
    "… is not valid Unicode": lambda: score("smollm2-135m", "\ud800", "a"),
    "this … is a callback of …, but the trainer is one of …": (
        lambda: lightning.RewardEarlyStopping("a", "max").setup(trainer(), Writer(), "fit")  # type: ignore[arg-type]
    ),
    "… acts at validation, but this run has no validation": (
        lambda: fit(watch(), limit_val_batches=0)
    ),
    "all completions of … begin with their prompt": (
        lambda: fit(watch(), module=Echo(), val_check_interval=1)
    ),
    "… also converts the adapter": lambda: fit(module=tuner(), precision="bf16-true"),
    "… which is also a training device": one_of_two_devices,
    "… must be 'max' or 'min' for …": lambda: fit(watch(), RewardEarlyStopping("score/lenght")),
    "… contradicts …, which is better when …": (
        lambda: fit(watch(), RewardCheckpoint("score/length", "min"))
    ),
    "… rewards the opposite": lambda: cr.Reward({"pp": (cr.Perplexity()["perplexity"], 1.0)}),
    "… is not logged": (
        lambda: fit(watch(), ProxyGuard("bleu", "score/length", "max"), val_check_interval=1)
    ),
    "… splits the model or its optimizer over the ranks": (lambda: check_whole_model(Sharded())),
    "training ended before the first validation": lambda: fit(watch(), module=Short(), max_steps=4),
    "the trainer has no tokenizer": no_tokenizer,
}


@pytest.mark.parametrize("message", SAID)
@pytest.mark.usefixtures("workplace")
def test_the_message_is_said(message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert message in quoted()
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            SAID[message]()
        except Exception as error:
            said.append(str(error))
    said += [str(each.message) for each in caught] + caplog.messages
    assert any(pattern(message).search(each) for each in said), said


@cache
def pinned() -> list[str]:
    """Return the strings of the other tests, among them what they expect."""
    return [each.replace("\\", "") for each in strings("tests")]


@pytest.mark.parametrize("message", sorted({*quoted()} - SAID.keys()))
def test_another_test_expects_the_message(message: str) -> None:
    longest = max((part.strip() for part in message.split("…")), key=len)
    assert any(longest in each for each in pinned())
