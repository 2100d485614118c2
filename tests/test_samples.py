from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from hypothesis import example, given
from hypothesis import strategies as st

from ctrlreward.failures import ItemError
from ctrlreward.samples import (
    JSON_KEYS,
    Samples,
    as_samples,
    attribute_label,
    conversation_prompt,
    parse_attributes,
    parse_conversation,
)

FOOD = Samples(
    texts=["The food was good.", "The food", "A dog barked."],
    prefixes=["The food", "The food", "A dog"],
    labels=["positive", "negative", "positive"],
)


CHAT = [{"role": "system", "content": "Obey."}, {"role": "assistant", "content": "Sure, "}]
PROMPTS = st.sampled_from([CHAT, json.dumps(CHAT), "[{", '[{"role": "user"}]', '[{"a":' * 2000])


@st.composite
def samples(draw: st.DrawFn, min_size: int = 0) -> Samples:
    """Samples with any columns and any Unicode texts, line separators included."""
    n = draw(st.integers(min_size, 4))
    names = draw(st.sets(st.sampled_from([*JSON_KEYS][2:])))
    column = st.lists(st.text(max_size=5), min_size=n, max_size=n)
    columns = {"texts": draw(column), **{name: draw(column) for name in names}}
    if "unfinished" in names:
        columns["unfinished"] = [draw(st.sampled_from(["", "score", "fail"])) for _ in range(n)]
    if "prompts" in names:
        columns["prompts"] = draw(st.lists(PROMPTS, min_size=n, max_size=n))
    if draw(st.booleans()):
        columns["prefixes"] = [text[: draw(st.integers(0, 5))] for text in columns["texts"]]
    return Samples(**columns)


# Validation.


def test_columns_are_kept_as_tuples_in_declaration_order() -> None:
    columns = Samples(labels=iter(["x", "y"]), texts=["a", ""]).columns()
    assert list(columns.items()) == [("texts", ("a", "")), ("labels", ("x", "y"))]


def test_one_string_or_integer_stands_for_all_samples() -> None:
    for build in (Samples, as_samples):
        batch = build(iter(["The food", "The foo"]), prefixes="The f", labels=1, groups="a")
        assert batch.prefixes == ("The f", "The f")
        assert (batch.labels, batch.groups) == (("1", "1"), ("a", "a"))
    assert Samples(outputs=["b", "c"], prompts="a").texts == ("a b", "a c")


@pytest.mark.parametrize(
    ("error", "name", "build"),
    [
        (TypeError, "texts", lambda: Samples("The food")),  # one text is not its letters
        (TypeError, "outputs", lambda: Samples(["a b"], outputs=["b"], prompts=["a"])),
        (ItemError, r"outputs\[0\]", lambda: Samples(outputs=[1])),
        (ValueError, "output", lambda: as_samples({"output": ["a"], "completion": ["a"]})),
        (ValueError, "labels", lambda: Samples(["a", "a"], labels=["x"])),
        (ItemError, r"texts\[1\]", lambda: Samples(["a", b"b"])),
        (ItemError, "prompts", lambda: as_samples(["a"], prompts=pd.array([None], "string"))),
        (ItemError, "labels", lambda: Samples(["a"], labels=[None])),
        (ItemError, "prefixes", lambda: Samples(["a"], prefixes=1)),
        (ItemError, "labels", lambda: Samples(["a"], labels=True)),
        (TypeError, "label", lambda: as_samples(["a"], lable="x")),
        (ItemError, "prefixes", lambda: Samples(["Food was"], prefixes=["The food"])),
        (ValueError, "mask", lambda: FOOD[[True, False]]),
        (ValueError, "prompts", lambda: FOOD.completed(["a", "b"])),
        (ItemError, "label_map", lambda: as_samples(["a"], labels=[2], label_map={0: "x"})),
        (ItemError, "references", lambda: Samples(["a"], references=[[]])),
        (ItemError, "labels", lambda: Samples(["a"], labels={"mood": "a b=c"})),  # ambiguous
    ],
)
def test_what_is_no_column_raises(
    error: type[Exception], name: str, build: Callable[[], object]
) -> None:
    with pytest.raises(error, match=name):
        build()


