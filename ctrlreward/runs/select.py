"""Command `ctrlreward select`: which checkpoint of a run to keep, from its logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
from pydantic import TypeAdapter
from rich.table import Table

from ctrlreward.arguments import Mode, check_ending, counted, did_you_mean, one_of
from ctrlreward.command_line.parser import CommandParser, command_parser
from ctrlreward.command_line.terminal import number_table, plain_console, user_errors
from ctrlreward.files import json_text, write_whole
from ctrlreward.runs.folder import StoredRun, read_stored_run
from ctrlreward.selection import AlarmRule, BestRule, Decided, ParetoRule, RunRules, StopRule
from ctrlreward.selection.metrics import Bounds

_DESCRIPTION = """Say which checkpoint of a finished or running job to keep and why, when a
rule would have stopped, and when the alarm would have been raised. Reads run folders and logs
of Lightning, transformers, TRL, verl, W&B and TensorBoard, and the texts that TRL and verl
store, whose prompts are compared one by one.

Exit status: 0 if a checkpoint is selected in each run, 1 if none met the constraints, 2 for a
mistake in the arguments or a file that cannot be read."""

_EXAMPLES = (
    "ctrlreward select runs/demo --maximise score/sim --subject-to 'score/distinct_2>=0.8'",
    "ctrlreward select runs/demo --maximise score/sim --guard reward/total:score/distinct_2",
    "ctrlreward select out/ --minimise eval_loss --stop patience=3",
    "ctrlreward select verl.jsonl --maximise val-core/gsm8k/reward/mean@4 "
    "--checkpoints checkpoints/gsm8k --output best_checkpoint.json",
)

_NOT_CHOSEN = 1
_BOUND = re.compile(r"\s*(?P<key>.+?)\s*(?P<relation>>=|<=|==|=|>|<)\s*(?P<value>[^<>=]+?)\s*")


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
        """The last decision, which names the selected checkpoint."""
        return next(reversed(self.saved or self.decided), None)

    @property
    def best(self) -> int | None:
        """Step of the selected checkpoint."""
        return self.choice.best if self.choice else None

    @property
    def front(self) -> tuple[int, ...]:
        """Steps on the Pareto front."""
        return self.choice.front if self.choice else ()

    @property
    def stop(self) -> Decided | None:
        """The validation at which the rule would have stopped."""
        return next((each for each in self.decided if each.stopped), None)

    @property
    def alarm(self) -> Decided | None:
        """The validation of the first alarm."""
        return next((each for each in self.decided if each.alarm and each.alarm.alarm), None)

    def checkpoint(self, step: int | None) -> str | None:
        """Return the path of a checkpoint, None if it is not on disk."""
        paths = () if step is None else self.run.checkpoints.get(step, ())
        return str(paths[0]) if paths else None


def run(arguments: list[str]) -> None:
    """Read the runs, decide and print."""
    parser = _parser()
    options = parser.parse_args(arguments)
    with user_errors():
        _check(options)
        runs = [stored_run(name, options) for name in options.runs]
        found = [of_saved(decide(stored, run_rules(stored, options))) for stored in runs]
        _print(found, options)
        if options.output:
            write_whole(Path(options.output), json_text(_chosen(found[0])))
    if any(selection.best is None and selection.selects for selection in found):
        raise SystemExit(_NOT_CHOSEN)


def stored_run(name: str, options: Any) -> StoredRun:
    """Read a run, with the option `checkpoints`."""
    return read_stored_run(name, Path(options.checkpoints) if options.checkpoints else None)


def of_saved(selection: Selection) -> Selection:
    """Select among the validations with a checkpoint, if the best one has none and another has."""
    on_disk, rules = selection.run.checkpoints, selection.rules
    if selection.best is None or selection.best in on_disk:
        return selection
    candidates = [each.validation for each in selection.decided if each.validation.step in on_disk]
    saved = list(RunRules(best=rules.best, pareto=rules.pareto).replay(candidates))
    if not saved or saved[-1].best is None:
        return selection
    return replace(selection, saved=saved)


def decide(stored: StoredRun, rules: RunRules) -> Selection:
    """Replay the rules over a run."""
    steps = [(each.step, each.metrics, each.evidence) for each in stored.steps]
    return Selection(stored, rules, list(rules.replay(rules.validations(steps))))


def _parser() -> CommandParser:
    usage = "RUN [RUN ...] --maximise KEY [options]"
    parser = command_parser("ctrlreward select", usage, _DESCRIPTION, _EXAMPLES)
    add_rule_options(parser)
    add = parser.add
    add("--json", "print JSON", action="store_true")
    add("--output", "JSON file that names the checkpoint to keep", metavar="FILE")
    return parser


def add_rule_options(parser: CommandParser, several: bool = False) -> None:
    """Add runs and the options of `stored_run` and `run_rules`; with `several` keys, no runs."""
    add = parser.add
    words: dict[str, Any] = {"type": str, "nargs": "+", "default": []}
    if not several:
        parser.add_argument("runs", metavar="RUN", nargs="+", type=str,
                            help="folder of a run, or the file of its log")  # fmt: skip
        add("--checkpoints", "folder of the checkpoints, if not in the run's", metavar="FOLDER")
    keys = words if several else {}
    add("--maximise", "logged key of the score to select by", "--maximize", metavar="KEY", **keys)
    add("--minimise", "the same, where lower is better", "--minimize", metavar="KEY", **keys)
    add("--subject_to", "constraints, such as 'score/acc>=0.8' 'score/length<=40'",
        metavar="BOUND", **words)  # fmt: skip
    add("--guard", "alarm if PROXY improves while HELD_OUT declines; "
        "'reward:score/acc,score/pp=min' has two held-out keys, the second is better when lower, "
        "'KEY=drift' if it must not change", metavar="PROXY:HELD_OUT")  # fmt: skip
    add("--reference", "validation that the alarm compares with: first or best",
        type=str, default="first")  # fmt: skip
    add("--pareto", "show the Pareto front", metavar="A:max,B:min")
    add("--stop", f"when a rule would have stopped, by {', '.join(_STOP_TYPES)}",
        metavar="patience=N,...")  # fmt: skip
    add("--level", "probability of a false statement in the whole run", type=float, default=0.05)


def _check(options: Any) -> None:
    check_ending("--output", options.output, ".json")
    monitor = check_rule_options(options)
    if not (monitor or options.pareto or options.guard):
        stored = stored_run(options.runs[0], options)
        raise ValueError(
            "no score is given. Use --maximise KEY, --minimise KEY or --pareto A:max,B:min. "
            f"{stored.log} has the keys {_listed(stored.keys)}"
        )
    if len(options.runs) > 1 and (options.output or options.checkpoints):
        raise ValueError("--output and --checkpoints are of one RUN")


# Rules


def check_rule_options(options: Any) -> str | None:
    """Return the key to select by; raise a ValueError if options contradict each other."""
    if options.maximise and options.minimise:
        raise ValueError("--maximise and --minimise are both given. Use one of them.")
    monitor: str | None = options.maximise or options.minimise
    for name in ("subject_to", "stop"):
        if getattr(options, name) and not monitor:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} needs the score to select by: --maximise KEY")
    return monitor


def run_rules(stored: StoredRun, options: Any) -> RunRules:
    """Return the rules of the options `maximise` to `level`, with keys that are logged."""
    best = stop = alarm = pareto = None
    monitor = options.maximise or options.minimise
    if monitor:
        mode: Mode = "max" if options.maximise else "min"
        key = logged_key(stored, monitor)
        declared = stored.modes.get(key, mode)
        if declared != mode:
            better = "higher" if declared == "max" else "lower"
            raise ValueError(f"{key} is better when {better}. Use --{declared}imise {monitor}.")
        best = BestRule(
            key,
            mode,
            constraints=_constraints(stored, options),
            level=options.level,
        )
        if options.stop:
            stop = StopRule(key, mode, **{"level": options.level, **_stop_settings(options.stop)})
    if options.guard:
        alarm = _alarm(stored, options)
    if options.pareto:
        pairs = [_pair(stored, part, ":", ("max", "min")) for part in options.pareto.split(",")]
        modes = {key: mode or better_mode(stored, key) for key, mode in pairs}
        pareto = ParetoRule(cast("dict[str, Mode | None]", modes))
    return RunRules(best, stop, alarm, pareto)


def logged_key(stored: StoredRun, given: str) -> str:
    """Return a logged key, by its name or without the prefix of an evaluation."""
    given, keys = given.strip(), stored.keys
    for prefix in ("", "eval_", "eval/"):
        if prefix + given in keys:
            return prefix + given
    similar = did_you_mean(given, keys, str)
    raise ValueError(f"{stored.log} has no key {given!r}{similar or f', only {_listed(keys)}'}")


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys[:20]) + (", …" if len(keys) > 20 else "")


def better_mode(stored: StoredRun, key: str) -> Mode:
    """Return the better direction of a key, as declared, else by its name."""
    return stored.modes.get(key) or ("min" if key.rsplit("/")[-1].endswith("loss") else "max")


def _pair(
    stored: StoredRun, text: str, separator: str, modes: Sequence[str]
) -> tuple[str, str | None]:
    key, found, mode = text.rpartition(separator)
    if not found or mode.strip() not in modes:
        if found and text.strip() not in stored.keys and key.strip() in stored.keys:
            one_of(f"direction of {key.strip()!r}", mode.strip(), modes)
        return logged_key(stored, text), None
    return logged_key(stored, key), mode.strip()


def _constraints(stored: StoredRun, options: Any) -> dict[str, Bounds]:
    bounds: dict[str, Bounds] = {}
    for text in options.subject_to:
        match = _BOUND.fullmatch(text)
        if match is None or match["relation"] in (">", "<", "=", "=="):
            raise ValueError(
                f"--subject-to {text!r} must be a bound, 'KEY>=VALUE' or 'KEY<=VALUE' (inclusive)"
            )
        try:
            value = float(match["value"])
        except ValueError:
            raise ValueError(f"--subject-to {text!r}: {match['value']!r} is not a number") from None
        computed = match["key"] == "guard/alarm" and options.guard
        key = match["key"] if computed else logged_key(stored, match["key"])
        low, high = bounds.get(key, (None, None))
        bounds[key] = (value, high) if match["relation"] == ">=" else (low, value)
    return bounds


_STOP_TYPES = {
    each.name: each.type for each in fields(StopRule) if each.name not in ("monitor", "mode")
}


def _stop_settings(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    kinds = get_type_hints(StopRule)
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        name = name.strip().replace("-", "_")
        if name.isdigit() and not equals:
            name, value = "patience", name
        one_of("--stop", name, _STOP_TYPES)
        flag = kinds[name] is bool and not equals
        try:
            settings[name] = flag or TypeAdapter(kinds[name]).validate_python(value.strip())
        except ValueError:
            raise ValueError(f"--stop {name}={value!r} must be {_STOP_TYPES[name]}") from None
    if settings.get("patience", 1) < 1:
        raise ValueError(f"--stop patience must be at least 1, got {settings['patience']}")
    return settings


def _alarm(stored: StoredRun, options: Any) -> AlarmRule:
    proxy, colon, held_out = options.guard.partition(":")
    if not colon or not proxy.strip() or not held_out.strip():
        raise ValueError(f"--guard must be PROXY:HELD_OUT, got {options.guard!r}")
    key, mode = _pair(stored, proxy, "=", ("max", "min"))
    pairs = [_pair(stored, part, "=", ("max", "min", "drift")) for part in held_out.split(",")]
    return AlarmRule(
        key,
        {name: cast(Any, given or better_mode(stored, name)) for name, given in pairs},
        cast(Mode, mode or better_mode(stored, key)),
        level=options.level,
        reference=options.reference,
    )


# Output


def _print(found: Sequence[Selection], options: Any) -> None:
    if options.json:
        content = [to_json(selection) for selection in found]
        print(json_text(content[0] if len(content) == 1 else content), end="")
        return
    console = plain_console()
    for place, selection in enumerate(found):
        if place:
            console.print()
        console.print(f"{selection.run.log} ({selection.run.source})", soft_wrap=True)
        console.print(_table(selection))
        for line in summary(selection):
            console.print(line, soft_wrap=True)


def _table(selection: Selection) -> Table:
    table = number_table([], ["step", *selection.keys], show_edge=False)
    table.add_column("", overflow="fold")
    for each in selection.decided:
        cells = [_cell(each, key) for key in selection.keys]
        table.add_row(str(each.validation.step), *cells, _note(selection, each))
    return table


def _cell(each: Decided, key: str) -> str:
    value = each.validation.metrics.get(key)
    if value is None:
        return "–"
    text = f"{value:.4g}"
    interval = interval_of(each, key)
    if interval is not None:
        text += f" ({interval[0]:.4g} to {interval[1]:.4g})"
    if key in each.constraints:
        text += " ✓" if each.constraints[key].met else " ✗"
    return text


def interval_of(each: Decided, key: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by a bootstrap of the prompts; None without two of them.

    Percentiles of 1,000 resamples (Efron and Tibshirani 1993, ch. 13), the same in every call.
    """
    row = (each.validation.evidence or {}).get(key)
    if row is None or key in each.validation.stale:
        return None
    from scipy.stats import bootstrap  # takes half a second

    values = np.asarray(row, dtype=np.float64)
    values = np.sort(values[np.isfinite(values)])  # the same for any order of the prompts
    if len(values) < 2:
        return None
    found = bootstrap(
        (values,), np.mean, n_resamples=1000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return float(found.low), float(found.high)


def _note(selection: Selection, each: Decided) -> str:
    step, notes = each.validation.step, []
    if step == selection.best:
        notes.append("selected")
    elif step in selection.front:
        notes.append("on the front")
    missed = [key for key, check in each.constraints.items() if not check.met]
    if missed:
        notes.append(f"misses {', '.join(missed)}")
    if selection.stop is each:
        notes.append("stop")
    if each.alarm and each.alarm.alarm:
        notes.append("alarm")
    return ", ".join(notes)


def summary(selection: Selection) -> list[str]:
    """Return the decisions in words: selection, front, stop and alarm."""
    if not selection.decided:
        return [f"there was no validation: {', '.join(selection.rules.monitored)} has no value"]
    last, lines = selection.decided[-1], notes_of(selection)
    if selection.selects:
        if selection.best is None:
            lines.append(f"no checkpoint: {last.explanation or 'no validation has finite values'}")
            checks = [each for each in selection.decided if each.constraints]
            for key in last.constraints:
                met = sum(each.constraints[key].met for each in checks)
                lines.append(f"  {key}: met at {met} of {counted(len(checks), 'validation')}")
        else:
            path = selection.checkpoint(selection.best)
            where = path or f"step {selection.best} (not on disk)"
            reason = selection.choice.explanation if selection.choice else ""
            lines.append(f"keep {where}: {reason}")
            if selection.saved:
                lines.append(f"  not on disk: step {last.best}, {last.explanation}")
    if selection.rules.pareto:
        lines.append(f"Pareto front: steps {', '.join(map(str, selection.front)) or 'none'}")
    if selection.rules.stop:
        stop = selection.stop
        if stop is None or stop.stop is None:
            lines.append("the rule would not have stopped")
        else:
            kept = "" if stop.best == selection.best else f"; it would have kept step {stop.best}"
            lines.append(f"stop at step {stop.validation.step}: {stop.stop.reason}{kept}")
    if selection.rules.alarm:
        lines.append(f"guard: {_directions(selection.rules.alarm)}")
        alarm = selection.alarm
        if alarm is None or alarm.alarm is None:
            reason = last.alarm.reason if last.alarm else ""
            lines.append(f"no alarm: {reason}")
        else:
            lines.append(f"alarm at step {alarm.validation.step}: {alarm.alarm.reason}")
    return lines


def notes_of(selection: Selection) -> list[str]:
    """Return the notes of the run on texts whose scores are decided on."""
    notes = selection.run.notes.items()
    return [n for name, n in notes if any(key.startswith(f"{name}/") for key in selection.keys)]


def _directions(rule: AlarmRule) -> str:
    """Return the metrics that the alarm compares, with directions, which may be defaults."""
    words = {"max": "better when higher", "min": "better when lower", "drift": "must not change"}
    held_out = ", ".join(f"{key} ({words[mode]})" for key, mode in rule.modes.items())
    return f"{rule.proxy} ({words[rule.proxy_mode or 'max']}) against {held_out}"


def _chosen(selection: Selection) -> dict[str, Any]:
    path = selection.checkpoint(selection.best)
    return selection.rules.choice(selection.decided, selection.choice, path)


def to_json(selection: Selection) -> dict[str, Any]:
    """Return the contents of table and summary as plain data; NaN is null."""
    validations = []
    for each in selection.decided:
        metrics, step = each.validation.metrics, each.validation.step
        intervals = {key: interval_of(each, key) for key in selection.keys}
        validations.append(
            {
                "step": step,
                "checkpoint": selection.checkpoint(step),
                "metrics": {key: metrics[key] for key in selection.keys if key in metrics},
                "intervals": {key: found for key, found in intervals.items() if found},
                "constraints": {
                    key: {"met": check.met, "reason": check.reason}
                    for key, check in each.constraints.items()
                },
                "selection": each.keep.reason if each.keep else None,
                "stop": each.stop.reason if each.stop and each.stop.stop else None,
                "alarm": each.alarm,
            }
        )
    return {
        "run": str(selection.run.folder),
        "log": str(selection.run.log),
        "source": selection.run.source,
        **_chosen(selection),
        "front": list(selection.front),
        "notes": notes_of(selection),
        "validations": validations,
    }
