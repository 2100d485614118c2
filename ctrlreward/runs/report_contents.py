"""Contents of a run's report as plain data: decisions, curves, texts, diagnosis.

Decisions are made by `ctrlreward.selection`, replayed over the files of the run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple

from ctrlreward.arguments import sign_of
from ctrlreward.functional.sequential import level_of_test
from ctrlreward.held_out import FAIL_RATE
from ctrlreward.runs.folder import StoredRun
from ctrlreward.runs.logs import as_mapping
from ctrlreward.runs.select import (
    RULE_OPTIONS,
    Selection,
    better_mode,
    decide,
    noted_rule,
    run_rules,
    to_json,
)
from ctrlreward.runs.stored_texts import StoredTexts, read_own_texts
from ctrlreward.samples import Samples
from ctrlreward.scorers.records import evenly_spaced
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, RunRules, StopRule
from ctrlreward.selection.best import LAST_STEP
from ctrlreward.selection.metrics import Validation, describe

LONGEST = 2_000  # characters of a text that are shown
MORE_FAILED = 0.05  # rise of the fail rate that a verdict names
MOST_COLUMNS = 12  # validations whose texts are shown
MOST_PROMPTS = 200  # of a validation
MOST_POINTS = 300  # of a curve
COUNTED = 2_000  # texts of a validation in which phrases are counted

_WORD = re.compile(r"\w+(?:['’]\w+)*")
# Keys of the reward and of KL, whose curves are shown beside those of the scores.
_MAIN = re.compile(
    r"(train/)?reward|reward/total|critic/(score|rewards)/mean"
    r"|(?!guard).*?(^|/)((ref|ppo|mean)_)?kl(_mean|_loss)?"
)
_RULES = {"best": BestRule, "stop": StopRule, "alarm": AlarmRule, "pareto": ParetoRule}


@dataclass(frozen=True)
class TextSet:
    """Texts of the same prompts at several validations, or before and after training; by column."""

    name: str
    labels: list[str]
    steps: list[int | None]
    columns: list[StoredTexts]


def contents(stored: StoredRun, options: Any) -> dict[str, Any]:
    """Return the contents of a run as plain data; `missing` lists absent files."""
    missing = [*stored.notes.values()]
    results = _before_after(stored.summary)
    if results is None:
        missing.append("before and after training: no BeforeAfter, or the run has not ended")
    sets = list(_text_sets(stored))
    if not sets:
        missing.append("texts: samples/NAME/step=….jsonl of a GenerationScorer, or another trainer")
    rules, origin = _rules(stored, options, missing)
    selection = decide(stored, rules, on_disk=True)
    if not selection.decided:
        missing.append("validations: no rule decides on a logged score. Use --maximise KEY")
    main = next((each for each in sets if None not in each.steps), sets[0] if sets else None)
    alarm, phrases = _alarm(selection), _phrases(main) if main else []
    return {
        "name": stored.folder.resolve().name,
        "log": str(stored.log),
        "source": stored.source,
        "origin": origin,
        "missing": missing,
        "verdict": _verdict(selection, alarm, results, phrases),
        "results": results,
        "decisions": _decisions(selection),
        "marks": _marks(selection, alarm),
        "charts": _charts(selection),
        "texts": [_shown(each, selection, alarm) for each in sets],
        "phrases": phrases,
    }


# Texts


def _text_sets(stored: StoredRun) -> Iterator[TextSet]:
    """Yield the texts of each scorer over the steps, and of the test set before and after."""
    for name, by_step in stored.samples.items():
        columns = [(f"step {step}", step, source) for step, source in sorted(by_step.items())]
        yield _aligned(name, columns)
    paths = {name: stored.folder / f"{name}.jsonl" for name in ("before", "after")}
    if files := [(name, None, read_own_texts(p)) for name, p in paths.items() if p.is_file()]:
        yield _aligned("test set", files)


def _aligned(name: str, columns: Sequence[tuple[str, int | None, StoredTexts]]) -> TextSet:
    """Return the columns with the same prompts as the last one, in its order."""
    keys = [_prompts(texts.samples) for _, _, texts in columns]
    alike = [each for each, key in zip(columns, keys, strict=True) if key == keys[-1]]
    return TextSet(name, *map(list, zip(*alike, strict=True)))


def _prompts(samples: Samples) -> list[tuple[str, str]]:
    """Return the prompt of each text, and its label."""
    prompts = samples.prompts or samples.prefixes or samples.sources or [""] * len(samples)
    labels = samples.labels or [""] * len(samples)
    return [(str(prompt), str(label)) for prompt, label in zip(prompts, labels, strict=True)]


# Rules


def _rules(stored: StoredRun, options: Any, missing: list[str]) -> tuple[RunRules, str]:
    """Return the rules to replay, and their origin in words."""
    rules: dict[str, Any] = {}
    for field, kind in _RULES.items():
        if kind.__name__ in stored.rules:
            try:
                rules[field] = noted_rule(stored, kind)
            except (TypeError, ValueError) as error:
                missing.append(f"decisions of the run's {kind.__name__}: {error}")
    origin = "rules of the run"
    if any(getattr(options, name) for name in RULE_OPTIONS):
        given = run_rules(stored, options)
        rules |= {field: rule for field in _RULES if (rule := getattr(given, field))}
        origin = "rules of the command line"
    if "best" not in rules and "pareto" not in rules:
        scored = [key for each in stored.steps for key in each.evidence if FAIL_RATE not in key]
        keys = [*scored, "eval_reward", "eval_loss", "eval/loss", "val_loss"]
        keys.sort(key=lambda key: key not in stored.modes)
        known = ((k, mode) for k in keys if k in stored.keys and (mode := better_mode(stored, k)))
        if first := next(known, None):
            rules["best"] = BestRule(*first)
            better = "higher" if first[1] == "max" else "lower"
            origin = f"no rule of the run: {first[0]} selects, which is better when {better}"
    if not rules:
        rules["best"] = BestRule("")  # no validations to judge
    return RunRules(**rules), origin


# Decisions


def _decisions(selection: Selection) -> dict[str, Any]:
    """Return `ctrlreward select --json`, with the keys and bounds of its rules."""
    if not selection.decided:
        return {}
    best = selection.rules.best
    bounds = dict(best.constraints) if best else {}
    return {**to_json(selection), "keys": selection.keys, "constraints": bounds}


class Alarm(NamedTuple):
    """First alarm of a run, and the reason."""

    step: int
    reason: str


def _alarm(selection: Selection) -> Alarm | None:
    """Return the alarm of the rule, or the one that the run itself logged.

    A run may have more than its files, for example values by prompt of a score of groups.
    """
    if (found := selection.alarm) and found.alarm:
        return Alarm(found.validation.step, found.alarm.reason)
    for each in selection.run.steps:
        for key in (k for k, v in each.metrics.items() if k.endswith("guard/alarm") and v == 1):
            p_value = each.metrics.get(key.replace("alarm", "p_value"))
            return Alarm(each.step, f"the run logged {key} = 1 (p = {number(p_value)})")
    return None


def _marks(selection: Selection, alarm: Alarm | None) -> list[dict[str, Any]]:
    """Return the events by step, with their reasons."""
    marks: list[tuple[str, int, str]] = []
    if selection.best is not None and selection.choice:
        marks.append(("best", selection.best, selection.choice.explanation))
    if selection.stop and selection.stop.stop:
        marks.append(("stop", selection.stop.validation.step, selection.stop.stop.reason))
    marks += [("alarm", *alarm)] if alarm else []
    return [{"kind": kind, "step": step, "reason": reason} for kind, step, reason in marks]


# Verdict


def _before_after(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rows of the table before / after, scores first and judges below."""
    if not summary.get("before") or not summary.get("after"):
        return None
    after, rows = summary["after"], []
    for name, before in summary["before"].items():
        if name != "generations":
            change = summary if name == summary.get("score") else {}
            rows.append(_row(summary, f"score/{name}", before, after.get(name), change))
    for name, judge in (summary.get("judges") or {}).items():
        sides = judge.get("before"), judge.get("after")
        rows.append(_row(summary, f"judges/{name}", *sides, judge))
    last = summary.get("best_checkpoint") == LAST_STEP
    step = summary.get("steps") if last else as_mapping(summary.get("selection")).get("step")
    return {"rows": rows, "texts": after.get("generations"), "step": step}


