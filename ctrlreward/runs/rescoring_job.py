"""Command `ctrlreward rescore`: another reward for the stored texts of a run."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctrlreward.arguments import Mode
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.reward_file import reward_of
from ctrlreward.command_line.terminal import (
    number_table,
    plain_console,
    plain_parser,
    user_errors,
)
from ctrlreward.files import JsonLog, finite_or_none, json_line, json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.held_out import FAIL_RATE, HeldOutScorer
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.runs.folder import PREFIX, StoredRun, read_stored_run
from ctrlreward.runs.select import Selection, add_rule_options, decide, run_rules, summary, to_json
from ctrlreward.runs.stored_texts import READ_TEXTS, StoredTexts
from ctrlreward.samples import JSON_KEYS, MissingColumn, Samples
from ctrlreward.scorers.base import Scores, check_samples
from ctrlreward.scorers.parts import score_parts
from ctrlreward.scorers.records import read_scored_file, write_scored_samples
from ctrlreward.selection.replay import ALARM_KEY, DECISIONS
from ctrlreward.serving.description import reward_id

_DESCRIPTION = """Score the stored texts of all validations with another reward or judge, and
replay the decisions.

The file is the `reward:` block of a recipe, or a whole recipe. Selects by default by the key that
selected in the run and by each new score, under the constraints of the run. Repeat the command to
resume an interrupted one, or to score the new validations of a running job."""

_EXAMPLES = (
    "ctrlreward rescore runs/demo judge.yaml",
    "ctrlreward rescore runs/demo judge.yaml --maximise score/fluency "
    "--subject-to 'score/distinct_2>=0.86' --guard reward/total:score/fluency --stop patience=2",
)

TOTAL = "total"


@dataclass(frozen=True)
class Rescored:
    """A run before and after other scores of its texts, and the directions of the new keys."""

    run: StoredRun
    after: StoredRun
    new: Mapping[str, Mode]
    folder: Path


def run(arguments: list[str]) -> None:
    """Score, or resume, and print the replayed decisions."""
    parser = plain_parser("ctrlreward rescore", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("reward", metavar="REWARD", help="YAML file, as for 'ctrlreward serve'")
    add_rule_options(parser)
    parser.add_argument("--device", help="device of all scorers, such as cuda:1")
    parser.add_argument("--output", help="folder of the new scores, else RUN/rescored/REWARD")
    parser.add_argument("--json", action="store_true", help="print all as JSON")
    options = parser.parse_args(arguments)
    with user_errors(resumes=lambda: True):
        block = read_reward(Path(options.reward))
        stored = read_stored_run(options.run)
        folder = Path(options.output or stored.folder / "rescored" / Path(options.reward).stem)
        reward = reward_of(block, options.device)
        new = new_scores(stored, reward)
        # An error before anything is scored, with placeholders for the new scores.
        first = replace(
            stored.steps[0], metrics={**stored.steps[0].metrics, **dict.fromkeys(new, math.nan)}
        )
        planned = replace(stored, steps=[first, *stored.steps[1:]], modes={**stored.modes, **new})
        rules = [run_rules(planned, each) for each in _selections(options, stored, new)]
        try:
            settings = {"reward": block, "fingerprint": reward_id(reward, block)}
            done = rescore(stored, reward, folder, settings)
        finally:
            reward.release()
    decisions = []
    for each in rules:
        is_logged = {*each.monitored, *each.others} <= {*done.run.keys, ALARM_KEY}
        decisions.append((decide(done.run, each) if is_logged else None, decide(done.after, each)))
    after = [each for each in done.after.steps if done.new.keys() & each.metrics.keys()]
    if options.json:
        content = {
            "run": str(done.run.folder),
            "folder": str(done.folder),
            "directions": dict(done.new),
            "decisions": [
                {
                    "asked": list(_in_words(now)),
                    "logged": None if logged is None else to_json(logged),
                    "rescored": to_json(now),
                }
                for logged, now in decisions
            ],
            "validations": [
                {"step": each.step, **{k: v for k, v in each.metrics.items() if k in done.new}}
                for each in after
            ],
        }
        print(json_text(content), end="")
        return
    console = plain_console(None if sys.stdout.isatty() else 400)  # a file gets the rows whole
    console.print(f"{done.run.log}: {len(after)} validations", soft_wrap=True)
    table = number_table(["decision", "as logged", "rescored"], [], show_edge=False)
    for logged, now in decisions:
        known = {} if logged is None else _in_words(logged)
        for question, answer in _in_words(now).items():
            table.add_row(question, known.get(question, "not logged"), answer)
    console.print(table)
    console.print()
    for line in dict.fromkeys(line for _, now in decisions for line in summary(now)):
        console.print(line, soft_wrap=True)
    console.print(f"scores and texts: {done.folder}", soft_wrap=True)


def rescore(
    run: StoredRun, reward: AnyReward, folder: Path, settings: Mapping[str, Any]
) -> Rescored:
    """Score the texts of all validations of a run that are not yet scored.

    The scores have the names that a `GenerationScorer` logs, `<name>/<component>`, and
    `<name>/total` for a reward of several. A resumed command, which must share the `settings`,
    continues the files in `parts/`. In the end the folder is itself a run.

    Raises:
        ValueError: The run has no texts, these lack a column that the reward needs, or the folder
            has scores of another reward.
    """
    from ctrlreward.completion import fixed_randomness  # imports PyTorch

    logged = {each.step for each in run.steps}
    texts = [
        (name, step, stored)
        for name in _names_of(run)
        for step, stored in run.samples[name].items()
        if step in logged
    ]
    for _, _, stored in texts:
        _check(reward, stored)
    metrics: dict[int, dict[str, float]] = {}
    for name, step, stored in texts:
        samples, repeats = stored.samples, math.gcd(*stored.counts) or 1
        path = folder / "samples" / name / f"step={step:06d}.jsonl"
        prompts = Samples([""] * (len(samples) // repeats))
        scorer = HeldOutScorer(reward.components, prompts, repeats, name)
        scorer.settings = {"measure": stored.measure}
        digest = hashlib.sha256(json_line(samples.columns()).encode()).hexdigest()[:16]
        log = JsonLog(folder / "parts" / f"{digest}.jsonl", settings)
        with fixed_randomness(scorer.seed):
            result = scorer.score_samples(samples, path, score_parts(scorer.scored, samples, log))
        metrics.setdefault(step, {}).update(result.metrics)
        totals = total_of(reward, result.scores, samples)
        if totals is not None:
            metrics[step][f"{name}/{TOTAL}"] = valid_mean(totals)
            _, shown, kept, reasons, measure = read_scored_file(path)
            shown[TOTAL] = totals
            write_scored_samples(path, samples, shown, kept, None, reasons, measure)
    rows = [{**each.metrics, **metrics.get(each.step, {})} for each in run.steps]
    steps = [each.step for each in run.steps]
    JsonLog(folder / "metrics.jsonl").replace(
        {"step": step, **{key: finite_or_none(value) for key, value in row.items()}}
        for step, row in zip(steps, rows, strict=True)
    )
    new = new_scores(run, reward)
    modes = {**run.modes, **new}
    places = {path.parent for paths in run.checkpoints.values() for path in paths}
    folders = {os.path.relpath(each, folder): "" for each in places}
    noted = {"rules": run.rules, "directions": modes, "folders": folders}
    write_whole(folder / DECISIONS, json_text(noted))
    even = all(stored.even for _, _, stored in texts)
    again = read_stored_run(folder)
    evidence = {each.step: each.evidence if even else {} for each in again.steps}
    after = [
        replace(each, metrics=row, evidence={**each.evidence, **evidence[each.step]})
        for each, row in zip(run.steps, rows, strict=True)
    ]
    scored = replace(run, steps=after, modes=modes, samples={**run.samples, **again.samples})
    return Rescored(run, scored, new, folder)


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


def _check(reward: AnyReward, stored: StoredTexts) -> None:
    """Raise a ValueError if a component needs columns of texts that were not stored."""
    try:
        check_samples(reward.components, stored.samples)
    except MissingColumn as error:
        raise ValueError(
            f"{stored.file} has no {JSON_KEYS.get(error.column, error.column)!r}, which "
            f"{error.reader} needs"
        ) from None
    except ValueError as error:
        raise ValueError(f"{stored.file}: {error}") from None


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


# Decisions


def _selections(
    options: argparse.Namespace, run: StoredRun, new: Mapping[str, Mode]
) -> list[argparse.Namespace]:
    """Return the options of `run_rules` for each key that is to select."""
    if options.maximise or options.minimise or options.pareto or options.guard:
        return [options]
    recorded = run.rules.get("BestRule", {})
    bounds = [
        f"{key}{sign}{bound!r}"
        for key, pair in recorded.get("constraints", {}).items()
        for sign, bound in zip((">=", "<="), pair, strict=True)
        if bound is not None
    ]
    monitor = recorded.get("monitor")
    keys = [monitor] if monitor in {*run.keys, *new} else []
    keys += [key for key in new if not key.endswith(f"/{FAIL_RATE}")]
    modes = {**run.modes, **new}
    asked = {"subject_to": options.subject_to or bounds, "stop": options.stop}
    return [
        argparse.Namespace(**{**vars(options), **asked, f"{modes.get(key, 'max')}imise": key})
        for key in dict.fromkeys(keys)
    ]


def _in_words(selection: Selection) -> dict[str, str]:
    """Return question, such as `"best by score/judge"`, → decision."""
    rules, stop, alarm = selection.rules, selection.stop, selection.alarm
    at = lambda step: "none" if step is None else f"step {step}"  # noqa: E731
    words = {}
    if rules.best:
        words[f"best by {rules.best.monitor}"] = at(selection.best)
    if rules.stop:
        words[f"stop by {rules.stop.monitor}"] = at(stop and stop.validation.step)
    if rules.alarm:
        question = f"alarm by {rules.alarm.proxy}: {', '.join(rules.alarm.modes)}"
        words[question] = at(alarm and alarm.validation.step)
    if rules.pareto:
        steps = selection.choice.front if selection.choice else ()
        front = ", ".join(map(str, steps)) or "none"
        words[f"front of {', '.join(rules.pareto.metrics)}"] = f"steps {front}"
    return words
