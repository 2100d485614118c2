"""`ctrlreward train`: runs a training job from a YAML file."""

from __future__ import annotations

import signal
import warnings

from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import SIGTERMException
from transformers.utils import logging as transformers_logging

# What would be said at every start and asks nothing of the user.
_KNOWN_WARNINGS = (
    ".*args parameter is intended to run.*",  # the command's name is taken off first
    ".*does not have many workers.*",  # prompts need none
    ".*overridden `transfer_batch_to_device`.*",  # text stays where it is
    ".*is_gradient_checkpointing.*",  # between transformers and Lightning
    ".*isinstance.treespec, LeafSpec.*",  # between torch and Lightning
)


class TrainCLI(LightningCLI):
    """Lightning's command line for `Trainer.fit`, with any model, data and callbacks by name."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds where to go on from."""
        parser.add_argument(
            "--ckpt_path",
            type=str | None,
            default=None,
            help="a checkpoint to go on from; 'last' for the run's own last one",
        )


def build(arguments: list[str]) -> TrainCLI:
    """Trainer, model and data of `ctrlreward train` with these arguments; nothing is run."""
    return TrainCLI(
        args=arguments,
        run=False,
        seed_everything_default=0,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={"prog": "ctrlreward train", "parser_mode": "yaml"},
    )


def run(arguments: list[str]) -> None:
    """Runs a training job.

    Raises:
        SystemExit: 143 where a SIGTERM ended it: Lightning alone would say that all went well.
    """
    for message in _KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    transformers_logging.disable_progress_bar()  # loading takes a second
    cli = build(arguments)
    try:
        cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=cli.config.ckpt_path)
    except SIGTERMException as error:
        raise SystemExit(128 + signal.SIGTERM) from error
