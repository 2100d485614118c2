"""Files and functions of ctrlreward that one score, policy step, request and row pass.

    python benchmarks/hands.py [--only score step validation request row] [--list]

Distinct files and functions of the package in a trace of one call each, on tiny models with random
weights. Other libraries, generated code, comprehensions and imports are left out.

score    `CTRLEval.score`, attribute relevance of one text by a decoder-only model
step     a training step of `PolicyTuner`, from the loaded batch to its end
validation  a validation of Lightning with `GenerationScorer`, `ProxyGuard`, `RewardEarlyStopping`
         and `RewardCheckpoint`: generate, score, decide, save; not what the scorer calls
request  `POST /score`, from the ASGI application to the scorer
row      `ctrlreward score` of one row to the written file, after its options were read (`cli.main`,
         `score.run`, `run_job`); not what the scorer calls
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import inspect
import io
import json
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOPS = tuple(f"{ROOT / name}{os.sep}" for name in ("ctrlreward", "callbacks", "recipes", "configs"))
SCORING = tuple(f"ctrlreward/{name}/" for name in ("scorers", "engine", "models"))
TEXT = "The soup was cold and bland."


class Trace:
    """Functions of the package in the order of their first call, on all threads.

    Args:
        beneath: True to count what scorers call, False for their first function alone.
    """

    def __init__(self, beneath: bool = True) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.running = False
        self._beneath = beneath
        self._inside: dict[int, FrameType] = {}  # by thread: the call whose calls aren't counted

    def __enter__(self) -> Trace:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        thread = threading.get_ident()
        if event == "return" and self._inside.get(thread) is frame:
            del self._inside[thread]
        if event != "call" or not self.running or thread in self._inside:
            return
        file = own_file(frame.f_code)
        if file is None:
            return
        self.functions.setdefault((file, frame.f_code.co_qualname))
        if not self._beneath and file.startswith(SCORING):
            self._inside[thread] = frame


def own_file(code: CodeType) -> str | None:
    """Return the file of a function of ours, below the root; None for any other code."""
    path = os.path.realpath(code.co_filename) if code.co_filename[:1] == "/" else ""
    named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    return str(Path(path).relative_to(ROOT)) if named and path.startswith(TOPS) else None


def tiny_model(folder: Path) -> str:
    """Save a Llama of two layers with random weights and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    words.train_from_iterator([TEXT], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words.get_vocab()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def length_scorer() -> Any:
    """Return a scorer without a model, of this module."""
    from ctrlreward import Scorer, ScoreSpec

    class Length(Scorer):
        specs = {"length": ScoreSpec(higher_is_better=False, range=(0.0, np.inf))}  # noqa: RUF012

        def score_samples(self, samples: Any) -> Mapping[str, Any]:
            return {"length": np.array([float(len(text)) for text in samples.texts])}

    return Length


def score(folder: Path) -> Trace:
    from ctrlreward import CTRLEval

    scorer = CTRLEval(tiny_model(folder), task="sentiment", aspects="attribute_relevance")
    scorer.score([TEXT], labels="negative")  # loads the model
    with Trace() as trace:
        trace.running = True
        scorer.score([TEXT], labels="negative")
        trace.running = False
    return trace


def step(folder: Path) -> Trace:
    import pytorch_lightning as pl
    from torch.utils.data import DataLoader

    from ctrlreward import Reward, Samples
    from ctrlreward.policy import Generation, PolicyTuner

    class Second(pl.Callback):
        """Traces the second step; the first one loads."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            trace.running = index == 1

        def on_train_batch_end(self, *_: Any) -> None:
            trace.running = False

    reward = Reward({"length": length_scorer()()})
    tuner = PolicyTuner(
        tiny_model(folder),
        reward,
        generation=Generation(num_generations=2, max_completion_length=4),
    )
    batches = DataLoader([Samples(["The soup"])] * 2, collate_fn=lambda b: b[0])
    trainer = pl.Trainer(
        default_root_dir=folder,
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Second()],
    )
    with Trace() as trace:
        trainer.fit(tuner, batches)
    return trace


def validation(folder: Path) -> Trace:
    import pytorch_lightning as pl
    from pytorch_lightning.demos.boring_classes import BoringModel

    from ctrlreward import Samples, callbacks

    class Module(BoringModel):
        def complete(self, prompts: list[str]) -> list[str]:
            return [f"{prompt} was cold{'.' * self.current_epoch}" for prompt in prompts]

    class Second(pl.Callback):
        """Traces the second validation; the first one finds files and models."""

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            trace.running = trainer.current_epoch == 1

    class End(pl.callbacks.ModelCheckpoint):
        """Runs after all other callbacks."""

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            trace.running = False

    length = length_scorer()()
    scores = {"length": length["length"], "held_out": length["length"]}
    prompts = Samples(["The soup", "My dog"])
    trainer = pl.Trainer(
        default_root_dir=folder,
        max_epochs=2,
        limit_train_batches=1,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            Second(),
            callbacks.GenerationScorer(scores, prompts),
            callbacks.ProxyGuard("score/length", "score/held_out"),
            callbacks.RewardEarlyStopping("score/length"),
            callbacks.RewardCheckpoint("score/length"),
            End(folder, save_top_k=0, save_last=False),
        ],
    )
    with Trace(beneath=False) as trace:
        trainer.fit(Module())
    return trace


def request(folder: Path) -> Trace:
    import httpx2

    from ctrlreward import Reward
    from ctrlreward.serving.application import create_app

    scorer = length_scorer()()
    computed = scorer.score_samples
    with Trace(beneath=False) as trace:

        def last(samples: Any) -> Any:
            trace.running = False
            return computed(samples)

        scorer.score_samples = last
        app = create_app(Reward({"length": scorer}))

        async def ask() -> None:
            async with app.router.lifespan_context(app):
                await app.state.loading
                transport = httpx2.ASGITransport(app)
                async with httpx2.AsyncClient(
                    transport=transport, base_url="http://local"
                ) as client:
                    for first in (True, False):
                        trace.running = not first
                        reply = await client.post("/score", json={"samples": [{"text": TEXT}]})
                        assert reply.status_code == 200, reply.text

        asyncio.run(ask())
    return trace


def row(folder: Path) -> Trace:
    from ctrlreward import cli
    from ctrlreward.corpus import scoring_job

    os.chdir(folder)
    sys.modules["hands"] = sys.modules[__name__]
    Path("in.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    globals()["Length"] = Length = length_scorer()
    Length.__module__, Length.__qualname__ = "hands", "Length"
    score_file, write_output = scoring_job.score_file, scoring_job.write_output

    @functools.wraps(score_file)
    def started(*arguments: Any, **options: Any) -> None:
        trace.running = True
        score_file(*arguments, **options)

    @functools.wraps(write_output)
    def written(*arguments: Any) -> Any:
        means = write_output(*arguments)
        trace.running = False
        return means

    scoring_job.score_file, scoring_job.write_output = started, written
    with Trace(beneath=False) as trace, contextlib.redirect_stdout(io.StringIO()):
        cli.main(["score", "in.jsonl", "out.jsonl", "--scorers", "hands.Length"])
    assert json.loads(Path("out.jsonl").read_text())["length"] == len(TEXT)
    return trace


CASES = {"score": score, "step": step, "validation": validation, "request": request, "row": row}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--list", action="store_true", help="print the functions in order")
    arguments = parser.parse_args()
    for package in ("pytorch_lightning", "lightning"):
        logging.getLogger(package).setLevel(logging.ERROR)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    warnings.simplefilter("ignore")
    print(f"{'path':<12}{'files':>6}{'functions':>11}")
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            found = CASES[name](Path(folder)).functions
        print(f"{name:<12}{len({file for file, _ in found}):>6}{len(found):>11}", flush=True)
        for file, function in found if arguments.list else ():
            print(f"  {file:<48}{function}")


if __name__ == "__main__":
    main()
