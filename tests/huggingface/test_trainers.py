"""Real runs of tiny models under the trainers of transformers and TRL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Scripted
from trainer_runs import SETTINGS, tiny_trl, train
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
)

from ctrlreward import Samples
from ctrlreward.cli import main
from ctrlreward.huggingface import (
    BeforeAfter,
    GenerationScorer,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.scorers.records import read_scored_file, write_scored_samples

pytestmark = pytest.mark.usefixtures("one_thread")

RISE_AND_FALL = [0.0, 0.25, 0.5, 0.75, 0.25, 0.125, 0.0, 0.0, 0.0]


def rise_and_fall(key: str, step: int) -> list[float]:
    """`a` is best at step 3, where `b` is beyond its bound."""
    value = RISE_AND_FALL[step]
    return [value if key == "a" else 1 - value] * 2


def add_all(trainer: Trainer, prompts: Any, **settings: Any) -> tuple[Any, Any]:
    scorer = Scripted(rise_and_fall, trainer, "max")
    scores = {"a": scorer["a"], "b": scorer["b"]}
    stop = RewardEarlyStopping("score/a", patience=3)
    best = RewardCheckpoint("score/a", constraints={"score/b": (0.5, None)})
    for callback in (GenerationScorer(trainer, scores, prompts, **settings), best, stop):
        trainer.add_callback(callback)
    return best, stop


def check(trainer: Trainer, best: Any, stop: Any) -> None:
    """The run stopped three steps after the best, and has the weights of the constrained best."""
    assert trainer.state.global_step == 6
    assert stop.state.stopped_by == "patience_exhausted"
    assert best.selected_step == 2
    folder = Path(trainer.args.output_dir or "") / "checkpoint-2"
    assert trainer.state.best_model_checkpoint == str(folder)
    (file,) = folder.glob("*.safetensors")
    from safetensors.torch import load_file

    saved, model = load_file(file), trainer.model.state_dict()
    found = {key.replace(".default", ""): value for key, value in model.items()}
    for key, value in saved.items():
        assert torch.equal(found[key], value), key


SELECTING = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}


def test_a_trainer_loads_the_constrained_best_and_its_files_tell_what_was_decided(
    make_trainer: Callable[..., Trainer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    trainer = make_trainer(**SELECTING | settings | {"save_total_limit": None})
    best, stop = add_all(trainer, ["ab", "cd"], generation={"max_new_tokens": 4})
    trainer.train()
    check(trainer, best, stop)
    rows = [row for row in trainer.state.log_history if "eval_score/a" in row]
    assert [row["eval_score/a"] for row in rows] == RISE_AND_FALL[1:7]
    texts, scores, *_ = read_scored_file(tmp_path / "run/samples/score/step=000002.jsonl")
    assert [text[:2] for text in texts.texts] == ["ab", "cd"]
    assert scores["a"].tolist() == [0.5, 0.5]
    run = read_stored_run(tmp_path / "run")
    assert run.source == "trainer_state.json"
    assert run.modes == {f"eval_score/{key}": "max" for key in "ab"} | {
        "eval_score/fail_rate": "min"
    }
    (selected,) = run.checkpoints[best.selected_step]
    assert selected == tmp_path / "run" / "checkpoint-2"
    options = ["--maximise", "score/a", "--subject-to", "score/b>=0.5", "--stop", "patience=3"]
    main(["select", str(tmp_path / "run"), *options])
    out = capsys.readouterr().out
    assert f"keep {selected}: eval_score/a is 0.5000 at step 2" in out
    assert "stop at step 6" in out


def test_no_validation_met_the_constraints(
    make_trainer: Callable[..., Trainer], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(**SELECTING | {"max_steps": 2}, load_best_model_at_end=True)
    scorer = Scripted(rise_and_fall, trainer, "max")
    trainer.add_callback(GenerationScorer(trainer, {"a": scorer["a"]}, ["ab", "cd"]))
    best = RewardCheckpoint("score/a", constraints={"score/a": (0.9, None)})
    train(trainer, best)
    assert best.selected_step is None
    assert trainer.state.best_model_checkpoint is None
    assert "no candidate among 2 validations: the model has the weights of" in caplog.text


def test_seq2seq(tiny_t5: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_t5)
    ids = tokenizer("the soup").input_ids
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_t5)
    arguments = Seq2SeqTrainingArguments(
        **SETTINGS | SELECTING, output_dir=str(tmp_path / "run"), load_best_model_at_end=True
    )
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
        train_dataset=[{"input_ids": ids, "labels": ids}] * 8,  # type: ignore[arg-type]
        eval_dataset=[{"input_ids": ids, "labels": ids}],  # type: ignore[arg-type]
        processing_class=tokenizer,
    )
    scorer = Scripted(rise_and_fall, trainer, "max")
    with pytest.raises(ValueError, match="prefixes or prompts"):
        GenerationScorer(trainer, {"a": scorer["a"]}, ["the soup"])
    prompts = Samples(["", ""], prefixes=["", ""], prompts=["the soup", "the bus"])
    best, stop = add_all(trainer, prompts, generation={"max_new_tokens": 3})
    trainer.train()
    check(trainer, best, stop)


@pytest.mark.parametrize("kind", ["GRPO", "SFT"])
def test_trl(tiny_llama: Callable[[str], str], tmp_path: Path, kind: str) -> None:
    folder, settings = tmp_path / "run", {**SELECTING, "load_best_model_at_end": True}
    settings |= {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
    rows: list[Any] = [{"text": text} for text in ["abcd", "cdab"] * 8]
    if kind == "GRPO":
        settings |= {"num_generations": 2, "max_completion_length": 4}
        settings["reward_funcs"] = lambda completions, **_: [float(len(t)) for t in completions]
        rows = ["ab", "cd"] * 8
    trainer = tiny_trl(tiny_llama("abcdef"), folder, rows, kind, **settings)
    best, stop = add_all(trainer, ["ab", "cd"])
    if kind == "GRPO":
        trainer.add_callback(ProxyGuard("reward", "score/a"))
    scorer = Scripted(rise_and_fall, trainer, "max")
    train(trainer, BeforeAfter(trainer, {"a": scorer["a"]}, ["ba", "dc"], 1))
    check(trainer, best, stop)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["selection"]["step"] == 2
    assert summary["selection"]["constraints"] == {"score/b": [0.5, None]}
    assert summary["steps"] == 6
    assert summary["stopped_by"].startswith("RewardEarlyStopping: score/a has not improved")
    assert summary["directions"]["score/b"] == "max"
    if kind == "GRPO":  # the metrics of training are still logged
        assert all("reward" in row for row in trainer.state.log_history if "loss" in row)
        assert any("eval_guard/p_value" in row for row in trainer.state.log_history)


def test_a_resumed_run_scores_texts_whose_scores_were_lost(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    def run(steps: int, checkpoint: str | None) -> None:
        trainer = make_trainer(max_steps=steps, save_strategy="steps", save_steps=1)
        scorer = Scripted(rise_and_fall, trainer, "max")
        trainer.add_callback(BeforeAfter(trainer, {"a": scorer["a"]}, ["ab", "cd"], 1))
        trainer.train(resume_from_checkpoint=checkpoint)

    run(2, None)
    path = tmp_path / "run" / "before.jsonl"
    texts, *_ = read_scored_file(path)
    write_scored_samples(path, texts, {})  # as a run that was killed while it scored
    run(3, str(tmp_path / "run" / "checkpoint-2"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["before"]["a"] == 0.5  # scored at the step of the resumption
    assert summary["after"]["a"] == 0.75
    assert summary["seconds"].keys() == {"before", "train", "after", "total"}
    path.unlink()
    with pytest.raises(FileNotFoundError, match="output_dir"):
        run(4, str(tmp_path / "run" / "checkpoint-3"))
