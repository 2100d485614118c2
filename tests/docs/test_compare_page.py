"""Examples and values of docs/compare.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template

import pytest

from ctrlreward.cli import main
from ctrlreward.functional.agreement import fleiss_kappa, krippendorff_alpha

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")


def block(language: str, text: str) -> list[str]:
    """Return the lines of the block that contains a text, with continued lines joined."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (content,) = (b for b in blocks if text in b)
    return content.replace("\\\n", " ").splitlines()


def test_the_example_prints_the_shown_output(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(data_dir / "lorandi_ctg")
    monkeypatch.setenv("COLUMNS", "120")
    variables, command, *shown = block("console", "seed=3443")
    values = dict(word.split("=", 1) for word in shlex.split(variables)[1:])
    command = Template(command.removeprefix("$ ")).substitute(values)
    _, *arguments = shlex.split(command)
    main(arguments)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    lines = [line.split() for line in shown if line != " …"]
    assert len(lines) == 8
    assert all(line in printed for line in lines)


def test_values_of_label_agreement() -> None:
    names = {"fleiss_kappa": fleiss_kappa, "krippendorff_alpha": krippendorff_alpha}
    calls = [line.split("  # ") for line in block("python", "fleiss_kappa") if "  # " in line]
    assert len(calls) == 2
    for call, value in calls:
        assert eval(call, names) == pytest.approx(float(value), abs=5e-4)
