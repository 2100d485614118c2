"""The recipe of an encoder-decoder policy, and of its warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ctrlreward.jobs.training_job import TrainCLI, build

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "style_transfer"
TEMPLATE = "Rewrite the {source_style} sentence as a {style} one: {source}"


@pytest.fixture
def parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function from a job's name to its configuration, parsed as the command parses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # restored at the end, unlike the command line's own
    monkeypatch.setattr(TrainCLI, "instantiate_classes", lambda self: None)  # needs data

    def parse(name: str) -> dict[str, Any]:
        cli = build(["--config", str(CONFIGS / f"{name}.yaml")])
        return yaml.safe_load(cli.parser.dump(cli.config, skip_validation=True))

    return parse


def values(options: Any, name: str) -> list[Any]:
    """All values of a key, wherever it stands."""
    items = options.items() if isinstance(options, dict) else enumerate(options)
    found = []
    for key, value in items:
        found += [value] if key == name else []
        found += values(value, name) if isinstance(value, dict | list) else []
    return found


@pytest.mark.parametrize("job", ["yelp_warm_up", "yelp"])
def test_it_differs_in_the_model_and_what_the_model_reads_alone(parsed: Any, job: str) -> None:
    tuned = parsed(f"{job}_flan_t5")
    other = parsed("yelp_warm_up" if "warm" in job else "yelp_smollm2")
    model = tuned["model"]["init_args"]
    assert model["model"] == "google/flan-t5-base"
    assert "stop" not in model["generation"]  # a dump has no null
    assert set(values(tuned, "template")) == {TEMPLATE}
    assert values(tuned, "scoring_models") == values(other, "scoring_models")
    assert values(tuned, "count") == values(other, "count")
    ours, theirs = (each["model"]["init_args"] for each in (tuned, other))
    same = [name for name in ours if name not in ("model", "generation", "lora", "folder")]
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert theirs["generation"].pop("stop") == "\n"
    assert ours["generation"] == theirs["generation"]


def test_the_policy_continues_from_the_warm_up(parsed: Any) -> None:
    tuned, warm_up = parsed("yelp_flan_t5"), parsed("yelp_warm_up_flan_t5")
    adapter = tuned["model"]["init_args"]["lora"]["adapter"]
    assert adapter == warm_up["model"]["init_args"]["folder"].replace(
        "${trainer.default_root_dir}", warm_up["trainer"]["default_root_dir"]
    )
    first = tuned["data"]["init_args"]["models"][-1]
    assert first["folder"] == adapter
    assert first["config"].endswith("configs/style_transfer/yelp_warm_up_flan_t5.yaml")
    assert tuned["trainer"]["default_root_dir"] == "runs/yelp_flan_t5"
