"""Scores of many samples, part by part, in a log that a resumed run continues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from ctrlreward.failures import Failures, ItemError
from ctrlreward.files import JsonLog, none_for_nan
from ctrlreward.models.identity import versions
from ctrlreward.progress import track
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Component, Scored, Scores, score

# Samples of the first part, and of the largest; the seconds that a part should take.
FIRST, MOST, SECONDS = 1, 8192, 5.0


def samples_log(
    path: Path,
    components: Mapping[str, Component],
    rows: Samples | Sequence[Any],
    settings: Mapping[str, Any] | None = None,
) -> JsonLog:
    """Return the log of some scores of some rows with these settings."""
    identity = {
        "versions": versions(),
        "rows": hashlib.sha256(repr(rows).encode(errors="replace")).hexdigest(),
        "scores": list(components),
        **(settings or {}),
    }
    return JsonLog(path, identity)


def score_parts(
    components: Mapping[str, Component],
    samples: Samples,
    log: JsonLog | None = None,
    places: Sequence[str] | None = None,
    corpora: Sequence[str] | None = None,
) -> dict[str, Scores]:
    """Return scores of n samples by name, shape (n,), NaN where they failed; warn of these once.

    Scores of single samples are appended to the log about every 5 seconds, and those that it has
    are not computed again. Equal samples are scored once: in two parts, rounding would tell them
    apart. Scores of several samples are computed at the end.

    Args:
        components: The scores.
        samples: n samples.
        log: File for the scores so far. Its identity should fix samples and components.
        places: Names of the samples in messages, such as lines of a file, shape (n,).
        corpora: Corpus of each sample, such as its system, shape (n,): samples of two corpora are
            not compared with each other, as `Distinct` would do.

    Raises:
        ItemError: An item of a column is wrong.
        ValueError: The log is of other settings, or in use by another process.
    """
    pointwise = {name: c for name, c in components.items() if c.scorer.pointwise}
    others = {name: c for name, c in components.items() if name not in pointwise}
    scores = {name: np.full(len(samples), np.nan) for name in components}
    same = np.array(samples.distinct()[1], np.int64)  # number of each sample among the distinct
    first = np.unique(same, return_index=True)[1]  # row of each of these
    failures = Failures()

    def score_rows(wanted: Mapping[str, Component], rows: Sequence[int]) -> Scored:
        try:
            found = score(wanted, samples[rows])
        except ItemError as error:
            raise ItemError(error.column, rows[error.row], error.problem) from error
        except Exception as error:
            first, last = (places[i] if places else f"texts[{i}]" for i in (rows[0], rows[-1]))
            error.add_note(f"(while scoring {first} to {last})")
            raise
        for i, reason in found.failures.items():
            failures.add(rows[i], reason)
        for name, values in found.scores.items():
            scores[name][rows] = values
        return found

    with log.held() if log else nullcontext():
        done = 0
        for record in log.read() if log else ():
            start = done
            if not isinstance(record, dict) or record.get("row") != start:
                raise ValueError(f"{log and log.path} has rows of several processes. Delete it.")
            for name, values in record["scores"].items():
                done = start + len(values)
                scores[name][first[start:done]] = values
            for row, reason in record["failures"].items():
                failures.add(int(row), reason)
        for component in {**(pointwise if done < len(first) else {}), **others}.values():
            component.scorer.load()  # one may be missing, and another take hours
        size = FIRST
        with track("scoring", len(first), done=done) as advance:
            while pointwise and done < len(first):
                rows = first[done : done + size].tolist()
                began = monotonic()
                found = score_rows(pointwise, rows)
                advance(len(rows))
                if log:
                    own = {name: none_for_nan(v) for name, v in found.scores.items()}
                    why = {rows[i]: reason for i, reason in found.failures.items()}
                    log.append({"row": done, "scores": own, "failures": why})
                done += len(rows)
                size = int(size * min(4, SECONDS / max(monotonic() - began, 1e-9)))
                size = min(max(size, 1), MOST)
    for name in pointwise:
        scores[name] = scores[name][first[same]]
    for i, row in enumerate(first[same].tolist()):
        if row in failures:
            failures.add(i, failures[row])
    members = np.array(corpora if corpora is not None else [""] * len(samples))
    for corpus in dict.fromkeys(members.tolist()) if others else ():
        score_rows(others, np.flatnonzero(members == corpus).tolist())
    failures.warn(len(samples), places)
    return scores
