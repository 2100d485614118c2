"""Command `ctrlreward rescore`: another reward for the stored texts of a run."""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from ctrlreward.arguments import Mode
from ctrlreward.command_line.config_files import read_reward
from ctrlreward.command_line.parser import CommandParser, command_parser
from ctrlreward.command_line.reward_file import reward_of
from ctrlreward.command_line.terminal import number_table, plain_console, user_errors
from ctrlreward.completion import fixed_randomness
from ctrlreward.files import JsonLog, finite_or_none, json_text, read_json
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.held_out import FAIL_RATE, HeldOutScorer
from ctrlreward.progress import track
from ctrlreward.reward import AnyReward, Reward
from ctrlreward.runs.folder import (
    PREFIX,
    StoredRun,
    StoredStep,
    completions_per_prompt,
    read_stored_run,
)
from ctrlreward.runs.select import Selection, add_rule_options, decide, run_rules, summary, to_json
from ctrlreward.runs.stored_texts import (
    READ_TEXTS,
    TextSource,
    is_even,
    note_of,
    scored_samples,
    shared_prompts,
)
from ctrlreward.samples import JSON_KEYS, MissingColumn, Samples
from ctrlreward.scorers.base import Component, Scores, check_samples, score
from ctrlreward.scorers.records import read_scored_file, write_scored_samples
from ctrlreward.selection import RunRules
from ctrlreward.selection.replay import ALARM_KEY
from ctrlreward.serving.description import reward_id
from ctrlreward.serving.fingerprint import digest_of

log = logging.getLogger(__name__)

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
PART = 64  # texts that are scored before their scores are written


@dataclass(frozen=True)
class Stored:
    """Texts that were stored at a step, and their file; `prompts` is a digest without the texts."""

    name: str
    step: int
    path: TextSource
    samples: Samples
    digest: str
    prompts: str


class Decision(NamedTuple):
    """Decisions of rules on the logged scores, None if no key was logged, and on the new ones."""

    logged: Selection | None
    rescored: Selection

    @property
    def asked(self) -> dict[str, tuple[str, str]]:
        """Question, such as `"best by score/judge"`, → decision on the logged and new scores."""
        logged = {} if self.logged is None else in_words(self.logged)
        now = in_words(self.rescored)
        return {question: (logged.get(question, "not logged"), now[question]) for question in now}


@dataclass(frozen=True)
class Rescored:
    """A run before and after other scores of its texts, and the directions of the new keys."""

    run: StoredRun
    after: StoredRun
    new: Mapping[str, Mode]
    folder: Path


def run(arguments: list[str]) -> None:
    """Score, or resume, and print the replayed decisions."""
    options = _parser().parse_args(arguments)
    with user_errors(resumes=lambda: True):
        path = Path(options.reward)
        block = read_reward(path)
        stored = read_stored_run(options.run)
        folder = Path(options.output or stored.folder / "rescored" / path.stem)
        reward = reward_of(block, options.device)
        new, ranges = new_scores(stored, reward)
        # An error before anything is scored, with placeholders for the new scores.
        first = {**stored.steps[0].metrics, **dict.fromkeys(new, math.nan)}
        steps = [replace(stored.steps[0], metrics=first), *stored.steps[1:]]
        modes, ranges = {**stored.modes, **new}, {**stored.ranges, **ranges}
        planned = replace(stored, steps=steps, modes=modes, ranges=ranges)
        rules = [run_rules(planned, each) for each in selections(options, stored, new)]
        try:
            done = rescore(stored, reward, folder, {"reward": block})
        finally:
            reward.release()
        decisions = [decision(done, each) for each in rules]
    if options.json:
        print(json_text(as_json(done, decisions)), end="")
    else:
        # A file gets the rows whole.
        print_result(plain_console(None if sys.stdout.isatty() else 400), done, decisions)


def _parser() -> CommandParser:
    parser = command_parser("ctrlreward rescore", "RUN REWARD [options]", _DESCRIPTION, _EXAMPLES)
    help_ = "YAML file of the reward, as for 'ctrlreward serve'; each component is a new score"
    parser.add_argument("run", metavar="RUN", type=str, help="folder of the run")
    parser.add_argument("reward", metavar="REWARD", type=str, help=help_)
    add_rule_options(parser, several=True)
    parser.add("--device", "device of all scorers, such as cuda:1")
    parser.add("--output", "folder of the new scores. Default: RUN/rescored/<name of REWARD>")
    parser.add("--json", "print all as JSON", action="store_true")
    return parser


