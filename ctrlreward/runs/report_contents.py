"""Contents of a run's report as plain data: decisions, curves, texts, diagnosis, provenance.

Decisions are made by `ctrlreward.selection`, replayed over the files of the run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ctrlreward.arguments import counted, inner_path, sign_of
from ctrlreward.files import parse_json, read_jsonl, read_yaml
from ctrlreward.functional.sequential import jackknife_values, level_of_test
from ctrlreward.runs.folder import StoredRun, as_mapping, completions_per_prompt, sample_files
from ctrlreward.runs.reproduction import compare_runs
from ctrlreward.runs.results import read_run
from ctrlreward.runs.select import (
    Selection,
    better_mode,
    decide,
    interval_of,
    logged_key,
    of_saved,
    run_rules,
    stored_run,
    to_json,
)
from ctrlreward.runs.stored_texts import StoredTexts, TextSource, is_even, scored_samples
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.records import evenly_spaced
from ctrlreward.selection import AlarmRule, BestRule, Decided, ParetoRule, RunRules, StopRule
from ctrlreward.selection.best import CHOICES, LAST_STEP
from ctrlreward.selection.metrics import Validation, describe

Words: TypeAlias = list[str]

TEXT_BYTES = 3_000_000  # of the texts in a report, over all of its runs
LONGEST = 2_000  # characters of a text that are shown
MOST_COLUMNS = 12  # validations whose texts are shown
MOST_POINTS = 300  # of a curve
COUNTED = 2_000  # texts of a validation in which phrases are counted
DIVERSITY, LENGTH = "text/distinct_2", "text/words"

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_REWARDS = ("reward/total", "reward", "train/reward", "critic/score/mean", "critic/rewards/mean")
_KL = re.compile(r"(^|/)((ref|ppo|mean)_)?kl(_mean|_loss)?$")
_DRIFT = re.compile(
    r"entropy|fail_rate|truncated|clipped_ratio|zero_std|zero_signal|mean_length|"
    r"(rollout|response|completion)s?(/|_)length(/mean)?$"
)
_UNCLEAR = re.compile(r"perplexity|length|words|loss|kl\b")  # whose direction must be declared
# Callback → field of `RunRules` and rule.
_RULES: Mapping[str, tuple[str, Any]] = {
    "RewardCheckpoint": ("best", BestRule),
    "RewardEarlyStopping": ("stop", StopRule),
    "ProxyGuard": ("alarm", AlarmRule),
    "ParetoCheckpoint": ("pareto", ParetoRule),
}
_GIVEN = {"save_top_k": "top_k"}  # names of a callback's arguments → names of its rule's arguments


@dataclass(frozen=True)
class TextSet:
    """Texts of the same prompts at several validations, or before and after training; by column."""

    name: str
    labels: list[str]
    steps: list[int | None]
    samples: list[Samples]
    scores: list[dict[str, Scores]]
    files: list[TextSource]

    def words(self, column: int) -> list[Words]:
        """Return the lower-case words of each text, without its prefix."""
        return [_WORD.findall(text.lower()) for text in self.samples[column].completions]


def contents(names: Sequence[str], options: Any) -> dict[str, Any]:
    """Return the data of the page: each run, and their comparison."""
    runs = [run_contents(name, options, TEXT_BYTES // len(names)) for name in names]
    return {"runs": runs, "comparison": _comparison(names) if len(names) > 1 else None}


def run_contents(name: str, options: Any, budget: int = TEXT_BYTES) -> dict[str, Any]:
    """Return the contents of a run as plain data; `missing` lists absent files.

    Raises:
        FileNotFoundError: The file or folder does not exist.
    """
    missing: list[str] = []
    try:
        stored = stored_run(name, options)
    except ValueError as error:
        folder = Path(name) if Path(name).is_dir() else Path(name).parent
        stored = StoredRun(folder, Path(name), "", [])
        missing.append(str(error))
    folder = stored.folder
    summary = _object(folder / "summary.json")
    if not summary and not stored.texts:
        missing.append("summary.json: the run has not ended, was killed, or has no "
                       "BeforeAfter")  # fmt: skip
    missing += stored.notes.values()
    sets = list(_text_sets(stored, summary, missing))
    if sets:
        stored = _with_text_figures(stored, sets[0])
    rules, origin = _rules(stored, summary, options, missing)
    selection = of_saved(decide(stored, rules))
    if stored.source and not selection.decided:
        missing.append("validations: the log has no score that a rule decides on")
    if not sets:
        missing.append("texts: there is neither samples/NAME/step=….jsonl of a GenerationScorer "
                       "nor before.jsonl and after.jsonl, nor texts of another trainer with the "
                       "same prompts at several steps")  # fmt: skip
    main = next((each for each in sets if None not in each.steps), sets[0] if sets else None)
    logged = stored.steps[-1].step if stored.steps else 0
    if main and logged and (main.steps[-1] or 0) > logged:
        missing.append(f"steps after {logged}: the log ends there, its texts at {main.labels[-1]}")
    alarm, results = _alarm(selection), _before_after(summary)
    phrases = _phrases(main, _columns(main, selection, alarm)) if main else []
    return {
        "name": folder.resolve().name,
        "folder": str(folder),
        "log": str(stored.log),
        "source": stored.source,
        "origin": origin,
        "missing": missing,
        "verdict": _verdict(selection, alarm, results, phrases),
        "summary": summary,
        "results": results,
        "decisions": _decisions(selection),
        "marks": _marks(selection, alarm),
        "charts": _charts(selection),
        "front": _front(selection),
        "texts": [
            _shown(each, _columns(each, selection, alarm), budget // len(sets), selection)
            for each in sets
        ],
        "phrases": phrases,
        "config": _text(folder / "config.yaml"),
        "provenance": _object(folder / "provenance.json"),
    }


def _object(path: Path) -> dict[str, Any]:
    try:
        return as_mapping(parse_json(_text(path) or "{}", path))
    except ValueError:  # a killed run may leave half of a file
        return {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


# Texts


def _text_sets(
    stored: StoredRun, summary: Mapping[str, Any], missing: list[str]
) -> Iterator[TextSet]:
    """Yield the texts of each scorer over the steps, and of the test set before and after."""
    folder = stored.folder
    sets: Mapping[str, Mapping[int, TextSource]] = stored.texts or sample_files(folder)
    for name, by_step in sets.items():
        columns = [(f"step {step}", step, file) for step, file in sorted(by_step.items())]
        found = _aligned(name, columns)
        if len(found.labels) == 1 < len(columns):
            missing.append(f"texts of {name} side by side: its prompts differ between the steps")
        else:
            yield found
    others = [inner_path("others", each) for each in as_mapping(summary.get("others"))]
    paths = {name: folder / f"{name}.jsonl" for name in ("before", "after", *others)}
    if files := [(name, None, path) for name, path in paths.items() if path.is_file()]:
        yield _aligned("test set", files)


def _aligned(name: str, columns: Sequence[tuple[str, int | None, TextSource]]) -> TextSet:
    """Return the columns with the same prompts as the last one, in its order."""
    read = [(*each, *scored_samples(each[2])) for each in columns]
    keys = [_prompts(samples) for *_, samples, _ in read]
    kept = [each for each, key in zip(read, keys, strict=True) if key == keys[-1]]
    labels, steps, files, samples, scores = zip(*kept, strict=True)
    return TextSet(name, list(labels), list(steps), list(samples), list(scores), list(files))


def _prompts(samples: Samples) -> list[tuple[str, str]]:
    """Return the prompt of each text, and its label."""
    prompts = samples.prompts or samples.prefixes or samples.sources or [""] * len(samples)
    labels = samples.labels or [""] * len(samples)
    return [(str(prompt), str(label)) for prompt, label in zip(prompts, labels, strict=True)]


def _with_text_figures(stored: StoredRun, texts: TextSet) -> StoredRun:
    """Add length and Distinct-2 of the texts to the steps, with a value for each prompt."""
    column_of = {step: column for column, step in enumerate(texts.steps)}
    steps = []
    for each in stored.steps:
        column = column_of.get(each.step)
        if column is not None and len(texts.samples[column]):
            repeats = completions_per_prompt(texts.samples[column])
            words = texts.words(column)
            lengths = np.array([len(row) for row in words], float).reshape(-1, repeats)
            diversity, by_prompt = _diversity(words, repeats)
            metrics = {**each.metrics, LENGTH: float(lengths.mean()), DIVERSITY: diversity}
            evidence = {**each.evidence}
            if is_even(texts.files[column]):
                evidence |= {LENGTH: lengths.mean(axis=1), DIVERSITY: by_prompt}
            each = replace(each, metrics=metrics, evidence=evidence)
        steps.append(each)
    return replace(stored, steps=steps, modes={**stored.modes, DIVERSITY: "max"})


def _diversity(words: Sequence[Words], repeats: int) -> tuple[float, Scores]:
    """Return Distinct-2 of all texts as one corpus, and its jackknife value of each prompt."""
    own = [
        Counter(pair for row in words[i : i + repeats] for pair in pairwise(row))
        for i in range(0, len(words), repeats)
    ]
    lengths = [sum(map(len, words[i : i + repeats])) for i in range(0, len(words), repeats)]
    counts = Counter(pair for row in words for pair in pairwise(row))
    total = sum(lengths)
    whole = len(counts) / total if total else nan
    without = [
        (len(counts) - sum(counts[pair] == count for pair, count in each.items())) / (total - n)
        if total > n
        else nan
        for each, n in zip(own, lengths, strict=True)
    ]
    return whole, jackknife_values(whole, without)


# Rules


def _rules(
    stored: StoredRun, summary: Mapping[str, Any], options: Any, missing: list[str]
) -> tuple[RunRules, str]:
    """Return the rules to replay, and their origin in words."""
    found = dict(_recorded(stored, missing))
    origin = "rules of the run, as in its config.yaml"
    chosen = summary.get("selection")
    if "best" not in found and isinstance(chosen, dict) and chosen.get("monitor"):
        origin = "selection of the run, as in its summary.json"
        try:
            monitor = logged_key(stored, chosen["monitor"])
            bounds = {
                logged_key(stored, key): (low, high)
                for key, (low, high) in (chosen.get("constraints") or {}).items()
            }
            mode = better_mode(stored, monitor)
            how = {k: chosen[k] for k in CHOICES if chosen.get(k)}
            found["best"] = BestRule(monitor, mode, constraints=bounds, **how)
        except (AttributeError, TypeError, ValueError) as error:
            missing.append(f"selection of the run: {error}")
    if options.maximise or options.minimise or options.guard or options.pareto:
        given = run_rules(stored, options)
        found |= {field: rule for field, _ in _RULES.values() if (rule := getattr(given, field))}
        origin = "rules of the command line"
    if "best" not in found and "pareto" not in found:
        scored = [key for each in stored.steps for key in each.evidence]
        scored += [key for key in ("eval_loss", "eval/loss", "val_loss") if key in stored.keys]
        scored = [k for k in scored if "fail_rate" not in k and k not in (DIVERSITY, LENGTH)]
        scored.sort(key=lambda key: key not in stored.modes)
        if scored:
            mode = better_mode(stored, scored[0])
            found["best"] = BestRule(scored[0], mode)
            origin = (
                f"no rule is recorded: {scored[0]} selects, as better when "
                f"{'higher' if mode == 'max' else 'lower'}; --maximise or --minimise another"
            )
    if "alarm" not in found and (alarm := _default_alarm(stored, found.get("best"))):
        found["alarm"] = alarm
        origin += "; alarm of the report, since the run had none"
    if not found:
        found["best"] = BestRule("")  # no validations to judge
    return RunRules(**found), origin


def _recorded(stored: StoredRun, missing: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield field and rule of the callbacks in the run's `config.yaml` whose keys are logged."""
    try:
        callbacks = read_yaml(stored.folder / "config.yaml")["trainer"]["callbacks"] or []
    except (OSError, ValueError, KeyError, TypeError):
        return
    for entry in callbacks:
        name = str(as_mapping(entry).get("class_path", "")).rpartition(".")[2]
        if name not in _RULES:
            continue
        role, kind = _RULES[name]
        known = {each.name for each in fields(kind)}
        try:
            given = {_GIVEN.get(k, k): v for k, v in (entry.get("init_args") or {}).items()}
            settings = {k: v for k, v in given.items() if k in known and v is not None}
            if "constraints" in settings:
                settings["constraints"] = {k: tuple(v) for k, v in settings["constraints"].items()}
            for key, direction in (("monitor", "mode"), ("proxy", "proxy_mode")):
                if key in settings:
                    settings.setdefault(direction, better_mode(stored, settings[key]))
            if isinstance(settings.get("held_out"), str | list) and not given.get("held_out_mode"):
                keys = settings["held_out"]
                keys = [keys] if isinstance(keys, str) else keys
                settings["held_out"] = {key: better_mode(stored, key) for key in keys}
            rule = kind(**settings)
            absent = [key for key in rule.keys if key not in stored.keys]
        except (AttributeError, TypeError, ValueError) as error:
            missing.append(f"{name} of config.yaml: {error}")
            continue
        if absent:
            missing.append(f"decisions of {name}: {', '.join(absent)} was not logged")
        else:
            yield role, rule


