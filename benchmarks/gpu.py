"""What needs a GPU, on one card, without network.

    python benchmarks/gpu.py [--parts scorers memory steps speed] [--output runs/gpu]

Models have the sizes of published ones and random weights (random_models.py). Parts:

- scorers: each scorer on the device against the CPU, and its memory after `release()`;
- memory: out of memory survived, with the scores of before;
- steps: seconds of a step of `PolicyTuner` by phase;
- speed: texts per second of each scorer with the defaults of the device.

Prints a line of JSON a row, and writes all to gpu.json after each. The others run after one that
fails; the exit status is then 1. Without a card it runs on `second:0`, the second device of the
tests, with tiny models: the same calls, whose times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Of ctrlreward, device_cases, second_device and second_device_runs.
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "policy")]

import numpy as np
import pytorch_lightning as pl
import torch
from device_cases import CASES, SAMPLES, samples_of
from random_models import Folders
from scorer_cost import made
from side_by_side import machine, quiet
from torch.utils.data import DataLoader

from ctrlreward import CTRLEval, Perplexity, Reward, Samples
from ctrlreward.files import write_whole
from ctrlreward.models import batching, output_layer
from ctrlreward.policy import Generation, LoRA, PolicyTuner
from ctrlreward.recipes.controlled_generation import build_prompts

Row = dict[str, Any]
Cases = Iterator[tuple[str, Callable[[], Row]]]  # of a part: names, and what makes their rows
MIB = 2**20
TOLERANCE = 1e-4  # in float32; relative for scores above 1


class Card:
    """The device under test, its models and its memory, a card's or that of the tests' device."""

    def __init__(self, options: argparse.Namespace, place: Path) -> None:
        self.full, self.place = torch.cuda.is_available(), place
        self.samples = made(256) if self.full else SAMPLES
        self.device = "cuda:0" if self.full else "second:0"
        self.folders = Folders(place / "models", tiny=not self.full, device=self.device)
        wanted = options.scorers or [""]
        self.cases = {n: b for n, b in CASES.items() if any(word in n for word in wanted)}
        self.memory: Any = None
        if not self.full:
            import second_device

            second_device.register()
            self.memory = second_device.memory

    def live(self) -> int:
        """Return the bytes of tensors, without what nothing refers to."""
        gc.collect()
        if self.memory:
            return int(self.memory.live[0])
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # which count as allocated
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(self.device)

    def start_peak(self) -> None:
        if self.memory:
            self.memory.peak[:] = self.memory.live
        else:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """Return the largest number of bytes of tensors since `start_peak`."""
        return int(self.memory.peak[0] if self.memory else torch.cuda.max_memory_allocated())

    @contextmanager
    def limited(self, more: int) -> Iterator[None]:
        """Let the process take so many bytes more inside the context."""
        self.live()
        if self.memory:
            with self.memory.limited(more):
                yield
            return
        total = torch.cuda.get_device_properties(self.device).total_memory
        reserved = torch.cuda.memory_reserved(self.device)
        torch.cuda.set_per_process_memory_fraction((reserved + more) / total, self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)


def now() -> float:
    """Return the time when an accelerator, if there is one, has done all its work."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None:
        getattr(torch, device.type).synchronize()
    return time.perf_counter()


class LightningClock(pl.Callback):
    """Seconds of each step, of its sampling and of its reward; tokens per step."""

    def __init__(self) -> None:
        self.started, self.steps = 0.0, list[dict[str, float]]()

    def on_train_batch_start(self, *args: Any) -> None:
        self.started = now()

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        """Read the shares of sampling and reward that the module logs."""
        seconds, logged = now() - self.started, trainer.callback_metrics
        row = {"step, s": seconds, "sampling, s": seconds * float(logged["time/rollout_share"])}
        row["reward, s"] = seconds * float(logged["time/reward_share"])
        row["tokens"] = float(logged["rollout/tokens_per_second"]) * row["sampling, s"]
        self.steps.append(row)


