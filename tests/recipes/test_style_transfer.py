from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import pytorch_lightning as pl

from ctrlreward import Samples
from ctrlreward.models.text_cnn import TextCNN, TextCNNConfig, frequent_words, save_text_cnn
from ctrlreward.recipes import style_transfer
from ctrlreward.recipes.style_transfer import (
    Trajectories,
    TransferData,
    before_after,
    held_out_scorer,
    prompts,
    transfer_reward,
)

TEMPLATE = "{source_style}: {source}\n{style}:"
SOUR = [f"the {thing} was so cold ." for thing in ("soup", "room", "bus", "play")]
SWEET = [f"the {thing} was so lovely ." for thing in ("soup", "room", "bus", "play")]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sour").write_text("\n".join([*SOUR, "too short", SOUR[0]]))
    (tmp_path / "sweet").write_text("\n".join(SWEET))
    return {"sour": str(tmp_path / "sour"), "sweet": str(tmp_path / "sweet")}


# The data


def test_each_sentence_is_to_get_the_other_style(files: dict[str, str]) -> None:
    made = prompts(files, TEMPLATE, 4)
    assert sorted(made.sources[:4]) == sorted(SOUR)
    assert sorted(made.sources[4:]) == sorted(SWEET)
    assert made.labels == ("sweet",) * 4 + ("sour",) * 4
    assert made.texts == made.prefixes == ("",) * 8
    assert made.prompts[0] == f"sour: {made.sources[0]}\nsweet:"
    assert made.prompts[7] == f"sweet: {made.sources[7]}\nsour:"


def test_bad_arguments_are_named(files: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="files has the styles sour: give two"):
        prompts({"sour": files["sour"]}, TEMPLATE, 2)
    with pytest.raises(ValueError, match=r"'\{style\}:': it must hold \{source\} and \{style\}"):
        prompts(files, "{style}:", 2)
    with pytest.raises(ValueError, match="sour: 4 texts of 4 to 15 words, 5 wanted"):
        prompts(files, TEMPLATE, 5)


def test_training_leaves_out_what_is_held_out(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "held_out").write_text(f"{SOUR[0].upper()}\n{SWEET[1]}\tx\n")
    data = TransferData(files, TEMPLATE, 3, [str(tmp_path / "held_out")], batch_size=2, steps=3)
    data.prepare_data()
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert [len(batch) for batch in batches] == [2, 2, 2]
    read = {source for batch in batches for source in batch.sources}
    assert read == {*SOUR[1:], SWEET[0], *SWEET[2:]}
    assert len(next(iter(data.val_dataloader()))) == 1


def test_a_judge_that_is_not_there_is_trained_first(files, tmp_path: Path, monkeypatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        style_transfer.subprocess, "run", lambda command, check: started.append(command)
    )
    judge = tmp_path / "judge"
    data = TransferData(files, TEMPLATE, 3, judge=str(judge), judge_config="judge.yaml")
    data.prepare_data()
    (command,) = started
    assert command[1:] == [
        *("-m", "ctrlreward", "train", "--config", "judge.yaml"),
        *("--model.init_args.folder", str(judge)),
    ]
    judge.mkdir()
    data.prepare_data()
    assert len(started) == 1


# The scores


@pytest.fixture
def judges(tiny_llama: Callable[[str], str], tmp_path: Path) -> dict[str, str]:
    words = frequent_words(SOUR + SWEET, 1)
    folder = tmp_path / "judge"
    folder.mkdir()
    save_text_cnn(TextCNN(TextCNNConfig(words, ("sour", "sweet"), 8, (2,), 4, 0.0)), folder)
    letters = tiny_llama(" abcdefghijklmnopqrstuvwxyz.")
    return {"classifier": str(folder), "encoder": "minilm-l6", "language_model": letters}


def test_the_reward_is_the_weighted_sum_of_gm_and_its_sides(judges: dict[str, str]) -> None:
    weights = {"label_probability": 2.0, "similarity": 0.5, "log_likelihood": 0.1, "gm": 0.01}
    reward = transfer_reward(weights, **judges, thresholds=(-8.0, -100.0, 1e6, -1e6))
    texts = Samples(["the soup was hot .", "a bus ."], labels=["sweet", "sour"], sources=SOUR[:2])
    batch = reward(texts)
    reward.release()
    total = sum(weight * batch.components[name] for name, weight in weights.items())
    assert batch.total == pytest.approx(total)
    sides = [batch.components[name] for name in ("label_probability", "similarity")]
    likely = batch.components["log_likelihood"]
    for i in range(2):
        acc, sim, pp = sides[0][i], sides[1][i], math.exp(-likely[i])
        fluency = min(1e6 - pp, pp + 1e6)
        expected = ((100 * acc + 8) * (100 * sim + 100) * fluency) ** (1 / 3)
        assert batch.components["gm"][i] == pytest.approx(expected)


def test_callbacks_share_their_models_and_copying_is_compared(files, judges) -> None:
    watch = held_out_scorer(files, TEMPLATE, 2, **judges)
    report = before_after(files, TEMPLATE, 3, **judges)
    for name, component in report.scores.items():
        assert component.scorer is watch.scores[name].scorer
    assert next(iter(report.scores)) == "gm"
    assert (len(watch.samples), len(report.samples)) == (4, 6)
    copies = report.others["copying"]
    assert copies.texts == copies.sources == report.samples.sources
    assert copies.labels == report.samples.labels


# The picture


def test_trajectories_are_drawn_from_the_validations(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "reward/total": 0.3},
        *(
            {
                "step": step,
                "score/accuracy": 0.1 * step,
                "score/similarity": 1 - 0.1 * step,
                "score/log_likelihood": -4.0,
            }
            for step in (2, 4, 6)
        ),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer, module = pl.Trainer(logger=False, accelerator="cpu"), pl.LightningModule()
    Trajectories(str(tmp_path), name="other").on_fit_end(trainer, module)
    assert not (tmp_path / "trajectories.png").exists()
    Trajectories(str(tmp_path)).on_fit_end(trainer, module)
    header = (tmp_path / "trajectories.png").read_bytes()[:24]
    width, height = struct.unpack(">II", header[16:24])
    assert (width, height) == (round(2 * 4.6 * 130), round(3.8 * 130))