def _default_alarm(stored: StoredRun, best: Any) -> AlarmRule | None:
    """Return an alarm on the reward against scores outside of it, and Distinct-2.

    None if no reward was logged: supervised training does not optimise one.
    """
    keys = stored.keys
    proxy = next((key for key in _REWARDS if key in keys), None)
    rewarded = {key.partition("/")[2] for key in keys if key.startswith("reward/")}
    # What other trainers store is the reward and its parts, also on held-out prompts.
    rewarded |= {
        key.rpartition("/")[2]
        for name in stored.texts
        for key in keys
        if key.startswith(f"{name}/")
    }
    scored = dict.fromkeys(key for each in stored.steps for key in each.evidence)
    held_out = {
        key: better_mode(stored, key)
        for key in scored
        if (key in stored.modes or not _UNCLEAR.search(key))
        and key.rpartition("/")[2] not in {*rewarded, "fail_rate"}
        and key not in (proxy, best.monitor if best else None)
    }
    return AlarmRule(proxy, held_out, better_mode(stored, proxy)) if proxy and held_out else None


# Decisions


def _decisions(selection: Selection) -> dict[str, Any]:
    """Return `ctrlreward select --json`, with missed constraints and the values of all scores."""
    if not selection.decided:
        return {}
    content, rules = to_json(selection), selection.rules
    for row, each in zip(content["validations"], selection.decided, strict=True):
        row["intervals"] = {k: v for k, v in row["intervals"].items() if _holds(each, k, v)}
        row["missed"] = [c.reason for c in each.constraints.values() if not c.met]
    seen = {each.validation.step: each.validation.metrics for each in selection.decided}
    shown = [next(iter(seen)), content["step"], next(reversed(seen))]
    scored = [k for k in selection.run.keys if any(k in s.evidence for s in selection.run.steps)]
    content["keys"] = selection.keys
    content["scores"] = [
        {"key": key, "mode": selection.run.modes.get(key),
         "values": [seen[s].get(key) if s is not None else None for s in shown]}
        for key in dict.fromkeys([*content["keys"], *scored])
    ]  # fmt: skip
    content["constraints"] = dict(rules.best.constraints) if rules.best else {}
    return content


