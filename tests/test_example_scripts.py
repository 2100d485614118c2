"""The scripts of examples/: their inline metadata (PEP 723), and a run of each.

Short names of models are tiny models here.
"""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import trl
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def metadata(script: Path) -> dict[str, object]:
    (block,) = re.findall(r"^# /// script\n(.*?)^# ///$", script.read_text(), re.M | re.S)
    return tomllib.loads(re.sub(r"^# ?", "", block, flags=re.M))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_metadata_names_what_the_script_imports(script: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    content = metadata(script)
    assert content["requires-python"] == project["requires-python"]
    (ours, *_) = [Requirement(each) for each in content["dependencies"]]
    assert ours.name == "ctrlreward"
    assert ours.extras <= project["optional-dependencies"].keys()
    assert ("trl" in ours.extras) == ("from trl import" in script.read_text())
    assert f"uv run examples/{script.name}" in script.read_text()


def test_two_systems_are_compared(
    workplace: None, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "score_texts.py"))["main"]
    main()
    printed = capsys.readouterr().out
    assert re.search(r"^attribute_relevance .* \(-?[\d.]+ to -?[\d.]+\)$", printed, re.M)
    Path("texts.csv").write_text(
        "system,text,prefix,label\na,The soup was warm.,The soup,positive\n"
    )
    main("texts.csv")
    assert "The soup was warm." in capsys.readouterr().out


def test_lightning_selects_a_checkpoint(
    workplace: None,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end
    runpy.run_path(str(ROOT / "examples" / "select_lightning.py"))["main"]("5")
    (selected,) = re.findall(r"selected step 5: (.+)", capsys.readouterr().out)
    assert Path(selected).is_file()


def test_trl_selects_a_checkpoint(
    workplace: None,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = trl.GRPOConfig
    small = {"max_completion_length": 4, "eval_steps": 1, "save_steps": 1, "use_cpu": True}
    monkeypatch.setattr(trl, "GRPOConfig", lambda **given: config(**{**given, **small}))
    runpy.run_path(str(ROOT / "examples" / "grpo_trl.py"))["main"]("2")
    (selected,) = re.findall(r"selected (.+)", capsys.readouterr().out)
    assert Path(selected, "adapter_model.safetensors").is_file()
