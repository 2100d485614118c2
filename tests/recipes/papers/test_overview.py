"""`ctrlreward papers ctrleval|ctc|transfer|reproduction`: its commands start, its files exist."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from ctrlreward.cli import COMMANDS, main
from ctrlreward.data import DATA_SETS
from ctrlreward.recipes.papers import PAPERS, PROGRAMS

ROOT = Path(__file__).resolve().parents[3]
CONTENT = yaml.safe_load((ROOT / "recipes/papers/overview.yaml").read_text("utf-8"))
COSTS = ("seconds", "minutes", "hours", "weights", "GPU", "people", "not done")
NAMED = re.compile(r"(?:configs|recipes|tests)/[\w/]+\.\w+")


@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_listed(paper: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["papers", paper])
    printed = capsys.readouterr().out
    for entry in CONTENT[paper]["entries"]:
        assert f"\n{entry['item']}  [{entry['cost']}]\n" in printed
        assert entry["cost"].startswith(COSTS)
        assert entry["printed"] in printed
        assert f"  $ {' '.join(entry.get('commands', ()))}"[:40] in printed
    with pytest.raises(SystemExit, match="0"):
        main(["papers", paper, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: ctrlreward papers {paper} ")


@pytest.mark.parametrize("paper", PAPERS)
def test_what_its_commands_name_exists(paper: str) -> None:
    commands = [c for entry in CONTENT[paper]["entries"] for c in entry.get("commands", ())]
    assert commands
    for command in commands:
        program, first, *rest = shlex.split(command)
        assert program in ("ctrlreward", "make", "pytest", "python")
        if program == "ctrlreward":
            assert first in COMMANDS
            assert first != "papers" or rest[0] in {**PAPERS, **PROGRAMS}
        elif program == "python":
            assert find_spec(rest[0])
        for file in NAMED.findall(command):
            assert (ROOT / file).is_file(), file
        for word in re.findall(r"[\w-]+/[\w.-]+", command):
            name, _, file = word.partition("/")
            assert name not in DATA_SETS or file in DATA_SETS[name].files, word


def test_the_measures_name_the_machine() -> None:
    assert "AMD EPYC with AVX2 on 2026-11-28" in CONTENT["measured"]
    assert CONTENT.keys() == {"measured", *PAPERS}
