"""Everything that needs a GPU, on one card, without network.

    python benchmarks/gpu.py [--device cuda] [--size full] [--seconds 540] [--output runs/gpu]

Models have the sizes of published ones and random weights, made from configurations; `--weights`
names a folder with real ones, each in a subfolder of the same name. Parts, `--parts` for some:

- scorers: each scorer on the device against the CPU, and its memory after `release()`;
- memory: out of memory survived, with the scores of before;
- rewards: a reward on a background thread, beside other work;
- steps: seconds of a step of `PolicyTuner` by phase, and of TRL's `GRPOTrainer`;
- sharded: a model that FSDP splits over all cards: texts, decisions, checkpoints of one rank;
- speed: texts per second of each scorer, and the share of the device's measured peak.

Writes gpu.json and gpu.md to the output folder after each row. The others run after a part that
fails; the exit status is then 1. Without a card it runs on `second:0`, the second device of the
tests, with tiny models: the same calls, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # of ctrlreward, device_cases and second_device

import numpy as np
import torch
from device_cases import ALIGNED, CASES, LABELS, SAMPLES, samples_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AddedToken,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from ctrlreward import CTRLEval, Perplexity, Reward, Samples, Similarity
from ctrlreward.files import write_whole
from ctrlreward.models import batching, output_layer
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.tasks import Blank, Patterns
from ctrlreward.models.tokenization import characters

Row = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Row]]]  # a part: names, and what makes their rows
MIB = 2**20
TOLERANCE = 1e-4  # in float32; relative for scores above 1
PLAIN_BATCH = 512  # rows of a plain loop
PACKAGES = ("torch", "transformers", "peft", "pytorch-lightning", "trl", "numpy")

# Family and sizes. The first four are those of SmolLM2-135M, MiniLM-L6, PEGASUS-large and a policy
# of 1.5 billion weights (Qwen2.5); MiniLM-L6 also has the heads. The others are small.
# fmt: off
_ENCODER: Row = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6,
                 "num_attention_heads": 12, "vocab_size": 30522}
_DECODER: Row = {"max_position_embeddings": 8192, "tie_word_embeddings": True}
SHAPES: dict[str, tuple[str, Row]] = {
    "llama": ("llama", _DECODER | {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}),
    "encoder": ("bert", _ENCODER),
    "pegasus": ("pegasus", {
        "d_model": 1024, "encoder_layers": 16, "decoder_layers": 16, "encoder_attention_heads": 16,
        "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
        "vocab_size": 96103, "max_position_embeddings": 1024}),
    "policy": ("qwen2", _DECODER | {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936}),
    "classifier": ("bert", _ENCODER | {"id2label": LABELS}),
    "aligner": ("bert", _ENCODER | {"id2label": ALIGNED}),
    "regression": ("bert", _ENCODER | {"num_labels": 1}),
    "reward": ("llama", _DECODER | {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
        "num_attention_heads": 8, "vocab_size": 49152, "num_labels": 1}),
    "bart": ("bart", {
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
        "vocab_size": 50265}),
    "t5": ("t5", {"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
                  "vocab_size": 32128}),
    "bloom": ("bloom", {"hidden_size": 512, "n_layer": 6, "n_head": 8, "vocab_size": 49152}),
    "mamba": ("mamba", {"hidden_size": 128, "num_hidden_layers": 4, "vocab_size": 49152}),
}
# Sizes in tiny models.
TINY = {name: 2 if "layer" in name or "head" in name else 48
        for _, shape in SHAPES.values() for name in shape} | {
    "hidden_size": 32, "d_model": 32, "d_kv": 16, "vocab_size": 1200,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
    "id2label": None, "num_labels": None}
HEADS = {
    "encoder": AutoModel, "pegasus": AutoModelForSeq2SeqLM, "bart": AutoModelForSeq2SeqLM,
    "t5": AutoModelForSeq2SeqLM, "classifier": AutoModelForSequenceClassification,
    "aligner": AutoModelForTokenClassification, "regression": AutoModelForSequenceClassification,
    "reward": AutoModelForSequenceClassification}
# Special tokens of a family in the order of their ids, and what they are for.
SPECIAL: dict[str, dict[str, str]] = {
    "bert": {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "mask": "[MASK]"},
    "pegasus": {"pad": "<pad>", "eos": "</s>", "blank": "<mask_1>", "mask": "<mask_2>",
                "unk": "<unk>"},
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "blank": "<extra_id_0>"},
    "bart": {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}}
_CAUSAL = {"eos": "<|endoftext|>"}
_IN_CONFIG = ("pad", "bos", "eos")
# fmt: on


def save_tokenizer(folder: Path, family: str, size: int) -> None:
    """Save a byte-level BPE whose words of up to four letters are one token each, `size` in all."""
    special = SPECIAL.get(family, _CAUSAL)
    pieces = dict.fromkeys([*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())])
    merges: list[tuple[str, str]] = []
    for length in range(1, 5):
        for letters in product(ascii_lowercase, repeat=length):
            if len(pieces) == size:
                break
            stem = "Ġ" + "".join(letters[:-1])
            merges.append((stem, letters[-1]))
            pieces[stem + letters[-1]] = None
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    words = Tokenizer(models.BPE(vocabulary, merges))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    if family == "bert":
        words.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    elif family == "bart":
        words.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    elif family in SPECIAL:
        words.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", 1)]
        )
    words.add_special_tokens([AddedToken(token, special=True) for token in special.values()])
    PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=512,
        **{f"{kind}_token": token for kind, token in special.items() if kind != "blank"},
    ).save_pretrained(folder)


class Folders(Mapping[str, str]):
    """Folders of models by name, each made at its first use unless it is in `carried`."""

    def __init__(self, place: Path, carried: Path | None, size: str, device: str) -> None:
        self.place, self.carried, self.size, self.device = place, carried, size, device

    def __iter__(self) -> Iterator[str]:
        return iter(SHAPES)

    def __len__(self) -> int:
        return len(SHAPES)

    def __getitem__(self, name: str) -> str:
        if self.carried is not None and (self.carried / name).is_dir():
            return str(self.carried / name)
        folder = self.place / name
        if not folder.exists():
            torch.manual_seed(0)
            self._make(name, folder)
        return str(folder)

    def _make(self, name: str, folder: Path) -> None:
        family, shape = SHAPES[name]
        if self.size == "tiny":
            shape = {key: TINY.get(key) or value for key, value in shape.items()}
        known = [*SPECIAL.get(family, _CAUSAL)]
        options: Row = {
            f"{kind}_token_id": known.index(kind) for kind in known if kind in _IN_CONFIG
        }
        if family in SPECIAL and family != "bert":
            options["decoder_start_token_id"] = 2 if family == "bart" else 0
        # Larger than by default: else all tokens have nearly the same probability.
        spread = (shape.get("hidden_size") or shape["d_model"]) ** -0.5
        options |= {"initializer_range": spread, "init_std": spread}
        kind = HEADS.get(name, AutoModelForCausalLM)
        # The device of a card makes weights in a second that take the CPU a minute.
        large = name == "policy" and torch.device(self.device).type == "cuda"
        with torch.device(self.device if large else "cpu"):
            dtype = torch.bfloat16 if large else torch.float32
            model = kind.from_config(AutoConfig.for_model(family, **shape, **options), dtype=dtype)
        model.save_pretrained(folder)
        save_tokenizer(folder, family, shape["vocab_size"])


class Card:
    """The device under test: its memory, its limits, how trainers use it."""

    def __init__(self, device: str) -> None:
        self.device, self.type = device, device.partition(":")[0]
        if self.type == "second":
            import second_device

            second_device.register()
            self.second = second_device
        if self.type == "cuda":
            torch.cuda.init()

    def describe(self) -> Row:
        found: Row = {"device": self.device, "card": None, "driver": None, "cuda": None}
        if self.type == "cuda":
            found["card"] = torch.cuda.get_device_name(self.device)
            found["cuda"] = torch.version.cuda
            found["mib"] = torch.cuda.get_device_properties(self.device).total_memory // MIB
            with suppress(OSError, subprocess.SubprocessError):
                command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
                said = subprocess.run(command, capture_output=True, text=True, check=True)
                found["driver"] = said.stdout.split()[0]
        return found

    def clean(self) -> None:
        """Free what nothing refers to, and the workspaces of cuBLAS, which count as allocated."""
        gc.collect()
        if self.type == "cuda":
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()

    def live(self) -> int | None:
        """Return the bytes of tensors; None where they are not counted."""
        self.clean()
        if self.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        return self.second.memory.live[0] if self.type == "second" else None

    def start_peak(self) -> None:
        if self.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.type == "second":
            self.second.memory.peak[:] = self.second.memory.live

    def peak(self) -> int | None:
        """Return the largest number of bytes of tensors since `start_peak`."""
        if self.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self.second.memory.peak[0] if self.type == "second" else None

    @contextmanager
    def limited(self, more: int) -> Iterator[None]:
        """Let the process take so many bytes more inside the context."""
        self.clean()
        if self.type == "second":
            with self.second.memory.limited(more):
                yield
            return
        total = torch.cuda.get_device_properties(self.device).total_memory
        reserved = torch.cuda.memory_reserved(self.device)
        torch.cuda.set_per_process_memory_fraction((reserved + more) / total, self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def trainer(self, folder: Path, **options: Any) -> Any:
        import pytorch_lightning as pl

        if self.type == "second":
            sys.path.insert(0, str(ROOT / "tests/policy"))
            from second_device_runs import placed

            place = placed(self.device)
        else:
            place = {"accelerator": "gpu" if self.type == "cuda" else "cpu", "devices": 1}
        return pl.Trainer(
            **place,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            default_root_dir=str(folder),
            logger=False,
            **options,
        )


class Kit:
    """What the parts share, and the record that they write."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        self.started = time.monotonic()
        self.options, self.place, self.full = options, place, options.size == "full"
        self.card = Card(options.device)
        self.device: str = options.device
        self.folders = Folders(place / "models", options.weights, options.size, self.device)
        self.record: Row = {
            **self.card.describe(),
            "size": options.size,
            "weights": "random" if options.weights is None else str(options.weights),
            "cores": os.cpu_count(),
            "versions": {"python": platform.python_version(), **installed()},
            "parts": {},
        }

    @property
    def cases(self) -> dict[str, Callable[..., Any]]:
        """The scorers that are asked for, by name."""
        wanted = self.options.scorers
        return {
            case: build
            for case, build in CASES.items()
            if not wanted or any(word in case for word in wanted)
        }

    @property
    def steps(self) -> int:
        return 4 if self.full else 1

    def left(self) -> float:
        return float(self.options.seconds - (time.monotonic() - self.started))

    def run(self, name: str, part: Callable[[Kit], Cases]) -> None:
        """Run the cases of a part while there is time; one that fails is recorded."""
        started = time.monotonic()
        found: Row = {"status": "passed", "seconds": 0.0, "rows": [], "errors": []}
        self.record["parts"][name] = found
        cases = part(self)
        while (given := self._attempt(found, partial(next, cases, None))) is not None:
            if isinstance(given, dict):  # the error of what the cases share
                case, row = "all", given
            elif self.left() < 0:
                found["status"] = f"not run after {self.options.seconds} s: {given[0]} and others"
                break
            else:
                case, row = given[0], self._attempt(found, given[1])
            found["rows"].append({"case": case} | row)
            found["seconds"] = round(time.monotonic() - started, 1)
            print(name, json.dumps(found["rows"][-1]), flush=True)
            self.write()
        if any(row.get("passed") is False for row in found["rows"]):
            found["status"] = "failed"
        self.write()

    @staticmethod
    def _attempt(found: Row, work: Callable[[], Any]) -> Any:
        """Return the result, or a row with the error."""
        try:
            return work()
        except Exception as error:
            found["errors"].append(traceback.format_exc())
            print(found["errors"][-1], file=sys.stderr, flush=True)
            return {"passed": False, "error": f"{type(error).__name__}: {error}"[:300]}

    def write(self) -> None:
        self.options.output.mkdir(parents=True, exist_ok=True)
        write_whole(self.options.output / "gpu.json", json.dumps(self.record, indent=1))
        write_whole(self.options.output / "gpu.md", as_markdown(self.record))

    def texts(self, count: int, words: int = 60) -> Samples:
        """Return samples with made-up texts, and all columns."""
        draw = np.random.default_rng(0)
        known = [*"the soup was good bread old tea cold long walk lake and we met them".split()]
        known += ["".join(draw.choice([*ascii_lowercase], 4)) for _ in range(500)]
        rows = [" ".join(draw.choice(known, words)) for _ in range(5 * count)]
        texts = [f"{row[: len(row) // 2]}. {row[len(row) // 2 :].strip()}." for row in rows]
        parts = [texts[i::5] for i in range(5)]
        return Samples(
            parts[0],
            prefixes=[" ".join(text.split()[:3]) for text in parts[0]],
            labels=[("positive", "negative")[i % 2] for i in range(count)],
            sources=parts[1],
            references=parts[2],
            contexts=parts[3],
            histories=parts[4],
        )


