"""Report of `BeforeAfter` as text, for a terminal or a log file: a table, and pairs of texts."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ctrlreward.items import counted
from ctrlreward.plots.style import change_text, plain
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import Cell, sample_table
from ctrlreward.selection.best import LAST_STEP

_PAIRS = 6
_LONGEST = 400  # characters of a text that are shown
_NARROWEST, _WIDEST = 80, 100  # columns


def console_table(report: Mapping[str, Any]) -> str:
    """Return means and judges before, after and of the others side by side, and differences."""
    columns = {"before": report["before"], "after": report["after"], **report["others"]}
    judges: Mapping[str, Any] = report["judges"]
    names = [name for name in report["before"] if name != "generations"]
    values = {name: [column[name] for column in columns.values()] for name in names}
    for name, judge in judges.items():
        others = [other["value"] for other in judge["others"].values()]
        values[name] = [judge["before"], judge["after"], *others]
    rows = [("", *columns), *((name, *map(plain, row)) for name, row in values.items())]
    first, *widths = (max(map(len, cells)) for cells in zip(*rows, strict=True))
    form = f"{{:{max(24, first)}}}" + "".join(f"{{:>{max(10, width + 2)}}}" for width in widths)
    lines = [form.format(*row) for row in rows]
    if judges:
        lines.insert(1 + len(names), "judges, which training and selection did not see:")
    for name, entry in {report["score"]: report, **judges}.items():
        for other, change in {"before": entry, **entry["others"]}.items():
            lines.append(f"{name}, after - {other}: {change_text(change)}")
    kept = report["best_checkpoint"]
    what = "best checkpoint" if report["constraints_met"] else "NO CHECKPOINT QUALIFIED, last one"
    what = "weights after training" if kept == LAST_STEP else what
    seconds = report["seconds"]["total"]
    lines += [
        f"{counted(report['steps'], 'step')} in {seconds:.0f} s; stopped by {report['stopped_by']}",
        f"{what}: {kept}",
    ]
    return "\n".join(lines)


def text_pairs(score: str, before: tuple[Samples, Scores], after: tuple[Samples, Scores]) -> str:
    """Return six pairs of texts to read: of the policy before and after, for the same prompt.

    The pairs are evenly spaced over the samples, and as wide as the terminal, within bounds.
    `before` and `after` are n samples of the two policies and their score `score`, shape (n,).
    """
    (header, untuned), (_, selected) = (
        sample_table(samples, {score: scores}, _PAIRS) for samples, scores in (before, after)
    )
    width = min(max(shutil.get_terminal_size((_WIDEST, 24)).columns, _NARROWEST), _WIDEST)
    n = len(after[0])
    lines = [f"{len(selected)} of {n} pairs of texts, evenly spaced, with their {score}"]
    for pair in zip(untuned, selected, strict=True):
        lines += ["", *_pair(header, pair, width)]
    return "\n".join([*lines, "", f"all {n} pairs: before.jsonl, after.jsonl"])


def _pair(header: Sequence[str], pair: Sequence[Sequence[Cell]], width: int) -> list[str]:
    """Return the lines of the prompt with its label, and of both texts with their scores."""
    rows = [dict(zip(header, row, strict=True)) for row in pair]
    title = _one_line(str(rows[0].get("prompt", "")))
    if label := rows[0].get("label"):
        title += f"  [{label}]"
    lines = textwrap.wrap(title, width, subsequent_indent="  ")
    for name, row in zip(("before", "after"), rows, strict=True):
        value = row[header[-1]]
        number = plain(value) if isinstance(value, float) else "failed"
        beginning = f"  {name} {number:>{15 - len(name)}}  "
        text = _one_line(str(row["text"])) or "(empty)"
        lines += textwrap.wrap(text, width, initial_indent=beginning, subsequent_indent=" " * 20)
    return lines


def _one_line(text: str) -> str:
    """Return the text on one line, at most 400 characters, without control characters."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 2] + " …"
