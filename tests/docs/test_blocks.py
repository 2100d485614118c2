"""Every code block of README.md, CONTRIBUTING.md, the skill and docs/ runs, or says why not.

- ```python: the blocks of a page run in one namespace, in order, with tiny models in place of those
  with a short name. `given_names.py` has the names and files that a page takes from other pages, or
  that are the reader's.
- ```console, ```bash and ```sh: `ctrlreward` commands are parsed. In ```console blocks, lines
  without `$` are output.
- ```yaml: parsed by the command or class that reads it.

A block after the line `<!-- not run: REASON -->` is left out.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from shutil import copy
from typing import Any, NamedTuple

import pytest
import yaml
from command_lines import parse_only
from given_names import GIVEN, prepare

from ctrlreward.cli import main
from ctrlreward.command_line.reward_file import build_reward
from ctrlreward.jobs.training_job import build
from ctrlreward.scorers import Rubric, Task

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SHELL = {"console", "bash", "sh", "shell"}

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n+)?"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
            match["reason"],
        )
        for match in BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def runnable(*languages: str) -> list[Any]:
    return [
        pytest.param(block, id=block.place)
        for block in BLOCKS
        if block.language in languages and block.reason is None
    ]


# Python


PYTHON_PAGES = [page for page in PAGES if any(b.language == "python" for b in blocks_of(page))]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.name)
def test_python(page: Path, workplace: dict[str, str], request: pytest.FixtureRequest) -> None:
    if page.name == "scorers.md":
        request.getfixturevalue("changed")
    names: dict[str, Any] = {"__name__": "__main__"}
    prepare(page.name, workplace, request)
    exec(GIVEN.get(page.name, ""), names)
    for block in blocks_of(page):
        if block.language == "python" and block.reason is None:
            lines = "\n" * block.line + block.code  # so that a traceback names the page's line
            exec(compile(lines, str(page), "exec"), names)


# Shell


def commands_of(block: Block) -> list[list[str]]:
    """Return the words of the commands of ours in a block, with continued lines joined."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert lines, f"{block.place} has no command"
    commands = [shlex.split(line.partition(" > ")[0], comments=True) for line in lines]
    return [words[1:] for words in commands if words[:1] == ["ctrlreward"]]


@pytest.mark.parametrize("block", runnable(*SHELL))
def test_shell(block: Block, workplace: None, request: pytest.FixtureRequest) -> None:
    if block.page.name == "scorers.md":
        request.getfixturevalue("changed")
    reward = {"components": {"fluency": {"scorer": "Perplexity", "score": "log_likelihood"}}}
    for file in ("reward.yaml", "judge.yaml"):
        Path(file).write_text(yaml.safe_dump(reward))
    for command in commands_of(block):
        parse_only(command)


def test_commands_of_the_first_page_run(workplace: None) -> None:
    """Those that need no run, on the file that the page names: the others are parsed."""
    page = blocks_of(ROOT / "README.md")
    Path("examples").mkdir()
    copy(ROOT / "examples" / "systems.csv", "examples")
    shell = [block for block in page if block.language in SHELL]
    commands = [command for block in shell for command in commands_of(block)]
    assert [command[0] for command in commands] == ["score", "compare", "recipes"]
    for arguments in commands:
        main(arguments)
    assert len(Path("scored.csv").read_text().splitlines()) == 13
    assert list(Path("mine").rglob("*.yaml"))


# YAML

EXAMPLE = ROOT / "configs" / "controlled_generation" / "sentiment_smollm2.yaml"


@pytest.mark.parametrize("block", runnable("yaml"))
def test_yaml(block: Block, workplace: None) -> None:
    keys = yaml.safe_load(block.code).keys()
    file = Path("block.yaml")
    file.write_text(block.code)
    if keys <= {"model", "data", "trainer"}:  # laid over a whole configuration
        build(["--config", str(EXAMPLE), "--config", str(file)])
    elif "extends" in keys:
        content = yaml.safe_load(block.code)
        (extended,) = (ROOT / "configs").rglob(content["extends"])
        file.write_text(yaml.safe_dump({**content, "extends": str(extended)}, sort_keys=False))
        parse_only(["train", "--config", str(file)])
    elif "verbalizers" in keys:
        Task.load(file)
    elif "prompt" in keys:
        Rubric.load(file)
    elif "scorers" in keys:
        parse_only(["score", "texts.jsonl", "scored.csv", "--config", str(file)])
    elif keys == {"class_path", "init_args"} or "components" in keys:
        build_reward(file)
    elif keys == {"reward"}:  # of a module, in a recipe
        file.write_text(yaml.safe_dump({"model": {"init_args": yaml.safe_load(block.code)}}))
        build(["--config", str(EXAMPLE), "--config", str(file)])
    else:
        pytest.fail(f"no command reads a YAML file with the keys {', '.join(keys)}")