def installed() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def as_markdown(record: Row) -> str:
    """Return a heading and a table per part."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    lines = [
        f"{record['card'] or 'No card: ' + record['device']}, driver {record['driver']}, CUDA "
        f"{record['cuda']}, {record['cores']} cores, {versions}. {record['size'].capitalize()} "
        f"models, {record['weights']} weights."
    ]
    for name, part in record["parts"].items():
        lines += ["", f"### {name}: {part['status']}, {part['seconds']} s", ""]
        columns = list(dict.fromkeys(key for row in part["rows"] for key in row))
        if columns:
            lines += ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for row in part["rows"]:
            lines.append("| " + " | ".join(cell(row.get(key)) for key in columns) + " |")
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    if value is None:
        return "not available"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def difference(scores: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the largest difference, relative above 1; infinite where one side alone is NaN."""
    worst = 0.0
    for name, values in expected.items():
        ours, values = np.asarray(scores[name]), np.asarray(values)
        if (np.isnan(ours) != np.isnan(values)).any():
            return np.inf
        apart = np.abs(ours - values) / np.maximum(1, np.abs(values))
        worst = max(worst, float(np.nanmax(apart, initial=0.0)))
    return worst


def in_mib(count: int | None, before: int | None = 0) -> float | None:
    return None if count is None or before is None else round((count - before) / MIB, 1)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    from step_clock import now

    started = now()
    result = work()
    return result, now() - started


