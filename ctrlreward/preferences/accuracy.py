"""Accuracy on preferences: how often a reward scores the chosen text above the rejected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.arguments import check_ending, kind_of
from ctrlreward.command_line.reward_file import load_reward
from ctrlreward.command_line.terminal import number_table, plain_console
from ctrlreward.files import check_writable, json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.preferences import PairAccuracy, pair_accuracy
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.reward import Reward
from ctrlreward.scorers import Scorer
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import samples_log, score_parts
from ctrlreward.tables.columns import (
    Columns,
    explained_columns,
    number_column,
    require_column,
    to_samples,
)
from ctrlreward.tables.rows import Row, read_placed

ALL = "all"  # pairs, in place of the name of a subset


@dataclass(frozen=True)
class PairColumns:
    """Columns of the pairs; a text may be a string or a list of messages.

    Args:
        chosen: The preferred text.
        rejected: The other text.
        prompt: What both answer; null if the messages of the texts begin with it.
        subset: Kind of the pair, for an accuracy of each; left out if the file does not have it.
    """

    chosen: str = "chosen"
    rejected: str = "rejected"
    prompt: str | None = "prompt"
    subset: str | None = "subset"


def preferences(
    data: Path,
    reward: str | None = None,
    scorers: Sequence[Scorer] = (),
    metrics: Sequence[str] = (),
    pairs: PairColumns = PairColumns(),
    columns: Columns = Columns(),  # noqa: B008 — likewise
    device: str | None = None,
    output: Path | None = None,
    log: Path | None = None,
) -> None:
    """Measure how often a reward or a scorer prefers the chosen text of a pair.

    Intervals are of 1,000 bootstrap draws of whole prompts, where several pairs share one.

    Args:
        data: The pairs: a .jsonl, .csv or .parquet file with the columns chosen and rejected, as
            `write_pairs` writes, RewardBench and UltraFeedback have them.
        reward: The reward: a YAML file, as for 'ctrlreward serve', FILE.py:FUNCTION or
            MODULE:FUNCTION.
        scorers: Scorers and their options, as in `ctrlreward score`; further columns of the file
            are read for both texts.
        metrics: Scores that the file has: `score` of the columns chosen_score and rejected_score,
            or score_chosen and score_rejected.
        pairs: Columns of the pairs.
        columns: Other columns of the file, for scorers (null ignores a column).
        device: Device of the reward's scorers, such as cuda:1.
        output: JSON file for the figures.
        log: File of the scores so far, from which a repeated call continues.
    """
    if reward is None and not scorers and not metrics:
        raise ValueError("--reward, --scorers or --metrics (scores that the file has) is needed")
    check_ending("output", output, ".json")
    if output is not None:
        check_writable(output)
    rows, places = read_placed(data)
    sides = _sides(rows, places, pairs, columns)
    values: dict[str, tuple[Scores, Scores]] = {
        name: _existing(rows, places, name) for name in metrics
    }
    better = dict.fromkeys(values, True)
    if reward is not None or scorers:
        found, directions = _scores(sides, places * 2, reward, scorers, columns, device, log)
        if both := sorted(values.keys() & found.keys()):
            raise ValueError(f"{', '.join(both)} is both a column and a score")
        values |= {name: (side[: len(rows)], side[len(rows) :]) for name, side in found.items()}
        better |= directions
    clusters = [str(side.get("prompt", f"pair {i}")) for i, side in enumerate(sides[: len(rows)])]
    figures: dict[str, dict[str, PairAccuracy]] = {name: {} for name in values}
    for subset, kept in _subsets(rows, pairs).items():
        own = [clusters[i] for i in kept]
        for name, pair in values.items():
            chosen, rejected = (side[kept] if better[name] else -side[kept] for side in pair)
            figures[name][subset] = pair_accuracy(chosen, rejected, own)
    _print(figures, better, data.name, len(set(clusters)))
    if output is not None:
        write_whole(output, json_text({name: _record(each) for name, each in figures.items()}))


def _sides(
    rows: Sequence[Row], places: Sequence[str], pairs: PairColumns, columns: Columns
) -> list[Row]:
    """Return a row with text and prompt for each chosen, and then each rejected text."""
    advice = ". Name it with --pairs.chosen=COLUMN and --pairs.rejected=COLUMN."
    for name in (pairs.chosen, pairs.rejected):
        require_column(rows, name, advice)
    sides = []
    for name in (pairs.chosen, pairs.rejected):
        for row, place in zip(rows, places, strict=True):
            own = {k: v for k, v in row.items() if k not in (pairs.chosen, pairs.rejected)}
            try:
                prompt, text = _texts(row.get(name), row.get(pairs.prompt or ""))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place}: {name}: {error}") from None
            own.pop(pairs.prompt or "", None)
            answer = {columns.text: text}
            if prompt is not None and columns.prompt:
                answer[columns.prompt] = prompt
            sides.append({**own, **answer})
    return sides


def _texts(cell: Any, prompt: Any) -> tuple[Any, str]:
    """Return the prompt, if any, and the text: of messages the last one, by the assistant."""
    if isinstance(cell, str):
        return None if prompt is None else as_prompt(prompt), cell
    if not isinstance(cell, Sequence) or not cell:
        raise TypeError(f"must be a text or a list of messages, got {kind_of(cell)}")
    *before, last = cell
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise ValueError("its last message must be the assistant's")
    if prompt is None and before:
        prompt = before
    return None if prompt is None else as_prompt(prompt), plain_text([last])


def _existing(rows: Sequence[Row], places: Sequence[str], name: str) -> tuple[Scores, Scores]:
    """Return scores that the file has, of both sides."""
    for chosen, rejected in (
        (f"chosen_{name}", f"rejected_{name}"),
        (f"{name}_chosen", f"{name}_rejected"),
    ):
        if {chosen, rejected} <= rows[0].keys():
            return number_column(rows, chosen, places), number_column(rows, rejected, places)
    raise ValueError(
        f"the file has no columns chosen_{name} and rejected_{name}, nor {name}_chosen and "
        f"{name}_rejected, only {', '.join(rows[0])}"
    )


def _scores(
    sides: Sequence[Row],
    places: Sequence[str],
    reward: str | None,
    scorers: Sequence[Scorer],
    columns: Columns,
    device: str | None,
    log: Path | None,
) -> tuple[dict[str, Scores], dict[str, bool]]:
    """Return the scores of all rows by name, and whether higher is better."""
    samples = to_samples(sides, columns, places)
    loaded = load_reward(reward, device) if reward is not None else None
    parts = loaded.components if isinstance(loaded, Reward) else {}
    with explained_columns(list(sides[0])):
        components = name_components(scorers, None, samples) if scorers else {}
        both = components | {f"reward/{name}": each for name, each in parts.items()}
        kept = samples_log(log, both, samples)
        scores = score_parts(both, samples, kept, places) if both else {}
    found = {name: scores[name] for name in components}
    better = {name: c.spec.higher_is_better for name, c in components.items()}
    if loaded is not None:
        own = {name: scores[f"reward/{name}"] for name in parts}
        batch = loaded.combine(own, 0.0) if isinstance(loaded, Reward) else loaded(samples)
        if len(parts) > 1:
            found |= {name: batch.components[name] for name in parts}
            better |= {name: c.spec.higher_is_better for name, c in parts.items()}
        found["reward"], better["reward"] = batch.total, True
    return found, better


def _subsets(rows: Sequence[Row], pairs: PairColumns) -> dict[str, list[int]]:
    """Return the rows of all pairs, and of each subset."""
    subsets = {ALL: [*range(len(rows))]}
    if pairs.subset and any(pairs.subset in row for row in rows):
        for i, row in enumerate(rows):
            subsets.setdefault(str(row.get(pairs.subset)), []).append(i)
    elif pairs.subset not in (None, PairColumns.subset):
        require_column(rows, pairs.subset)
    return subsets


def _print(
    figures: Mapping[str, Mapping[str, PairAccuracy]],
    better: Mapping[str, bool],
    file: str,
    clusters: int,
) -> None:
    title = f"{file}: the chosen text scores higher"
    headings = ("pairs", "higher", "95 %", "ties", "failed")
    table = number_table(["score"], headings, title=title, title_justify="left")
    for name, subsets in figures.items():
        for subset, found in subsets.items():
            arrow = "↑" if better[name] else "↓"
            title = f"{name} {arrow}" if subset == ALL else f"  {subset}"
            value, low, high = (f"{each:.3f}" for each in found.higher)
            ties, failed = f"{found.ties:.3f}", str(found.failed)
            table.add_row(title, str(found.pairs), value, f"{low} to {high}", ties, failed)
    plain_console().print(table)
    print(f"Intervals: of {clusters} clusters of pairs. A coin has 0.5.")


def _record(subsets: Mapping[str, PairAccuracy]) -> dict[str, Any]:
    shares = np.array([found.higher.value for key, found in subsets.items() if key != ALL])
    return {
        "subsets": {
            subset: {**found._asdict(), "higher": found.higher._asdict()}
            for subset, found in subsets.items()
        },
        "mean_of_subsets": valid_mean(shares) if len(shares) else None,
    }