def rescore(
    run: StoredRun, reward: AnyReward, folder: Path, settings: Mapping[str, Any]
) -> Rescored:
    """Score the texts of all validations of a run that are not yet scored.

    The scores have the names that a `GenerationScorer` logs, `<name>/<component>`, and
    `<name>/total` for a reward of several. A resumed command, which must share the `settings`,
    continues `rescored.jsonl`. In the end the folder is itself a run.

    Raises:
        ValueError: The run has no texts, these lack a column that the reward needs, or the folder
            has scores of another reward.
    """
    found = list(stored_texts(run))
    for texts in found:
        check_stored(reward, texts)
    identity = {**settings, "fingerprint": reward_id(reward)}
    progress = Progress(JsonLog(folder / "rescored.jsonl", identity))
    missing = [texts for texts in found if progress.find(texts, "metrics") is None]
    total, left = (sum(len(texts.samples) for texts in each) for each in (found, missing))
    with track("rescoring", total, done=total - left) as tracked:
        for texts in missing:
            with tracked.part(len(texts.samples)):
                progress.add(texts, scored(reward, texts, folder, progress))
    records = [(texts, {**(progress.find(texts, "metrics") or {})}) for texts in found]
    for name in names_of(run):
        prompts = {texts.step: texts.prompts for texts in found if texts.name == name}
        shared = shared_prompts(prompts)
        if len(shared) < len(prompts):
            log.warning(note_of(name, prompts, shared))
        for texts, record in records:
            if texts.name == name and (texts.step not in shared or not is_even(texts.path)):
                record["evidence"] = {}
    steps = [_with_scores(each, records, folder) for each in run.steps]
    rows = [{"step": each.step, **_finite(each.metrics)} for each in steps]
    JsonLog(folder / "metrics.jsonl").replace(rows)
    modes, ranges = new_scores(run, reward)
    after = replace(run, steps=steps, modes={**run.modes, **modes}, ranges={**run.ranges, **ranges})
    return Rescored(run, after, modes, folder)


def new_scores(
    run: StoredRun, reward: AnyReward
) -> tuple[dict[str, Mode], dict[str, Sequence[float | None]]]:
    """Return the better direction, and the range, of each score that `rescore` computes, by key."""
    modes: dict[str, Mode] = {}
    ranges: dict[str, Sequence[float | None]] = {}
    for name in names_of(run):
        scorer = HeldOutScorer(reward.components, Samples([""]), name=name)
        for key, spec in scorer.specs.items():
            modes[key], ranges[key] = spec.mode, spec.bounds
        if has_total(reward):
            modes[f"{name}/{TOTAL}"], ranges[f"{name}/{TOTAL}"] = "max", (None, None)
    return modes, ranges


def names_of(run: StoredRun) -> list[str]:
    """Return the names of the `GenerationScorer`s whose texts are stored.

    A `GenerationScorer` logs a fail rate, in transformers with a prefix; the texts of
    `RolloutSamples` are not held-out.
    """
    known = dict.fromkeys(name for each in run.steps for name in each.samples)
    if not known:
        raise ValueError(
            f"{run.folder} has no texts: a GenerationScorer writes them to samples/<name>/"
            f"step=….jsonl in the folder of the run; nor has it {READ_TEXTS}"
        )
    held_out = [
        name
        for name in known
        if {f"{name}/{FAIL_RATE}", f"{PREFIX}{name}/{FAIL_RATE}"} & {*run.keys}
    ]
    return held_out or list(known)


def stored_texts(run: StoredRun) -> Iterator[Stored]:
    """Yield the stored texts of all validations, in order."""
    wanted = names_of(run)
    for each in run.steps:
        for name, path in each.samples.items():
            if name in wanted:
                samples, _ = scored_samples(path)
                columns = samples.columns()
                digest, texts = digest_of(columns), columns.pop("texts")
                yield Stored(
                    name, each.step, path, samples, digest, digest_of([columns, len(texts)])
                )


def check_stored(reward: AnyReward, texts: Stored) -> None:
    """Raise a ValueError if a component needs columns or groups of texts that were not stored."""
    present = texts.samples.columns()
    lacking: dict[str, list[str]] = {}
    for name, component in reward.components.items():
        needed = [*component.scorer.required_columns([component.name])]
        needed += ["groups"] if component.scorer.of_groups and "groups" not in needed else []
        for column in needed:
            if column not in present:
                lacking.setdefault(JSON_KEYS[column], []).append(name)
    if lacking:
        missing = "; ".join(f"{key!r} for {', '.join(who)}" for key, who in lacking.items())
        stored = ", ".join(JSON_KEYS[column] for column in present)
        raise ValueError(
            f"the reward needs more than the stored texts: {texts.path} has {stored}, but not "
            f"{missing}. Leave these components out"
        )
    try:
        check_samples(reward.components, texts.samples)
    except MissingColumn:
        raise
    except ValueError as error:
        raise ValueError(f"{texts.path}: {error}") from None


