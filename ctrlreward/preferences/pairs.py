"""Command `ctrlreward pairs`: chosen and rejected completions for preference training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ctrlreward.command_line.parser import command_parser
from ctrlreward.command_line.reward_file import load_reward
from ctrlreward.command_line.terminal import user_errors
from ctrlreward.corpus.parts import score_parts
from ctrlreward.files import JsonLog, json_line, whole_file
from ctrlreward.items import ItemPlaces, counted, items_named
from ctrlreward.preferences.candidates import PreferencePairs, preference_pairs, rows_by_prompt
from ctrlreward.reward import AnyReward
from ctrlreward.samples import JSON_KEYS, Samples, shortened
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.serving.description import reward_id
from ctrlreward.serving.fingerprint import digest_of
from ctrlreward.tables.row_streams import read_placed
from ctrlreward.tables.table_columns import (
    Columns,
    explained_columns,
    number_column,
    read_columns,
    to_samples,
)

_USAGE = "COMPLETIONS PAIRS --reward REWARD [options]"

_DESCRIPTION = """Write the best and the worst completion of each prompt, as TRL's DPOTrainer and
RewardTrainer read them: prompt, chosen and rejected, a JSON object a line.

COMPLETIONS is a JSONL, CSV or Parquet file with several texts of each prompt, such as texts.jsonl
of 'ctrlreward evaluate'. An interrupted run continues."""

_EXAMPLES = (
    "ctrlreward pairs texts.jsonl pairs.jsonl --reward reward.yaml",
    "ctrlreward pairs texts.jsonl polite.jsonl --reward rewards.py:politeness --margin 0.1",
    "ctrlreward pairs rated.jsonl rated_pairs.jsonl --score overall --per-prompt 2 --chat",
)

# Rows that are scored and saved together, at least; the completions of a prompt stay together.
_CHUNK = 128

# Columns that differ among completions of one prompt.
_OWN = ("texts", "prefixes", "groups")


def run(arguments: list[str]) -> None:
    """Write the pairs, and print how many completions were left out."""
    parser = command_parser("ctrlreward pairs", _USAGE, _DESCRIPTION, _EXAMPLES)
    parser.add_function_arguments(write_pairs, as_group=False, as_positional=True, skip={"chat"})
    parser.add_argument(
        "--chat", action="store_true", help="write messages of user and assistant, not strings"
    )
    options = parser.parse_args(arguments)
    with user_errors(resumes=lambda: True):
        print(write_pairs(**parser.instantiate(options).as_dict()))


def write_pairs(
    input: str,
    output: str,
    *,
    reward: str | None = None,
    score: str | None = None,
    margin: float = 0.0,
    per_prompt: int = 1,
    chat: bool = False,
    columns: Columns = Columns(),  # noqa: B008 — it is frozen
    device: str | None = None,
) -> str:
    """Write preference pairs, and return a summary of a few lines.

    Args:
        input: The completions: .jsonl, .csv or .parquet, each row a text with its prompt. A text
            with a prefix continues it; the prompt defaults to the prefix.
        output: The pairs, .jsonl, which appear whole or not at all. Until then, the rewards so far
            are in OUTPUT.partial.jsonl.
        reward: The reward: a YAML file, as for 'ctrlreward serve', FILE.py:FUNCTION or
            MODULE:FUNCTION.
        score: Column of the file with a score, higher is better, in place of a reward.
        margin: Pairs whose rewards differ by at most this are left out.
        per_prompt: Most pairs of a prompt: the best with the worst, the second best with the second
            worst, and so on.
        chat: Whether to write messages of user and assistant, not strings.
        columns: Column names of the input file.
        device: Device of all scorers, such as cuda:1.
    """
    if (reward is None) == (score is None):
        raise ValueError("the rewards must come from --reward or from --score, one of them")
    target = Path(output)
    if target.suffix != ".jsonl":
        raise ValueError(f"{output} must be a .jsonl file")
    if target.exists():
        raise ValueError(f"{output} exists. Delete it, or use another file.")
    cells, places = read_placed(input)
    samples = to_samples(cells, columns, places)
    prompts = _prompts(samples, places)
    if score is None:
        assert reward is not None
        log = target.with_name(f"{target.name}.partial.jsonl")
        names = read_columns(columns, list(cells[0]))
        with explained_columns(list(cells[0])), items_named(ItemPlaces(places, names)):
            totals = _rewards(load_reward(reward, device), samples, prompts, log)
    else:
        totals = number_column(cells, score, places)
        log = None
    texts = samples.completions
    # An empty completion is not an answer, whatever its reward.
    totals = np.where([bool(text.strip()) for text in texts], totals, np.nan)
    pairs = preference_pairs(prompts, texts, totals, per_prompt, margin)
    with whole_file(target) as file:
        for best, worst in zip(pairs.chosen, pairs.rejected, strict=True):
            row = _pair(prompts[best], texts[best], texts[worst], chat)
            row |= {
                "chosen_reward": float(totals[best]),
                "rejected_reward": float(totals[worst]),
                "margin": float(totals[best] - totals[worst]),
            }
            file.write(json_line(row).encode())
    if log is not None:
        log.unlink(missing_ok=True)
    return _summary(pairs, totals, len(set(prompts)), output)


def _prompts(samples: Samples, places: Sequence[str]) -> tuple[str, ...]:
    """Return the prompt of each completion.

    Raises:
        ValueError: The file has no prompts, its texts contain them, or completions of one prompt
            have different targets: the text chosen for one would be rejected for the other.
    """
    prompts = samples.prompts or samples.prefixes
    if prompts is None:
        raise ValueError(
            "the file has no column 'prompt' or 'prefix', which the pairs need. Name it with "
            "--columns.prompt=COLUMN."
        )
    if (
        samples.prefixes is None
        and all(map(str.startswith, samples.texts, prompts))
        and all(prompts)
    ):
        raise ValueError(
            "each text begins with its prompt, which TRL would repeat. If the texts contain their "
            "prompts, add --columns.prefix=PROMPT, with the name of that column."
        )
    first: dict[str, int] = {}
    for name, column in samples.columns().items():
        for i, prompt in enumerate(prompts if name not in _OWN else ()):
            j = first.setdefault(prompt, i)
            if column[i] != column[j]:
                key = JSON_KEYS[name]
                raise ValueError(
                    f"{places[i]}: {key} = {shortened(column[i])}, but {shortened(column[j])} at "
                    f"{places[j]} for the same prompt, {shortened(prompt)}. State the {key} in the "
                    f"prompt, or ignore the column with --columns.{key}=null."
                )
    return tuple(prompts)


def _rewards(reward: AnyReward, samples: Samples, prompts: Sequence[str], path: Path) -> Scores:
    """Return the reward of each completion; continue where the log ends."""
    check_samples(reward.components, samples)
    digest = digest_of([*samples.columns().values()])
    log = JsonLog(path, {"texts": digest, "reward": reward_id(reward)})
    scores = score_parts(
        log, list(_chunks(prompts)), lambda rows: {"total": reward(samples[rows]).total}
    )
    return scores["total"]


def _chunks(prompts: Sequence[str]) -> Iterator[list[int]]:
    """Yield rows in chunks of whole prompts."""
    rows: list[int] = []
    for group in rows_by_prompt(prompts):
        rows += group
        if len(rows) >= _CHUNK:
            yield rows
            rows = []
    if rows:
        yield rows


def _pair(prompt: str, chosen: str, rejected: str, chat: bool) -> dict[str, Any]:
    pair: dict[str, Any] = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    if chat:
        pair = {name: [{"role": "assistant", "content": t.strip()}] for name, t in pair.items()}
        pair["prompt"] = [{"role": "user", "content": prompt}]
    return pair


def _summary(pairs: PreferencePairs, totals: Scores, prompts: int, output: str) -> str:
    gains = totals[pairs.chosen] - totals[pairs.rejected]
    mean = f", mean margin {gains.mean():.4g}" if len(gains) else ""
    left_out = {
        "completions without a reward": pairs.failed,
        "repeated completions": pairs.repeated,
        "pairs within the margin": pairs.tied,
        "prompts with fewer than two completions to compare": pairs.single,
    }
    lines = [f"{output}: {counted(len(gains), 'pair')} of {counted(prompts, 'prompt')}{mean}"]
    lines += [f"left out: {count} {what}" for what, count in left_out.items() if count]
    return "\n".join(lines)
