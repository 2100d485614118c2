"""Command `ctrlreward select`: which checkpoint of a run to keep, from its logs."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

from ctrlreward.arguments import Mode, did_you_mean, one_of, positive
from ctrlreward.command_line.terminal import (
    number_table,
    plain_console,
    plain_parser,
    user_errors,
)
from ctrlreward.files import json_text
from ctrlreward.functional.bootstrap import bootstrap
from ctrlreward.runs.folder import StoredRun, read_stored_run
from ctrlreward.selection import AlarmRule, BestRule, Decided, ParetoRule, RunRules, StopRule
from ctrlreward.selection.metrics import Bounds, direction_of_name
from ctrlreward.selection.replay import ALARM_KEY

_DESCRIPTION = """Say which checkpoint of a finished or running job to keep and why, when a
rule would have stopped, and when the alarm would have been raised. Reads the run folders and
logs of Lightning, transformers, TRL and verl, and the texts that TRL and verl store, whose
prompts are compared one by one.

Exit status: 0 if a checkpoint is selected, 1 if none met the constraints, 2 for a mistake in the
arguments or a file that cannot be read."""

_EXAMPLES = (
    "ctrlreward select runs/demo --maximise score/sim --subject-to 'score/distinct_2>=0.8'",
    "ctrlreward select runs/demo --maximise score/sim --guard reward/total:score/distinct_2",
    "ctrlreward select out/ --minimise eval_loss --stop patience=3",
    "ctrlreward select verl.jsonl --maximise val-core/gsm8k/reward/mean@4 "
    "--checkpoints checkpoints/gsm8k --json",
)

RULE_OPTIONS = ("maximise", "minimise", "pareto", "guard", "subject_to", "stop")

_NOT_CHOSEN = 1
_BOUND = re.compile(r"\s*(.+?)\s*(>=|<=)\s*([^<>=]+)")


@dataclass(frozen=True)
class Selection:
    """Decisions of the rules on one run.

    `saved` are the decisions on the validations with a checkpoint, if the best one has none.
    """

    run: StoredRun
    rules: RunRules
    decided: Sequence[Decided]
    saved: Sequence[Decided] = ()

    @property
    def keys(self) -> list[str]:
        """Keys that the rules read."""
        return [*self.rules.monitored, *self.rules.others]

    @property
    def selects(self) -> bool:
        """Whether a rule selects a checkpoint."""
        return self.rules.best is not None or self.rules.pareto is not None

    @property
    def choice(self) -> Decided | None:
        """The last decision, which names the selected checkpoint and the front."""
        return next(reversed(self.saved or self.decided), None)

    @property
    def best(self) -> int | None:
        """Step of the selected checkpoint."""
        return self.choice.best if self.choice else None

    @property
    def stop(self) -> Decided | None:
        """The validation at which the rule would have stopped."""
        return next((each for each in self.decided if each.stopped), None)

    @property
    def alarm(self) -> Decided | None:
        """The validation of the first alarm."""
        return next((each for each in self.decided if each.alarm and each.alarm.alarm), None)

    @cached_property
    def intervals(self) -> Mapping[int, Mapping[str, tuple[float, float]]]:
        """Step → key → 95 % interval over the prompts, of keys with new scores by prompt."""
        return {
            snapshot.step: {
                key: ends
                for key, row in snapshot.evidence.items()
                if key in snapshot.fresh and (ends := _interval(row, snapshot.metrics[key]))
            }
            for snapshot in (each.validation for each in self.decided)
        }

    def checkpoint(self, step: int | None) -> str | None:
        """Return the path of a checkpoint, None if it is not on disk."""
        paths = () if step is None else self.run.checkpoints.get(step, ())
        return str(paths[0]) if paths else None


def run(arguments: list[str]) -> None:
    """Read the run, decide and print."""
    parser = plain_parser("ctrlreward select", _DESCRIPTION, _EXAMPLES)
    add_run_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, also of a script's use")
    options = parser.parse_args(arguments)
    with user_errors():
        select(read_stored_run(options.run, options.checkpoints), options)


def select(stored: StoredRun, options: Any) -> None:
    """Decide by the options of `add_run_options`, and print; exit with 1 if nothing is chosen."""
    if not any(getattr(options, name) for name in RULE_OPTIONS):
        raise ValueError(
            "no score is given. Use --maximise KEY, --minimise KEY or --pareto A,B. "
            f"{stored.log} has the keys {', '.join(stored.keys)}"
        )
    selection = decide(stored, run_rules(stored, options), on_disk=True)
    if options.json:
        print(json_text(to_json(selection)), end="")
    else:
        _print(selection)
    if selection.best is None and selection.selects:
        raise SystemExit(_NOT_CHOSEN)


def decide(stored: StoredRun, rules: RunRules, on_disk: bool = False) -> Selection:
    """Replay the rules over a run.

    With `on_disk`, if the best validation has no checkpoint, and another one has, the selection is
    among those that have one.
    """
    steps = [(each.step, each.metrics, each.evidence) for each in stored.steps]
    selection = Selection(stored, rules, list(rules.replay(rules.validations(steps))))
    if not on_disk or selection.best is None or selection.best in stored.checkpoints:
        return selection
    validations = (each.validation for each in selection.decided)
    candidates = [each for each in validations if each.step in stored.checkpoints]
    saved = list(RunRules(best=rules.best, pareto=rules.pareto).replay(candidates))
    return replace(selection, saved=saved) if saved and saved[-1].best is not None else selection


# Rules


def add_run_options(parser: ArgumentParser) -> None:
    """Add the run, the place of its checkpoints, and the options of `run_rules`."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="folder of a run, or its log")
    add("--checkpoints", metavar="FOLDER", type=Path, help="if they are not in the run's")
    add_rule_options(parser)