def _holds(each: Decided, key: str, interval: tuple[float, float]) -> bool:
    """Return whether an interval contains its value; with few prompts a jackknife's may not."""
    return interval[0] <= each.validation.metrics[key] <= interval[1]


class Alarm(NamedTuple):
    """First alarm of a run, the held-out key that fell ("" if unknown), and the reason."""

    step: int
    fell: str
    reason: str


def _alarm(selection: Selection) -> Alarm | None:
    """Return the alarm of the rule, or the one that the run itself logged.

    A run may have more than its files, for example values by prompt of a score of groups.
    """
    if selection.alarm and selection.alarm.alarm and selection.rules.alarm:
        reason = selection.alarm.alarm.reason
        fell = next((key for key in selection.rules.alarm.modes if f"{key} " in reason), "")
        return Alarm(selection.alarm.validation.step, fell, reason)
    for each in selection.run.steps:
        for key in (k for k, v in each.metrics.items() if k.endswith("guard/alarm") and v == 1):
            p_value = each.metrics.get(key.replace("alarm", "p_value"))
            return Alarm(each.step, "", f"the run logged {key} = 1 (p = {_number(p_value)})")
    return None


def _marks(selection: Selection, alarm: Alarm | None) -> list[dict[str, Any]]:
    """Return the events by step, with their reasons."""
    events: list[tuple[str, int, str]] = []
    if selection.best is not None and selection.choice:
        events.append(("best", selection.best, selection.choice.explanation))
    if selection.stop and selection.stop.stop:
        events.append(("stop", selection.stop.validation.step, selection.stop.stop.reason))
    if alarm:
        events.append(("alarm", alarm.step, alarm.reason))
    return [{"kind": kind, "step": step, "reason": reason} for kind, step, reason in events]


