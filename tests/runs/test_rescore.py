"""`ctrlreward rescore`, against the figures that the trainers logged with the same scores."""

from __future__ import annotations

import json
import multiprocessing
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import yaml
from counting_module import Counting
from fakes import Share, Variety
from lightning_choice import quiet_trainer
from trainer_runs import tiny_trainer
from transformers import TrainerCallback

from ctrlreward import Reward, Samples
from ctrlreward import huggingface as hf
from ctrlreward.callbacks import (
    GenerationScorer,
    HistoryLogger,
    ProxyGuard,
    RewardCheckpoint,
    RewardEarlyStopping,
)
from ctrlreward.cli import main
from ctrlreward.runs.folder import read_stored_run
from ctrlreward.runs.rescoring_job import rescore
from ctrlreward.scorers.records import read_scored_file

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = Samples(
    ["The soup", "The view", "A bus", "The soup"],
    labels=["a", "b", "a", "b"],
    groups=["one", "two", "two", "one"],
)
STEPS = 5
WORDS = ["", " is good", " was old", " xyz", " hummm", " aeiou", " a", " zzz zz"]
FIRST = {"share": Share()["share"], "variety": Variety()["variety"]}
SECOND = {"consonants": Share("bcdfghklmnprstvwxyz")["share"], "variety": Variety()["variety"]}
KEYS = {"score/share", "score/variety", "score/fail_rate", "score/corpus/share"}
JUDGE = {
    "components": {
        "consonants": {
            "class_path": "fakes.Share",
            "init_args": {"letters": "bcdfghklmnprstvwxyz"},
        },
        "variety": {"class_path": "fakes.Variety"},
    }
}


class Writer(Counting):
    """Module that completes with random words, of which later steps have more."""

    batches = STEPS

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.log("reward/total", float(self.global_step))
        return super().training_step(batch, batch_idx)

    def complete(self, prompts: Sequence[str]) -> list[str]:
        step = round(self.weight.item())
        most = min(len(WORDS), 3 + step)
        return [WORDS[(int(i) + step) % 8] for i in torch.randint(most, (len(prompts),))]


