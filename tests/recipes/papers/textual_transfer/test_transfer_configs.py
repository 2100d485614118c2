"""The configurations of M0 to M7 against the paper's table of their losses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[4] / "configs" / "textual_transfer"
NAMES = {
    "para": "paraphrase",
    "cyc": "cycle",
    "lang": "language",
    "second discriminators": "critic",
}
LAMBDAS = {"paraphrase": 0.2, "cycle": 5.0, "language": 1e-3, "critic": 1.0}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content


def test_each_model_has_the_losses_of_the_papers_table(papers_dir: Path) -> None:
    facts = (papers_dir / "textual_transfer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (M\d) \| ([^|]+) \|$", facts, re.MULTILINE)
    table = {model: [loss.strip() for loss in losses.split(",")] for model, losses in rows}
    assert len(table) == 8
    for model, losses in table.items():
        content = read(f"{model.lower()}.yaml")
        expected = {NAMES[loss] for loss in losses if loss in NAMES}
        assert content["model"]["init_args"]["lambdas"] == {n: LAMBDAS[n] for n in expected}
        # What differs otherwise is what these losses need, and the run's folder.
        assert content["extends"] == "yelp.yaml"
        assert content["trainer"] == {"default_root_dir": f"runs/textual_transfer/{model.lower()}"}
        assert ("style_models" in content["model"]["init_args"]) == ("language" in expected)
        needs_pairs = "paraphrase" in expected
        assert content.get("data") == ({"init_args": {"paraphrases": {}}} if needs_pairs else None)
        assert set(content) <= {"extends", "model", "data", "trainer"}


def test_the_sizes_are_the_papers() -> None:
    model = read("yelp.yaml")["model"]["init_args"]
    sizes = [model[f"{name}_size"] for name in ("style", "content", "embedding")]
    assert sizes == [200, 500, 100]
    assert model["learning_rate"] == 1e-4
    data = read("yelp.yaml")["data"]["init_args"]
    assert (data["words"], data["batch_size"], data["min_count"]) == ([1, 15], 64, 5)


def test_selection_and_report_never_see_training_sentences() -> None:
    content = read("yelp.yaml")
    trained_on = set(content["data"]["init_args"]["files"].values())
    for callback in content["trainer"]["callbacks"]:
        sentences = callback["init_args"].get("sentences")
        if sentences:
            assert trained_on <= set(sentences["exclude"])
            assert not trained_on & set(sentences["files"].values())
