"""Scorers without models for tests of files, which other processes can import."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import letter_scorers
import numpy as np

from ctrlreward import Samples
from ctrlreward.scorers import Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores

UP = ScoreSpec(higher_is_better=True, range=(0.0, np.inf))


class Length(Scorer):
    """Length of a text and its share of "e"; an empty text fails.

    Args:
        folder: Folder in which each call leaves a file with its first text, named by process; a
            text "kill" kills its process as often as the folder lets it.
        seconds: Seconds of each call.
    """

    specs: ClassVar = {"length": UP, "e": UP}

    def __init__(self, folder: str = "", seconds: float = 0.0) -> None:
        self.folder = folder
        self.seconds = seconds

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


class Rank(letter_scorers.Rank):
    """A score that depends on all samples, the fewer the better."""

    specs: ClassVar = {"rank": ScoreSpec(higher_is_better=False, range=(0.0, 1.0))}


class Letters(Scorer):
    """Share of one letter; an empty text fails."""

    specs: ClassVar = {"letters": UP}
    calls: ClassVar[list[int]] = []  # rows of each call, of all instances

    def __init__(self, letter: str = "e", device: str = "cpu") -> None:
        if len(letter) != 1:
            raise ValueError(f"letter = {letter!r}: give one")
        self.letter = letter

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        Letters.calls.append(len(samples))
        counts = [text.count(self.letter) / 3 if text else np.nan for text in samples.texts]
        return {"letters": np.array(counts)}


class Interrupted(Scorer):
    """Text length; kills the process at one text, as a machine that is switched off."""

    specs: ClassVar = {"length": UP}
    calls: ClassVar[list[int]] = []

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        if "KILL_AT" in os.environ and os.environ["KILL_AT"] in samples.texts:
            os.kill(os.getpid(), signal.SIGKILL)
        Interrupted.calls.append(len(samples))
        return {"length": np.array([len(text) for text in samples.texts], dtype=np.float64)}


class Odd(Scorer):
    """Number of letters; warns of a text "odd"."""

    specs: ClassVar = {"letters": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        for i, text in enumerate(samples.texts):
            if text == "odd":
                logging.getLogger("kitchen").warning("texts[%d] is odd", i)
        return {"letters": np.array([float(len(text)) for text in samples.texts])}
