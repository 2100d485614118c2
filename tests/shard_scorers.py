"""Scorers without models for tests of workers, which child processes can import."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from letter_scorers import Rank as Rank

from ctrlreward import Samples
from ctrlreward.scorers import Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores

UP = ScoreSpec(higher_is_better=True, range=(0.0, np.inf))


class TwoParts(Exception):
    """An error whose pickle can't be loaded."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


class Raises(Scorer):
    """Raises an error that can't be read in another process."""

    specs: ClassVar = {"none": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        raise TwoParts("soup", "cold")


class Length(Scorer):
    """Length of a text and its share of "e"; an empty text fails.

    Args:
        folder: Folder for what the workers do: each call leaves a file with its first text, named
            by process; a text "kill" kills its worker as often as the folder lets it.
        seconds: Seconds of each call.
    """

    def __init__(self, folder: str = "", seconds: float = 0.0) -> None:
        self.folder = folder
        self.seconds = seconds

    @property
    def specs(self) -> dict[str, ScoreSpec]:
        return {"length": UP, "e": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        if "bad" in samples.texts:
            raise ValueError(f"texts[{samples.texts.index('bad')}] = 'bad': give a good one")
        if self.folder:
            (Path(self.folder) / f"{os.getpid()}-{time.time_ns()}").write_text(samples.texts[0])
            for kill in sorted(Path(self.folder).glob("kill*")) if "kill" in samples.texts else []:
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        lengths = np.array([float(len(text)) or np.nan for text in samples.texts])
        return {"length": lengths, "e": np.array([text.count("e") / 3 for text in samples.texts])}


class Threads(Scorer):
    """Threads of PyTorch in the process that scores."""

    @property
    def specs(self) -> dict[str, ScoreSpec]:
        return {"threads": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        return {"threads": np.full(len(samples), float(torch.get_num_threads()))}


class Odd(Scorer):
    """Number of letters; warns of a text "odd"."""

    specs: ClassVar = {"letters": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        for i, text in enumerate(samples.texts):
            if text == "odd":
                logging.getLogger("kitchen").warning("texts[%d] is odd", i)
        return {"letters": np.array([float(len(text)) for text in samples.texts])}
