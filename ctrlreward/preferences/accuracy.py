"""Accuracy on preferences: how often a reward scores the chosen text above the rejected one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.arguments import kind_of
from ctrlreward.command_line.reward_file import load_reward
from ctrlreward.command_line.terminal import direction_arrow, number_table, plain_console
from ctrlreward.files import check_writable, json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.functional.preferences import PairAccuracy, pair_accuracy
from ctrlreward.models.chats import as_prompt, plain_text
from ctrlreward.reward import Reward
from ctrlreward.samples import Samples
from ctrlreward.scorers import Scorer, ScoreSpec
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.parts import samples_log, score_parts
from ctrlreward.tables.columns import Columns, explained_columns, require_column, to_samples
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
        reward: The reward: a YAML file, FILE.py:FUNCTION or MODULE:FUNCTION.
        scorers: Scorers and their options, as in `ctrlreward score`; further columns of the file
            are read for both texts.
        pairs: Columns of the pairs.
        columns: Other columns of the file, for scorers (null ignores a column).
        device: Device of the reward's scorers, such as cuda:1.
        output: JSON file for the figures.
        log: File of the scores so far, from which a repeated call continues.
    """
    if reward is None and not scorers:
        raise ValueError("--reward or --scorers is needed")
    if output is not None:
        check_writable(output)
    rows, places = read_placed(data)
    sides = _sides(rows, places, pairs, columns)
    samples = to_samples(sides, columns, places * 2)
    with explained_columns(list(sides[0])):
        scores, specs = _scores(samples, places * 2, reward, scorers, device, log)
    clusters = [str(side.get("prompt", f"pair {i}")) for i, side in enumerate(sides[: len(rows)])]
    figures: dict[str, dict[str, PairAccuracy]] = {name: {} for name in scores}
    for subset, kept in _subsets(rows, pairs).items():
        for name, values in scores.items():
            better = values if specs[name].higher_is_better else -values
            chosen, rejected = better[: len(rows)][kept], better[len(rows) :][kept]
            figures[name][subset] = pair_accuracy(chosen, rejected, [clusters[i] for i in kept])
    _print(data.name, figures, specs)
    print(f"Intervals: of {len(set(clusters))} clusters of pairs. A coin has 0.5.")
    if output is not None:
        write_whole(output, json_text({name: _record(each) for name, each in figures.items()}))


def _print(
    file: str, figures: Mapping[str, Mapping[str, PairAccuracy]], specs: Mapping[str, ScoreSpec]
) -> None:
    headings = ("pairs", "higher", "95 %", "ties", "failed")
    title = f"{file}: the chosen text scores higher"
    table = number_table(["score"], headings, title=title, title_justify="left")
    for name, subsets in figures.items():
        for subset, found in subsets.items():
            label = f"{name} {direction_arrow(specs[name])}" if subset == ALL else f"  {subset}"
            value, low, high, ties = (f"{each:.3f}" for each in (*found.higher, found.ties))
            table.add_row(
                label, str(found.pairs), value, f"{low} to {high}", ties, str(found.failed)
            )
    plain_console().print(table)


def _sides(
    rows: Sequence[Row], places: Sequence[str], pairs: PairColumns, columns: Columns
) -> list[Row]:
    """Return a row with text and prompt for each chosen, and then each rejected text."""
    for name in (pairs.chosen, pairs.rejected):
        require_column(rows, name)
    sides = []
    for name in (pairs.chosen, pairs.rejected):
        for row, place in zip(rows, places, strict=True):
            own = {k: v for k, v in row.items() if k not in (pairs.chosen, pairs.rejected)}
            try:
                prompt, text = _texts(row.get(name), own.pop(pairs.prompt or "", None))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place}: {name}: {error}") from None
            own[columns.text] = text
            if prompt is not None and columns.prompt:
                own[columns.prompt] = prompt
            sides.append(own)
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
    prompt = before or None if prompt is None else prompt
    return None if prompt is None else as_prompt(prompt), plain_text([last])


def _scores(
    samples: Samples,
    places: Sequence[str],
    reward: str | None,
    scorers: Sequence[Scorer],
    device: str | None,
    log: Path | None,
) -> tuple[dict[str, Scores], dict[str, ScoreSpec]]:
    """Return the scores of all samples by name, of the reward its total, and their directions."""
    loaded = load_reward(reward, device) if reward is not None else None
    parts = loaded.components if isinstance(loaded, Reward) else {}
    components = name_components(scorers, None, samples) if scorers else {}
    if isinstance(loaded, Reward):
        samples = loaded.as_read(samples)
    both = components | {f"reward/{name}": each for name, each in parts.items()}
    kept = samples_log(log, both, samples) if log else None
    scores = score_parts(both, samples, kept, places) if both else {}
    specs = {name: component.spec for name, component in components.items()}
    found = {name: scores[name] for name in components}
    if loaded is not None:
        own = {name: scores[f"reward/{name}"] for name in parts}
        batch = loaded.combine(own, 0.0, samples) if isinstance(loaded, Reward) else loaded(samples)
        for name, component in parts.items() if len(parts) > 1 else ():
            found[name], specs[name] = batch.components[name], component.spec
        found["reward"], specs["reward"] = batch.total, ScoreSpec(True, (-np.inf, np.inf))
    return found, specs


def _subsets(rows: Sequence[Row], pairs: PairColumns) -> dict[str, list[int]]:
    """Return the rows of all pairs, and of each subset."""
    subsets = {ALL: [*range(len(rows))]}
    if pairs.subset and any(pairs.subset in row for row in rows):
        for i, row in enumerate(rows):
            subsets.setdefault(str(row.get(pairs.subset)), []).append(i)
    elif pairs.subset not in (None, PairColumns.subset):
        require_column(rows, pairs.subset)
    return subsets


def _record(subsets: Mapping[str, PairAccuracy]) -> dict[str, Any]:
    shares = np.array([found.higher.value for key, found in subsets.items() if key != ALL])
    return {
        "subsets": {
            subset: {**found._asdict(), "higher": found.higher._asdict()}
            for subset, found in subsets.items()
        },
        "mean_of_subsets": valid_mean(shares) if len(shares) else None,
    }
