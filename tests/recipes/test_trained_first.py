from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from warm_python import WarmProcess

from ctrlreward.recipes import trained_first
from ctrlreward.recipes.scoring_models.text_cnn import TextCNNClassifier
from ctrlreward.recipes.trained_first import TrainedFirst

WORDS = {"sour": "cold", "sweet": "lovely"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLREWARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for style, word in WORDS.items():
        lines = (f"the {thing} was so {word} ." for thing in ("soup", "room", "bus", "play"))
        (tmp_path / style).write_text("\n".join(lines))
    return {style: str(tmp_path / style) for style in WORDS}


@pytest.fixture
def config(files: dict[str, str], tmp_path: Path) -> str:
    recipe = "ctrlreward.recipes.scoring_models.text_cnn"
    model = {"folder": "replaced", "embedding_size": 4, "widths": [2], "filters": 2}
    test = {style: str(tmp_path / f"{style}.test") for style in files}
    for style, word in WORDS.items():
        Path(test[style]).write_text(f"a {word} bus .")
    data = {"train": files, "test": test, "validation_share": 0.25}
    trainer = {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": str(tmp_path / "run")}
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    content = {
        "model": {"class_path": f"{recipe}.TextCNNTrainer", "init_args": model},
        "data": {"class_path": f"{recipe}.SentenceData", "init_args": data},
        "trainer": trainer | quiet,
    }
    (tmp_path / "judge.yaml").write_text(yaml.safe_dump(content))
    return str(tmp_path / "judge.yaml")


def test_of_two_that_need_a_model_one_trains_it(
    config: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warm(command: list[str], check: bool) -> None:
        process = WarmProcess(command[1:], tmp_path / "stdout", tmp_path / "stderr")
        assert process.wait(200) == 0, (tmp_path / "stderr").read_text()

    monkeypatch.setattr(trained_first.subprocess, "run", warm)
    killed = tmp_path / "run"  # what a killed training has left
    (killed / "checkpoints").mkdir(parents=True)
    (killed / "metrics.jsonl").write_text("")
    job = TrainedFirst(str(tmp_path / "run" / "model"), config, ["--trainer.max_epochs=2"])
    both = [threading.Thread(target=job.train_if_absent) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert TextCNNClassifier(job.folder).labels == ("sour", "sweet")
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert checkpoint.name.startswith("epoch=1")  # the further argument
    job.train_if_absent()
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count(f"{job.folder} does not exist: training it with {config}") == 1
    assert messages.count(f"waiting for the process that is training {job.folder}") == 1


def test_a_training_that_fails_or_writes_no_model_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = TrainedFirst(str(tmp_path / "model"), "missing.yaml")
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> None:
        commands.append(command)
        if len(commands) == 1:
            raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(trained_first.subprocess, "run", run)
    with pytest.raises(subprocess.CalledProcessError):
        job.train_if_absent()
    with pytest.raises(FileNotFoundError, match=r"missing\.yaml"):
        job.train_if_absent()  # the first failure released the lock
    assert len(commands) == 2
