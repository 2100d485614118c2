"""Words of list options, and the help."""

from __future__ import annotations

import pytest

from ctrlreward.command_line.typed_options import gather_words

LISTS = {"--scorers", "--names"}


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("in.jsonl out.csv --scorers A B", 'in.jsonl out.csv --scorers=["A","B"]'),
        ("--scorers A B in.jsonl out.csv", '--scorers=["A","B"] in.jsonl out.csv'),
        ("in.jsonl --scorers A out.parquet", 'in.jsonl --scorers=["A"] out.parquet'),
        ("--scorers A my.package.B x.csv", '--scorers=["A","my.package.B"] x.csv'),
        ("--scorers A B -- in out", '--scorers=["A","B"] -- in out'),
        ("--scorers A,B C", '--scorers=["A","B","C"]'),
        ("--scorers=A,B out.csv", '--scorers=["A","B"] out.csv'),
        ("--scorers=A B", '--scorers=["A"] B'),
        ("--scorers A --scorers.task=t B.csv", '--scorers=["A"] --scorers.task=t B.csv'),
        ("--scorers A --scorers B", '--scorers=["A"] --scorers+=["B"]'),
        ("--scorers+=A --scorers B C", '--scorers+=A --scorers+=["B","C"]'),
        ("--scorers+=A --scorers+=B", "--scorers+=A --scorers+=B"),
        ("--scorers=[A,B] --names=[a,b]", "--scorers=[A,B] --names=[a,b]"),
        ("--scorers [A,B] in.csv", "--scorers=[A,B] in.csv"),
        ("--scorers={class_path:A}", "--scorers={class_path:A}"),
        ("--names null --scorers A", '--names=null --scorers=["A"]'),
        ("--names a 1 --chunk 4 5", '--names=["a","1"] --chunk 4 5'),
        ("--scorers --chunk=4", "--scorers=[] --chunk=4"),
        ("--columns.text body a.csv", "--columns.text body a.csv"),
    ],
)
def test_words_become_lists(typed: str, parsed: str) -> None:
    gathered = [word.replace('", "', '","') for word in gather_words(typed.split(), LISTS)]
    assert gathered == parsed.split()