def scorers(kit: Kit) -> Cases:
    """Each scorer against the CPU, and what it leaves in memory."""
    for case, build in kit.cases.items():
        yield case, partial(against_the_cpu, kit, build, samples_of(case, SAMPLES))


def against_the_cpu(kit: Kit, build: Callable[..., Any], samples: Samples) -> Row:
    expected = build(kit.folders, {"device": "cpu", "dtype": "float32"}).score(samples)
    row: Row = {}
    for dtype in ("float32", "bfloat16"):
        before = kit.card.live()
        scorer = build(kit.folders, {"device": kit.device, "dtype": dtype})
        scores, row[f"seconds, {dtype}"] = timed(partial(scorer.score, samples))
        held = kit.card.live()
        scorer.release()
        row[f"difference, {dtype}"] = difference(scores, expected)
        row[f"MiB held, {dtype}"] = in_mib(held, before)
        row[f"MiB left, {dtype}"] = in_mib(kit.card.live(), before)
    row["passed"] = (
        row["difference, float32"] <= TOLERANCE
        and row["difference, bfloat16"] < math.inf
        and max(row[f"MiB left, {dtype}"] or 0 for dtype in ("float32", "bfloat16")) < 1
    )
    return row


def memory(kit: Kit) -> Cases:
    """Scores with 60 % of the memory that one batch of all texts takes."""
    if kit.card.type == "cpu":
        return  # has no limit
    for name, kind in (("llama", CTRLEval), ("pegasus", CTRLEval), ("llama", Perplexity)):
        yield f"{kind.__name__} {name}", partial(out_of_memory, kit, name, kind)


