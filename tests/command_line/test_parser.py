"""Words of list options, and the help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ctrlreward.command_line.parser import gather_words

LISTS = {"--scorers", "--names"}


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        (
            "in.jsonl out.csv --scorers Judge Distinct",
            'in.jsonl out.csv --scorers=["Judge","Distinct"]',
        ),
        (
            "--scorers Judge Distinct in.jsonl out.csv",
            '--scorers=["Judge","Distinct"] in.jsonl out.csv',
        ),
        ("--scorers Judge my.package.B x.csv", '--scorers=["Judge","my.package.B"] x.csv'),
        ("--scorers Judge Distinct -- in out", '--scorers=["Judge","Distinct"] -- in out'),
        ("--scorers Judge,Distinct Accuracy", '--scorers=["Judge","Distinct","Accuracy"]'),
        ("--scorers Judge --scorers Distinct", '--scorers=["Judge"] --scorers+=["Distinct"]'),
        (
            "--scorers+=Judge --scorers Distinct Accuracy",
            '--scorers+=Judge --scorers+=["Distinct","Accuracy"]',
        ),
        ("--scorers [Judge,Distinct] in.csv", "--scorers=[Judge,Distinct] in.csv"),
        ("--names null --scorers Judge", '--names=null --scorers=["Judge"]'),
        ("--names a 1 --chunk 4 5", '--names=["a","1"] --chunk 4 5'),
        ("--columns.text body a.csv", "--columns.text body a.csv"),
        ("--scorers Judge --scorers.task t", '--scorers=["Judge"] --scorers.task=t'),
    ],
)
def test_words_become_lists(typed: str, parsed: str) -> None:
    gathered = [word.replace('", "', '","') for word in gather_words(typed.split(), LISTS)]
    assert gathered == parsed.split()


WITHOUT_TORCH = """
import sys
from ctrlreward.cli import main
for line in sys.stdin.read().splitlines():
    try:
        main(line.split())
    except SystemExit:
        pass
    assert "torch" not in sys.modules, line
"""

LINES = """
score none.csv out.csv --scorers Distinct
score in.csv out.csv
score --help
select none
select --help
compare none.csv
compare --help
report none
report --help
serve none.yaml
serve --help
serve --port x
meta-eval --help
meta-eval ctc --help
rescore none bad.yaml
rescore --help
probe bad.yaml
probe none.yaml
probe --help
train none.yaml
train --help
recipes show none
"""


def test_mistakes_and_help_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("system,output\na,b\n")
    (tmp_path / "bad.yaml").write_text("components: {a: {scorer: Perplexty}}\n")
    given = {"cwd": tmp_path, "input": LINES.strip(), "capture_output": True, "text": True}
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=False, **given)
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_a_scorer_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="'distinct'"):
        gather_words("in.csv out.csv --scorers CTRLEval distinct".split(), ["--scorers"])
