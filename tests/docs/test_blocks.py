"""Every code block of README.md, CONTRIBUTING.md, the skill and docs/ runs, or says why not.

- ```python: the blocks of a page run in one namespace, in order, with tiny models in place of those
  with a short name, after `GIVEN`: what a page takes from other pages, or is the reader's. An id of
  Hugging Face is a folder of that name in the working directory.
- ```console, ```bash and ```sh: `ctrlreward` commands are parsed. In ```console blocks, lines
  without `$` are output.
- ```yaml: parsed by the command or class that reads it.

A block after the line `<!-- not run: REASON -->` is left out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from shutil import copy
from typing import Any, NamedTuple

import numpy as np
import pytest
import trl
import yaml
from command_lines import parse_only
from judge_server import serving
from peft import LoraConfig, get_peft_model
from tiny_models import use_weights
from transformers import AutoModelForCausalLM

from ctrlreward import WordVectors
from ctrlreward.cli import main
from ctrlreward.command_line.config_files import with_extended
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


# Python: names of the reader's own, and files

ROWS = """
from datasets import Dataset
rows = Dataset.from_list([{"prompt": "The food was", "sentiment": "positive"}] * 2)
"""
GIVEN = {
    "README.md": ROWS
    + """
import string
from random import Random
from counting_module import Counting

class Writer(Counting):
    batches = 1  # of an epoch; there are 1000, unless the run stops early

    def complete(self, prompts):
        return ["".join(Random(i).sample(string.printable[:62], 62)) for i in range(len(prompts))]

module = Writer()
train_loader, validation_loader = module.train_dataloader(), module.val_dataloader()
train = validation = rows
""",
    "training.md": """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from ctrlreward.models.sources import resolve
folder = resolve("smollm2-135m")
model, tokenizer = (c.from_pretrained(folder) for c in (AutoModelForCausalLM, AutoTokenizer))
tokenizer.pad_token = tokenizer.eos_token
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batches = [dict.fromkeys(("input_ids", "labels"), torch.tensor([[2, 3, 4]]))] * 8
""",
}


# Files


def tiny_data(patch: pytest.MonkeyPatch, small: Mapping[str, str]) -> None:
    """Write our own sentences, and their word vectors, to files named as in the data sets."""
    nouns = ("soup", "view", "staff", "bread", "room")
    names = [f"{name}.{i}" for name in ("sentiment.test", "reference") for i in (0, 1)]
    for name in ("yelp_shen", "li2018"):
        Path("data", name).mkdir(parents=True)
    for style, words in enumerate((("cold", "stale"), ("warm", "fresh"))):
        lines = [f"the {noun} is {words[0]} today ." for noun in nouns]
        Path(f"data/yelp_shen/sentiment.test.{style}").write_text("\n".join(lines) + "\n")
        lines = [f"a {noun} so {words[1]} ." for noun in nouns]
        Path(f"data/li2018/{names[style]}").write_text("\n".join(lines) + "\n")
        pairs = [
            f"{line}\tno {noun} was {words[0]} ." for line, noun in zip(lines, nouns, strict=True)
        ]
        Path(f"data/li2018/{names[2 + style]}").write_text("\n".join(pairs) + "\n")
    text = " ".join(path.read_text() for path in Path("data").rglob("*.[01]"))
    known = sorted({*re.findall(r"\w+|[.]", text), "food", "great"})
    vectors = np.random.default_rng(0).normal(1, 1, (len(known), 4))
    WordVectors(dict(zip(known, vectors.tolist(), strict=True))).save("glove")
    patch.setenv("CTRLREWARD_DATA", str(Path("data").resolve()))
    use_weights(patch, {**small, "glove-6b-50d": str(Path("glove").resolve())})


# Parts of other packages


JUDGED = json.dumps({"polite": {"reason": "It is.", "score": 5}, "short": {"score": "yes"}})
ON_CPU = {"use_cpu": True, "bf16": False, "max_steps": 2, "report_to": "none", "disable_tqdm": True}
EVALUATED = {**ON_CPU, "eval_steps": 1, "save_steps": 1, "max_completion_length": 4}


def small_trainers(patch: pytest.MonkeyPatch) -> None:
    """Let the trainers of TRL run for two steps of four tokens on the CPU."""
    grpo, rewards = trl.GRPOConfig, trl.RewardConfig
    patch.setattr(trl, "GRPOConfig", lambda **given: grpo(**{**given, **EVALUATED}))
    options = {**ON_CPU, "save_strategy": "no"}
    patch.setattr(trl, "RewardConfig", lambda out, **given: rewards(out, **{**given, **options}))


def prepare(page: str, small: Mapping[str, str], request: pytest.FixtureRequest) -> None:
    """Put the files in place that a page's blocks read, and shrink what they start."""
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    Path("HuggingFaceTB").mkdir()
    Path("HuggingFaceTB/SmolLM2-135M").symlink_to(small["smollm2-135m"])
    small_trainers(patch)
    if page in ("recipes.md", "scorers.md"):
        tiny_data(patch, small)
    if page == "recipes.md":  # what `make demo` leaves
        model = AutoModelForCausalLM.from_pretrained(small["smollm2-135m"])
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
        adapted.save_pretrained("runs/demo/best")
        Path("runs/demo/summary.json").write_text('{"best_checkpoint": "runs/demo/best"}')
        Path("glove.6B.300d.txt").write_text("soup 0.5 1.0\nwarm 1.0 0.25\n")
    if page == "scorers.md":
        blocks = re.findall(r"```yaml\n(.*?)```", Path("docs", page).read_text("utf-8"), re.DOTALL)
        for name, key in (("politeness.yaml", "answers:"), ("tone.yaml", "criteria:")):
            Path(name).write_text(next(block for block in blocks if key in block))
        server = serving(lambda message: JUDGED)
        address = server.__enter__().address
        request.addfinalizer(lambda: server.__exit__(None, None, None))
        patch.setattr("ctrlreward.scorers.judge.check_address", lambda *_: address)


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
        build(with_extended(["--config", str(EXAMPLE), "--config", str(file)]))
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
        build(with_extended(["--config", str(EXAMPLE), "--config", str(file)]))
    else:
        pytest.fail(f"no command reads a YAML file with the keys {', '.join(keys)}")
