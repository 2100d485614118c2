"""Command `ctrlreward rescore`: another reward for the stored texts of a run."""

from __future__ import annotations

import hashlib
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctrlreward.arguments import Mode
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.reward_file import reward_of
from ctrlreward.command_line.terminal import plain_parser, user_errors
from ctrlreward.files import JsonLog, finite_or_none, json_line, json_text, write_whole
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.held_out import FAIL_RATE, HeldOutScorer
from ctrlreward.models.identity import identified
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.runs.folder import PREFIX, StoredRun, read_stored_run
from ctrlreward.runs.select import RULE_OPTIONS, add_rule_options, select
from ctrlreward.runs.stored_texts import READ_TEXTS, StoredTexts
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.scorers.parts import score_parts
from ctrlreward.scorers.records import write_scored_samples
from ctrlreward.selection.replay import DECISIONS
from ctrlreward.serving.description import reward_id

_DESCRIPTION = """Score the stored texts of all validations with another reward or judge.

The file is the `reward:` block of a recipe, or a whole recipe. The folder of the new scores is a
run that `ctrlreward select` and `report` read; with the options of `select`, select from it. Repeat
the command to resume an interrupted one, or to score the new validations of a running job."""

_EXAMPLES = (
    "ctrlreward rescore runs/demo judge.yaml",
    "ctrlreward rescore runs/demo judge.yaml --maximise score/fluency "
    "--subject-to 'score/distinct_2>=0.86' --guard reward/total:score/fluency --stop patience=2",
)

TOTAL = "total"