def add_rule_options(parser: ArgumentParser) -> None:
    """Add the options of `run_rules`."""
    add = parser.add_argument
    score = parser.add_mutually_exclusive_group().add_argument
    score("--maximise", "--maximize", metavar="KEY", help="logged key of the score to select by")
    score("--minimise", "--minimize", metavar="KEY", help="the same, where lower is better")
    add("--subject-to", "--subject_to", metavar="BOUND", nargs="+", action="extend", default=[],
        help="constraints, such as 'score/acc>=0.8' 'score/length<=40'")  # fmt: skip
    add("--guard", metavar="PROXY:HELD_OUT", help="alarm if PROXY improves while HELD_OUT declines;"
        " 'reward:score/acc,score/pp=min' has two held-out keys, the second is better when lower, "
        "'KEY=drift' must not change")  # fmt: skip
    add("--pareto", metavar="A,B", help="the Pareto front, such as 'score/acc,score/length:min'")
    add("--stop", metavar="patience=N,...",
        help=f"when a rule would have stopped, by {', '.join(_STOP)}")  # fmt: skip


def run_rules(stored: StoredRun, options: Any) -> RunRules:
    """Return the rules of the options, with keys that are logged."""
    best = stop = alarm = pareto = None
    monitor = options.maximise or options.minimise
    if (options.subject_to or options.stop) and not monitor:
        option = "subject-to" if options.subject_to else "stop"
        raise ValueError(f"--{option} needs the score to select by: --maximise KEY")
    if monitor:
        mode: Mode = "max" if options.maximise else "min"
        key = logged_key(stored, monitor)
        declared = stored.modes.get(key, mode)
        if declared != mode:
            better = "higher" if declared == "max" else "lower"
            raise ValueError(f"{key} is better when {better}. Use --{declared}imise {monitor}.")
        best = BestRule(key, mode, constraints=_constraints(stored, options))
        if options.stop:
            stop = _stop_rule(key, mode, options.stop)
    if options.guard:
        alarm = _alarm(stored, options.guard)
    if options.pareto:
        pairs = [_pair(stored, part, ":", ("max", "min")) for part in options.pareto.split(",")]
        pareto = ParetoRule(cast("dict[str, Mode | None]", dict(pairs)))
    return RunRules(best, stop, alarm, pareto)


def logged_key(stored: StoredRun, given: str) -> str:
    """Return a logged key, by its name or without the prefix of an evaluation."""
    given, keys = given.strip(), stored.keys
    for prefix in ("", "eval_", "eval/"):
        if prefix + given in keys:
            return prefix + given
    hint = did_you_mean(given, keys)
    raise ValueError(f"{stored.log} has no key {given!r}{hint}, only {', '.join(keys)}")