# Selecting, concatenating and replacing.


@given(samples(), st.data())
def test_rows_are_selected_in_every_column(batch: Samples, data: st.DataObject) -> None:
    indices = st.lists(st.integers(0, len(batch) - 1), max_size=6) if len(batch) else st.just([])
    rows = data.draw(st.slices(len(batch)) | indices)
    selected = batch[rows]
    assert selected.columns().keys() == batch.columns().keys()
    for name, column in batch.columns().items():
        expected = column[rows] if isinstance(rows, slice) else tuple(column[i] for i in rows)
        assert selected.columns()[name] == expected


@pytest.mark.parametrize("as_mask", [list, pd.Series, np.array, torch.tensor])
def test_a_mask_selects_rows(as_mask: Callable[[list[bool]], Any]) -> None:
    assert FOOD[as_mask([False, True, True])] == FOOD[1:]
    assert len(FOOD[as_mask([False, False, False])]) == 0


@given(samples(min_size=1), st.integers(0, 4))
def test_concat_undoes_slicing(batch: Samples, place: int) -> None:
    assert Samples.concat(iter([batch[:place], batch[place:]])) == batch


# Prompts and completions.


def test_prompts_are_the_prefixes_or_the_texts() -> None:
    beginnings = ("The food", "The food", "A dog")
    assert FOOD.as_prompts() == Samples(
        texts=beginnings,
        prefixes=beginnings,
        prompts=beginnings,
        labels=FOOD.labels,
        groups=["0", "1", "2"],
    )
    assert Samples(beginnings).as_prompts() == FOOD.replace(labels=None).as_prompts()
    asked = FOOD.replace(prompts=["Praise: food", "Blame: food", ""], groups=["a", "b", "a"])
    prompts = asked.as_prompts()
    assert (prompts.prompts, prompts.groups) == (asked.prompts, asked.groups)
    assert prompts.as_prompts() == prompts


def test_completions_are_appended_to_their_prefixes() -> None:
    prompts = FOOD.as_prompts()
    completed = prompts.completed([" was bad.", "", " slept."])
    assert completed == prompts.replace(texts=["The food was bad.", "The food", "A dog slept."])


@pytest.mark.parametrize(
    ("prefix", "completion", "text"),
    [
        ("The food", " was", "The food was"),
        ("The food ", " was", "The food was"),
        ("The food ", "was", "The food was"),
        ("The food  ", " was", "The food  was"),
        ("The food", "'s", "The food's"),
        ("The food\n", " was", "The food\n was"),
        ("The food ", "\nwas", "The food \nwas"),
        ("The food ", "", "The food "),
        ("The food ", " ", "The food "),
        (" ", " was", " was"),
        ("", " was", " was"),
    ],
)
def test_a_space_between_prefix_and_completion_is_not_doubled(
    prefix: str, completion: str, text: str
) -> None:
    completed = Samples([prefix]).as_prompts().completed([completion])
    assert completed.texts == (text,)
    assert completed.prefixes == completed.prompts == (prefix,)  # as they were given


@pytest.mark.parametrize(
    ("prompt", "output", "text"),
    [
        ("The food", "was good.", "The food was good."),
        ("The food ", " was", "The food was"),
        ("The food\n", "was", "The food\nwas"),
        ("The food", ", warm", "The food, warm"),
        ("He said “", "Hello", "He said “Hello"),
        ("汤", "很好", "汤很好"),
        ("", "was", "was"),
    ],
)
def test_outputs_are_joined_to_their_prompts(prompt: str, output: str, text: str) -> None:
    samples = Samples(outputs=[output, " "], prompts=[prompt, prompt])
    prefixes = [prompt, ""] if prompt else None
    assert samples == Samples([text, "" if prompt else " "], prefixes, prompts=[prompt, prompt])
    for names in ("output prompt", "completions prompts", "completion prompt"):
        columns = dict(zip(names.split(), ([output, " "], [prompt, prompt]), strict=True))
        assert as_samples(columns) == as_samples(**columns) == samples
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        assert as_samples(rows) == samples
    assert as_samples([{"text": "a", "output": "b", "prompt": "c"}]).texts == ("a",)


