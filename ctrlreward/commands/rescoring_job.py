"""New scores of a run's stored texts, and the decisions replayed, for `rescore.py`."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ctrlreward.arguments import Mode, did_you_mean
from ctrlreward.commands.command_parser import CommandParser, command_parser
from ctrlreward.commands.config_files import read_reward
from ctrlreward.commands.rule_options import (
    NamedRule,
    Replay,
    conditions,
    mode_of,
    replay,
    rule_of_alarm,
    rule_of_best,
    rule_of_front,
    stop_options,
)
from ctrlreward.commands.served_reward import reward_of
from ctrlreward.commands.terminal import plain_console, user_errors
from ctrlreward.completion import fixed_randomness
from ctrlreward.files import JsonLog, finite_or_none
from ctrlreward.functional.means import valid_mean, valid_row_means
from ctrlreward.held_out import FAIL_RATE, HeldOutScorer, with_corpus_parts
from ctrlreward.progress import phase
from ctrlreward.reward import AnyReward, Reward, weighted_sum
from ctrlreward.run_folder import (
    StoredRun,
    StoredStep,
    completions_per_prompt,
    read_stored_run,
)
from ctrlreward.samples import JSON_KEYS, MissingColumn, Samples
from ctrlreward.scorers.base import Component, Scores, check_samples, score
from ctrlreward.scorers.records import (
    read_by_prompt,
    read_scored_samples,
    write_scored_samples,
)
from ctrlreward.selection import BestRule, StopRule
from ctrlreward.selection.best import Bounds
from ctrlreward.serving.description import describe
from ctrlreward.serving.fingerprint import digest_of

log = logging.getLogger(__name__)

TOTAL = "total"
PART = 64  # texts that are scored before their scores are written


@dataclass(frozen=True)
class Stored:
    """Texts of one validation.

    Attributes:
        name: Name of the `GenerationScorer` that stored them.
        step: Training step.
        path: Their file.
        samples: The texts, with their columns.
        digest: SHA-256 of these.
        prompts: SHA-256 of the columns without the texts.
    """

    name: str
    step: int
    path: Path
    samples: Samples
    digest: str
    prompts: str


@dataclass(frozen=True)
class Rescored:
    """A run before and after other scores of its texts.

    Attributes:
        run: The run as it was stored.
        steps: Its steps with the new scores.
        new: Logged key of each new score → better direction.
        folder: Folder with the new scores.
    """

    run: StoredRun
    steps: Sequence[StoredStep]
    new: Mapping[str, Mode]
    folder: Path


def run_job(arguments: list[str], usage: str, description: str, examples: Sequence[str]) -> None:
    """Score, or resume, and print what the rules would have decided."""
    parser = _parser(usage, description, examples)
    options = parser.parse_args(arguments)
    with user_errors(parser):
        path = Path(options.reward)
        block, file = read_reward(path)
        run, names = without_prefix(read_stored_run(Path(options.run)))
        for option in ("maximise", "minimise", "subject_to", "guard", "pareto"):
            options[option] = _renamed(options[option], names)
        folder = Path(options.output or run.folder / "rescored" / path.stem)
        reward = reward_of(block, options.device, file)
        new = new_scores(run, reward, options.names)
        rules = rules_of(options, run, new, recorded_selection(run.folder))
        try:
            done = rescore(run, reward, folder, {"reward": block}, options.names)
        except KeyboardInterrupt:
            print("interrupted: repeat the command to resume", file=sys.stderr)
            raise SystemExit(130) from None
        finally:
            reward.release()
        decisions = [(rule, _tried(rule, run.steps), _tried(rule, done.steps)) for rule in rules]
    if options.json:
        print(json.dumps(as_json(done, decisions), indent=2, ensure_ascii=False))
    else:
        # A file gets the rows whole.
        print_result(plain_console(None if sys.stdout.isatty() else 400), done, decisions)


def _parser(usage: str, description: str, examples: Sequence[str]) -> CommandParser:
    parser = command_parser("ctrlreward rescore", usage, description, examples)
    parser.add_argument("run", metavar="RUN", type=str, help="folder of the run")
    parser.add_argument(
        *("reward",),
        metavar="REWARD",
        type=str,
        help="YAML file of the reward, as for 'ctrlreward serve'; each component is a new score",
    )
    several: dict[str, Any] = {"nargs": "+", "type": str, "default": []}
    one: dict[str, Any] = {"type": str | None, "default": None}
    parser.add_argument(
        *("--maximise", "--maximize"),
        **several,
        help="keys that select a checkpoint. Default: the key that selected in the run, and each "
        "new score",
    )
    parser.add_argument(
        *("--minimise", "--minimize"),
        **several,
        help="the same, for keys that are better when lower",
    )
    parser.add_argument(
        "--subject_to",
        **several,
        help="constraints of the selection: 'score/distinct_2>=0.8'. Default: those of the run",
    )
    parser.add_argument(
        "--guard", **several, help="alarms, PROXY:HELD_OUT: reward/total:score/judge"
    )
    parser.add_argument("--stop", **one, help="early stopping: patience=3,min_delta=noise")
    parser.add_argument("--pareto", **one, help="keys of a Pareto front: score/a:max,score/b:min")
    parser.add_argument(
        "--names",
        **several,
        help="names of the GenerationScorers whose texts are scored. Default: all",
    )
    parser.add_argument("--device", **one, help="device of all scorers, such as cuda:1")
    parser.add_argument(
        "--output", **one, help="folder of the new scores. Default: RUN/rescored/<name of REWARD>"
    )
    parser.add_argument("--json", action="store_true", help="print all as JSON")
    return parser


def without_prefix(run: StoredRun) -> tuple[StoredRun, dict[str, str]]:
    """Return a run whose keys lack the prefix of evaluations, and old key → new key.

    Trainers of transformers log `eval_score/sim`, which is `score/sim`; `eval_loss` remains where
    there is a `loss`.
    """
    names = {
        key: plain
        for key in run.keys
        for prefix in ("eval_", "eval/")
        if key.startswith(prefix) and (plain := key.removeprefix(prefix)) not in run.keys
    }
    steps = [
        replace(
            each,
            metrics={names.get(key, key): value for key, value in each.metrics.items()},
            evidence={names.get(key, key): row for key, row in each.evidence.items()},
        )
        for each in run.steps
    ]
    modes = {names.get(key, key): mode for key, mode in run.modes.items()}
    return replace(run, steps=steps, modes=modes), names


def _renamed(option: Any, names: Mapping[str, str]) -> Any:
    if isinstance(option, list):
        return [_renamed(each, names) for each in option]
    for old in sorted(names, key=len, reverse=True):
        option = option and option.replace(old, names[old])
    return option


def rescore(
    run: StoredRun,
    reward: AnyReward,
    folder: Path,
    settings: Mapping[str, Any],
    names: Sequence[str] = (),
) -> Rescored:
    """Score the texts of all validations of a run that are not yet scored.

    The scores are those that a `GenerationScorer` with these components would have logged, by
    `<name>/<component>`, and `<name>/total` of a reward of several. What was computed is in
    `rescored.jsonl`, which a resumed command continues. In the end the folder is a run itself, with
    `metrics.jsonl` and `samples/`.

    Args:
        run: The run.
        reward: The reward.
        folder: Folder of the new scores.
        settings: What a resumed command must share, as JSON.
        names: Names of the `GenerationScorer`s whose texts are scored; empty for all.

    Raises:
        ValueError: There are no texts, a name is unknown, the texts lack a column that the reward
            needs, or the folder has scores of another reward.
    """
    found = list(stored_texts(run, names))
    for texts in found:
        check_stored(reward, texts)
    identity = {**settings, "fingerprint": reward_id(reward)}
    done = JsonLog(folder / "rescored.jsonl", identity)
    progress = Progress(done, done.read())
    for i, texts in enumerate(found):
        if progress.find(texts, "metrics") is None:
            with phase(f"rescoring: validation {i + 1} of {len(found)}"):
                progress.add(texts, scored(reward, texts, folder, progress))
    records = [(texts, {**(progress.find(texts, "metrics") or {})}) for texts in found]
    prompts = {name: {t.prompts for t in found if t.name == name} for name in names_of(run, names)}
    for name in [name for name, sets in prompts.items() if len(sets) > 1]:
        log.warning(
            "the prompts of %r differ between validations: they are compared by their means", name
        )
        for texts, record in records:
            record["evidence"] = {} if texts.name == name else record["evidence"]
    steps = [_with_scores(each, records, folder) for each in run.steps]
    rows = [{"step": each.step, **_finite(each.metrics)} for each in steps]
    JsonLog(folder / "metrics.jsonl").replace(rows)
    return Rescored(run, steps, new_scores(run, reward, names), folder)


def new_scores(run: StoredRun, reward: AnyReward, names: Sequence[str] = ()) -> dict[str, Mode]:
    """Return logged key → better direction of each score that `rescore` computes."""
    modes: dict[str, Mode] = {}
    for name in names_of(run, names):
        scorer = HeldOutScorer(reward.components, Samples([""]), name=name)
        modes |= {key: spec.mode for key, spec in scorer.specs.items()}
        modes |= {f"{name}/{TOTAL}": "max"} if has_total(reward) else {}
    return modes


def names_of(run: StoredRun, names: Sequence[str]) -> list[str]:
    """Return the names of the `GenerationScorer`s whose texts are stored, or the given ones.

    A `GenerationScorer` logs a fail rate; the texts of `RolloutSamples` are not held-out.
    """
    known = dict.fromkeys(name for each in run.steps for name in each.samples)
    if not known:
        raise ValueError(
            f"{run.folder} has no texts: a GenerationScorer writes them to samples/<name>/"
            "step=….jsonl in the folder of the run"
        )
    for name in names:
        if name not in known:
            raise ValueError(f"{run.folder} has no texts of {name!r}, only of {', '.join(known)}")
    return list(names) or [n for n in known if f"{n}/{FAIL_RATE}" in run.keys] or list(known)


def stored_texts(run: StoredRun, names: Sequence[str]) -> Iterator[Stored]:
    """Yield the stored texts of all validations, in order."""
    wanted = names_of(run, names)
    for each in run.steps:
        for name, path in each.samples.items():
            if name in wanted:
                samples, _ = read_scored_samples(path)
                columns = samples.columns()
                digest, texts = digest_of(columns), columns.pop("texts")
                yield Stored(
                    name, each.step, path, samples, digest, digest_of([columns, len(texts)])
                )


def check_stored(reward: AnyReward, texts: Stored) -> None:
    """Raise unless the reward can be computed from what is stored.

    Raises:
        ValueError: A component needs columns, or the groups of its texts, that were not stored.
    """
    present = texts.samples.columns()
    lacking: dict[str, list[str]] = {}
    for name, component in reward.components.items():
        needed = dict.fromkeys(component.scorer.required_columns([component.name]))
        if component.scorer.of_groups:
            needed["groups"] = None
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
    """What has been scored, in a log that a resumed command continues."""

    def __init__(self, log: JsonLog, records: Sequence[dict[str, Any]]) -> None:
        self.log = log
        self.records = {self._key(each): each for each in records}

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
        parts = scored_in_parts(with_corpus_parts(scorer.components), texts, progress)
        path = folder / "samples" / texts.name / f"step={texts.step:06d}.jsonl"
        scores = scorer.score_samples(samples, path, parts)
    metrics = scorer.metrics(scores)
    evidence = dict(scorer.evidence)
    totals = total_of(reward, {name: scores[name] for name in reward.components})
    if totals is not None:
        metrics[f"{texts.name}/{TOTAL}"] = valid_mean(totals)
        evidence[f"{texts.name}/{TOTAL}"] = valid_row_means(totals.reshape(-1, repeats))
        _, shown = read_scored_samples(path)
        write_scored_samples(path, samples, {**shown, TOTAL: totals}, read_by_prompt(path))
    return {
        "metrics": _finite(metrics),
        "evidence": {key: _nulled(row) for key, row in evidence.items()},
    }


def scored_in_parts(
    components: Mapping[str, Component], texts: Stored, progress: Progress
) -> dict[str, Scores]:
    """Return the scores of all texts; those of each text alone are on disk part by part."""
    alone = {name: each for name, each in components.items() if each.scorer.pointwise}
    parts: list[dict[str, Any]] = []
    for start in range(0, len(texts.samples), PART) if alone else ():
        record = progress.find(texts, str(start))
        if record is None:
            found = score(alone, texts.samples[start : start + PART])
            record = {"scores": {name: _nulled(row) for name, row in found.items()}}
            progress.add(texts, record, str(start))
        parts.append(record["scores"])
    scores = {
        name: np.array([value for part in parts for value in part[name]], np.float64)
        for name in alone
    }
    together = {name: each for name, each in components.items() if name not in alone}
    return {**scores, **(score(together, texts.samples) if together else {})}


def has_total(reward: AnyReward) -> bool:
    """Return whether the total says more than the components."""
    combines = isinstance(reward, Reward) or reward.weights is not None
    return combines and TOTAL not in reward.components and len(reward.components) > 1


def total_of(reward: AnyReward, components: Mapping[str, Scores]) -> Scores | None:
    """Return the totals of n samples, shape (n,); None where `has_total` is false."""
    if not has_total(reward):
        return None
    if isinstance(reward, Reward):
        return reward.combine(components, 0.0).total
    assert reward.weights is not None
    return weighted_sum(reward.weights, components)


def reward_id(reward: AnyReward) -> str:
    """Return a digest of settings and weights."""
    described = describe(reward) if isinstance(reward, Reward) else reward.description  # type: ignore[attr-defined]
    return str(described["fingerprint_id"])


def recorded_selection(folder: Path) -> dict[str, Any]:
    """Return the selection in a run's `summary.json`; empty without one."""
    path = folder / "summary.json"
    if not path.is_file():
        return {}
    summary = json.loads(path.read_text(encoding="utf-8"))
    return {**summary.get("selection", {}), "directions": summary.get("directions", {})}


