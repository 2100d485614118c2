"""The rows of M0 to M7 against the paper's table of their losses, and the data that they see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ctrlreward.command_line.config_files import read_job, resolved

FOLDER = Path(__file__).resolve().parents[4] / "configs" / "textual_transfer"
NAMES = {
    "para": "paraphrase",
    "cyc": "cycle",
    "lang": "language",
    "second discriminators": "critic",
}
LAMBDAS = {"paraphrase": 0.2, "cycle": 5.0, "language": 1e-3, "critic": 1.0}


def test_each_model_has_the_losses_of_the_papers_table(papers_dir: Path) -> None:
    facts = (papers_dir / "textual_transfer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (M\d) \| ([^|]+) \|$", facts, re.MULTILINE)
    assert len(rows) == 8
    for model, losses in rows:
        job: Any = resolved(read_job(FOLDER / "yelp.yaml"), {"values.model": model.lower()})
        found = {NAMES[loss.strip()] for loss in losses.split(",") if loss.strip() in NAMES}
        assert job["model"]["init_args"]["lambdas"] == {name: LAMBDAS[name] for name in found}
        assert job["trainer"]["default_root_dir"] == f"runs/textual_transfer/{model.lower()}"


@pytest.mark.parametrize("name", ["yelp", "official"])
def test_selection_and_report_never_see_training_sentences(name: str) -> None:
    base, top = read_job(FOLDER / "yelp.yaml"), read_job(FOLDER / f"{name}.yaml")
    values: Any = resolved({"values": {**base["values"], **top["values"]}})["values"]
    trained_on = set(values["train"].values())
    assert trained_on <= set(values["seen"])
    assert set(values["held_out"]) <= set(values["seen"])
    assert not trained_on & {*values["dev"].values(), *values["test"].values()}