class Progress:
    """Scores so far, in a log that a resumed command continues."""

    def __init__(self, log: JsonLog) -> None:
        self.log = log
        self.records = {self._key(each): each for each in log.read()}

    def find(self, texts: Stored, part: str) -> dict[str, Any] | None:
        """Return the record of a part of the texts, None if there is none."""
        return self.records.get((texts.name, texts.step, texts.digest, part))

    def add(self, texts: Stored, record: Mapping[str, Any], part: str = "metrics") -> None:
        """Write a record; it is on disk when this returns."""
        named = {"name": texts.name, "step": texts.step, "texts": texts.digest, "part": part}
        full = {**named, **record}
        self.log.append(full)
        self.records[self._key(full)] = full

    @staticmethod
    def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(record[name] for name in ("name", "step", "texts", "part"))


def scored(reward: AnyReward, texts: Stored, folder: Path, progress: Progress) -> dict[str, Any]:
    """Return the metrics of a validation and the scores by prompt, and write its samples."""
    samples, repeats = texts.samples, completions_per_prompt(texts.samples)
    prompts = Samples([""] * (len(samples) // repeats))
    scorer = HeldOutScorer(reward.components, prompts, repeats, texts.name)
    with fixed_randomness(scorer.seed):
        parts = scored_in_parts(scorer.scored, texts, progress)
        path = folder / "samples" / texts.name / f"step={texts.step:06d}.jsonl"
        found = scorer.score_samples(samples, path, parts)
    metrics = scorer.metrics(found)
    evidence = dict(scorer.evidence)
    totals = total_of(reward, found.scores)
    if totals is not None:
        metrics[f"{texts.name}/{TOTAL}"] = valid_mean(totals)
        evidence[f"{texts.name}/{TOTAL}"] = valid_row_means(totals.reshape(-1, repeats))
        _, shown, kept, reasons = read_scored_file(path)
        write_scored_samples(path, samples, {**shown, TOTAL: totals}, kept, None, reasons)
    return {
        "metrics": _finite(metrics),
        "evidence": {key: list(map(finite_or_none, row)) for key, row in evidence.items()},
    }


def scored_in_parts(
    components: Mapping[str, Component], texts: Stored, progress: Progress
) -> dict[str, Scores]:
    """Return the scores of all texts; scores of single texts are written part by part."""
    alone = {name: each for name, each in components.items() if each.scorer.pointwise}
    parts: list[dict[str, Any]] = []
    for start in range(0, len(texts.samples), PART) if alone else ():
        record = progress.find(texts, str(start))
        if record is None:
            found = score(alone, texts.samples[start : start + PART]).warned()
            scores = {name: list(map(finite_or_none, row)) for name, row in found.items()}
            record = {"scores": scores}
            progress.add(texts, record, str(start))
        parts.append(record["scores"])
    together = {name: each for name, each in components.items() if name not in alone}
    return {
        **{name: np.array([v for part in parts for v in part[name]], float) for name in alone},
        **(score(together, texts.samples).warned() if together else {}),
    }


def has_total(reward: AnyReward) -> bool:
    """Return whether the total adds information to the components."""
    combines = isinstance(reward, Reward) or reward.weights is not None
    return combines and TOTAL not in reward.components and len(reward.components) > 1


def total_of(reward: AnyReward, components: Mapping[str, Scores]) -> Scores | None:
    """Return the totals of n samples, shape (n,); None where `has_total` is false."""
    if not has_total(reward):
        return None
    if not isinstance(reward, Reward):  # a server's, whose weights and conditions are known
        assert reward.weights is not None
        weighted = {name: (c, reward.weights[name]) for name, c in reward.components.items()}
        reward = Reward(weighted, given=reward.given)
    return reward.combine(components, 0.0).total


def selections(options: Any, run: StoredRun, new: Mapping[str, Mode]) -> list[argparse.Namespace]:
    """Return the options of `run_rules` for each key that is to select."""
    path = run.folder / "summary.json"
    report = read_json(path) if path.is_file() else {}
    recorded = report.get("selection", {})
    bounds = options.subject_to or [
        f"{key}{sign}{bound!r}"
        for key, pair in recorded.get("constraints", {}).items()
        for sign, bound in zip((">=", "<="), pair, strict=True)
        if bound is not None
    ]
    keys: dict[str, Mode] = dict.fromkeys(options.maximise, "max")
    keys |= dict.fromkeys(options.minimise, "min")
    one = {**vars(options), "subject_to": bounds, "maximise": None, "minimise": None}
    if not keys and (options.pareto or options.guard):
        return [argparse.Namespace(**one)]
    if not keys:
        known = {**report.get("directions", {}), **run.modes, **new}
        monitor = recorded.get("monitor")
        keys |= {monitor: known.get(monitor, "max")} if monitor in {*run.keys, *new} else {}
        keys |= {key: mode for key, mode in new.items() if not key.endswith(f"/{FAIL_RATE}")}
    return [argparse.Namespace(**{**one, f"{mode}imise": key}) for key, mode in keys.items()]


def decision(done: Rescored, rules: RunRules) -> Decision:
    """Return the decisions of the rules before and after."""
    left = logged_rules(rules, done.run.keys)
    return Decision(None if left is None else decide(done.run, left), decide(done.after, rules))


def logged_rules(rules: RunRules, keys: Collection[str]) -> RunRules | None:
    """Return the rules whose keys were logged; None if there are none."""
    known, kept = {*keys}, {}
    for name in ("alarm", "best", "stop", "pareto"):
        rule = getattr(rules, name)
        if rule and known.issuperset(rule.keys):
            kept[name] = rule
            known |= {ALARM_KEY} if name == "alarm" else set()
    return RunRules(**kept) if kept else None


def in_words(selection: Selection) -> dict[str, str]:
    """Return question, such as `"best by score/judge"`, → decision."""
    rules, stop, alarm = selection.rules, selection.stop, selection.alarm
    words = {}
    if rules.best:
        words[f"best by {rules.best.monitor}"] = _at(selection.best)
    if rules.stop:
        words[f"stop by {rules.stop.monitor}"] = _at(stop and stop.validation.step)
    if rules.alarm:
        question = f"alarm by {rules.alarm.proxy}: {', '.join(rules.alarm.modes)}"
        words[question] = _at(alarm and alarm.validation.step)
    if rules.pareto:
        front = ", ".join(map(str, selection.front)) or "none"
        words[f"front of {', '.join(rules.pareto.metrics)}"] = f"steps {front}"
    return words


def _at(step: int | None) -> str:
    return "none" if step is None else f"step {step}"


def as_json(done: Rescored, decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the new scores and the decisions, each in the format of `ctrlreward select --json`."""
    return {
        "run": str(done.run.folder),
        "folder": str(done.folder),
        "directions": dict(done.new),
        "decisions": [
            {
                "asked": list(each.asked),
                "logged": None if each.logged is None else to_json(each.logged),
                "rescored": to_json(each.rescored),
            }
            for each in decisions
        ],
        "validations": [
            {"step": each.step, **{k: v for k, v in each.metrics.items() if k in done.new}}
            for each in done.after.steps
            if set(done.new) & set(each.metrics)
        ],
    }


def print_result(console: Console, done: Rescored, decisions: Sequence[Decision]) -> None:
    """Print the scores by validation, old → new, and the decisions before and after."""
    shown = [each for each in done.after.steps if set(done.new) & set(each.metrics)]
    before = {each.step: each.metrics for each in done.run.steps}
    used = (key for each in decisions for key in each.rescored.keys)
    keys = [
        key
        for key in dict.fromkeys([*used, *done.new])
        if not key.endswith(f"/{FAIL_RATE}") or any(each.metrics.get(key) for each in shown)
    ]
    table = number_table([], ["step", *keys], show_edge=False)
    for step in shown:
        values = [(before[step.step].get(key), step.metrics.get(key)) for key in keys]
        table.add_row(str(step.step), *(_change(old, now) for old, now in values))
    console.print(f"{done.run.log}: {len(shown)} validations", soft_wrap=True)
    console.print(table)
    console.print()
    table = number_table(["decision", "as logged", "rescored"], [], show_edge=False)
    asked = {name: words for each in decisions for name, words in each.asked.items()}
    for name, words in asked.items():
        table.add_row(name, *words)
    console.print(table)
    console.print()
    for line in dict.fromkeys(line for each in decisions for line in summary(each.rescored)):
        console.print(line, soft_wrap=True)
    console.print(f"scores and texts: {done.folder}", soft_wrap=True)


def _change(old: float | None, now: float | None) -> str:
    cells = dict.fromkeys(f"{value:.4f}" for value in (old, now) if value is not None)
    return " → ".join(cells) or "–"


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {key: finite_or_none(value) for key, value in metrics.items()}


def _with_scores(
    step: StoredStep, records: Iterable[tuple[Stored, Mapping[str, Any]]], folder: Path
) -> StoredStep:
    """Return a step with the new scores in place of old ones of the same keys."""
    metrics, evidence, samples = dict(step.metrics), dict(step.evidence), dict(step.samples)
    for texts, record in records:
        if texts.step == step.step:
            metrics |= {k: math.nan if v is None else v for k, v in record["metrics"].items()}
            evidence |= {key: np.array(row, np.float64) for key, row in record["evidence"].items()}
            name = texts.name
            samples[name] = folder / "samples" / name / f"step={step.step:06d}.jsonl"
    return replace(step, metrics=metrics, evidence=evidence, samples=samples)
