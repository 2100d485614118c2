"""Records logs of other trainers with their own logger classes, for tests of `ctrlreward select`.

    python tests/golden/record_run_logs.py WHEELS OUT

tests/golden/run_logs has what it wrote.

WHEELS has one folder per unpacked wheel, made by `pip download --no-deps verl` and
`python -m zipfile -e NAME.whl WHEELS/NAME`. The logger writes the rows of `ROWS`. Recorded with
verl 0.9.1.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

# Validations: reward rises, accuracy falls from step 20 on; so 0.5 or more holds until step 30.
ROWS = [(10, 0.2, 0.5), (20, 0.4, 0.75), (30, 0.6, 0.625), (40, 0.9, 0.25), (50, 0.95, 0.125)]


def load(path: Path) -> ModuleType:
    """Import one file of a wheel, without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verl_metrics(reward: float, accuracy: float) -> dict[str, float]:
    """Metrics of a step of RayPPOTrainer with a validation, some of them NumPy's."""
    return {
        "val-core/gsm8k/reward/mean@4": np.float64(reward),
        "val-aux/gsm8k/acc/mean@4": np.float64(accuracy),
        "actor/pg_loss": -0.5,
    }


def record_verl(wheels: Path, out: Path) -> None:
    """File logger of verl; step 5 has no validation."""
    tracking = load(wheels / "verl/verl/utils/tracking.py")
    os.environ["VERL_FILE_LOGGER_ROOT"] = str(out)
    logger = tracking.FileLogger("verl", "grpo")
    for step, reward, accuracy in ROWS:
        logger.log({"actor/pg_loss": -0.25, "timing_s/step": 1.5}, step - 5)
        logger.log(verl_metrics(reward, accuracy), step)
    logger.finish()


def main() -> None:
    wheels, out = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheels, out = wheels.resolve(), out.resolve()
    record_verl(wheels, out)


if __name__ == "__main__":
    main()
