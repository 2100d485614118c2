"""`ctrlreward recipes`: the list, the merged file, and copies that train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from thinned import every

from ctrlreward.cli import main
from ctrlreward.command_line.config_files import (
    nested,
    read_config,
    read_job,
    read_reward,
    resolved,
    with_extended,
)
from ctrlreward.jobs.recipes import recipe_files, recipe_text
from ctrlreward.jobs.training_job import TrainCLI, build


@pytest.fixture(autouse=True)
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own


EXTENDING = [name for name, file in recipe_files().items() if "\nextends: " in file.read_text()]


# Among them a list that is appended to, a mapping that is replaced, a group, values.
@pytest.mark.parametrize("name", every(4, EXTENDING))
def test_the_merged_file_is_the_same_job(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the parser; `serve` reads its reward."""
    monkeypatch.setattr(TrainCLI, "instantiate_classes", lambda self: None)
    merged = tmp_path / "merged.yaml"
    merged.write_text(recipe_text(name))
    content = read_config(merged)
    assert content.keys() <= {"seed_everything", "model", "data", "trainer", "values", "smoke"}
    first, second = (
        build(with_extended(["--config", str(path)])) for path in (recipe_files()[name], merged)
    )
    dumps = [
        yaml.safe_load(cli.parser.dump(cli.config, skip_validation=True)) for cli in (first, second)
    ]
    assert dumps[0] == dumps[1]
    if "reward" in content["model"]["init_args"]:
        reward = resolved(content)["model"]["init_args"]["reward"]
        assert read_reward(recipe_files()[name]) == reward


@pytest.mark.parametrize("name", recipe_files())
def test_a_copy_is_one_file_that_names_files_which_exist(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["recipes", "copy", name, str(tmp_path / "copy")])
    (copied,) = (tmp_path / "copy").iterdir()
    assert capsys.readouterr().out.split() == [str(copied)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    content = read_config(copied)
    assert content == read_job(recipe_files()[name])
    assert copied.read_text().splitlines()[0] == recipe_files()[name].read_text().splitlines()[0]
    named = {each for each in nested(content) if isinstance(each, str) and each.endswith(".yaml")}
    assert all(Path(each).is_file() for each in named)


def test_a_second_copy_replaces_nothing_that_was_changed(
    tmp_path: Path, fails: Callable[..., str]
) -> None:
    for _ in range(2):
        main(["recipes", "copy", "topic_smollm2", str(tmp_path)])
    (tmp_path / "topic_smollm2.yaml").write_text("seed_everything: 1\n")
    assert str(tmp_path / "topic_smollm2.yaml") in fails(
        "recipes", "copy", "topic_smollm2", tmp_path
    )
    assert (tmp_path / "topic_smollm2.yaml").read_text() == "seed_everything: 1\n"