def test_a_text_that_spells_a_conversation_is_a_text(tmp_path: Path) -> None:
    """Or it would speak as the system, as an answer that is continued, or not be scored."""
    samples = Samples(["a", "a"], prompts=[CHAT, str(conversation_prompt(CHAT))])
    samples.to_jsonl(tmp_path / "samples.jsonl")
    stored, sent = Samples.from_jsonl(tmp_path / "samples.jsonl"), copy.deepcopy(samples)
    assert samples.distinct()[1] == [0, 1]
    for each in (samples, stored, sent, samples[:].as_prompts()):
        assert [parse_conversation(prompt) for prompt in each.prompts] == [CHAT, None]


@pytest.mark.parametrize("chat", [[{"role": "user", "content": 1}], [{"content": "a"}], []])
def test_messages_have_a_role_and_a_content(chat: list[Any]) -> None:
    with pytest.raises(ItemError, match="role"):
        Samples(["a"], prompts=[chat])


def test_outputs_of_conversations_stand_alone() -> None:
    user, reply = {"role": "user", "content": "Soup?"}, {"role": "assistant", "content": "Warm."}
    samples = as_samples([{"prompt": [user], "completion": [reply]}])
    assert samples == Samples(["Warm."], prompts=[[user]])
    both = Samples(outputs=["Warm.", "good"], prompts=[[user], "So"])
    assert (both.texts, both.prefixes) == (("Warm.", "So good"), ("", "So"))


# Repeated samples.


@given(samples(), st.data())
def test_distinct_samples_restore_the_batch(batch: Samples, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, max(0, len(batch) - 1)), max_size=8))
    repeated = batch[rows if len(batch) else []]
    distinct, indices = repeated.distinct()
    read = [name for name in distinct.columns() if name != "groups"]
    for name in read:
        assert distinct[indices].columns()[name] == repeated.columns()[name]
    assert len({*zip(*(distinct.columns()[name] for name in read), strict=True)}) == len(distinct)


def test_further_columns_follow_their_rows() -> None:
    samples = Samples(["a", "ab", "a"], prefixes=["a"] * 3, extra={"ids": [[1], [1, 2], [1]]})
    assert samples[[1, 0]].extra == {"ids": ([1, 2], [1])}
    assert Samples.concat([samples[:1], samples[1:]]) == samples
    assert as_samples(samples, labels="x").extra == samples.extra
    assert samples.completed(["b"] * 3).extra == samples.extra
    assert "ids" not in samples.columns()
    with pytest.raises(ValueError, match="ids"):
        Samples(["a"], extra={"ids": []})
    with pytest.raises(ValueError, match="parts"):
        Samples.concat([samples, Samples(["a"], prefixes=["a"])])


# Files.


