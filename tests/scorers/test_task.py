from __future__ import annotations

import random
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.scorers.task import Evaluator, Task

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
    folder = data_dir / "ctrleval"
    built_in = Task.load(name)
    lines = (folder / f"prompt_{file}.txt").read_text(encoding="utf-8").splitlines()
    assert list(built_in.prompts) == [line.strip() for line in lines if line.strip()]
    assert len(built_in.prompts) == prompts
    assert built_in.labels == labels
    assert {len(row) for row in built_in.verbalizers.values()} == {words}
    table = [
        line.split("\t")
        for line in (folder / f"verbal_{file}.txt").read_text(encoding="utf-8").splitlines()
    ]
    assert table[0] == list(labels)
    assert table[1:] == [list(row) for row in zip(*built_in.verbalizers.values(), strict=True)]


def test_a_yaml_file_gives_prompts_and_phrases(tmp_path: Path) -> None:
    path = tmp_path / "food.yaml"
    path.write_text(
        f'prompts: ["{PROMPT}"]\nphrases: [So <mask_token>!]\n'
        "verbalizers: {negative: [bad], positive: [good]}\n"
    )
    prompts = [PROMPT, "<gen_result> So <mask_token>!", "So <mask_token>! <gen_result>"]
    assert Task.load(path) == Task(prompts, WORDS)
    assert Task.load(str(path)) == Task(prompts, WORDS)


@pytest.mark.parametrize(
    ("prompts", "verbalizers", "message"),
    [
        ([], WORDS, "prompts is empty, must be patterns with <gen_result> and <mask_token>"),
        ([PROMPT, "It was <mask_token>."], WORDS, "contains <gen_result> 0 times. Write it once"),
        (["<gen_result> <mask_token> <mask_token>"], WORDS, "contains <mask_token> 2 times"),
        ([PROMPT], {"no": ["bad", "poor"], "yes": ["good"]}, "have {'no': 2, 'yes': 1} words"),
        ([PROMPT], {"positive": ["good"]}, "verbalizers have {'positive': 1} words"),
        ([PROMPT], {"a": [], "b": []}, "verbalizers have {'a': 0, 'b': 0} words"),
        ([PROMPT], {}, "verbalizers have {} words"),
        ([PROMPT], {"bad": "bad", "good": ["x"]}, "['bad'] must be a list of strings, got 'bad'"),
        ([PROMPT], {"no": [False], "yes": ["yes"]}, "verbalizers['no'][0] = False is not text"),
        ([PROMPT], {"a": ["a", " "], "b": ["b", "c"]}, "verbalizers['a'][1] = ' ' is not text"),
        ([PROMPT], {1984: ["a"], "b": ["b"]}, "labels[0] = 1984 is not text"),
        ([PROMPT], {"a": None, "b": ["b"]}, "verbalizers['a'] must be a list of strings, got None"),
        ([PROMPT], None, "verbalizers must map each label to a list of words, got None"),
        (PROMPT, WORDS, f"prompts must be a list of strings, got '{PROMPT}'"),
        ([{"Good": "<mask_token>"}], WORDS, "prompts[0] = {'Good': '<mask_token>'} is not text"),
    ],
)
def test_an_invalid_task_raises(
    prompts: list[str], verbalizers: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Task(prompts, verbalizers)


# Evaluators.

COLOURS = Task(
    ["<gen_result> <mask_token>", "<mask_token>: <gen_result>", "A <mask_token> <gen_result>"],
    {"warm": ["red", "very warm"], "cold": ["blue", "very cold"], "dull": ["grey", "dull"]},
)


def test_every_prompt_with_every_verbalizer_is_an_evaluator() -> None:
    rows = [("red", "blue", "grey"), ("very warm", "very cold", "dull")]
    assert list(COLOURS.evaluators) == [Evaluator(*pair) for pair in product(COLOURS.prompts, rows)]
    assert [len(Task.load(name).evaluators) for name in ("sentiment", "topic")] == [72, 32]


@given(st.integers(1, 72), st.integers(1, 72), st.integers())
def test_a_subset_is_part_of_a_larger_one_of_its_seed(few: int, many: int, seed: int) -> None:
    few, many = sorted((few, many))
    task = Task.load("sentiment")
    subset, larger = task.subset(few, seed), task.subset(many, seed)
    assert len(set(subset)) == few
    assert set(subset) <= set(larger) <= set(task.evaluators)
    assert list(subset) == [e for e in task.evaluators if e in set(subset)]
    assert subset == task.subset(few, seed)


def test_every_evaluator_is_drawn_about_equally_often() -> None:
    drawn = [evaluator for seed in range(600) for evaluator in COLOURS.subset(2, seed)]
    counts = [drawn.count(evaluator) for evaluator in COLOURS.evaluators]
    # Of 600 draws with chance 1/3: 200 ± 11.5; five standard deviations.
    assert all(abs(count - 200) < 58 for count in counts)


def test_a_subset_does_not_touch_the_global_random_state() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    COLOURS.subset(3, seed=7)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # noqa: NPY002


@pytest.mark.parametrize("count", [0, -1, 7])
def test_more_evaluators_than_there_are_raise(count: int) -> None:
    message = rf"evaluators must be 1 to 6, .* or None for all, got {count}"
    with pytest.raises(ValueError, match=message):
        COLOURS.subset(count, seed=0)


# Files.


def test_an_unknown_task_raises() -> None:
    message = (
        r"task = 'sentimint' is neither a built-in task \(sentiment, topic\) nor a YAML file. "
        r"Use one of these, or Task\(prompts=\.\.\., verbalizers=\.\.\.\)"
    )
    with pytest.raises(ValueError, match=message):
        Task.load("sentimint")


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ("prompts: []", "prompts"),
        ("phrase: [So <mask_token>!]\nverbalizers: {a: [b], c: [d]}", "phrase, verbalizers"),
        ("- a list", "none"),
        ("", "none"),
    ],
)
def test_a_file_with_other_keys_raises(tmp_path: Path, content: str, keys: str) -> None:
    path = tmp_path / "food.yaml"
    path.write_text(content)
    message = rf"food\.yaml must have the keys verbalizers, and phrases or prompts; got {keys}$"
    with pytest.raises(ValueError, match=message):
        Task.load(path)


WRONG_FILES = {
    "phrases[1] = {'Sentiment': '<mask_token>.'} is not text. Write a word or a phrase, in "
    "quotes": "phrases: [So <mask_token>!, Sentiment: <mask_token>.]",
    "food.yaml: phrases must be a list of strings, got None": "phrases:",
    "phrases must be a list of strings, got 'So <mask_token>!'": "phrases: So <mask_token>!",
    "food.yaml: prompts must be a list of strings, got None": "prompts:",
    "verbalizers must map each label": "phrases: [So <mask_token>!]\nverbalizers:",
}


@pytest.mark.parametrize("message", WRONG_FILES)
def test_what_yaml_reads_as_something_else_is_named(tmp_path: Path, message: str) -> None:
    path, content = tmp_path / "food.yaml", WRONG_FILES[message]
    words = "" if "verbalizers" in content else "\nverbalizers: {negative: [bad], positive: [good]}"
    path.write_text(content + words)
    with pytest.raises(ValueError, match=re.escape(message)):
        Task.load(path)


def test_a_file_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "food.yaml").write_text(
        f'prompts: ["{PROMPT}"]\nverbalizers: {{negative: [bad], positive: [good]}}'
    )
    assert Task.load("~/food.yaml") == Task([PROMPT], WORDS)