def noted_rule(stored: StoredRun, kind: type[Any]) -> Any:
    """Return a rule that a callback of the run noted, by its keys in the log.

    Raises:
        ValueError: A key was not logged.
    """
    settings = dict(stored.rules[kind.__name__])
    for name, value in settings.items():
        if name in ("monitor", "proxy"):
            settings[name] = logged_key(stored, value)
        elif isinstance(value, dict):
            settings[name] = {logged_key(stored, key): each for key, each in value.items()}
    return kind(**settings)


def better_mode(stored: StoredRun, key: str) -> Mode | None:
    """Return the better direction of a key as declared, or of a loss or reward; None if unknown.

    TRL logs `rewards/NAME/mean` of each column NAME of its texts that is a reward.
    """
    mode = stored.modes.get(key) or direction_of_name(key)
    of_trl = f"rewards/{key.rpartition('/')[2]}/mean" in stored.keys
    return "max" if mode is None and of_trl else mode


def _pair(stored: StoredRun, text: str, separator: str, modes: Sequence[str]) -> tuple[str, str]:
    """Return the key and the direction of `"KEY"` or `"KEY=min"`."""
    name, stated, mode = text.rpartition(separator)
    if stated and mode.strip() in modes:
        return logged_key(stored, name), mode.strip()
    key = logged_key(stored, text)
    known = better_mode(stored, key)
    if known is None:
        options = ", ".join(f"{text.strip()}{separator}{mode}" for mode in modes)
        raise ValueError(f"which direction of {key!r} is better is not known. Use one of {options}")
    return key, known


def _constraints(stored: StoredRun, options: Any) -> dict[str, Bounds]:
    bounds: dict[str, Bounds] = {}
    for text in options.subject_to:
        match = _BOUND.fullmatch(text)
        if match is None:
            raise ValueError(f"--subject-to must be 'KEY>=VALUE' or 'KEY<=VALUE', got {text!r}")
        name, relation, value = match[1], match[2], float(match[3])
        computed = name == ALARM_KEY and options.guard
        key = name if computed else logged_key(stored, name)
        low, high = bounds.get(key, (None, None))
        bounds[key] = (value, high) if relation == ">=" else (low, value)
    return bounds


_STOP = [each.name for each in fields(StopRule) if each.name not in ("monitor", "mode")]


def _stop_rule(key: str, mode: Mode, text: str) -> StopRule:
    settings: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = one_of("--stop", name.strip().replace("-", "_"), _STOP)
        settings[name] = yaml.safe_load(value) if equals else True
    try:
        rule = StopRule(key, mode, **settings)
        return replace(rule, patience=positive("patience", rule.patience))
    except (TypeError, ValueError) as error:
        raise ValueError(f"--stop {text}: {error}") from None


def _alarm(stored: StoredRun, text: str) -> AlarmRule:
    proxy, colon, held_out = text.partition(":")
    if not colon or not proxy.strip() or not held_out.strip():
        raise ValueError(f"--guard must be PROXY:HELD_OUT, got {text!r}")
    key, mode = _pair(stored, proxy, "=", ("max", "min"))
    pairs = [_pair(stored, part, "=", ("max", "min", "drift")) for part in held_out.split(",")]
    return AlarmRule(key, cast(Any, dict(pairs)), cast(Mode, mode))


# Output


def _print(selection: Selection) -> None:
    console = plain_console()
    console.print(f"{selection.run.log} ({selection.run.source})", soft_wrap=True)
    table = number_table([], ["step", *selection.keys], show_edge=False)
    table.add_column("", overflow="fold")
    for each in selection.decided:
        cells = [_cell(selection, each, key) for key in selection.keys]
        table.add_row(str(each.validation.step), *cells, ", ".join(_events(selection, each)))
    console.print(table)
    for line in summary(selection):
        console.print(line, soft_wrap=True)


def _events(selection: Selection, each: Decided) -> list[str]:
    step, front = each.validation.step, selection.choice.front if selection.choice else ()
    chosen = "selected" if step == selection.best else "on the front" if step in front else ""
    missed = ", ".join(key for key, check in each.constraints.items() if not check.met)
    events = [
        chosen,
        f"misses {missed}" if missed else "",
        "stop" if selection.stop is each else "",
    ]
    return [*filter(None, events), *(["alarm"] if each.alarm and each.alarm.alarm else [])]


