"""Files of others: what no parser takes is named with its line, and nothing that is read runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ctrlreward import RemoteReward, Samples
from ctrlreward.cli import main
from ctrlreward.commands.config_files import read_config
from ctrlreward.commands.evaluation_prompts import read_prefixes
from ctrlreward.commands.shards.shard_store import ShardStore
from ctrlreward.files import JsonLog
from ctrlreward.functional.preferences import LearnedAggregate
from ctrlreward.scorers.judge import Rubric
from ctrlreward.scorers.task import Task

METRICS = " ".join(f"--metrics.{n}=worth" for n in ("accuracy", "similarity", "perplexity"))
REWARD = f"{__name__}:brevity"


def brevity(texts: Sequence[str]) -> list[float]:
    return [-float(len(text)) for text in texts]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input of each command, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"The soup {i} was good.", "prefix": "The soup", "worth": i} for i in range(4)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("log.jsonl").write_text("".join(f'{{"step": {i}, "worth": {i}}}\n' for i in range(4)))
    Path("table.json").write_text('{"soup": {"worth": 1.5},\n "view": {"worth": 2.5}}\n')
    state = {"log_history": [{"step": i, "worth": i} for i in range(4)]}
    Path("trainer_state.json").write_text(json.dumps(state) + "\n")
    Path("reward.yaml").write_text("components:\n  worth:\n    scorer: Distinct\n")
    Path("description.json").write_text('{"weights": {"worth": 1.0}}\n')
    for name in ("first", "second"):
        (Path(name) / "samples/score").mkdir(parents=True)
        shutil.copy("log.jsonl", f"{name}/metrics.jsonl")
        Path(name, "summary.json").write_text('{"directions": {"worth": "max"}}\n')
        for step in (1, 2):
            scored = [{**row, "scores": {"worth": row["worth"]}} for row in rows]
            lines = "".join(json.dumps(row) + "\n" for row in scored)
            Path(name, f"samples/score/step={step:06d}.jsonl").write_text(lines)


VALUES = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "digits": "9" * 5000,
    "nul": "\x00",
    "half": "\ud800",
}


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


def failure(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
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
        ("score rows.jsonl scored.jsonl --scorers Distinct", "rows.jsonl"),
        ("pairs rows.jsonl pairs.jsonl --score worth", "rows.jsonl"),
        (f"probe {REWARD} --texts rows.jsonl", "rows.jsonl"),
        ("select log.jsonl --maximise worth", "log.jsonl"),
        ("select first --maximise worth", "first/metrics.jsonl"),
        ("select first --maximise worth", "first/summary.json"),
        ("select trainer_state.json --maximise worth", "trainer_state.json"),
        ("report first", "first/samples/score/step=000002.jsonl"),
        ("rescore first reward.yaml", "first/samples/score/step=000001.jsonl"),
        ("rescore first reward.yaml", "first/metrics.jsonl"),
        ("rescore first reward.yaml", "first/summary.json"),
        ("rescore first reward.yaml", "reward.yaml"),
        ("probe reward.yaml", "reward.yaml"),
        ("serve reward.yaml", "reward.yaml"),
        ("train --config reward.yaml", "reward.yaml"),
        ("compare table.json table.json", "table.json"),
        ("compare first second", "second/metrics.jsonl"),
        (f"trajectories first {METRICS}", "first/metrics.jsonl"),
    ],
)
def test_what_no_parser_takes_is_named(
    command: str, name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = spoil(Path(name), VALUES[value])
    said = failure(command.split(), capsys)
    assert place in said
    assert len(said) < 1000


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_infinity_that_an_output_can_not_have(
    suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = spoil(Path("rows.jsonl"), '{"a": [Infinity]}')
    command = f"score rows.jsonl scored.{suffix} --scorers Distinct"
    assert f"{place}: the column 'extra' has the value" in failure(command.split(), capsys)
    assert not Path(f"scored.{suffix}").exists()


def test_a_report_names_the_log_that_it_lacks() -> None:
    place = spoil(Path("first/metrics.jsonl"), VALUES["deep"])
    main(["report", "first"])
    assert f"{place} has JSON that is nested too deeply" in Path("first/report.html").read_text()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("read", "name"),
    [
        (Samples.from_jsonl, "rows.jsonl"),
        (read_prefixes, "rows.jsonl"),
        (lambda path: JsonLog(Path(path)).read(), "log.jsonl"),
        (LearnedAggregate.load, "description.json"),
        (lambda path: RemoteReward("http://127.0.0.1:1", expect=path), "description.json"),
        (Rubric.load, "reward.yaml"),
        (Task.load, "reward.yaml"),
    ],
)
def test_readers_of_python_name_it(read: Callable[[str], object], name: str, value: str) -> None:
    place = spoil(Path(name), VALUES[value])
    with pytest.raises(ValueError, match=place.replace(".", r"\.")):
        read(name)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", ["scored.jsonl.partial/manifest.json", "scored.jsonl.partial/x"])
def test_the_files_of_an_unfinished_run(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "score rows.jsonl scored.jsonl --scorers Distinct --chunk 2".split()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ShardStore, "read", killed)
        with pytest.raises(SystemExit) as ended:
            main(command)
    assert ended.value.code == 130
    shard = next(
        file for file in Path("scored.jsonl.partial").iterdir() if file.name != "manifest.json"
    )
    path = Path(name) if name.endswith("json") else shard
    place = spoil(path, VALUES[value])
    assert place.rpartition(":")[0] in failure(command, capsys)


LAUGHS = "a: &a [ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "is not YAML: its aliases stand for too many values"),
        ("a: &a\n  b: *a\n", "contains itself by an alias"),
        ("a: {" * 100_000, "nested too deeply"),
        ("x: 1\na: 2024-13-45\n", "config.yaml:2: is not YAML: month must be in 1..12"),
    ],
)
def test_configs_that_no_one_reads_to_the_end(text: str, message: str) -> None:
    Path("config.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config("config.yaml")
    for command in (["probe", "config.yaml"], ["train", "--config", "config.yaml"]):
        with pytest.raises(SystemExit):
            main(command)
