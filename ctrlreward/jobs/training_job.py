"""Training job of `ctrlreward train`: its parser, its trainer, and its run."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from transformers.utils import logging as transformers_logging

from ctrlreward.callbacks import HistoryLogger
from ctrlreward.callbacks.base_callback import about_damage
from ctrlreward.command_line.parser import ExampleFormatter, import_scorers
from ctrlreward.command_line.terminal import examples_epilog, user_errors
from ctrlreward.extras import import_extra
from ctrlreward.files import hold
from ctrlreward.jobs.train import COMMAND, DESCRIPTION, EXAMPLES
from ctrlreward.runs.report import write_report

# A folder with one of these has a run.
_SIGNS = ("metrics.jsonl", "summary.json")
# A lock file of the process that writes there. In the folder, so that it also locks for other
# machines that mount it. The system frees it when the process ends.
_LOCK = ".ctrlreward.lock"

# Warnings at every start that a user can't act on: of the command's arguments, of prompts without
# worker processes, of batches of text that stay on the CPU, and between two libraries.
_KNOWN_WARNINGS = (
    ".*(args parameter is intended|does not have many workers|overridden `transfer_batch_to"
    "|is_gradient_checkpointing|isinstance.treespec, LeafSpec)"
)


class TrainCLI(LightningCLI):
    """Lightning's command line for `Trainer.fit`, with model, data and callbacks by class path."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        help = "checkpoint to resume from; 'last' is the last one of this run"
        parser.add_argument("--ckpt_path", type=str | None, default=None, help=help)

    def before_instantiate_classes(self) -> None:
        """Raise before building anything if a logger is missing."""
        if "WandbLogger" in str(self.config.trainer):  # a logger, or one of a callback
            import_extra("wandb", "WandbLogger")


def build(options: Sequence[str]) -> TrainCLI:
    """Build trainer, model and data from options of `with_extended` without training."""
    import_scorers()
    return TrainCLI(
        args=[*options],
        run=False,
        seed_everything_default=0,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={
            "prog": COMMAND,
            "usage": f"{COMMAND} CONFIG [--smoke] [--ckpt_path last] [options]",
            "description": DESCRIPTION,
            "epilog": examples_epilog(EXAMPLES),
            "formatter_class": ExampleFormatter,
            "parser_mode": "yaml",
            "allow_abbrev": False,
        },
    )


def run_job(options: Sequence[str]) -> None:
    """Run a training job by options of `with_extended`."""
    warnings.filterwarnings("ignore", message=_KNOWN_WARNINGS)
    transformers_logging.disable_progress_bar()  # models load in a second
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)  # of unused kernels
    with user_errors():
        try:
            cli = build(options)
        except MisconfigurationException as error:
            raise ValueError(str(error)) from None
    trainer, checkpoint = cli.trainer, cli.config.ckpt_path
    resumed = checkpoint is not None
    named = not resumed or checkpoint in ("best", "last", "hpc") or "://" in checkpoint
    if not named and not Path(checkpoint).exists():  # before the models are loaded
        _fail(f"No such file: {checkpoint}")
    # Not for a trial run, which writes nothing, and not on other ranks.
    writes = trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]
    with ExitStack() as held:
        with user_errors():
            held.enter_context(run_folders(trainer, resumed) if writes else nullcontext())
        try:
            # Lightning would run what the checkpoint of an address has pickled.
            trainer.fit(cli.model, cli.datamodule, ckpt_path=checkpoint, weights_only=True)
        except SIGTERMException as error:
            raise SystemExit(128 + signal.SIGTERM) from error
        except FileNotFoundError as error:
            _fail(str(error))
        except subprocess.CalledProcessError as error:  # from a model that is trained first
            _fail(f"{' '.join(map(str, error.cmd))} failed, see above")
        except Exception as error:
            if note := about_damage(trainer):
                _fail(f"{note} ({' '.join(f'{type(error).__name__}: {error}'.split())})")
            if isinstance(error, OSError) and (notes := getattr(error, "__notes__", [])):
                _fail(" ".join([f"{error}.", *notes]))  # a full disk
            raise
        if writes:
            _write_report(Path(trainer.default_root_dir))


@contextmanager
def run_folders(trainer: Trainer, resumed: bool) -> Iterator[None]:
    """Lock `default_root_dir` and the folder of each `HistoryLogger`, for one run at a time."""
    root = Path(trainer.default_root_dir)
    own = "Use another --trainer.default_root_dir"
    # Lightning resumes from these on its own, after a cluster has requeued the job.
    resumed = resumed or any(root.glob("hpc_ckpt_*.ckpt"))
    loggers = [each for each in trainer.loggers if isinstance(each, HistoryLogger)]
    for logger in loggers:
        logger.replaces_rows = True
    logs = [logger.path.parent for logger in loggers]
    with ExitStack() as held:
        for folder in dict.fromkeys([root, *logs]):
            held.enter_context(hold(folder / _LOCK, folder, f"{own}, or wait for the run's end."))
            if not resumed and any((folder / name).exists() for name in _SIGNS):
                raise ValueError(
                    f"{folder} has a run. {own}, delete it, or resume it by --ckpt_path last."
                )
        yield


def _write_report(folder: Path) -> None:
    """Write the run's `report.html`."""
    try:
        write_report(folder / "report.html", folder)
        print(f"report: {folder / 'report.html'}", file=sys.stderr)
    except Exception as error:  # the run is saved: an error in its report must not make it fail
        print(f"no report: {type(error).__name__}: {error}", file=sys.stderr)


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)
