"""Command `ctrlreward plan`: memory, operations and time of a training step, before it runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctrlreward.arguments import one_of
from ctrlreward.commands.config_files import with_extended
from ctrlreward.commands.terminal import (
    ABOUT_BITSANDBYTES,
    hide_messages,
    plain_console,
    plain_parser,
    user_errors,
)
from ctrlreward.commands.train import EXAMPLE, checked_job
from ctrlreward.files import json_text

_DESCRIPTION = """Compute what a training step of a YAML file for 'ctrlreward train' needs:
parameters, bytes per device, operations by phase, and seconds on some hardware. Nothing is trained,
and no weights are loaded: configurations and tokenizers suffice. Every key of the file is also an
option, as for 'ctrlreward train'."""

_EXAMPLES = (
    f"ctrlreward plan {EXAMPLE}",
    f"ctrlreward plan {EXAMPLE} --hardware h100 --data.batch_size=16 --json",
)


@dataclass(frozen=True)
class Hardware:
    """Peak rates of a device; bytes are None where the memory is the machine's.

    Attributes:
        flops: Dense operations per second in 16 bits, of the data sheet.
        float32: The same in float32, without TF32.
        bandwidth: Bytes per second.
        memory: Bytes.
    """

    flops: float
    float32: float
    bandwidth: float
    memory: float | None = None


HARDWARE: Mapping[str, Hardware] = {
    "h100": Hardware(989e12, 67e12, 3.35e12, 80e9),
    "h200": Hardware(989e12, 67e12, 4.8e12, 141e9),
    "a100": Hardware(312e12, 19.5e12, 2.04e12, 80e9),
    "a100-40gb": Hardware(312e12, 19.5e12, 1.56e12, 40e9),
    "a10g": Hardware(70e12, 31e12, 0.6e12, 24e9),
    "l4": Hardware(121e12, 30e12, 0.3e12, 24e9),
    "rtx4090": Hardware(165e12, 83e12, 1.01e12, 24e9),
}
HERE = "cpu"

# Shares of the peak rates that are reached, and the host's seconds per kernel: docs/plan.md.
_COMPUTE, _BANDWIDTH, _PER_CALL = 0.4, 0.6, 25e-6


def run(arguments: list[str]) -> None:
    """Print the plan of a configuration."""
    usage = "CONFIG [--hardware NAME] [--json] [options of train]"
    parser = plain_parser("ctrlreward plan", _DESCRIPTION, _EXAMPLES, usage)
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help=f"{', '.join(HARDWARE)}, with all models on it unless the configuration names "
        f"other devices; or {HERE}, whose rates are measured. The default is {HERE}, or for "
        "a job on CUDA this machine's card if it is one of these, else h100",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given, others = parser.parse_known_args(arguments)
    with user_errors():
        if given.hardware is not None:
            one_of("--hardware", given.hardware, [*HARDWARE, HERE])
        plan = plan_of(checked_job("plan", others), given.hardware)
    if given.json:
        print(json_text(plan), end="")
    else:
        print_plan(plan)


def plan_of(job: Sequence[str], hardware: str | None = None) -> dict[str, Any]:
    """Return the plan of a training job, as JSON has it.

    Args:
        job: Arguments of `ctrlreward train`.
        hardware: A name in `HARDWARE`, `"cpu"` for this machine, or None.

    Raises:
        ValueError: It is not the job of a `PolicyTuner`, or a model or its data is unknown.
        OSError: A model's configuration or tokenizer is neither here nor on a reachable hub.
    """
    import logging
    import resource
    import warnings

    import torch
    from transformers.utils import logging as transformers_logging

    hide_messages(ABOUT_BITSANDBYTES)
    warnings.simplefilter("ignore")
    from ctrlreward.commands.planned_step import StepPlan
    from ctrlreward.commands.training_job import TrainCLI, build, one_line_errors
    from ctrlreward.policy.adapted_module import AdaptedModuleMixin

    class Unbuilt(TrainCLI):
        """Builds neither the trainer, whose devices this machine may lack, nor loggers."""

        def before_instantiate_classes(self) -> None:
            trainer = self.config.trainer
            callbacks = trainer.callbacks or []
            trainer.logger = None
            trainer.callbacks = [each for each in callbacks if "WandbLogger" not in str(each)]
            super().before_instantiate_classes()

        def instantiate_trainer(self, **kwargs: Any) -> Any:
            return self.config_init.trainer

    logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()
    with one_line_errors(with_extended(job)[1]):
        cli = build(job, Unbuilt)
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tuner: Any = cli.model
    trainer: Any = cli.trainer
    if not isinstance(tuner, AdaptedModuleMixin):
        raise ValueError(
            f"the model of the configuration is a {type(tuner).__name__}, must be a PolicyTuner"
        )
    if cli.datamodule is None:
        raise ValueError("the configuration has no data, whose prompts set the cost of a step")
    on_gpu = str(trainer.accelerator) in ("gpu", "cuda", *["auto"] * torch.cuda.is_available())
    name = hardware or (card_here() if on_gpu else HERE)
    card = HARDWARE.get(name)
    device = "cpu" if card is None else "cuda:0"
    try:
        plan = StepPlan(
            tuner,
            cli.datamodule,
            trainer.callbacks or [],
            device,
            None if card is None else card.memory,
        )
        phases = plan.phases()
        cache_bytes = plan.cache_bytes
        plan.add_held_out()
    except OSError as error:
        if "Hugging Face id" in str(error):
            error.add_note(
                "a plan needs its configuration and tokenizer, not its weights: "
                "hf download NAME --include '*.json' '*.model' '*.txt'"
            )
        raise
    if card is not None and not on_gpu:
        plan.notes.append(
            f"planned on {name}, as asked; the configuration itself says "
            f"trainer.accelerator = {trainer.accelerator}"
        )
    if card is None:
        card = measured_here(plan.policy.dtype)
    seconds = {key: _seconds(cost, card, plan.policy.dtype, device) for key, cost in phases.items()}
    return {
        "config": job[1],
        "hardware": name,
        "step": {
            "prompts": plan.prompts,
            "prompt_tokens": plan.prompt_tokens,
            "completions": plan.rows,
            "completion_tokens": tuner.generation.max_completion_length,
            "cache_bytes": cache_bytes,
        },
        "models": plan.described(),
        "phases": {
            key: {"peak_bytes": cost.peak, "flops": cost.flops, "seconds": seconds[key]}
            for key, cost in phases.items()
        },
        "seconds": sum(seconds.values()),
        "devices": plan.devices(phases, process),
        "notes": list(dict.fromkeys(plan.notes)),
    }


def card_here() -> str:
    """Return the name in `HARDWARE` of this machine's GPU; "h100" for another one, or none."""
    import torch

    if not torch.cuda.is_available():
        return "h100"
    words = re.findall(r"\w+", torch.cuda.get_device_name().lower().replace("rtx ", "rtx"))
    memory = torch.cuda.mem_get_info()[1]
    found = [name for name in HARDWARE if name.partition("-")[0] in words]
    return min(found, key=lambda n: abs((HARDWARE[n].memory or 0) - memory), default="h100")