def _row(
    summary: Mapping[str, Any],
    key: str,
    before: float | None,
    after: float | None,
    change: Mapping[str, Any],
) -> dict[str, Any]:
    kind, _, name = key.partition("/")
    intervals = summary.get("intervals", {})
    return {
        "name": name,
        "judge": kind == "judges",
        "mode": summary.get("directions", {}).get(key),
        "before": before,
        "after": after,
        "before_interval": intervals.get("before", {}).get(name),
        "after_interval": intervals.get("after", {}).get(name),
        "difference": change.get("difference"),
        "interval": change.get("difference_ci95"),
    }


def _outcome(row: Mapping[str, Any]) -> int:
    """Return 1 for an improvement beyond its interval, -1 for a decline, 0 if neither is shown."""
    sign = sign_of(row.get("mode"))
    ends = sorted(sign * end for end in row.get("interval") or () if end is not None)
    if len(ends) != 2:
        return 0
    return 1 if ends[0] > 0 else -1 if ends[1] < 0 else 0


def _verdict(
    selection: Selection,
    alarm: Alarm | None,
    results: Mapping[str, Any] | None,
    phrases: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the verdict in a sentence, its tone, and what the tables do not show of it."""
    every = results["rows"] if results else []
    rows = [row for row in every if row["interval"]]
    best, rules, steps = selection.best, selection.rules, selection.decided
    outcome, details = (_outcome(rows[0]) if rows else 0), []
    if not rows and best is not None and rules.best:
        outcome, change = _selected_change(selection)
        details.append(change)
    fallen = [row["name"] for row in rows[1:] if _outcome(row) < 0]
    failed: Mapping[str, Any] = next((row for row in every if row["name"] == FAIL_RATE), {})
    if rows and (failed.get("after") or 0.0) > (failed.get("before") or 0.0) + MORE_FAILED:
        fallen.append(FAIL_RATE)
    step = results["step"] if rows and results else None
    if steps and step not in (None, best):
        details.append(f"The texts after training are of step {step}, not of step {best}.")
    if alarm:
        details.append(f"A held-out score does not like what the reward likes: {alarm.reason}.")
        for each in [p for p in phrases[:1] if p["last"] - p["first"] >= 0.1]:
            shares = f"{100 * each['first']:.0f} % to {100 * each['last']:.0f} % of the texts"
            details.append(f"The phrase that grew most is “{each['phrase']}”: from {shares}.")
    watched = rules.alarm or any(key.endswith("guard/alarm") for key in selection.run.keys)
    judged = any(row["judge"] for row in rows)
    unwatched = "" if judged else ", and no held-out score was watched"
    guard = ", and no alarm was raised" if watched else unwatched
    words = f"{rows[0]['name']} improved, but {', '.join(fallen)} got worse" if fallen else ""
    tone, sentence = _sentence(selection, alarm, bool(rows), outcome, words, guard)
    return {"tone": tone, "sentence": sentence, "details": details}


def _sentence(
    selection: Selection, alarm: Alarm | None, compared: bool, outcome: int, fell: str, guard: str
) -> tuple[str, str]:
    """Return the tone and the sentence of the first condition that holds.

    `outcome` is 1 for better, -1 for worse, 0 if neither is shown; `fell` says what got worse.
    """
    best, steps = selection.best, selection.decided
    take = f"Take step {best}" + ("" if selection.checkpoint(best) else ", which is not on disk")
    gamed = f"rom step {alarm.step} on the reward was probably gamed." if alarm else ""
    if not steps and not compared:
        return "none", "No validation to judge this run by."
    if alarm and best is None:
        return "bad", f"F{gamed} No checkpoint can be selected."
    if alarm and best is not None and best >= alarm.step:
        after = f"The selected step {best} is not from before the alarm"
        return "bad", f"F{gamed} {after}. Read its texts first."
    if alarm and outcome > 0 and not fell:
        return "warn", f"It worked up to step {best}, but f{gamed} {take}, from before the alarm."
    if alarm:
        return "bad", f"F{gamed} {take}, from before the alarm."
    if steps and not selection.selects:
        return "none", "No rule selects a checkpoint, and no alarm was raised: --maximise KEY."
    if steps and best is None:
        return "bad", f"No checkpoint can be selected: {steps[-1].explanation}."
    end = f"{guard}." if best is None else f"{guard}. {take}."
    if outcome > 0:
        return ("warn", fell + end) if fell else ("good", f"It worked{end}")
    return ("bad", f"It got worse{end}") if outcome else ("warn", f"No improvement is shown{end}")


def _selected_change(selection: Selection) -> tuple[int, str]:
    """Return whether the selected validation is better than the first one, by prompt."""
    rule, seen = selection.rules.best, [each.validation for each in selection.decided]
    assert rule
    first, best = seen[0], next(each for each in seen if each.step == selection.best)
    before, after = (number(each.metrics.get(rule.monitor, nan)) for each in (first, best))
    if first is best:
        return 0, f"{rule.monitor} is best at the first validation, {before}."
    what = f"{rule.monitor} went from {before} at step {first.step} to {after} at step {best.step}"
    ends = [Validation.of(e.step, e.metrics, e.evidence, [rule.monitor]) for e in (first, best)]
    difference = ends[0].differs(ends[1], rule.monitor, level_of_test(rule.level, len(seen)))
    if difference is None:
        return 0, f"{what}; without scores by prompt, chance is not excluded."
    sign = sign_of(rule.mode) * (1 if difference.value > 0 else -1)
    return int(sign) if difference.distinguishable else 0, f"{what} ({describe(difference)})."


def number(value: Any, sign: str = "") -> str:
    """Return a number in four digits, with its `sign` if that is "+"; "–" for none."""
    if not isinstance(value, int | float) or not isfinite(value):
        return "–"
    return f"{value:{sign},.0f}" if abs(value) >= 1e4 else f"{value:{sign}.4g}"


# Curves, texts and phrases of the page


def _charts(selection: Selection) -> list[dict[str, Any]]:
    """Return the curves, held-out scores first; `main` are these, the reward and KL."""
    run, best = selection.run, selection.rules.best
    scored = [key for each in selection.intervals.values() for key in each]
    held_out = {k for k in (*selection.keys, *run.modes, *scored) if "guard/" not in k}
    bounds = best.constraints if best else {}
    charts = []
    for key in sorted(run.keys, key=lambda key: key not in held_out):
        steps = [each for each in run.steps if key in each.metrics]
        shown = [steps[i] for i in evenly_spaced(len(steps), MOST_POINTS)]
        points = []
        for each in shown:
            ends = selection.intervals.get(each.step, {}).get(key, ())
            points.append([each.step, *map(_plain, (each.metrics[key], *ends))])
        charts.append(
            {
                "key": key,
                "main": key in held_out or bool(_MAIN.fullmatch(key)),
                "mode": run.modes.get(key),
                "bounds": list(bounds.get(key, ())),
                "points": points,
            }
        )
    return charts


def _plain(value: Any) -> float | None:
    """Return a number in four digits, None for NaN."""
    return float(f"{value:.4g}") if value is not None and isfinite(value) else None


def _shown(texts: TextSet, selection: Selection, alarm: Alarm | None) -> dict[str, Any]:
    """Return texts with their scores: evenly spaced prompts and steps, the selected and the alarm.

    A text at a step is a `version` of it.
    """
    marked = {selection.best, alarm.step if alarm else None} - {None}
    wanted = {i for i, step in enumerate(texts.steps) if step in marked}
    places = sorted(wanted.union(evenly_spaced(len(texts.labels), MOST_COLUMNS)))
    prompts, rows = _prompts(texts.columns[0].samples), len(texts.columns[0].samples)
    items = []
    for row in evenly_spaced(rows, MOST_PROMPTS):
        prompt, label = map(_cut, prompts[row])
        versions = [
            {
                "text": _cut(each.samples.texts[row]),
                "scores": {name: _plain(values[row]) for name, values in each.scores.items()},
                "reasons": {name: _cut(told[row]) for name, told in each.reasons.items()},
            }
            for each in (texts.columns[place] for place in places)
        ]
        items.append({"prompt": prompt, "label": label, "versions": versions})
    best = [i for i, place in enumerate(places) if texts.steps[place] in {selection.best} - {None}]
    return {
        "name": texts.name,
        "columns": [texts.labels[place] for place in places],
        "best": best[0] if best else None,
        "total": rows,
        "items": items,
    }


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … [cut, {len(text):,} characters]"


def _phrases(texts: TextSet) -> list[dict[str, Any]]:
    """Return the phrases of one to five words whose share of texts grew most since the start."""
    if len(texts.labels) < 2:
        return []
    rows = evenly_spaced(len(texts.columns[0].samples), COUNTED)
    at = 1 if texts.steps[0] is None else len(texts.labels) - 1  # after, not a text by others
    start, end = (
        Counter(gram for row in rows for gram in _grams(texts.columns[c].samples.completions[row]))
        for c in (0, at)
    )
    least = max(3, 0.05 * len(rows))
    grown = {gram: n - start[gram] for gram, n in end.items() if n - start[gram] >= least}
    chosen: list[str] = []
    for gram in sorted(grown, key=lambda gram: (-grown[gram], -gram.count(" "), gram)):
        apart = not any(f" {gram} " in f" {c} " or f" {c} " in f" {gram} " for c in chosen)
        chosen += [gram] if apart and len(chosen) < 12 else []
    return [
        {
            "phrase": gram,
            "first": start[gram] / len(rows),
            "last": end[gram] / len(rows),
            "since": texts.labels[0],
            "at": texts.labels[at],
        }
        for gram in chosen
    ]


def _grams(text: str) -> set[str]:
    """Return the phrases of one to five words of a text."""
    words = _WORD.findall(text.lower())[:400]
    return {" ".join(words[i : i + n]) for n in range(1, 6) for i in range(len(words) - n + 1)}