def _cell(selection: Selection, each: Decided, key: str) -> str:
    if key not in each.validation.metrics:
        return "–"
    text = f"{each.validation.metrics[key]:.4g}"
    if interval := selection.intervals[each.validation.step].get(key):
        text += f" ({interval[0]:.4g} to {interval[1]:.4g})"
    if key in each.constraints:
        text += " ✓" if each.constraints[key].met else " ✗"
    return text


def _interval(values: Any, mean: float) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by a bootstrap of the prompts; None without two of them.

    Percentiles of 1,000 resamples (Efron and Tibshirani 1993, ch. 13), the same in every call. None
    if it is not around the value, as of a score of the whole corpus with few prompts.
    """
    row = np.asarray(values, dtype=np.float64)
    row = np.sort(row[np.isfinite(row)])  # the same for any order of the prompts
    if len(row) < 2:
        return None
    means = lambda weights: {"mean": weights @ row / len(row)}  # noqa: E731
    _, low, high = bootstrap(means, np.arange(len(row)), 0.95, 1000, seed=0)["mean"]
    return (low, high) if low <= mean <= high else None


def summary(selection: Selection) -> list[str]:
    """Return the decisions in words: selection, front, stop and alarm."""
    rules, choice = selection.rules, selection.choice
    if choice is None:
        return [f"there was no validation: {', '.join(rules.monitored)} has no value"]
    last, lines = selection.decided[-1], notes_of(selection)
    if selection.selects and selection.best is None:
        lines.append(f"no checkpoint: {last.explanation or 'no validation has finite values'}")
    elif selection.selects:
        where = selection.checkpoint(selection.best) or f"step {selection.best} (not on disk)"
        lines.append(f"keep {where}: {choice.explanation}")
        if selection.saved:
            lines.append(f"  not on disk: step {last.best}, {last.explanation}")
    if rules.pareto:
        lines.append(f"Pareto front: steps {', '.join(map(str, choice.front)) or 'none'}")
    stop = selection.stop
    if rules.stop and (stop is None or stop.stop is None):
        lines.append("the rule would not have stopped")
    elif stop and stop.stop:
        lines.append(f"stop at step {stop.validation.step}: {stop.stop.reason}")
    if rules.alarm:
        held_out = ", ".join(f"{key}={mode}" for key, mode in rules.alarm.modes.items())
        proxy = f"{rules.alarm.proxy}={rules.alarm.proxy_mode or 'max'}"
        lines.append(f"guard: {proxy} against {held_out}")
        alarm = selection.alarm
        if alarm is None or alarm.alarm is None:
            lines.append(f"no alarm: {last.alarm.reason if last.alarm else ''}")
        else:
            lines.append(f"alarm at step {alarm.validation.step}: {alarm.alarm.reason}")
    return lines


def notes_of(selection: Selection) -> list[str]:
    """Return the notes of the run on texts whose scores are decided on."""
    notes = selection.run.notes.items()
    return [n for name, n in notes if any(f"{name}/" in key for key in selection.keys)]


def to_json(selection: Selection) -> dict[str, Any]:
    """Return the contents of table and summary as plain data; NaN is null."""
    validations = []
    for each in selection.decided:
        metrics, step = each.validation.metrics, each.validation.step
        intervals = selection.intervals[step]
        checks = each.constraints.items()
        validations.append(
            {
                "step": step,
                "checkpoint": selection.checkpoint(step),
                "metrics": {key: metrics[key] for key in selection.keys if key in metrics},
                "intervals": {key: intervals[key] for key in selection.keys if key in intervals},
                "constraints": {k: {"met": c.met, "reason": c.reason} for k, c in checks},
                "selection": each.keep.reason if each.keep else None,
                "stop": each.stop.reason if each.stop and each.stop.stop else None,
                "alarm": each.alarm,
            }
        )
    choice, best, key = selection.choice, selection.best, selection.rules.monitored[0]
    values = {each.validation.step: each.validation.metrics.get(key) for each in selection.decided}
    return {
        "run": str(selection.run.folder),
        "log": str(selection.run.log),
        "source": selection.run.source,
        "step": best,
        "checkpoint": selection.checkpoint(best),
        "key": key,
        "value": None if best is None else values[best],
        "reason": choice.explanation if choice else "",
        "stop_step": selection.stop.validation.step if selection.stop else None,
        "alarm_step": selection.alarm.validation.step if selection.alarm else None,
        "front": list(choice.front) if choice else [],
        "notes": notes_of(selection),
        "validations": validations,
    }