def measured_here(dtype: Any) -> Hardware:
    """Return the rates of this machine's CPU, from half a second of products and of copies."""
    import torch

    a = torch.ones(1024, 1024, dtype=dtype)
    big = torch.ones(2**26, dtype=torch.uint8)
    rates = []
    for work, amount in ((lambda: a @ a, 2 * 1024**3), (big.clone, 2 * big.numel())):
        work()
        started, runs = time.perf_counter(), 0
        while time.perf_counter() - started < 0.25:
            work()
            runs += 1
        rates.append(runs * amount / (time.perf_counter() - started))
    # What is measured is reached: the shares of `_seconds` are for data sheets.
    return Hardware(rates[0] / _COMPUTE, rates[0] / _COMPUTE, rates[1] / _BANDWIDTH)


def _seconds(cost: Any, card: Hardware, dtype: Any, device: str) -> float:
    """Return the longest of products, reading of weights and calls of kernels, plus Python's."""
    flops = card.float32 if dtype.itemsize == 4 else card.flops
    calls = cost.calls * _PER_CALL if device != "cpu" else 0.0
    read = cost.read / (_BANDWIDTH * card.bandwidth)
    return float(cost.host + max(cost.flops / (_COMPUTE * flops), read, calls))


def print_plan(plan: Mapping[str, Any]) -> None:
    """Print the tables."""
    from rich.table import Table

    console = plain_console(None if sys.stdout.isatty() else 160)
    step = plan["step"]
    console.print(
        f"a step: {step['prompts']} prompts of up to {step['prompt_tokens']} tokens, "
        f"{step['completions']} completions of {step['completion_tokens']} tokens; cache of keys "
        f"and values {_mib(step['cache_bytes'])} MiB"
    )

    def new_table(title: str, *columns: str) -> Table:
        table = Table(title=title, box=None, header_style="", title_justify="left")
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        return table

    columns = ("parameters", "trained", "dtype", "device", "MiB", "tokens a step")
    models = new_table("models", "model", *columns)
    for each in plan["models"]:
        counts = [f"{each[key] / 1e6:,.1f} M" for key in ("parameters", "trained")]
        bytes_and_tokens = _mib(each["bytes"]), f"{each['tokens']:,}"
        name = f"{each['role']}: {each['model']}"
        models.add_row(name, *counts, each["dtype"], each["device"], *bytes_and_tokens)
    phases = new_table(f"phases on {plan['hardware']}", "phase", "tensors, MiB", "TFLOP", "seconds")
    for name, each in plan["phases"].items():
        teraflops, seconds = f"{each['flops'] / 1e12:,.3f}", f"{each['seconds']:,.2f}"
        phases.add_row(name, _mib(each["peak_bytes"]), teraflops, seconds)
    phases.add_row("step", "", "", f"{plan['seconds']:,.2f}")
    parts = list(next(iter(plan["devices"].values()))["parts"])
    memory = new_table("peak memory, MiB", "device", *parts, "peak", "fits")
    for name, each in plan["devices"].items():
        fits = ", ".join(f"{size} GB" for size in each["fits_gb"]) or "none of 24 to 141 GB"
        of_parts = [_mib(each["parts"][part]) for part in parts]
        memory.add_row(name, *of_parts, _mib(each["peak_bytes"]), fits)
    for table in (models, phases, memory):
        console.print(table)
    for note in plan["notes"]:
        console.print(f"note: {note}")
    console.print(
        "Estimated for completions of full length. Memory was within 20 % of measured runs on a "
        "CPU; the seconds of a phase may be off by a factor of three (docs/plan.md)."
    )


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"