class Seen:
    """Keeps the evidence of each validation."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self.evidence: dict[int, dict[str, Any]] = {}


class SeenByLightning(Seen, pl.Callback):
    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.evidence[trainer.global_step] = self.scorer.evidence


class SeenByTransformers(Seen, TrainerCallback):
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.evidence[state.global_step] = self.scorer.evidence


def lightning_run(folder: Path, scores: dict[str, Any], *more: pl.Callback) -> Seen:
    pl.seed_everything(0, verbose=False)
    scorer = GenerationScorer(scores, PROMPTS, generations_per_prompt=2)
    seen = SeenByLightning(scorer)
    trainer = quiet_trainer(
        callbacks=[scorer, seen, *more],
        check_val_every_n_epoch=None,
        default_root_dir=folder,
        enable_checkpointing=any(isinstance(each, RewardCheckpoint) for each in more),
        log_every_n_steps=1,
        logger=HistoryLogger(str(folder)),
        max_steps=STEPS,
        num_sanity_val_steps=0,
        val_check_interval=1,
    )
    trainer.fit(Writer())
    return seen


def huggingface_run(folder: Path, model: str, scores: dict[str, Any], *more: Any) -> Seen:
    torch.manual_seed(0)
    saving = {"save_strategy": "steps", "save_steps": 1}
    trainer = tiny_trainer(model, folder, max_steps=STEPS, learning_rate=0.05, **saving)
    prompts = PROMPTS.replace(texts=["ab", "cd", "fe", "ab"])
    scorer = hf.GenerationScorer(
        trainer, scores, prompts, 1, 2, generation={"do_sample": True, "max_new_tokens": 5}
    )
    seen = SeenByTransformers(scorer)
    for callback in (scorer, seen, *more):
        trainer.add_callback(callback)
    trainer.train()
    return seen


@pytest.fixture(scope="module")
def lightning_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lightning")
    lightning_run(folder, FIRST)
    return folder


@pytest.fixture
def folder(lightning_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """A run that logged other scores than the judge's, and the judge's file."""
    (tmp_path / "run").symlink_to(lightning_folder)
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(JUDGE))
    yield tmp_path
    for path in (lightning_folder / "rescored").glob("**/*"):
        if path.is_file():
            path.unlink()


def rescored(folder: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main(["rescore", str(folder / "run"), str(folder / "judge.yaml"), "--json", *options])
    return json.loads(capsys.readouterr().out)


def contents(folder: Path) -> list[tuple[str, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [(path.name, path.read_bytes()) for path in files if path.parent.name != "parts"]


@pytest.mark.parametrize("trainer", ["lightning", "huggingface"])
def test_the_same_scores_are_the_logged_ones(
    tmp_path: Path,
    tiny_llama: Callable[[str], str],
    trainer: str,
) -> None:
    if trainer == "lightning":
        seen = lightning_run(tmp_path / "run", FIRST)
    else:
        seen = huggingface_run(tmp_path / "run", tiny_llama("abcdef"), FIRST)
    run = read_stored_run(tmp_path / "run")
    prefix = "eval_" if trainer == "huggingface" else ""  # of logged keys
    new = rescore(run, Reward({**FIRST}), tmp_path / "new", {})
    assert new == {key: spec.mode for key, spec in seen.scorer.specs.items()} | {
        "score/total": "max"
    }
    done = read_stored_run(tmp_path / "new")  # the folder is a run itself
    assert done.modes.items() >= new.items()
    assert done.checkpoints.keys() == run.checkpoints.keys()
    assert [each.step for each in done.steps] == [each.step for each in run.steps]
    for before, after in zip(run.steps, done.steps, strict=True):
        if before.step not in seen.evidence:
            assert after == before
            continue
        assert set(after.metrics) - set(before.metrics) <= {"score/total", *KEYS}
        for key in KEYS:
            # Lightning logs 32 bits.
            value = before.metrics[prefix + key]
            assert after.metrics[key] == pytest.approx(value, rel=1e-6, nan_ok=True), key
        live = seen.evidence[before.step]
        assert set(live) == KEYS
        for key, row in live.items():
            np.testing.assert_array_equal(after.evidence[key], row)
            np.testing.assert_array_equal(before.evidence[prefix + key], row)
        old, new_texts = (each.samples["score"][before.step] for each in (run, done))
        assert new_texts.samples == old.samples
        for name, values in old.scores.items():
            np.testing.assert_array_equal(new_texts.scores[name], values)
    assert len(seen.evidence) == STEPS
    assert len({tuple(each["score/share"]) for each in seen.evidence.values()}) > 2


def test_decisions_are_those_of_a_run_with_the_other_scores(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rescored(
        folder,
        "--maximise",
        "score/consonants",
        "--subject_to",
        "score/variety<=0.4",
        "--guard",
        "reward/total:score/consonants",
        "--stop=patience=1",
        capsys=capsys,
    )
    best = RewardCheckpoint(
        "score/consonants", dirpath=str(tmp_path / "c"), constraints={"score/variety": (None, 0.4)}
    )
    guard = ProxyGuard("reward/total", "score/consonants", "max")
    live = lightning_run(tmp_path / "live", SECOND, best, guard)
    stop = RewardEarlyStopping("score/consonants", patience=1)
    lightning_run(tmp_path / "stopped", SECOND, stop)
    assert found["step"] == best.selected_step
    assert found["reason"] == best.reason
    assert found["stop_step"] == stop.stopped_step > 0
    assert (found["alarm_step"] or -1) == guard.alarm_step
    validations = {each["step"]: each for each in found["validations"]}
    assert validations[stop.stopped_step]["stop"] == stop.state.stopping_reason
    logged = {each.step: each.metrics for each in read_stored_run(tmp_path / "live").steps}
    assert list(validations) == list(live.evidence)
    for step, row in validations.items():
        expected = logged[step]["score/consonants"]
        assert row["metrics"]["score/consonants"] == pytest.approx(expected, rel=1e-6)


def test_the_old_scores_are_still_compared_by_prompt(folder: Path) -> None:
    main(["rescore", str(folder / "run"), str(folder / "judge.yaml")])
    run, again = (read_stored_run(folder / "run" / name) for name in ("", "rescored/judge"))
    for before, after in zip(run.steps, again.steps, strict=True):
        assert before.evidence.keys() < after.evidence.keys() or not before.evidence
        for key in before.evidence.keys() - {"score/fail_rate"}:
            np.testing.assert_array_equal(after.evidence[key], before.evidence[key])


def test_a_killed_command_resumes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Share.calls.clear()
    rescored(folder, f"--output={folder / 'uncut'}", capsys=capsys)
    once = sum(Share.calls)
    files = sorted((folder / "run" / "samples" / "score").iterdir())
    texts = [text for file in files for text in read_scored_file(file).samples.texts]
    last = max(texts, key=texts.index)  # the text that appears last
    assert texts.index(last) > 8
    command = ["rescore", str(folder / "run"), str(folder / "judge.yaml")]
    monkeypatch.setenv("KILL_AT", last)
    process = multiprocessing.get_context("fork").Process(target=main, args=(command,))
    process.start()
    process.join(60)
    monkeypatch.delenv("KILL_AT")
    assert process.exitcode == -signal.SIGKILL
    parts = folder / "run" / "rescored" / "judge" / "parts"
    before = {path.name: path.read_bytes() for path in parts.glob("[!.]*")}
    assert 0 < len(before) <= STEPS
    with open(parts / max(before), "ab") as file:
        file.write(b'{"consonants": [0.')  # a line that was being written
    Share.calls.clear()
    found = rescored(folder, capsys=capsys)
    place = Path(found["folder"])
    assert place == folder / "run" / "rescored" / "judge"
    resumed = contents(place)
    assert [each for each in resumed if each[0] != "decisions.json"] == [
        each for each in contents(folder / "uncut") if each[0] != "decisions.json"
    ]
    assert sum(Share.calls) < once  # what was scored before the kill is not scored again
    assert all((parts / name).read_bytes().startswith(text) for name, text in before.items())
    Share.calls.clear()
    rescored(folder, capsys=capsys)
    assert contents(place) == resumed
    assert Share.calls == []


def test_scores_of_more_than_the_texts_are_refused(folder: Path, fails: Callable[..., str]) -> None:
    answer = {"class_path": "fakes.Share", "init_args": {"column": "histories"}}
    (folder / "judge.yaml").write_text(yaml.safe_dump({"components": {"answer": answer}}))
    Share.calls.clear()
    error = fails("rescore", folder / "run", folder / "judge.yaml")
    assert "step=000001.jsonl" in error
    assert "'histories'" in error
    assert Share.calls == []
    assert not any(path.is_file() for path in (folder / "run" / "rescored").rglob("*"))


def test_the_command_to_type_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["rescore", str(folder / "run"), str(folder / "judge.yaml")])
    _, *commands = capsys.readouterr().out.splitlines()
    keys = ["consonants", "variety", "corpus/consonants", "total"]
    assert [line.split()[-1] for line in commands] == [f"score/{key}" for key in keys]
    for line in commands:
        main(shlex.split(line)[1:])
        assert "keep step" in capsys.readouterr().out
