"""Records logs of other trainers with their own logger classes, for tests of `ctrlreward select`.

    python tests/golden/record_run_logs.py WHEELS OUT

tests/golden/run_logs has what it wrote, without the W&B run, which names the machine, and the name
of the host in TensorBoard's file.

WHEELS has one folder per unpacked wheel, made by `pip download --no-deps verl openrlhf trackio` and
`python -m zipfile -e NAME.whl WHEELS/NAME`; TensorBoard, W&B and what trackio imports must be
installed. Each logger writes the rows of `ROWS`.
Recorded with verl 0.9.1, OpenRLHF 0.11.2, trackio 0.43.0, TensorBoard 2.21.0.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

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
    """File and console loggers of verl; step 5 has no validation."""
    tracking = load(wheels / "verl/verl/utils/tracking.py")
    console = load(wheels / "verl/verl/utils/logger/aggregate_logger.py")
    os.environ["VERL_FILE_LOGGER_ROOT"] = str(out)
    file, screen = tracking.FileLogger("verl", "grpo"), console.LocalLogger()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        for step, reward, accuracy in ROWS:
            for logger in (file, screen):
                logger.log({"actor/pg_loss": -0.25, "timing_s/step": 1.5}, step - 5)
                logger.log(verl_metrics(reward, accuracy), step)
    file.finish()
    # As Ray shows a worker's lines, between others.
    lines = [f"(TaskRunner pid=7) {line}" for line in text.getvalue().splitlines()]
    (out / "verl_console.log").write_text("\n".join(["Training Progress: 0%", *lines]) + "\n")


def record_openrlhf(wheels: Path, out: Path) -> None:
    """Console, TensorBoard and W&B of OpenRLHF's PPO trainer."""
    (path,) = (wheels / "openrlhf").glob("*/purelib/openrlhf/utils/logging_utils.py")
    module = load(path)
    settings = SimpleNamespace(key=None, org=None, project="p", group=None, run_name="ppo")
    names = SimpleNamespace(wandb=settings, tensorboard_dir=str(out / "openrlhf_tensorboard"))
    text = io.StringIO()
    logger = module.init_logger("openrlhf.trainer.ppo_trainer")
    for handler in logging.getLogger("openrlhf").handlers:
        handler.setStream(text)
    loggers = [module.TensorboardLogger(SimpleNamespace(logger=names))]
    import wandb

    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_API_KEY"] = "0" * 40  # the logger asks for one, and nothing is sent
    os.environ["WANDB_DIR"] = str(out / "openrlhf_wandb")
    (out / "openrlhf_wandb").mkdir()
    loggers.append(module.WandbLogger(SimpleNamespace(logger=names)))
    for step, reward, accuracy in ROWS:
        status = {"reward": reward - 0.1, "kl": 0.25 * step}
        # The two lines of its trainer.
        logger.info(f"✨ Global step {step}: {status}")
        logs = {"eval_gsm8k_pass1": accuracy, "eval_gsm8k_reward": reward}
        for each in loggers:
            each.log_train(step, status)
            each.log_eval(step, logs)
        logger.info(f"✨ Evaluation completed in 0:00:07, global_step {step}, eval_metrics: {logs}")
    for each in loggers:
        each.close()
    wandb.teardown()
    (out / "openrlhf_console.log").write_text(text.getvalue(), encoding="utf-8")
    (file,) = (out / "openrlhf_wandb").rglob("run-*.wandb")
    shutil.move(file, out / "openrlhf_run.wandb")
    shutil.rmtree(out / "openrlhf_wandb")


def record_trackio(wheels: Path, out: Path) -> None:
    """Database of trackio with two runs; the storage class is what `trackio.log` calls."""
    os.environ["TRACKIO_DIR"] = str(out)
    sys.path.append(str(wheels / "trackio"))
    from trackio.sqlite_storage import SQLiteStorage

    for run, sign in (("first", 1.0), ("second", -1.0)):
        steps = [step for step, _, _ in ROWS]
        metrics = [
            {"eval/reward": sign * r, "eval/acc": a, "bad": float("nan")} for _, r, a in ROWS
        ]
        SQLiteStorage.bulk_log("project", run, metrics, steps=steps, config={"lr": 1e-4})
    for extra in out.glob("project.*"):
        if extra.suffix != ".db":
            extra.unlink()


def main() -> None:
    wheels, out = map(Path, sys.argv[1:])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheels, out = wheels.resolve(), out.resolve()
    record_verl(wheels, out)
    record_openrlhf(wheels, out)
    record_trackio(wheels, out)


if __name__ == "__main__":
    main()
