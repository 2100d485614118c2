from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCRIPT = DOCS / "example_own_module.py"

# The two lines that decide on the package, as the example has them and as its comments say.
OURS = {
    "import pytorch_lightning as pl": "import lightning as pl",
    "from ctrlreward.callbacks import GenerationScorer, RewardEarlyStopping": (
        "from ctrlreward.lightning import GenerationScorer, RewardEarlyStopping"
    ),
}


@pytest.mark.usefixtures("workplace")
def test_the_example_trains_and_logs_its_scores(tmp_path, capsys) -> None:
    """With the package of its comments; `test_blocks.py` runs quickstart.md's with the other."""
    code = SCRIPT.read_text()
    for line, other in OURS.items():
        assert code.count(line) == code.count(f"# or: {other}") == 1
        code = code.replace(line, other)
    script = tmp_path / "own.py"
    script.write_text(code)
    variables = runpy.run_path(str(script), run_name="__main__")
    assert type(variables["trainer"]).__module__.startswith("lightning.")
    run = tmp_path / "runs" / "own" / "lightning_logs" / "version_0"
    files = [*(run / "samples" / "score").iterdir()]
    assert len(files) == variables["trainer"].current_epoch > variables["stopper"].rule.patience
    assert "'score/attribute_relevance':" in capsys.readouterr().out
