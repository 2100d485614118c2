from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.scorers.task import Task

PROMPT = "<gen_result> It was <mask_token>."
WORDS = {"negative": ["bad"], "positive": ["good"]}


@pytest.mark.parametrize(
    ("name", "file", "prompts", "labels", "words"),
    [
        ("sentiment", "senti", 24, ("negative", "positive"), 3),
        ("topic", "topic", 32, ("computers", "politics", "religion", "science"), 1),
    ],
)
def test_built_in_tasks_are_the_published_ones(
    name: str, file: str, prompts: int, labels: tuple[str, ...], words: int, data_dir: Path
) -> None:
    lines, table = (
        (data_dir / "ctrleval" / f"{kind}_{file}.txt").read_text("utf-8").splitlines()
        for kind in ("prompt", "verbal")
    )
    built_in = Task.load(name)
    assert list(built_in.prompts) == [line.strip() for line in lines if line.strip()]
    assert (len(built_in.prompts), len(built_in.evaluators)) == (prompts, prompts * words)
    rows = zip(*built_in.verbalizers.values(), strict=True)
    assert [row.split("\t") for row in table] == [list(labels), *map(list, rows)]
    assert built_in.labels == labels


def test_a_yaml_file_gives_prompts_and_phrases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "food.yaml"
    path.write_text(
        f'prompts: ["{PROMPT}"]\nphrases: [So <mask_token>!]\n'
        "verbalizers: {negative: [bad], positive: [good]}\n"
    )
    prompts = [PROMPT, "<gen_result> So <mask_token>!", "So <mask_token>! <gen_result>"]
    for name in (path, str(path), "~/food.yaml"):
        assert Task.load(name) == Task(prompts, WORDS)


@pytest.mark.parametrize(
    ("prompts", "verbalizers", "name"),
    [
        ([PROMPT, "It was <mask_token>."], WORDS, r"prompts\[1\]"),
        (["<gen_result> <mask_token> <mask_token>"], WORDS, r"prompts\[0\]"),
        ([PROMPT], {"no": ["bad", "poor"], "yes": ["good"]}, "verbalizers"),
        ([PROMPT], {"positive": ["good"]}, "verbalizers"),
        ([PROMPT], {"no": [False], "yes": ["yes"]}, r"verbalizers\['no'\]\[0\]"),
        ([PROMPT], {"a": ["a", " "], "b": ["b", "c"]}, r"verbalizers\['a'\]\[1\]"),
        ([PROMPT], {1984: ["a"], "b": ["b"]}, r"labels\[0\]"),
    ],
)
def test_an_invalid_task_raises(prompts: Any, verbalizers: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Task(prompts, verbalizers)


LABELS = "\nverbalizers: {negative: [bad], positive: [good]}"


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("phrase: [So <mask_token>!]" + LABELS, "phrase"),
        ("- a list", "verbalizers"),
        ("phrases: [So <mask_token>!, Sentiment: <mask_token>.]" + LABELS, r"phrases\[1\]"),
        ("phrases: So <mask_token>!" + LABELS, "phrases"),
    ],
)
def test_an_invalid_file_names_what_is_wrong(tmp_path: Path, content: str, name: str) -> None:
    path = tmp_path / "food.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=name):
        Task.load(path)
    with pytest.raises(ValueError, match="task"):
        Task.load("sentimint")


# Evaluators


@given(st.integers(1, 72), st.integers(1, 72), st.integers())
def test_a_subset_is_part_of_a_larger_one_of_its_seed(few: int, many: int, seed: int) -> None:
    few, many = sorted((few, many))
    task, state = Task.load("sentiment"), random.getstate()
    subset, larger = task.subset(few, seed), task.subset(many, seed)
    assert random.getstate() == state
    assert len(set(subset)) == few
    assert set(subset) <= set(larger) <= set(task.evaluators)
    assert list(subset) == [e for e in task.evaluators if e in set(subset)]
    assert subset == task.subset(few, seed)
