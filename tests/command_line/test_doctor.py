"""`ctrlreward doctor`: what it says of this machine, and of others."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ctrlreward.cli import main
from ctrlreward.command_line import doctor
from ctrlreward.extras import EXTRA_OF, PURPOSES
from ctrlreward.weights.cache import build_once


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Return the lines of the report by their title."""
    main(["doctor"])
    title, *parts = re.split(r"^(?! )(.+)\n", capsys.readouterr().out, flags=re.MULTILINE)
    assert title == ""
    return {
        title: [line.strip() for line in lines.splitlines()]
        for title, lines in zip(parts[::2], parts[1::2], strict=True)
    }


def test_versions_and_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    parts = report(capsys)

    assert f"torch {torch.__version__.partition('+')[0]}" in parts["versions"][2]
    assert parts["devices"][0].startswith("cpu: ")
    assert parts["devices"][0].endswith(("float32", "bfloat16"))


def test_an_accelerator_has_its_name_and_free_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"Card {i}")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 2**30, 8 * 2**30))

    devices = report(capsys)["devices"]

    assert devices[1:] == ["cuda:0: Card 0, 3.0 GiB free", "cuda:1: Card 1, 3.0 GiB free"]


@pytest.mark.parametrize("absent", [set(), {"wandb", "sentencex"}])
def test_missing_extras_have_their_purpose_and_command(
    absent: set[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor, "find_spec", lambda name: None if name in absent else SimpleNamespace()
    )

    missing = report(capsys)["missing extras"]

    if absent:
        assert missing == [
            "sentences: sentence splitters of NLTK and sentencex "
            "(pip install 'ctrlreward[sentences]')",
            "wandb: Weights & Biases (pip install 'ctrlreward[wandb]')",
        ]
    else:
        assert missing == ["none"]


def test_every_extra_has_a_purpose() -> None:
    assert set(PURPOSES) == set(EXTRA_OF.values())


def test_built_in_weights_are_here_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path))
    folder = build_once("minilm-l6-0.1.0", lambda folder: None)

    weights = dict(line.split(": ") for line in report(capsys)["built-in weights"])

    assert weights["minilm-l6"] == str(folder)
    assert weights["smollm2-135m"].startswith("not here")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [
        folder.name
    ]
