"""Batches of prompts: what dataloaders make of strings, dicts and datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from lightning_choice import MisconfigurationException, PolicyTuner, quiet_trainer
from torch.utils.data import DataLoader
from tuner_records import read_by

from ctrlreward import Samples
from ctrlreward.samples import parse_conversation

PROMPTS = ["ab", "cd"]
RECORDS = [{"prompt": "ab", "label": 1}, {"prompt": "cd", "label": 0}]
SYSTEM = {"role": "system", "content": "Be long."}
TALKS = [[{"role": "user", "content": "ab"}], [{"role": "user", "content": "cd"}]]


@pytest.fixture
def trained(tuner: Callable[..., PolicyTuner], tmp_path: Path) -> Callable[..., list[Samples]]:
    """Return a function that trains on some dataloaders, and returns the samples scored."""

    def run(*data: Any, build: Callable[..., PolicyTuner] = tuner, **options: Any) -> list[Samples]:
        scored: list[Samples] = []

        def length(samples: Samples) -> list[int]:
            scored.append(samples)
            return [len(text) for text in samples.texts]

        trainer = quiet_trainer(default_root_dir=tmp_path, max_epochs=1)
        trainer.fit(build(num_generations=2, reward=length, **options), *data)
        return scored

    return run


@pytest.mark.parametrize(
    ("data", "batch_size", "prefixes", "labels"),
    [
        (PROMPTS, 2, PROMPTS, None),
        (PROMPTS, None, PROMPTS, None),  # a string is a prompt
        (RECORDS, 2, ["", ""], ("1", "0")),
        ([{"text": p, "group": p} for p in PROMPTS], 2, PROMPTS, None),
        ([{"prefix": p[0], "prompt": p} for p in PROMPTS], 2, ["a", "c"], None),
        ([pd.DataFrame(RECORDS)], None, ["", ""], ("1", "0")),
        ([datasets.Dataset.from_list(RECORDS)], None, ["", ""], ("1", "0")),
        (datasets.Dataset.from_list(RECORDS), None, ["", ""], ("1", "0")),
        ([Samples(PROMPTS)], None, PROMPTS, None),
    ],
)
def test_prompts_are_completed(trained, data, batch_size, prefixes, labels) -> None:
    scored = Samples.concat(trained(DataLoader(data, batch_size=batch_size)))
    first = slice(None, None, 2)  # of two completions
    assert scored.prompts[first] == ("ab", "cd")
    assert scored.prefixes[first] == tuple(prefixes)
    assert (scored.labels and scored.labels[first]) == labels


@pytest.mark.parametrize("of_dicts", [False, True])
def test_conversations_of_a_dataset(chat, trained, of_dicts: bool) -> None:
    talks = [[{"role": "system", "content": "Be brief."}, *talk] for talk in TALKS]
    rows = [{"prompt": talk} for talk in talks]
    data = rows if of_dicts else datasets.Dataset.from_list(rows)
    modules: list[PolicyTuner] = []

    def build(**options: Any) -> PolicyTuner:
        modules.append(chat(system="Be long.", **options))
        return modules[0]

    (samples,) = trained(DataLoader(data, batch_size=2), build=build)
    assert [parse_conversation(prompt) for prompt in samples.prompts[::2]] == talks
    assert set(samples.prefixes) == {""}
    template = modules[0].tokenizer.apply_chat_template
    for prompt, expected in [(samples.prompts[0], talks[0]), ("ab", [SYSTEM, *TALKS[0]])]:
        read = read_by(modules[0].rollout([prompt]))
        assert read == [template(expected, add_generation_prompt=True, return_dict=False)]


def test_strings_of_a_chat_and_of_an_encoder_decoder_have_no_prefix(chat, tuner, tiny_seq2seq):
    for module in (chat(), tuner(model=tiny_seq2seq("t5"))):
        module.training_step(PROMPTS, 0)
        samples, _ = module.last_rollout
        assert set(samples.prefixes) == {""}
        assert set(samples.prompts) == set(PROMPTS)


ANSWERED = [*TALKS[0], {"role": "assistant", "content": "ab"}]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        ([], ValueError),
        (torch.zeros(2, 3), TypeError),
        (["ab", 3], TypeError),
        ({"question": PROMPTS}, ValueError),
        ([{"prompt": "a"}, {"text": "b"}], TypeError),
        ({"prompt": ["a", 3]}, ValueError),
        ({"prompt": TALKS[0]}, ValueError),  # to a policy that reads no chats
        ({"prompt": [[{"text": "ab"}]]}, ValueError),
    ],
)
def test_other_batches_are_one_error(tuner, batch: Any, error: type) -> None:
    with pytest.raises(error, match=r"batch|prompt"):
        tuner().training_step(batch, 0)


def test_a_prompt_that_ends_with_an_answer_is_an_error(chat) -> None:
    with pytest.raises(ValueError, match="answer"):
        chat().training_step({"prompt": ANSWERED}, 0)


@pytest.mark.parametrize("data", [(PROMPTS,), ({"prompt": PROMPTS},), ()])
def test_a_trainer_needs_a_dataloader(trained, data: Any) -> None:
    with pytest.raises(MisconfigurationException, match="dataloader"):
        trained(*data)


def test_ignored_columns_are_said(trained) -> None:
    data = [{"prompt": prompt, "answer": 3, "completion": "x"} for prompt in PROMPTS * 2]
    with pytest.warns(UserWarning, match="answer, completion"):
        trained(DataLoader(data, batch_size=1))