def out_of_memory(kit: Kit, name: str, kind: Callable[..., Any]) -> Row:
    samples = kit.texts(64) if kit.full else SAMPLES
    scorer = kind(kit.folders[name], device=kit.device, dtype="float32", batch_tokens=2**20)
    scorer.load()
    row: Row = {"texts": len(samples)}
    row["default tokens per pass"] = batching.token_budget(lm_of(scorer).model, None)
    before = kit.card.live() or 0
    kit.card.start_peak()
    expected = scorer.score(samples)
    need = (kit.card.peak() or 0) - before
    row["MiB of one batch"] = in_mib(need)
    free_unused, emptied = batching.free_unused, []

    def counted() -> None:
        emptied.append(1)
        free_unused()

    batching.free_unused = output_layer.free_unused = counted
    try:
        with kit.card.limited(int(0.6 * need)):
            scores = scorer.score(samples)
    finally:
        batching.free_unused = output_layer.free_unused = free_unused
        scorer.release()
    row["times out of memory"] = len(emptied)
    row["difference"] = difference(scores, expected)
    row["passed"] = bool(emptied) and row["difference"] <= TOLERANCE
    return row


def lm_of(scorer: Any) -> Any:
    """Return the frozen model of a scorer, in its evaluator if it has one."""
    model = scorer.loaded_model
    return getattr(model, "lm", model)