def _front(selection: Selection) -> dict[str, Any] | None:
    """Return the Pareto front, of the rule or of the score and the first other that changes."""
    rules, plain = selection.rules, [each.validation for each in selection.decided]
    rule = rules.pareto
    if rule is None and rules.best:
        key, modes = rules.best.monitor, rules.alarm.modes if rules.alarm else {}
        others = (
            other
            for other in (*rules.best.constraints, *modes)
            if other != key
            and modes.get(other) != "drift"
            and len({each.metrics.get(other) for each in plain}) > 1
        )
        if (other := next(others, None)) is not None:
            rule = ParetoRule({each: better_mode(selection.run, each) for each in (key, other)})
    if rule is None:
        return None
    front = list(RunRules(pareto=rule).replay(plain))
    steps = set(front[-1].front) if front else set()
    (x, y) = list(rule.metrics)[:2]
    points = [
        {"step": each.step, "x": each.metrics.get(x), "y": each.metrics.get(y),
         "front": each.step in steps, "best": each.step == selection.best}
        for each in plain
    ]  # fmt: skip
    return {"x": x, "y": y, "modes": dict(rule.metrics), "points": points}


# Verdict


def _before_after(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rows of the table before / after, scores first and judges below."""
    if not summary.get("before") or not summary.get("after"):
        return None
    intervals, others = summary.get("intervals", {}), summary.get("others", {})
    directions = summary.get("directions", {})
    rows = []
    for name, before in summary["before"].items():
        if name == "generations":
            continue
        main = name == summary.get("score")
        rows.append({
            "name": name, "judge": False, "mode": directions.get(f"score/{name}"),
            "before": before, "after": summary["after"].get(name),
            "others": [other.get("after", other).get(name) for other in others.values()],
            "difference": summary.get("difference") if main else None,
            "interval": summary.get("difference_ci95") if main else None,
        })  # fmt: skip
    for name, judge in (summary.get("judges") or {}).items():
        rows.append({
            "name": name, "judge": True, "mode": directions.get(f"judges/{name}"),
            "before": judge.get("before"), "after": judge.get("after"),
            "others": [(judge.get("others") or {}).get(o, {}).get("value") for o in others],
            "difference": judge.get("difference"), "interval": judge.get("difference_ci95"),
        })  # fmt: skip
    for row in rows:
        for side in ("before", "after"):
            row[f"{side}_interval"] = intervals.get(side, {}).get(row["name"])
    last = summary.get("best_checkpoint") == LAST_STEP
    step = summary.get("steps") if last else (summary.get("selection") or {}).get("step")
    texts = summary["after"].get("generations")
    return {"rows": rows, "others": list(others), "texts": texts, "step": step}


def _outcome(row: Mapping[str, Any]) -> int:
    """Return 1 for an improvement beyond its interval, -1 for a decline, 0 if neither is shown."""
    ends: Sequence[float | None] = row.get("interval") or ()
    sign = -1 if row.get("mode") == "min" else 1
    known = sorted(sign * end for end in ends if end is not None)
    if len(known) != 2:
        return 0
    low, high = known
    return 1 if low > 0 else -1 if high < 0 else 0


def _verdict(
    selection: Selection,
    alarm: Alarm | None,
    results: Mapping[str, Any] | None,
    phrases: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the verdict in a sentence, its tone, and the evidence."""
    rows = [row for row in (results or {"rows": []})["rows"] if row["interval"]]
    outcome, changes = (_outcome(rows[0]) if rows else 0), [_change(row) for row in rows]
    best, rules = selection.best, selection.rules
    seen = [each.validation for each in selection.decided]
    if not rows and best is not None and rules.best:
        outcome, changes = _selected_change(selection)
    fallen = [row["name"] for row in rows[1:] if _outcome(row) < 0]
    path = selection.checkpoint(best)
    take = f"Take step {best}" + ("" if path else ", which is not on disk")
    if not seen and not rows:
        logged = bool(selection.run.steps)
        sentence = "No validation to judge this run by." if logged else "No log of a run here."
        return {"tone": "none", "sentence": sentence, "details": []}
    if alarm:
        gamed = f"from step {alarm.step} on the reward was probably gamed"
        known = {each.step: each.metrics for each in seen}
        then, now = known[seen[0].step] if seen else {}, known.get(alarm.step, {})
        pair = [rules.alarm.proxy if rules.alarm else "", alarm.fell]
        moved = [
            f"{k} went from {_number(then.get(k))} to {_number(now.get(k))}" for k in pair if k
        ]
        details = ["The policy found texts that the reward likes and a held-out score does not"
                   + (f": {', while '.join(moved)}." if moved else ".")]  # fmt: skip
        details += [
            f"The phrase that grew most is “{each['phrase']}”: in {100 * each['first']:.0f} % of "
            f"the texts at {each['since']}, in {100 * each['last']:.0f} % at {each['at']}."
            for each in phrases[:1]
            if each["grown"] >= 0.1
        ]
        details += [f"Alarm: {alarm.reason}.", *changes]
        tone, head = "bad", f"{gamed[0].upper()}{gamed[1:]}"
        if best is None:
            end = "No checkpoint can be selected."
        elif best < alarm.step:
            end = f"{take}, from before the alarm."
            if outcome > 0 and not fallen:
                tone, head = "warn", f"It worked up to step {best}, but {gamed}"
        else:
            end = f"The selected step {best} is not from before the alarm. Read its texts first."
        return {"tone": tone, "sentence": f"{head}. {end}", "details": details}
    if seen and not (rules.best or rules.pareto):
        sentence = "No rule selects a checkpoint, and no alarm was raised: --maximise KEY selects."
        return {"tone": "none", "sentence": sentence, "details": changes}
    if seen and best is None:
        missed = sum(
            any(not c.met for c in each.constraints.values()) for each in selection.decided
        )
        what = rules.best.monitor if rules.best else "the score"
        of = counted(len(seen), "validation")
        why = f"{what} has no finite value at any of {of}"
        why = f"a constraint excludes {missed} of {of}" if missed else why
        sentence = f"No checkpoint can be selected: {why}."
        return {"tone": "bad", "sentence": sentence, "details": changes}
    tone, head = {1: ("good", "It worked"), 0: ("warn", "No improvement is shown"),
                  -1: ("bad", "It got worse")}[outcome]  # fmt: skip
    if outcome > 0 and fallen:
        tone, head = "warn", f"{rows[0]['name']} improved, but {', '.join(fallen)} got worse"
    watched = rules.alarm or any(key.endswith("guard/alarm") for key in selection.run.keys)
    guard = ", and no alarm was raised" if watched else ", and no held-out score was watched"
    if not watched and any(row["judge"] for row in rows):
        guard = "" if fallen else ", and no judge is shown to be worse"
    sentence = f"{head}{guard}." + (f" {take}." if seen else "")
    after = results["step"] if rows and results else None
    if seen and after not in (None, best):
        changes.append(f"The texts after training are of step {after}, not of step {best}.")
    return {"tone": tone, "sentence": sentence, "details": changes}


def _change(row: Mapping[str, Any]) -> str:
    who = "judge " if row["judge"] else ""
    low, high = row["interval"]
    ends = f"{_number(low, '+')} to {_number(high, '+')}" if low is not None else "unknown"
    return (
        f"{who}{row['name']} went from {_number(row['before'])} to {_number(row['after'])} on "
        f"prompts of neither training nor selection (difference {_number(row['difference'], '+')}, "
        f"95 % interval {ends})."
    )


def _selected_change(selection: Selection) -> tuple[int, list[str]]:
    """Return whether the selected validation is better than the first one, by prompt."""
    rule, seen = selection.rules.best, [each.validation for each in selection.decided]
    assert rule
    first, best = seen[0], next(each for each in seen if each.step == selection.best)
    before, after = (_number(each.metrics.get(rule.monitor, nan)) for each in (first, best))
    if first is best:
        return 0, [f"{rule.monitor} is best at the first validation, {before}."]
    what = f"{rule.monitor} went from {before} at step {first.step} to {after} at step {best.step}"
    one, other = (Validation.of(e.step, e.metrics, e.evidence, [rule.monitor])
                  for e in (first, best))  # fmt: skip
    difference = one.differs(other, rule.monitor, level_of_test(rule.level, len(seen)))
    if difference is None:
        return 0, [f"{what}; without scores by prompt, chance is not excluded."]
    sign = sign_of(rule.mode) * (1 if difference.value > 0 else -1)
    outcome = int(sign) if difference.distinguishable else 0
    return outcome, [f"{what} ({describe(difference)})."]


def _number(value: Any, sign: str = "") -> str:
    if value is None or not isfinite(value):
        return "–"
    return f"{value:{sign}.3g}" if abs(value) < 1000 else f"{value:{sign},.0f}"


# Curves


def _charts(selection: Selection) -> list[dict[str, Any]]:
    """Return the curves by subject: reward, held-out scores, KL, drift, and all others."""
    run, rules = selection.run, selection.rules
    bands: dict[str, dict[int, tuple[float, float]]] = {}
    for each in selection.decided:
        for key in each.validation.evidence or {}:
            found = interval_of(each, key)
            if found and _holds(each, key, found):
                bands.setdefault(key, {})[each.validation.step] = found
    bounds = rules.best.constraints if rules.best else {}
    held_out = [*selection.keys, *run.modes, *bands]
    charts = []
    for key in run.keys:
        if key in _REWARDS:
            group = "reward"
        elif _KL.search(key) and not key.startswith("guard"):
            group = "KL"
        elif key in (DIVERSITY, LENGTH) or _DRIFT.search(key):
            group = "drift"
        else:
            group = "score" if key in held_out and not key.startswith("guard/") else "other"
        points = [(s.step, _plain(s.metrics[key])) for s in run.steps if key in s.metrics]
        charts.append({
            "key": key, "group": group, "mode": run.modes.get(key),
            "points": [(*points[i], *map(_plain, bands.get(key, {}).get(points[i][0], ())))
                       for i in evenly_spaced(len(points), MOST_POINTS)],
            "bounds": list(bounds.get(key, ())),
        })  # fmt: skip
    order = ("reward", "score", "KL", "drift", "other")
    rank = {key: place for place, key in enumerate(dict.fromkeys(held_out))}
    return sorted(
        charts, key=lambda each: (order.index(each["group"]), rank.get(each["key"], len(rank)))
    )


def _plain(value: Any) -> float | None:
    """Return a number in four digits, None for NaN."""
    return float(f"{value:.4g}") if value is not None and isfinite(value) else None


# Texts in the page


def _columns(each: TextSet, selection: Selection, alarm: Alarm | None) -> list[int]:
    """Return the columns to show: ends, selected, alarm, and others evenly spaced."""
    n = len(each.labels)
    if n <= MOST_COLUMNS:
        return list(range(n))
    marked = (selection.best, alarm.step if alarm else None)
    first = [0, n - 1, *(i for i, s in enumerate(each.steps) if s in marked)]
    wanted = dict.fromkeys([*first, *evenly_spaced(n, MOST_COLUMNS)])
    return sorted([*wanted][:MOST_COLUMNS])


def _shown(
    each: TextSet, columns: Sequence[int], budget: int, selection: Selection
) -> dict[str, Any]:
    """Return the texts of some columns that fit the budget of bytes, with their scores."""
    rows = len(each.samples[0])
    names = list(dict.fromkeys(name for scores in each.scores for name in scores))
    proxy, held_out = _pair_of_components(names, selection)
    gamed = _gamed(each, proxy, held_out)
    sizes = [[min(len(text), LONGEST) for text in each.samples[c].texts] for c in columns]
    lengths = np.sum(sizes, axis=0) + len(columns) * (7.0 * len(names) + 12)
    count = rows if lengths.sum() <= budget else max(1, int(budget / lengths.mean()))
    chosen = np.arange(rows)
    if count < rows:
        even = evenly_spaced(rows, -(-count // 2))
        chosen = np.unique([*even, *np.argsort(-gamed, kind="stable")[: count // 2]])
    prompts = _prompts(each.samples[0])
    explained = {column: _explanations(each.files[column], rows) for column in columns}
    items, spent = [], 0.0
    for row in chosen.tolist():
        spent += lengths[row]
        if spent > 1.2 * budget:
            break
        texts = [each.samples[column].texts[row] for column in columns]
        item = {
            "i": row, "p": _cut(prompts[row][0]), "l": _cut(prompts[row][1]),
            "t": [_cut(text) for text in texts],
            "s": [[_plain(each.scores[c][k][row]) if k in each.scores[c] else None
                   for k in names] + [len(_WORD.findall(texts[place]))]
                  for place, c in enumerate(columns)],
        }  # fmt: skip
        found = [explained[column].get(row) for column in columns]
        items.append({**item, "x": found} if any(found) else item)
    best = [i for i, c in enumerate(columns) if each.steps[c] == selection.best is not None]
    return {
        "name": each.name, "columns": [each.labels[c] for c in columns],
        "steps": [each.steps[c] for c in columns],
        "components": [*names, "words"], "proxy": names.index(proxy) if proxy else None,
        "held_out": names.index(held_out) if held_out else None,
        "best": best[0] if best else None, "total": rows * len(each.labels), "items": items,
        "modes": [_mode_of(each.name, name, selection) for name in names] + [None],
    }  # fmt: skip


def _mode_of(set_: str, name: str, selection: Selection) -> str | None:
    modes = selection.run.modes
    keys = (f"{set_}/{name}", f"eval_{set_}/{name}", f"score/{name}", f"judges/{name}", name)
    return next((modes[key] for key in keys if key in modes), None)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … [cut, {len(text):,} characters]"


def _pair_of_components(
    names: Sequence[str], selection: Selection
) -> tuple[str | None, str | None]:
    """Return the component that is optimised, and one that is not."""
    rules = selection.rules
    proxies = [rules.alarm.proxy] if rules.alarm else []
    proxies += [rules.best.monitor] if rules.best else []
    last = [key.rpartition("/")[2] for key in proxies]
    proxy = next((key for key in (*last, *names) if key in names), None)
    kept = [key.rpartition("/")[2] for key in (rules.alarm.modes if rules.alarm else ())]
    return proxy, next((k for k in (*kept, *names) if k in names and k != proxy), None)


def _gamed(each: TextSet, proxy: str | None, held_out: str | None) -> Scores:
    """Return how far the reward of a text rose while the held-out score fell, in deviations."""
    rows = len(each.samples[0])
    if proxy is None or held_out is None or proxy not in each.scores[0]:
        return np.zeros(rows)
    rise, fall = (
        each.scores[-1].get(key, np.zeros(rows)) - each.scores[0].get(key, np.zeros(rows))
        for key in (proxy, held_out)
    )
    sides = [side / (np.nanstd(side) or 1.0) for side in (rise, -fall) if np.isfinite(side).any()]
    return np.nan_to_num(np.min(sides, axis=0), nan=-9.0) if len(sides) == 2 else np.zeros(rows)


def _explanations(file: TextSource, rows: int) -> dict[int, Any]:
    """Return row → the stored `"explanation"` and the reasons of a judge, by score."""
    told = rb'"(explanation|reasons)"'
    if isinstance(file, StoredTexts) or not re.search(told, file.read_bytes()):
        return {}
    found = {}
    for i, record in enumerate(read_jsonl(file)[:rows]):
        explained = {**as_mapping(record.get("explanation"))}
        for name, reason in as_mapping(record.get("reasons")).items():
            if reason:
                explained[name] = {"score": record["scores"].get(name), "reason": _cut(reason)}
        if explained:
            found[i] = explained
    return found


# Diagnosis


def _phrases(each: TextSet, columns: Sequence[int]) -> list[dict[str, Any]]:
    """Return the phrases of one to five words whose share of texts grew most since the start.

    `columns` are those whose shares are shown.
    """
    if len(each.labels) < 2:
        return []
    rows = len(each.samples[0])
    picked = evenly_spaced(rows, COUNTED)

    def shares(column: int) -> Counter[tuple[str, ...]]:
        found: Counter[tuple[str, ...]] = Counter()
        words = each.words(column)
        for row in picked:
            text = words[row][:400]
            found.update({tuple(text[i : i + n]) for n in range(1, 6)
                          for i in range(len(text) - n + 1)})  # fmt: skip
        return found

    at = 1 if each.steps[0] is None else len(each.labels) - 1  # after, not a text by others
    start, end = shares(0), shares(at)
    ranked = sorted(
        (gram for gram, count in end.items() if count >= max(3, 0.05 * len(picked))),
        key=lambda gram: (start[gram] - end[gram], -len(gram), gram),
    )
    chosen: list[tuple[str, ...]] = []
    for gram in ranked[:400]:
        grown = end[gram] - start[gram]
        # A longer phrase that is about as common is more informative than its parts.
        part = next((c for c in chosen if _within(c, gram)), None)
        if grown <= 0 or any(_within(gram, c) for c in chosen):
            continue
        if part is None:
            chosen.append(gram)
        elif grown >= 0.9 * (end[part] - start[part]):
            chosen[chosen.index(part)] = gram
    counts = {c: start if c == 0 else end if c == at else shares(c) for c in columns}
    n = len(picked)
    return [
        {"phrase": " ".join(gram), "first": start[gram] / n, "last": end[gram] / n,
         "grown": (end[gram] - start[gram]) / n, "since": each.labels[0], "at": each.labels[at],
         "shares": [(each.labels[c], _plain(counts[c][gram] / n)) for c in columns]}
        for gram in sorted(dict.fromkeys(chosen), key=lambda g: (start[g] - end[g], g))[:12]
    ]  # fmt: skip


def _within(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    n = len(part)
    return any(whole[i : i + n] == part for i in range(len(whole) - n + 1))


# Several runs


def _comparison(names: Sequence[str]) -> dict[str, Any] | None:
    """Return the QRA++ figures of `ctrlreward compare`; or the reason why not, as `error`."""
    patterns = ("score/*", "after/*", "judges/*", "difference", "eval*", "reward*", "policy/kl")
    try:
        found = compare_runs([read_run(name) for name in names], patterns)
    except (ValueError, OSError) as error:
        return {"error": str(error), "rows": []}
    rows = []
    for study, agreement in found.studies.items():
        for metric, values in agreement.metrics.items():
            columns = [run.studies[study].get(metric, {}) for run in found.runs]
            curve = found.curves.get(metric)
            rows.append({
                "metric": metric, "cv": _plain(values.mean_cv_star),
                "values": [_plain(next(iter(column.values()), nan)) for column in columns],
                "pearson": _plain(curve.pearson) if curve else None,
                "steps": curve.n if curve else None,
            })  # fmt: skip
    mean = next(iter(found.studies.values())).mean_cv_star
    return {"error": "", "rows": rows, "cv": _plain(mean)}