def rules_of(
    options: Any, run: StoredRun, new: Mapping[str, Mode], recorded: Mapping[str, Any]
) -> list[NamedRule]:
    """Return the rules that the options ask for, and the selection of the run.

    Raises:
        ValueError: An option is wrong, or a key is neither logged nor a new score.
    """
    modes: dict[str, Mode] = {**recorded.get("directions", {}), **run.modes, **new}
    bounds: dict[str, Bounds] = conditions(options.subject_to)
    if not options.subject_to:
        bounds = {key: (low, high) for key, (low, high) in recorded.get("constraints", {}).items()}
    selecting: dict[str, Mode] = dict.fromkeys(options.maximise, "max")
    selecting |= dict.fromkeys(options.minimise, "min")
    if not selecting:
        monitor = recorded.get("monitor")
        old = {} if monitor is None else {monitor: mode_of(monitor, modes, "--maximise KEY")}
        failing = f"/{FAIL_RATE}"
        selecting = old | {key: mode for key, mode in new.items() if not key.endswith(failing)}
    rules = [rule_of_best(key, mode, bounds) for key, mode in selecting.items()]
    if options.pareto:
        rules.append(rule_of_front(options.pareto, modes))
    if options.stop:
        arguments = stop_options(options.stop)
        rules += [
            NamedRule("stop", StopRule(key, mode, **arguments), (key,))
            for key, mode in selecting.items()
        ]
    rules += [rule_of_alarm(each, modes) for each in options.guard]
    known = list(dict.fromkeys([*new, *run.keys]))
    for key in dict.fromkeys(key for rule in rules for key in (*rule.keys, *rule.others)):
        if key not in known:
            hint = did_you_mean(key, known)
            raise ValueError(f"{key!r} is neither logged nor a new score{hint}: {', '.join(known)}")
    return rules


