"""Command `ctrlreward probe`: how a reward can be gamed, before it is trained on."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ctrlreward.arguments import positive
from ctrlreward.command_line.parser import command_parser
from ctrlreward.command_line.reward_file import load_reward
from ctrlreward.command_line.terminal import number_table, plain_console, user_errors
from ctrlreward.files import json_text
from ctrlreward.models.passages import passages
from ctrlreward.probing.examination import TOTAL, Examination, examine
from ctrlreward.samples import Samples
from ctrlreward.tables.columns import Columns, to_samples
from ctrlreward.tables.rows import read_placed

_USAGE = "REWARD [--texts FILE] [options]"

_DESCRIPTION = """Compare the reward of texts with the reward of degenerate versions of them: empty,
repeated, copied, shuffled, padded and others.

REWARD is a YAML file, as for 'ctrlreward serve', or FILE.py:FUNCTION or MODULE:FUNCTION, a function
of texts or with TRL's signature, whose module is run. Exit status 1 if the reward prefers a
degenerate version, 0 if none."""

_EXAMPLES = (
    "ctrlreward probe reward.yaml --texts validation.jsonl",
    "ctrlreward probe rewards.py:format_reward",
    "ctrlreward probe reward.yaml --texts validation.jsonl --json",
)


def run(arguments: list[str]) -> None:
    """Probe a reward and print the results."""
    parser = command_parser("ctrlreward probe", _USAGE, _DESCRIPTION, _EXAMPLES)
    add = parser.add_argument
    add("reward", metavar="REWARD", type=str, help="the reward")
    add("--texts", type=str | None, help="file of good texts, with the columns that the reward "
        "reads. Default: 40 built-in passages with a prefix each")  # fmt: skip
    add("--labels", nargs="+", type=str, help="labels of the built-in texts, in turn")
    add("--count", type=int, default=64, help="number of texts to read")
    add("--device", type=str | None, help="device of all scorers, such as cuda:1")
    add("--json", action="store_true", help="print all as JSON")
    parser.add_class_arguments(Columns, "columns")
    options = parser.instantiate(parser.parse_args(arguments))
    with user_errors():
        positive("count", options.count)
        reward = load_reward(options.reward, options.device)
        samples = read_texts(options.texts, options.labels, options.count, options.columns)
        found = examine(reward, samples)
    if options.json:
        content = {
            "gamed": [finding.probe for finding in found.gamed],
            "blind": [finding.probe for finding in found.blind],
            "probes": [asdict(finding) for finding in found.findings],
            "length_correlation": found.length_correlation,
        }
        print(json_text(content), end="")
    else:
        print_examination(found)
    if found.gamed:
        raise SystemExit(1)


def read_texts(
    path: str | None, labels: Sequence[str] | None, count: int, columns: Columns
) -> Samples:
    """Return the first texts of a file, or built-in passages, with labels in turn."""
    if path is not None:
        if labels:
            raise ValueError("--labels are for the built-in texts: --texts has labels in a column")
        rows, places = read_placed(path)
        return to_samples(rows[:count], columns, places[:count])
    # Ten of each of four topics, in turn.
    each = passages()
    chosen = [each[(i % 4) * 10 + i // 4] for i in range(min(count, len(each)))]
    prefixes = [passage.prefix for passage in chosen]
    named = list(itertools.islice(itertools.cycle(labels), len(chosen))) if labels else None
    same: Any = dict.fromkeys(("prefixes", "prompts", "sources"), prefixes)
    return Samples([passage.text for passage in chosen], **same, labels=named)


def print_examination(found: Examination) -> None:
    """Print the tables."""
    console = plain_console(None if sys.stdout.isatty() else 160)
    components = [name for name in found.length_correlation if name != TOTAL]
    numbers = ["total, 95 % interval", "wins", *components]
    table = number_table(["probe"], numbers, title="degenerate - original", box=None)
    table.add_column("verdict")
    for each in found.findings:
        change = each.change[TOTAL]
        ends = f"{change.low:+.3f} to {change.high:+.3f}"
        ends = ends if math.isfinite(change.low) else "in all texts"
        interval = "no score" if math.isnan(change.value) else f"{change.value:+.3f} ({ends})"
        failed = f", {each.failed} without a score" if each.failed else ""
        parts = [_signed(each.change[name].value) for name in components]
        table.add_row(each.probe, interval, f"{each.wins:.0%}", *parts, each.verdict + failed)
    console.print(table)
    lengths = ", ".join(f"{n} {_signed(r)}" for n, r in found.length_correlation.items())
    console.print(f"rank correlation with the number of words: {lengths}")
    for verdict, which in (("gamed by", found.gamed), ("blind to", found.blind)):
        names = ", ".join(each.probe for each in which) or "none of the probes"
        console.print(f"{verdict}: {names}")
    for guard, gamed in itertools.groupby(found.gamed, key=lambda each: each.guard):
        console.print(f"guard against {', '.join(each.probe for each in gamed)}: {guard}")


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.3f}"