def a_reward(kit: Kit, device: str, dtype: str | None = None) -> Reward:
    options: Row = {"device": device, "dtype": dtype}
    return Reward(
        {
            "relevance": CTRLEval(kit.folders["llama"], **options)["attribute_relevance"],
            "likelihood": (
                Perplexity(kit.folders["llama"], **options)["log_likelihood"],
                0.1,
            ),
            "similarity": Similarity(kit.folders["encoder"], **options)["similarity"],
        }
    )


def rewards(kit: Kit) -> Cases:
    """A reward in this thread, and the same on a thread beside other work."""
    samples = kit.texts(64 if kit.full else 4, 60 if kit.full else 12)
    reward = a_reward(kit, kit.device, "float32")
    expected = reward(samples)

    def row(found: Any, seconds: float) -> Row:
        apart = difference({"": found.total}, {"": expected.total})
        passed = apart <= TOLERANCE and not bool(found.failed.any())
        return {"seconds": seconds, "difference": apart, "passed": passed}

    def on_a_thread() -> Row:
        width = 2048 if kit.full else 64
        square = torch.rand(width, width).to(kit.device)
        started, pending = time.perf_counter(), reward.submit(samples)
        while not pending.done():
            square = torch.nn.functional.normalize(square @ square)
        return row(pending.result(), time.perf_counter() - started)

    yield "in this thread", lambda: row(*timed(partial(reward, samples)))
    yield "on a thread, beside products", on_a_thread
    reward.release()


