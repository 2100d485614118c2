"""Command `ctrlreward train`: a training job from a YAML file."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import SIGTERMException
from transformers.utils import logging as transformers_logging

from ctrlreward import configs
from ctrlreward.callbacks import RewardProgressBar
from ctrlreward.commands.command_parser import ExampleFormatter, examples_epilog
from ctrlreward.commands.config_files import fill_root, with_extended
from ctrlreward.commands.last_run import make_room
from ctrlreward.commands.terminal import user_errors
from ctrlreward.extras import import_extra

_CONFIGS = Path(configs.__path__[0])
_COMMAND = "ctrlreward train"
_EXAMPLE = _CONFIGS / "controlled_generation" / "sentiment_smollm2.yaml"
_DESCRIPTION = f"""Run a training job from a YAML file, such as those in
{_CONFIGS}.

Every key of the file is also an option; --ckpt_path last resumes the last run."""

# Warnings at every start that a user can do nothing about.
_KNOWN_WARNINGS = (
    ".*args parameter is intended to run.*",  # the command's name is already removed
    ".*does not have many workers.*",  # prompts need no worker processes
    ".*overridden `transfer_batch_to_device`.*",  # batches of text stay on the CPU
    ".*is_gradient_checkpointing.*",  # between transformers and Lightning
    "Checkpoint directory .* exists and is not empty.*",  # of every run that is resumed
    ".*isinstance.treespec, LeafSpec.*",  # between torch and Lightning
)

# Beginnings of log messages of the same kind, by logger. Where `lightning` is imported, too, it
# logs the messages of pytorch_lightning.
_LIGHTNING = (
    "💡 Tip",  # advertises other packages
    "GPU available: False",
    "TPU available: False",
    "`Trainer(",  # repeats an option: "`Trainer(val_check_interval=1)` was configured so …"
)
_KNOWN_MESSAGES = {
    "pytorch_lightning.utilities.rank_zero": _LIGHTNING,
    "lightning.pytorch.utilities.rank_zero": _LIGHTNING,
    "bitsandbytes.backends.cpu.ops": ("Failed to load CPU gemm_4bit_forward",),  # nothing uses it
}


class TrainCLI(LightningCLI):
    """Lightning's command line for `Trainer.fit`, with model, data and callbacks by class path."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add `--ckpt_path`."""
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="checkpoint to resume from; 'last' is the last one of this run",
        )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with a `RewardProgressBar` unless it has another progress bar or none.

        It is the first callback, and so enters a phase before another callback does its work.
        """
        options = self.config_init.trainer
        callbacks = options.callbacks or []
        if options.enable_progress_bar is not False and not any(
            isinstance(callback, ProgressBar) for callback in callbacks
        ):
            kwargs["callbacks"] = [RewardProgressBar(), *callbacks]
        return super().instantiate_trainer(**kwargs)

    def before_instantiate_classes(self) -> None:
        """Fill in the run's folder, and raise before anything is built if a logger is missing."""
        with user_errors(self.parser):
            fill_root(self.config, str(self.config.trainer.default_root_dir or "."))
        if "WandbLogger" in str(self.config.trainer):  # a logger, or one of a callback
            import_extra("wandb", "WandbLogger")


def build(arguments: list[str]) -> TrainCLI:
    """Build trainer, model and data from the arguments of `ctrlreward train` without training."""
    if not arguments[0].startswith("-"):
        arguments = ["--config", *arguments]
    try:
        arguments = with_extended(arguments)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return TrainCLI(
        args=arguments,
        run=False,
        seed_everything_default=0,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={
            "prog": _COMMAND,
            "usage": f"{_COMMAND} CONFIG [--ckpt_path last] [options]",
            "description": _DESCRIPTION,
            "epilog": examples_epilog([f"{_COMMAND} {_EXAMPLE} --trainer.max_steps=10"]),
            "formatter_class": ExampleFormatter,
            "parser_mode": "yaml",
        },
    )


def run(arguments: list[str]) -> None:
    """Run a training job.

    Raises:
        SystemExit: With status 2 after a wrong option, 143 after a SIGTERM, where Lightning alone
            would exit with 0.
    """
    _hide_known_messages()
    if not arguments:
        print(f"error: give a configuration: {_COMMAND} {_EXAMPLE}", file=sys.stderr)
        raise SystemExit(2)
    cli = build(arguments)
    trial = cli.trainer.fast_dev_run  # type: ignore[attr-defined]
    if cli.config.ckpt_path is None and cli.trainer.is_global_zero and not trial:
        with user_errors(cli.parser):
            for folder, aside in make_room(cli.trainer):
                print(f"moved the last run from {folder} to {aside}", file=sys.stderr)
    try:
        cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=cli.config.ckpt_path)
    except SIGTERMException as error:
        raise SystemExit(128 + signal.SIGTERM) from error


def _hide_known_messages() -> None:
    """Hide warnings, tips and bars that a user can do nothing about."""
    for message in _KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in _KNOWN_MESSAGES:
        logging.getLogger(name).addFilter(_is_news)
    transformers_logging.disable_progress_bar()  # models load in a second


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_KNOWN_MESSAGES[record.name])
