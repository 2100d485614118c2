"""Models that a training job needs trained before it starts, such as its judges."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from ctrlreward.models.cache import cache_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedFirst:
    """A model's folder and the configuration that trains it if the folder does not exist.

    For `prepare_data` of a data module, which Lightning calls before callbacks load their scorers.

    Args:
        folder: Folder of the trained model. If it exists, it is used unchanged.
        config: Configuration of `ctrlreward train` whose module takes a `folder`; in a YAML file,
            its path may be relative to that file.
        arguments: Further arguments of the command, such as `["--trainer.max_epochs=1"]`. Two
            trainings at the same time need a `--trainer.default_root_dir` each.
    """

    folder: str
    config: str
    arguments: Sequence[str] = ()

    def train_if_absent(self) -> None:
        """Train the model if its folder does not exist; other processes that need it wait.

        A training that fails is a CalledProcessError, one that writes no folder a
        FileNotFoundError.
        """
        folder = Path(self.folder).expanduser()
        if folder.is_dir():
            return
        # Not next to the folder, which may be deleted.
        key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
        lock = cache_folder() / "trainings" / f"{key}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            if folder.is_dir():  # another process trained it in the meantime
                return
            log.warning("%s does not exist: training it with %s", self.folder, self.config)
            job = ["--config", self.config, "--model.init_args.folder", self.folder]
            job += ["--ckpt_path", "last"]  # of a killed training, if it has left one
            command = [sys.executable, "-m", "ctrlreward", "train", *job, *self.arguments]
            # In a separate process: a nested trainer would share the seeds and signal handlers.
            subprocess.run(command, check=True)
        if not folder.is_dir():
            raise FileNotFoundError(f"{self.config} must write {self.folder}, but has not")