def lacking(*packages: str) -> str:
    """Return which packages are not installed, or nothing."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def prompts(kit: Kit) -> Samples:
    beginnings = ["The hotel", "The film", "Our dinner", "The band", "The soup", "A long walk",
                  "The lake", "Her new car"][: 8 if kit.full else 2]  # fmt: skip
    labels = [("positive", "negative")[i % 2] for i in range(len(beginnings))]
    texts = [f"A {label} review: {text}" for text, label in zip(beginnings, labels, strict=True)]
    return Samples(
        beginnings, prompts=texts, prefixes=beginnings, labels=labels, sources=beginnings
    )


def sampling(kit: Kit) -> Row:
    return {"num_generations": 8 if kit.full else 2, "max_completion_length": 48 if kit.full else 4}


def train_ours(kit: Kit, model: str) -> tuple[Any, Any]:
    """Train a policy for some steps."""
    import pytorch_lightning as pl
    from step_clock import LightningClock, TimedTuner
    from torch.utils.data import DataLoader

    from ctrlreward.policy import Generation, LoRA, Objective

    pl.seed_everything(0, verbose=False)
    tuner = TimedTuner(
        kit.folders[model],
        a_reward(kit, kit.device),
        Objective(beta=0.05),
        Generation(**sampling(kit)),
        lora=LoRA(r=16),
    )
    tuner.clock = clock = LightningClock()
    steps = kit.steps + 1
    trainer = kit.card.trainer(kit.place, callbacks=[clock], max_steps=steps)
    batches: Any = [prompts(kit)] * steps
    trainer.fit(tuner, DataLoader(batches, batch_size=None))
    return clock, tuner.policy


def steps(kit: Kit) -> Cases:
    """Median seconds of a step by phase, after one that warms up."""
    yield "PolicyTuner, llama", partial(step, kit, partial(train_ours, kit, "llama"))
    yield "PolicyTuner, policy", partial(step, kit, partial(train_ours, kit, "policy"))
    reason = lacking("trl", "datasets")
    if kit.card.type == "second":
        reason = f"TRL does not train on {kit.device}"
    theirs = partial(step, kit, partial(train_trl, kit))
    yield "GRPOTrainer, llama", (lambda: {"not run": reason}) if reason else theirs


def sharded(kit: Kit) -> Cases:
    """Texts, decisions and checkpoints of a model that FSDP splits over all cards, against one."""
    for name in ("FSDP2 sharded", "FSDP2 full", "FSDP1 sharded", "FSDP1 full"):
        yield f"{name} checkpoints", partial(against_one_rank, kit, name)


def against_one_rank(kit: Kit, name: str) -> Row:
    if kit.card.type == "second":
        return {"not run": "two ranks on the CPU are in tests/callbacks/test_sharded.py"}
    kind, ranks = ("gpu", torch.cuda.device_count()) if kit.card.type == "cuda" else ("cpu", 2)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    script = str(ROOT / "tests/callbacks/sharded_ranks.py")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    found = []
    for each, start in (("one rank", []), (name, launcher)):
        folder = kit.place / "sharded"
        if not (folder / f"{each} 0.json").exists():
            folder.mkdir(exist_ok=True)
            command = [sys.executable, *start, script, str(folder), kit.folders["llama"]]
            subprocess.run(
                [*command, each, kind], check=True, env={**os.environ, "PYTHONPATH": paths}
            )
        found.append(json.loads((folder / f"{each} 0.json").read_text()))
    one, many = found
    pairs = [
        pair
        for rows in zip(one["scored"], many["scored"], strict=True)
        for pair in zip(*rows, strict=True)
    ]
    row = {
        "ranks": ranks,
        "loss, one rank": one["loss"],
        "difference": abs(many["loss"] - one["loss"]),
        "equal texts": float(np.mean([mine == theirs for mine, theirs in pairs])),
        "kept step": many["selected"],
        "error": many["error"] or None,
    }
    row["passed"] = not many["error"] and row["difference"] < 1e-3 and row["equal texts"] > 0.9
    return row


def step(kit: Kit, work: Callable[[], tuple[Any, Any]]) -> Row:
    kit.card.clean()
    kit.card.start_peak()
    clock, policy = work()
    count = sum(parameter.numel() for parameter in policy.parameters())
    dtype = str(next(policy.parameters()).dtype).removeprefix("torch.")
    row: Row = {"million weights": round(count / 1e6), "base weights": dtype}
    phases = ("step", "sampling", "reward")
    medians = [float(np.median(getattr(clock, phase)[-kit.steps :])) for phase in phases]
    row |= {f"{phase}, s": seconds for phase, seconds in zip(phases, medians, strict=True)}
    row["rest, s"] = medians[0] - medians[1] - medians[2]
    row["tokens"] = float(np.mean(clock.tokens[-kit.steps :]))
    row["peak MiB"] = in_mib(kit.card.peak())
    return row


def train_trl(kit: Kit) -> tuple[Any, Any]:
    """Train the policy under TRL with the same reward, prompts and adapter."""
    from datasets import Dataset
    from peft import LoraConfig
    from step_clock import TransformersClock
    from transformers import AutoTokenizer
    from trl import GRPOConfig
    from trl_step import TimedTrainer

    from ctrlreward.adapters.trl import as_reward_funcs

    given, on_card = prompts(kit), kit.card.type == "cuda"
    columns = given.columns()
    names = {"prompts": "prompt", "prefixes": "prefix", "labels": "label", "sources": "source"}
    table = Dataset.from_dict({name: list(columns[key]) for key, name in names.items()})
    folder = kit.folders["llama"]
    trainer = TimedTrainer(
        AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16" if on_card else "float32"),
        reward_funcs=as_reward_funcs(
            a_reward(kit, kit.device),
            {"prefixes": "prefix", "labels": "label", "sources": "source"},
        ),
        args=GRPOConfig(
            output_dir=str(kit.place / "trl"),
            per_device_train_batch_size=len(given) * sampling(kit)["num_generations"],
            **sampling(kit),
            beta=0.05,
            loss_type="grpo",
            learning_rate=1e-4,
            max_steps=kit.steps + 1,
            save_strategy="no",
            logging_steps=1,
            gradient_checkpointing=False,
            bf16=on_card,
            use_cpu=not on_card,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=table,
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    trainer.clock = clock = TransformersClock()
    trainer.add_callback(clock)
    trainer.train()
    return clock, trainer.model


def speed(kit: Kit) -> Cases:
    """Texts per second with the defaults of the device, and the share of its measured peak."""
    for case, build in kit.cases.items():
        yield case, partial(texts_per_second, kit, case, build)
    for name in ("llama", "pegasus"):
        if f"CTRLEval {name}" in kit.cases:
            yield f"relevance on {name}, a plain loop", partial(against_a_plain_loop, kit, name)


def against_a_plain_loop(kit: Kit, name: str) -> Row:
    """Texts per second of attribute relevance, and of its strings in plain batches."""
    count, words = (32, 60) if kit.full else (2, 12)
    scorer = CTRLEval(kit.folders[name], aspects="attribute_relevance", device=kit.device)
    samples = kit.texts(count, words)
    scorer.score(samples)  # loads the model
    ours = min(timed(partial(scorer.score, samples))[1] for _ in range(2))
    model = scorer.loaded_model
    blanks, texts = scorer._prompts, samples.texts
    rows = [row for text in texts for row in plain_rows(model, [b.about(text) for b in blanks])]
    plain_means(model, rows[:PLAIN_BATCH])
    means, plain = timed(partial(plain_means, model, rows))
    answers = model.answer([Patterns(blanks, text) for text in texts])
    expected = np.concatenate([answer.means for answer in answers])
    row = {
        "texts": count,
        "texts per second": count / ours,
        "plain loop, texts per second": count / plain,
        "ratio": plain / ours,
        "largest difference of a word": float(np.abs(expected - means).max()),
    }
    scorer.release()
    kit.card.clean()
    return row


def plain_rows(model: Any, blanks: Sequence[Blank]) -> list[tuple[str, str]]:
    """Return what the model reads before each filling, or the masked text, and the filling."""
    if isinstance(model, CausalLM):
        asked = model._orders.of(Patterns(tuple(blanks)))
        return [
            (characters(model.tokenizer, (*c.context, *read)), characters(model.tokenizer, filling))
            for c, _ in asked
            for read, filling in c.targets
        ]
    return [
        ("".join((*blank.left, "<mask_1>", *blank.right)), word)
        for blank in blanks
        for word in blank.targets
    ]


@torch.no_grad()
def plain_means(model: Any, rows: list[tuple[str, str]]) -> np.ndarray:
    """Return the mean log-probability of each filling by plain batches, full logits."""
    tokenizer, device, means = model.tokenizer, model.model.device, []
    options = {"padding": True, "padding_side": "right", "return_tensors": "pt"}
    for start in range(0, len(rows), PLAIN_BATCH):
        batch = rows[start : start + PLAIN_BATCH]
        if isinstance(model, CausalLM):
            texts = [before + filling for before, filling in batch]
            read = tokenizer(
                texts, add_special_tokens=False, return_offsets_mapping=True, **options
            )
            begin = torch.full((len(batch), 1), int(model._start[0]))
            ids, mask = torch.cat([begin, read.input_ids], 1), read.attention_mask.bool()
            seen = torch.cat([torch.ones_like(begin), read.attention_mask], 1)
            inputs = {"input_ids": ids.to(device), "attention_mask": seen.to(device)}
            logits, targets = model.model(**inputs).logits[:, :-1], ids[:, 1:]
            lengths = torch.tensor([len(before) for before, _ in batch])
            wanted = mask & (read.offset_mapping[..., 1] > lengths[:, None])
        else:
            source = tokenizer([before for before, _ in batch], **options).to(device)
            read = tokenizer([w for _, w in batch], add_special_tokens=False, **options)
            targets, wanted = read.input_ids, read.attention_mask.bool()
            logits = model.model(**source, labels=targets.to(device)).logits
        targets, wanted = targets.to(device), wanted.to(device)
        picked = logits.float().log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
        means.append(((picked * wanted).sum(1) / wanted.sum(1)).cpu().numpy())
    return np.concatenate(means)


def texts_per_second(kit: Kit, case: str, build: Callable[..., Any]) -> Row:
    import floor

    scorer, most, words = build(kit.folders, {"device": kit.device}), 4, 12
    if kit.full:
        most, words = 256, 60
    few = samples_of(case, kit.texts(most // 16 or 1, words))
    scorer.score(few)  # loads the model
    try:
        _, seconds = timed(partial(scorer.score, few))
        count = min(most, max(len(few), int(len(few) / seconds)))  # for about a second
        work = partial(scorer.score, samples_of(case, kit.texts(count, words)))
        work()
        seconds = min(timed(work)[1] for _ in range(2))
        with floor.count_cost() as cost:
            work()
    finally:
        scorer.release()
        kit.card.clean()
    dtype = torch.bfloat16 if kit.card.type == "cuda" else torch.float32
    peak = floor.speed(dtype, kit.device).gflops
    return {
        "texts": count,
        "texts per second": count / seconds,
        "tokens read": cost.embedded,
        "GFLOP": cost.flops / 1e9,
        "share of peak": cost.flops / 1e9 / seconds / peak,
        "peak, GFLOP/s": peak,
    }


# The short ones first.
PARTS: dict[str, Callable[[Kit], Cases]] = {
    "scorers": scorers,
    "memory": memory,
    "rewards": rewards,
    "steps": steps,
    "sharded": sharded,
    "speed": speed,
}


def main() -> None:
    has_card = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0" if has_card else "second:0")
    parser.add_argument("--size", choices=("full", "tiny"), default="full" if has_card else "tiny")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--scorers", nargs="+", help="only those with one of these words in them")
    parser.add_argument("--seconds", type=int, default=540, help="parts after these are not run")
    parser.add_argument("--weights", type=Path, help=f"folder of {', '.join(SHAPES)}")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not has_card:
        parser.error(f"--device {options.device}: torch {torch.__version__} finds no CUDA device")
    if options.device in ("cuda", "second"):
        options.device += ":0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    torch.set_float32_matmul_precision("highest")  # no TF32, nor in convolutions
    torch.backends.cudnn.allow_tf32 = False
    gc.freeze()  # else each count of memory looks through all modules, for half a second
    with tempfile.TemporaryDirectory() as place:
        kit = Kit(options, Path(place))
        print(json.dumps(kit.record), flush=True)
        for name in options.parts:
            if kit.left() > 0:
                kit.run(name, PARTS[name])
            else:
                kit.record["parts"][name] = {"status": "not run", "seconds": 0, "rows": []}
                kit.write()
    print((options.output / "gpu.md").read_text(encoding="utf-8"))
    sys.exit(any(part["status"] == "failed" for part in kit.record["parts"].values()))


if __name__ == "__main__":
    main()