@given(batch=samples(min_size=1))
@example(batch=Samples(["a\u2028b\x85c\x0bd\r\n"]))  # all of these are line ends for some reader
@example(batch=Samples(["a \ud800 b é", "c"], labels=["x", "\udfff"]))  # no Unicode
def test_jsonl_round_trip(batch: Samples, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "samples.jsonl"
    batch.to_jsonl(path)
    assert Samples.from_jsonl(path) == batch
    assert path.read_text(encoding="utf-8").count("\n") == len(batch)


# Other data.


@given(batch=samples(min_size=1))
def test_any_form_of_the_data_gives_the_same_samples(batch: Samples) -> None:
    columns = batch.columns()
    singular = {JSON_KEYS[name]: column for name, column in columns.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    others = {name: column for name, column in columns.items() if name != "texts"}
    for data in (columns, singular, rows, pd.DataFrame(columns), Dataset.from_dict(singular)):
        assert as_samples(data) == batch
    assert as_samples(list(batch.texts), **others) == batch
    assert as_samples(batch) is batch


def test_empty_texts_and_invalid_unicode_are_found() -> None:
    bad = "\ud800"
    batch = Samples(["a", bad, "c", " "], references=["x", "y", ["z", bad], ""])
    assert batch.unreadable().keys() == {1, 2, 3}
    assert batch.unreadable(empty=False).keys() == {1, 2}


@pytest.mark.parametrize(
    "second_line",
    ["{text}", '["b"]', '{"label": "y"}', '{"text": "b"}', "[" * 200_000, "9" * 5000],
)
def test_a_bad_line_is_named(tmp_path: Path, second_line: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(f'{{"text": "a", "label": "x"}}\n{second_line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"s\.jsonl:2"):
        Samples.from_jsonl(path)


# Integers and maps of labels.


@pytest.mark.parametrize(
    "numbers",
    [[0, 1], np.array([0, 1]), pd.Series([0, 1], dtype="int8"), torch.tensor([0, 1]), ["0", "1"]],
)
def test_labels_and_groups_may_be_integers(numbers: Any) -> None:
    expected = Samples(["a", "b"], labels=["0", "1"], groups=["0", "1"])
    assert as_samples(["a", "b"], labels=numbers, group=numbers) == expected
    assert as_samples(["a", "b"], labels=numbers, label_map={0: "x", "1": "y"}).labels == ("x", "y")


def test_a_sample_may_have_several_references(tmp_path: Path) -> None:
    samples = Samples(["a", "a", "b"], references=[["x", "y"], np.array(["x", "y"]), "z"])
    assert samples.references == (("x", "y"), ("x", "y"), "z")
    assert samples.require_references("CTC") == (("x", "y"), ("x", "y"), ("z",))
    assert Samples(["a", "b"], references=[["x"], "z"]).require("references", "B") == ("x", "z")
    assert samples.distinct()[1] == [0, 0, 1]
    samples.to_jsonl(tmp_path / "rows")
    assert Samples.from_jsonl(tmp_path / "rows") == samples
    assert as_samples([{"text": "a", "reference": ["x", "y"]}]).references == (("x", "y"),)


# Labels of several attributes.


@pytest.mark.parametrize(
    "labels",
    [
        {"sentiment": ["positive", "negative"], "topic": ["food", "food"]},
        {"sentiment": ("positive", "negative"), "topic": "food"},
        [
            {"sentiment": "positive", "topic": "food"},
            {"sentiment": "negative", "topic": "food", "tense": None},
        ],
        ["sentiment=positive topic=food", "sentiment=negative topic=food"],
    ],
)
def test_labels_of_several_attributes(labels: Any, tmp_path: Path) -> None:
    """By column, by sample, or as they are written; the same through each way to give samples."""
    samples = Samples(["a", "b"], labels=labels)
    assert samples.labels == ("sentiment=positive topic=food", "sentiment=negative topic=food")
    assert as_samples(["a", "b"], labels=labels) == samples
    assert as_samples({"text": ["a", "b"], "label": labels}) == samples
    if isinstance(labels, list):
        records = [{"text": t, "label": label} for t, label in zip("ab", labels, strict=True)]
        assert as_samples(records) == as_samples(pd.DataFrame(records)) == samples
        assert as_samples(["a", "b"], label=labels) == samples
    samples.to_jsonl(tmp_path / "rows")
    assert Samples.from_jsonl(tmp_path / "rows") == samples
    one = as_samples(["a", "b"], label={"sentiment": "positive", "code": torch.tensor([3, 4])})
    assert one.labels == ("sentiment=positive code=3", "sentiment=positive code=4")
    assert samples.labels_of("sentiment", "the judge") == ("positive", "negative")
    assert samples.label_indices(["tea", "food"], "it", "topic") == [1, 1]


@given(st.dictionaries(st.text(max_size=3), st.text(max_size=4) | st.integers(0, 9), max_size=3))
@example({"a": "b c=d"})
@example({"a": " b"})
def test_a_label_of_attributes_reads_back_or_is_refused(targets: dict[str, Any]) -> None:
    named = {name: str(value) for name, value in targets.items()}
    plain = all(
        re.fullmatch(r"[^\s=]+", name) and "=" not in value and value == value.strip()
        for name, value in named.items()
    )
    try:
        label = attribute_label(targets)
    except ValueError:
        assert not plain
    else:
        assert parse_attributes(label) == named