def _tried(rule: NamedRule, steps: Sequence[StoredStep]) -> Replay | str:
    """Return the decision, or why there is none."""
    try:
        return replay(rule, steps)
    except ValueError as error:
        return str(error)


def as_json(
    done: Rescored, decisions: Sequence[tuple[NamedRule, Replay | str, Replay | str]]
) -> dict[str, Any]:
    """Return the new scores and the decisions as JSON."""

    def plain(found: Replay | str) -> dict[str, Any]:
        if isinstance(found, str):
            return {"error": found}
        return {"step": found.step, "steps": list(found.steps), "reason": found.reason}

    return {
        "run": str(done.run.folder),
        "folder": str(done.folder),
        "directions": dict(done.new),
        "validations": [
            {"step": each.step, **_finite({k: v for k, v in each.metrics.items() if k in done.new})}
            for each in done.steps
            if set(done.new) & set(each.metrics)
        ],
        "decisions": [
            {"rule": rule.name, "logged": plain(before), "rescored": plain(after)}
            for rule, before, after in decisions
        ],
    }


def print_result(
    console: Console,
    done: Rescored,
    decisions: Sequence[tuple[NamedRule, Replay | str, Replay | str]],
) -> None:
    """Print the scores by validation, old → new, and the decisions before and after."""
    shown = [each for each in done.steps if set(done.new) & set(each.metrics)]
    before = {each.step: each.metrics for each in done.run.steps}
    used = (key for rule, *_ in decisions for key in (*rule.keys, *rule.others))
    keys = [
        key
        for key in dict.fromkeys([*used, *done.new])
        if not key.endswith(f"/{FAIL_RATE}") or any(each.metrics.get(key) for each in shown)
    ]
    table = Table(show_edge=False)
    table.add_column("step", justify="right")
    for key in keys:
        table.add_column(key, justify="right", overflow="fold")
    for each in shown:
        values = [(before[each.step].get(key), each.metrics.get(key)) for key in keys]
        table.add_row(str(each.step), *(_change(old, now) for old, now in values))
    console.print(f"{done.run.folder}: {len(shown)} validations", soft_wrap=True)
    console.print(table)
    console.print()
    table = Table(show_edge=False)
    for name in ("decision", "as logged", "rescored"):
        table.add_column(name, overflow="fold")
    for rule, logged, rescored in decisions:
        table.add_row(rule.name, _in_words(rule, logged), _in_words(rule, rescored))
    console.print(table)
    console.print()
    for rule, _, found in decisions:
        reason = found if isinstance(found, str) else found.reason
        console.print(f"{rule.name}: {reason}", soft_wrap=True)
    bounds = next((r.rule.constraints for r, *_ in decisions if isinstance(r.rule, BestRule)), {})
    if bounds:
        console.print(f"constraints: {', '.join(map(_bound, bounds, bounds.values()))}")
    console.print(f"scores and texts: {done.folder}", soft_wrap=True)


def _change(old: float | None, now: float | None) -> str:
    cells = dict.fromkeys(f"{value:.4f}" for value in (old, now) if value is not None)
    return " → ".join(cells) or "–"


def _bound(key: str, bounds: Bounds) -> str:
    low, high = bounds
    least, most = ("" if low is None else f"{low:g} ≤ "), ("" if high is None else f" ≤ {high:g}")
    return f"{least}{key}{most}"


def _in_words(rule: NamedRule, found: Replay | str) -> str:
    if isinstance(found, str):
        return "not logged"
    if rule.kind == "front":
        return "steps " + ", ".join(map(str, found.steps))
    return "none" if found.step is None else f"step {found.step}"


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {key: finite_or_none(value) for key, value in metrics.items()}


def _nulled(row: Iterable[float]) -> list[float | None]:
    return [finite_or_none(value) for value in row]


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