def run(arguments: list[str]) -> None:
    """Score, or resume; then select, or print the command that does."""
    parser = plain_parser("ctrlreward rescore", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("reward", metavar="REWARD", help="YAML file, as for 'ctrlreward serve'")
    add_rule_options(parser)
    parser.add_argument("--device", help="device of all scorers, such as cuda:1")
    parser.add_argument("--output", help="folder of the new scores, else RUN/rescored/REWARD")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    with user_errors(resumes=lambda: True):
        block = read_reward(Path(options.reward))
        stored = read_stored_run(options.run)
        folder = Path(options.output or stored.folder / "rescored" / Path(options.reward).stem)
        reward = reward_of(block, options.device)
        settings = {"reward": identified(block), "fingerprint": reward_id(reward, block)}
        try:
            new = rescore(stored, reward, folder, settings)
        finally:
            reward.release()
        if any(getattr(options, name) for name in RULE_OPTIONS):
            return select(read_stored_run(folder), options)
    if options.json:
        print(json_text({"folder": str(folder), "directions": new}), end="")
        return
    print(f"scores and texts: {folder}")
    for key, mode in new.items():
        if not key.endswith(f"/{FAIL_RATE}"):
            print(f"ctrlreward select {shlex.quote(str(folder))} --{mode}imise {shlex.quote(key)}")


def rescore(
    run: StoredRun, reward: AnyReward, folder: Path, settings: Mapping[str, Any]
) -> dict[str, Mode]:
    """Score the texts of all validations of a run; return the better direction of each new key.

    The scores have the names that a `GenerationScorer` logs, `<name>/<component>`, and
    `<name>/total` for a reward of several. A resumed command, which must share the `settings`,
    continues the files in `parts/`. In the end the folder is itself a run, with what was logged
    and the scores that the texts had.

    Raises:
        ValueError: The run has no texts, these lack a column that the reward needs, or the folder
            has scores of another reward.
    """
    logged = {each.step: dict(each.metrics) for each in run.steps}
    texts = [
        (name, step, stored)
        for name in _names_of(run)
        for step, stored in run.samples[name].items()
        if step in logged
    ]
    for _, _, stored in texts:
        try:
            check_samples(reward.components, stored.samples)
        except ValueError as error:
            raise ValueError(f"{stored.file}: {error}") from None
    for name, step, stored in texts:
        path = folder / "samples" / name / f"step={step:06d}.jsonl"
        digest = hashlib.sha256(json_line(stored.samples.columns()).encode()).hexdigest()[:16]
        log = JsonLog(folder / "parts" / f"{digest}.jsonl", settings)
        logged[step] |= _score_again(reward, name, stored, path, log)
    JsonLog(folder / "metrics.jsonl").replace(
        {"step": step, **{key: finite_or_none(value) for key, value in row.items()}}
        for step, row in logged.items()
    )
    new = new_scores(run, reward)
    places = {path.parent for paths in run.checkpoints.values() for path in paths}
    folders = {os.path.relpath(each, folder): "" for each in places}
    noted = {"rules": run.rules, "directions": {**run.modes, **new}, "folders": folders}
    write_whole(folder / DECISIONS, json_text(noted))
    return new


def _score_again(
    reward: AnyReward, name: str, stored: StoredTexts, path: Path, log: JsonLog
) -> dict[str, float]:
    """Score texts, write them with all their scores, and return the metrics."""
    from ctrlreward.completion import fixed_randomness  # imports PyTorch

    samples, repeats = stored.samples, math.gcd(*stored.counts) or 1
    prompts = len(samples) // repeats
    scorer = HeldOutScorer(reward.components, Samples([""] * prompts), repeats, name)
    scorer.settings = {"measure": stored.measure}
    with fixed_randomness(scorer.seed):
        parts = score_parts(scorer.scored, samples, log)
        result = scorer.score_samples(samples, scores=parts)
    scores, metrics, tables = {**result.scores}, {**result.metrics}, {**result.by_prompt}
    if (totals := total_of(reward, scores, samples)) is not None:
        key = f"{name}/{TOTAL}"
        scores[TOTAL], metrics[key] = totals, valid_mean(totals)
        tables[key] = totals.reshape(prompts, repeats)
    by_prompt: dict[str, Scores] = {}
    by_prompt |= {key: row for key, row in stored.by_prompt.items() if len(row) == prompts}
    by_prompt |= {k.removeprefix(f"{name}/"): valid_row_means(t) for k, t in tables.items()}
    reasons = {key: told for key, told in stored.reasons.items() if key not in scores}
    both = {**stored.scores, **scores}
    write_scored_samples(path, samples, both, by_prompt, None, reasons, scorer.measure)
    return metrics


def new_scores(run: StoredRun, reward: AnyReward) -> dict[str, Mode]:
    """Return the better direction of each score that `rescore` computes, by key."""
    modes: dict[str, Mode] = {}
    for name in _names_of(run):
        specs = HeldOutScorer(reward.components, Samples([""]), name=name).specs
        modes |= {key: spec.mode for key, spec in specs.items()}
        modes |= {f"{name}/{TOTAL}": "max"} if has_total(reward) else {}
    return modes


def _names_of(run: StoredRun) -> list[str]:
    """Return the names of the `GenerationScorer`s whose texts are stored.

    A `GenerationScorer` logs a fail rate, in transformers with a prefix; the texts of
    `RolloutSamples` are not held-out.
    """
    if not run.samples:
        raise ValueError(
            f"{run.folder} has no texts: a GenerationScorer writes them to samples/<name>/"
            f"step=….jsonl in the folder of the run; nor has it {READ_TEXTS}"
        )
    logged = {*run.keys}
    rates = {name: {f"{name}/{FAIL_RATE}", f"{PREFIX}{name}/{FAIL_RATE}"} for name in run.samples}
    return [name for name in rates if rates[name] & logged] or list(run.samples)


def has_total(reward: AnyReward) -> bool:
    """Return whether the total adds information to the components."""
    combines = isinstance(reward, Reward) or reward.weights is not None
    return combines and TOTAL not in reward.components and len(reward.components) > 1


def total_of(
    reward: AnyReward, components: Mapping[str, Scores], samples: Samples
) -> Scores | None:
    """Return the totals of n samples, shape (n,); None where `has_total` is false."""
    if not has_total(reward):
        return None
    if not isinstance(reward, Reward):  # a server's, whose components are after its conditions
        assert reward.weights is not None
        weighted = {name: (c, reward.weights[name]) for name, c in reward.components.items()}
        reward = Reward(weighted)
    return reward.combine(components, 0.0, samples).total
