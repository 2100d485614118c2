"""Scores of many samples, part by part, in a log that a resumed run continues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import numpy as np

from ctrlreward.failures import Failures, ItemError
from ctrlreward.files import JsonLog, finite_or_none
from ctrlreward.progress import track
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scores, score

# Samples of the first part, and of the largest; the seconds that a part should take.
FIRST, MOST, SECONDS = 1, 8192, 5.0


def samples_log(
    path: Path | None, components: Mapping[str, Component], samples: Samples
) -> JsonLog | None:
    """Return the log of some scores of some samples, None without a path."""
    digest = hashlib.sha256(repr(samples).encode(errors="replace")).hexdigest()
    identity = {
        "version": version("ctrlreward"),  # another one may score differently
        "sha256 of the samples": digest,
        "scores": list(components),
    }
    return JsonLog(path, identity) if path else None


def score_parts(
    components: Mapping[str, Component],
    samples: Samples,
    log: JsonLog | None = None,
    places: Sequence[str] | None = None,
    corpora: Sequence[str] | None = None,
) -> dict[str, Scores]:
    """Return scores of n samples by name, shape (n,), NaN where they failed; warn of these once.

    Scores of single samples are appended to the log about every 5 seconds, and those that it has
    are not computed again. Others are computed at the end.

    Args:
        components: The scores.
        samples: n samples.
        log: File for the scores so far. Its identity should fix samples and components.
        places: Names of the samples in messages, such as lines of a file, shape (n,).
        corpora: Corpus of each sample, such as its system, shape (n,): samples of two corpora are
            not compared with each other, as `Distinct` would do.

    Raises:
        ItemError: An item of a column is wrong.
        ValueError: The log is of other settings.
    """
    names = places or [f"texts[{i}]" for i in range(len(samples))]
    columns: dict[str, list[float | None]] = {
        name: [] for name, component in components.items() if component.scorer.pointwise
    }
    for record in log.read() if log else ():
        for name, values in columns.items():
            values += record[name]
    done = len(next(iter(columns.values()), ()))
    for component in components.values():
        component.scorer.load()  # one may be missing, and another take hours
    failures = Failures()

    def part_of(wanted: Mapping[str, Component], rows: Sequence[int]) -> Mapping[str, Scores]:
        try:
            found = score(wanted, samples[rows])
        except ItemError as error:
            raise ItemError(error.column, rows[error.row], error.problem) from error
        except Exception as error:
            error.add_note(f"(while scoring {names[rows[0]]} to {names[rows[-1]]})")
            raise
        for i, reason in found.failures.items():
            failures.add(rows[i], reason)
        return found.scores

    size = FIRST
    with track("scoring", len(samples), done=done) as progress:
        while columns and done < len(samples):
            rows = range(done, min(done + size, len(samples)))
            began = monotonic()
            with progress.part(len(rows)):
                found = part_of({name: components[name] for name in columns}, rows)
            record = {name: [*map(finite_or_none, values)] for name, values in found.items()}
            for name, numbers in columns.items():
                numbers += record[name]
            if log:
                log.append(record)
            done = rows.stop
            size = int(size * min(4, SECONDS / max(monotonic() - began, 1e-9)))
            size = min(max(size, 1), MOST)
    scores = {name: np.array(values, np.float64) for name, values in columns.items()}
    compared = {name: components[name] for name in components if name not in columns}
    scores |= {name: np.full(len(samples), np.nan) for name in compared}
    members = np.array(corpora if corpora is not None else [""] * len(samples))
    for corpus in dict.fromkeys(members.tolist()) if compared else ():
        rows_of = np.flatnonzero(members == corpus).tolist()
        for name, found_scores in part_of(compared, rows_of).items():
            scores[name][rows_of] = found_scores
    failures.warn(len(samples), places)
    return {name: scores[name] for name in components}