def difference(scores: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the largest difference, relative above 1; infinite where one side alone is NaN."""
    ours, values = (np.array([each[name] for name in expected]) for each in (scores, expected))
    if (np.isnan(ours) != np.isnan(values)).any():
        return np.inf
    return float(np.nanmax(np.abs(ours - values) / np.maximum(1, np.abs(values)), initial=0.0))


def seconds_of(work: Callable[[], Any]) -> float:
    started = now()
    work()
    return now() - started


def scorers(card: Card) -> Cases:
    def compared(build: Callable[..., Any], samples: Samples) -> Row:
        expected = build(card.folders, {"device": "cpu", "dtype": "float32"}).score(samples)
        row: Row = {}
        for dtype, tolerance in (("float32", TOLERANCE), ("bfloat16", sys.float_info.max)):
            before = card.live()
            scorer = build(card.folders, {"device": card.device, "dtype": dtype})
            row[f"difference, {dtype}"] = apart = difference(scorer.score(samples), expected)
            row[f"MiB held, {dtype}"] = (card.live() - before) / MIB
            scorer.release()
            row[f"MiB left, {dtype}"] = left = (card.live() - before) / MIB
            row["passed"] = row.get("passed", True) and apart <= tolerance and left < 1
        return row

    for case, build in card.cases.items():
        yield case, partial(compared, build, samples_of(case, SAMPLES))


def memory(card: Card) -> Cases:
    """Scores with 60 % of the memory that one batch of all texts takes."""

    def row(name: str, kind: Callable[..., Any]) -> Row:
        samples = card.samples[:64]
        scorer = kind(card.folders[name], device=card.device, dtype="float32", batch_tokens=2**20)
        scorer.load()
        before = card.live()
        card.start_peak()
        expected = scorer.score(samples)
        need = card.peak() - before
        free_unused, emptied = batching.free_unused, []

        def counted() -> None:
            emptied.append(1)
            free_unused()

        batching.free_unused = output_layer.free_unused = counted
        try:
            with card.limited(int(0.6 * need)):
                apart = difference(scorer.score(samples), expected)
        finally:
            batching.free_unused = output_layer.free_unused = free_unused
            scorer.release()
        found = {"MiB of one batch": need / MIB, "times out of memory": len(emptied)}
        return found | {"difference": apart, "passed": bool(emptied) and apart <= TOLERANCE}

    for name, kind in (("llama", CTRLEval), ("pegasus", CTRLEval), ("llama", Perplexity)):
        yield f"{kind.__name__} {name}", partial(row, name, kind)


def steps(card: Card) -> Cases:
    """Median seconds of a step by phase, after one that warms up."""
    count, completions, length, prefixes = (4, 8, 48, 2) if card.full else (1, 2, 4, 1)
    generation = Generation(num_generations=completions, max_completion_length=length)
    template = "A {label} review: {prefix}"
    batch = build_prompts(["The hotel", "The film"][:prefixes], ["positive", "negative"], template)

    def row(model: str) -> Row:
        card.live()
        card.start_peak()
        relevance = CTRLEval(card.folders["llama"], device=card.device)["attribute_relevance"]
        options: Any = {"generation": generation, "lora": LoRA(r=16)}
        reward = Reward({"relevance": relevance})
        tuner = PolicyTuner(card.folders[model], reward, **options)
        clock = LightningClock()
        place: Any = {"accelerator": "gpu", "devices": 1}
        if card.memory:
            from second_device_runs import placed

            place = placed(card.device)
        silent = ("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "logger")
        trainer = pl.Trainer(
            **place,
            **dict.fromkeys(silent, False),
            callbacks=[clock],
            max_steps=count + 1,
            default_root_dir=str(card.place),
        )
        batches: Any = [batch] * (count + 1)
        trainer.fit(tuner, DataLoader(batches, batch_size=None))
        timed = clock.steps[-count:]
        medians = {name: float(np.median([step[name] for step in timed])) for name in timed[0]}
        return {**medians, "peak MiB": card.peak() / MIB}

    for model in ("llama", "policy"):
        yield f"PolicyTuner, {model}", partial(row, model)


def speed(card: Card) -> Cases:
    def row(case: str, build: Callable[..., Any]) -> Row:
        scorer = build(card.folders, {"device": card.device})
        samples = samples_of(case, card.samples)
        scorer.score(samples[:2])  # loads the model
        card.start_peak()
        seconds = min(seconds_of(partial(scorer.score, samples)) for _ in "123")
        peak = card.peak() / MIB
        scorer.release()
        card.live()
        return {"texts per second": len(samples) / seconds, "peak MiB": peak}

    for case, build in card.cases.items():
        yield case, partial(row, case, build)


PARTS = {"scorers": scorers, "memory": memory, "steps": steps, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--scorers", nargs="+", help="only those with one of these words in them")
    parser.add_argument("--seconds", type=int, default=540, help="no row starts after these")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="folder")
    options = parser.parse_args()
    started = now()
    quiet()
    torch.set_float32_matmul_precision("highest")  # no TF32, nor in convolutions
    torch.backends.cudnn.allow_tf32 = False
    gc.freeze()  # else each count of memory looks through all modules, for half a second
    rows: list[Row] = []
    record = {"machine": machine(), "rows": rows}
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        card = Card(options, Path(place))
        record["card"] = torch.cuda.get_device_name() if card.full else None
        for part in options.parts:
            for case, work in PARTS[part](card):
                row: Row = {"part": part, "case": case}
                begun = now()
                if begun - started > options.seconds:
                    row["not run"] = f"after {options.seconds} s"
                else:
                    try:
                        row |= work()
                    except Exception as error:
                        traceback.print_exc()
                        row |= {"passed": False, "error": f"{type(error).__name__}: {error}"}
                    row["seconds"] = now() - begun
                rows.append(row)
                print(json.dumps(row), flush=True)
                write_whole(options.output / "gpu.json", json.dumps(record, indent=1))
    sys.exit(any(row.get("passed") is False for row in rows))


if __name__ == "__main__":
    main()
