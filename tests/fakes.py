"""Scorers and rewards without models: scores of letters, of a script, or of nothing but the text.

Other processes import them, and files and command lines name them: `fakes.Letters`.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ctrlreward import Reward, Samples
from ctrlreward.failures import ItemError
from ctrlreward.scorers import Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores

UP = ScoreSpec(higher_is_better=True, range=(0.0, np.inf))
SHARE = ScoreSpec(higher_is_better=True, range=(0.0, 1.0))


def die_at() -> str:
    """Return the text at which the process is killed, as a machine that is switched off."""
    return os.environ.get("KILL_AT", "\n")


def left_by_killed(path: Path, what: str = "unfinished") -> Path:
    """Return the name of what a killed process left for a file or folder."""
    beyond_all = 2**22 + 1  # no process has this number
    machine = platform.node().partition(".")[0]
    return path.with_name(f".{path.name}.{machine}-{beyond_all}.{what}")


def _ratio(counts: Scores, lengths: Scores) -> float:
    return float(np.nansum(counts) / np.nansum(lengths))


class Letters(Scorer):
    """Letters of a text by its label; an unknown label raises, an empty text fails.

    The text "hold" waits until the test lets it go.
    """

    specs: ClassVar = {"letters": UP, "length": UP}

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds  # of each call
        self.calls: list[tuple[str, ...]] = []
        self.held = threading.Event()
        self.go = threading.Event()
        self.go.set()

    corpus_columns = ("letters", "length")

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        return {"letters": _ratio(columns["letters"], columns["length"])}

    def required_columns(self, names: Any = None) -> list[str]:
        return ["labels"]

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.calls.append(tuple(samples.texts))
        time.sleep(self.seconds)
        if "hold" in samples.texts:
            self.held.set()
            assert self.go.wait(60)
        if "broken" in samples.texts:
            raise RuntimeError("no memory for 'broken'")
        assert samples.labels is not None
        for i, label in enumerate(samples.labels):
            if len(label) != 1:
                raise ItemError("labels", i, f"= {label!r} is unknown: give one letter")
        pairs = zip(samples.texts, samples.labels, strict=True)
        counts = [text.count(label) if text else np.nan for text, label in pairs]
        lengths = [len(text) or np.nan for text in samples.texts]
        return {"letters": np.array(counts, float), "length": np.array(lengths, float)}


def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Rank(Scorer):
    """Share of the group's samples that are shorter."""

    specs: ClassVar = {"rank": SHARE}
    pointwise = False

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        lengths = np.array([len(text) for text in samples.texts])
        return {"rank": (lengths[:, None] > lengths).mean(axis=1)}


def letters_reward(seconds: float = 0.0) -> Reward:
    """Letters and length of a text, in calls that take some seconds."""
    letters = Letters(seconds)
    return Reward({"letters": (letters["letters"], 0.3), "length": (letters["length"], 0.1)})


class Place(Scorer):
    """Threads of PyTorch and process id of where a text is scored."""

    specs: ClassVar = {"threads": UP, "process": UP}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        n = len(samples)
        return {
            "threads": np.full(n, torch.get_num_threads(), float),
            "process": np.full(n, os.getpid(), float),
        }


def placed_reward(seconds: float = 0.0) -> Reward:
    """Letters of a text, and where they were counted."""
    place = Place()
    return Reward(
        {
            "letters": Letters(seconds)["letters"],
            "threads": place["threads"],
            "process": place["process"],
        }
    )


def hanging_reward() -> Reward:
    """A reward that never scores "hold"."""
    letters = Letters()
    letters.go.clear()
    return Reward({"letters": letters["letters"]})


def unloadable_reward() -> Reward:
    """A reward whose model can't be loaded."""
    reward = letters_reward()

    def load() -> None:
        raise OSError("No such folder: models/rater")

    reward["letters"].scorer.load = load  # type: ignore[method-assign]
    return reward


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
            raise ItemError("texts", samples.texts.index("bad"), "= 'bad': give a good one")
        if self.folder:
            (Path(self.folder) / f"{os.getpid()}-{time.time_ns()}").write_text(samples.texts[0])
            for kill in sorted(Path(self.folder).glob("kill*")) if "kill" in samples.texts else []:
                kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        lengths = np.array([float(len(text)) or np.nan for text in samples.texts])
        return {"length": lengths, "e": np.array([text.count("e") / 3 for text in samples.texts])}


class OneLetter(Scorer):
    """Share of one letter; an empty text fails."""

    specs: ClassVar = {"letters": UP}
    calls: ClassVar[list[int]] = []  # rows of each call, of all instances

    def __init__(self, letter: str = "e", device: str = "cpu") -> None:
        if len(letter) != 1:
            raise ValueError(f"letter = {letter!r}: give one")
        self.letter = letter

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        OneLetter.calls.append(len(samples))
        counts = [text.count(self.letter) / 3 if text else np.nan for text in samples.texts]
        return {"letters": np.array(counts)}


class Share(Scorer):
    """Share of some letters in a text; fails without a letter. Kills the process at a text."""

    specs: ClassVar = {"share": SHARE}
    calls: ClassVar[list[int]] = []  # texts of each call, of all instances

    def __init__(self, letters: str = "aeiou", column: str = "texts") -> None:
        self.letters, self.column = letters, column

    corpus_columns = ("count", "length")

    def corpus_of(self, columns: Mapping[str, Scores]) -> dict[str, float]:
        return {"share": _ratio(columns["count"], columns["length"])}

    def required_columns(self, names: Collection[str] | None = None) -> list[str]:
        return [self.column]

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        Share.calls.append(len(samples))
        if die_at() in samples.texts:
            os.kill(os.getpid(), signal.SIGKILL)
        lengths = [sum(map(str.isalpha, text)) or np.nan for text in samples.texts]
        counts = [sum(c in self.letters for c in text) for text in samples.texts]
        length, count = np.array(lengths, float), np.array(counts, float)
        return {"share": count / length, "count": count, "length": length}


class Variety(Scorer):
    """Different characters of a group's texts over all of its characters."""

    specs: ClassVar = {"variety": SHARE}
    pointwise = False
    of_groups = True

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        groups = samples.groups or ("",) * len(samples)
        joined = dict.fromkeys(groups, "")
        for group, text in zip(groups, samples.texts, strict=True):
            joined[group] += text
        values = {group: len(set(text)) / max(1, len(text)) for group, text in joined.items()}
        return {"variety": np.array([values[group] for group in groups])}


class Scripted(Scorer):
    """Scores by step of training and by row, whatever the texts."""

    pointwise = False

    def __init__(self, values: Callable[[str, int], list[float]], trainer: Any, mode: str) -> None:
        self.values, self.trainer, self.mode = values, trainer, mode

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        return {
            "a": ScoreSpec(self.mode == "max", (-np.inf, np.inf)),
            "b": ScoreSpec(True, (-np.inf, np.inf)),
        }

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        step = self.trainer.state.global_step
        return {key: np.array(self.values(key, step)[: len(samples)]) for key in "ab"}


class ByText(Scorer):
    """A value that depends on the text alone, and the texts of each call."""

    pointwise = True
    specs = {"value": ScoreSpec(True, (0.0, 1.0))}  # noqa: RUF012

    def __init__(self) -> None:
        self.scored: list[list[str]] = []

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        self.scored.append(list(samples.texts))
        return {"value": np.array([zlib.crc32(text.encode()) / 2**32 for text in samples.texts])}
