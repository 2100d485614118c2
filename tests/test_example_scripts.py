"""A run of each script of examples/; short names of models are tiny models here."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import trl

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

pytestmark = pytest.mark.usefixtures("workplace", "one_thread")


def test_two_systems_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "score_texts.py"))["main"]
    main()
    printed = capsys.readouterr().out
    assert re.search(r"^attribute_relevance .* \(-?[\d.]+ to -?[\d.]+\)$", printed, re.M)
    Path("texts.csv").write_text(
        "system,text,prefix,label\na,The soup was warm.,The soup,positive\n"
    )
    main("texts.csv")
    assert "The soup was warm." in capsys.readouterr().out


def test_lightning_selects_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end
    runpy.run_path(str(EXAMPLES / "select_lightning.py"))["main"]("5")
    (selected,) = re.findall(r"selected step 5: (.+)", capsys.readouterr().out)
    assert Path(selected).is_file()


def test_trl_selects_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = trl.GRPOConfig
    small = {"max_completion_length": 4, "eval_steps": 1, "save_steps": 1, "use_cpu": True}
    monkeypatch.setattr(trl, "GRPOConfig", lambda **given: config(**{**given, **small}))
    runpy.run_path(str(EXAMPLES / "grpo_trl.py"))["main"]("2")
    (selected,) = re.findall(r"selected (.+)", capsys.readouterr().out)
    assert Path(selected, "adapter_model.safetensors").is_file()
