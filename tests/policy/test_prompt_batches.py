"""Batches of prompts: what dataloaders make of strings, dicts and datasets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import datasets
import pandas as pd
import pytest
import torch
from lightning_choice import LIGHTNING, MisconfigurationException, PolicyTuner, pl
from torch.utils.data import DataLoader

from ctrlreward import Samples
from ctrlreward.policy.prompt_batches import read_batch

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = ["ab", "cd"]
RECORDS = [{"prompt": "ab", "label": 1}, {"prompt": "cd", "label": 0}]
TALKS = [[{"role": "user", "content": "ab"}], [{"role": "user", "content": "cd"}]]


@pytest.fixture
def trained(tuner: Callable[..., PolicyTuner], share, tmp_path) -> Callable[..., list[Samples]]:
    """Return a function that trains on some dataloaders, and returns the samples scored."""

    def run(*data: Any, module: PolicyTuner | None = None, **options: Any) -> list[Samples]:
        trainer = pl.Trainer(
            accelerator="cpu",
            default_root_dir=tmp_path,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            logger=False,
            max_epochs=1,
        )
        trainer.fit(module or tuner(num_generations=2, **options), *data)
        return share.scored

    return run


@pytest.mark.parametrize(
    ("data", "batch_size", "prefixes", "labels"),
    [
        (PROMPTS, 2, PROMPTS, None),
        (PROMPTS, None, PROMPTS, None),  # a string is a prompt
        (RECORDS, 2, ["", ""], ("1", "0")),
        (RECORDS, None, ["", ""], ("1", "0")),
        ([{"text": p, "group": p} for p in PROMPTS], 2, PROMPTS, None),
        ([{"prefix": p[0], "prompt": p} for p in PROMPTS], 2, ["a", "c"], None),
        ([RECORDS], None, ["", ""], ("1", "0")),
        ([pd.DataFrame(RECORDS)], None, ["", ""], ("1", "0")),
        ([datasets.Dataset.from_list(RECORDS)], None, ["", ""], ("1", "0")),
        (datasets.Dataset.from_list(RECORDS), 2, ["", ""], ("1", "0")),
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


def test_conversations_of_a_dataset(chat, share, trained) -> None:
    talks = [[{"role": "system", "content": "Be brief."}, *talk] for talk in TALKS]
    module = chat(num_generations=2, system="Be long.")
    read: list[str] = []
    sample, module._sample = module._sample, lambda p, **o: read.extend(p) or sample(p, **o)
    for data in (datasets.Dataset.from_dict({"prompt": talks}), [{"prompt": t} for t in talks]):
        trained(DataLoader(data, batch_size=2), module=module)
        assert read[::2] == talks
        read.clear()
    assert share.scored[0].prompts[::2] == ("Be brief.\nab", "Be brief.\ncd")
    assert set(share.scored[0].prefixes) == {""}
    texts = module.tokenizer.batch_decode(module._sample(TALKS + talks[:1] + ["ab"]).ids)
    systems = [text.split("<|close|>")[0].removeprefix("<|open|>system\n") for text in texts]
    assert [s.split("<|endoftext|>")[-1].split("\n")[-1] for s in systems] == [
        *("Be long.", "Be long.", "Be brief.", "Be long.")
    ]


def test_strings_of_a_chat_and_of_an_encoder_decoder_have_no_prefix(chat, tuner, tiny_seq2seq):
    for module in (chat(), tuner(model=tiny_seq2seq("t5"))):
        module.log = lambda *_, **__: None
        module.training_step(PROMPTS, 0)
        samples, _ = module.last_rollout
        assert set(samples.prefixes) == {""}
        assert set(samples.prompts) == set(PROMPTS)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([], ValueError, "the batch is empty: give strings, or dicts with a prompt"),
        ({"prompt": []}, ValueError, "the batch is empty"),
        (torch.zeros(2, 3), TypeError, r"the batch tensor\(.* is a Tensor: give strings"),
        (["ab", 3], TypeError, r"the batch \['ab', 3\] is a list: give strings"),
        (
            {"question": PROMPTS},
            ValueError,
            "the batch has the columns question: call one",
        ),
        ([{"prompt": "a"}, {"text": "b"}], ValueError, "record 1 of the batch has the keys text"),
        ({"prompt": ["a", 3]}, TypeError, r"prompts\[1\] = 3 is a int: give a string, or messages"),
        ({"prompt": TALKS[0]}, ValueError, r"prompts\[0\] = .* is a conversation: set generation"),
        ({"prompt": [[{"text": "ab"}]]}, TypeError, r"a message of prompts\[0\] = .*: give it a "),
        (
            {"prompt": [{"role": "assistant", "content": "ab"}]},
            ValueError,
            r"prompts\[0\] ends with an answer, 'ab': end it with a user's message",
        ),
    ],
)
def test_other_batches_are_one_error(tuner, batch: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        tuner().training_step(batch, 0)


def test_ignored_columns_are_said_once(trained, caplog, monkeypatch) -> None:
    data = [{"prompt": prompt, "answer": 3, "completion": "x"} for prompt in PROMPTS * 2]
    logger = logging.getLogger(f"{LIGHTNING}.utilities.rank_zero")  # does not propagate
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    trained(DataLoader(data, batch_size=1))
    said = [m for m in caplog.messages if "ignores" in m]
    assert said == [
        "PolicyTuner ignores the columns answer, completion of the batches: rewards read text, "
        "prefix, label, source, reference, context, history, prompt, group"
    ]


@pytest.mark.parametrize("data", [PROMPTS, RECORDS, {"prompt": PROMPTS}])
def test_letters_are_no_batches(trained, data: Any) -> None:
    with pytest.raises(MisconfigurationException, match=r"use trainer.fit\(tuner, DataLoader\("):
        trained(data)


def test_a_trainer_needs_prompts(trained) -> None:
    with pytest.raises(MisconfigurationException, match=r"no prompts to train on: use trainer.fit"):
        trained()


def test_a_text_and_a_prompt() -> None:
    read = read_batch([{"text": "ab", "prompt": "say: ab", "other": 1}], answers=False)
    assert read.samples == Samples(["ab"], prompts=["say: ab"])
    assert (read.inputs, read.ignored) == (["say: ab"], ("other",))
