"""Contents of a run's report as plain data: decisions, curves, texts, diagnosis.

Decisions are made by `ctrlreward.selection`, replayed over the files of the run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple

from ctrlreward.arguments import counted, inner_path, sign_of
from ctrlreward.functional.sequential import level_of_test
from ctrlreward.held_out import FAIL_RATE
from ctrlreward.runs.folder import StoredRun, as_mapping
from ctrlreward.runs.select import (
    RULE_OPTIONS,
    Selection,
    better_mode,
    decide,
    interval_of,
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

TEXT_BYTES = 3_000_000  # of the texts in a report
LONGEST = 2_000  # characters of a text that are shown
MORE_FAILED = 0.05  # rise of the fail rate that a verdict names
MOST_COLUMNS = 12  # validations whose texts are shown
MOST_POINTS = 300  # of a curve
COUNTED = 2_000  # texts of a validation in which phrases are counted

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_REWARDS = ("reward/total", "reward", "train/reward", "critic/score/mean", "critic/rewards/mean")
_KL = re.compile(r"(?!guard).*?(^|/)((ref|ppo|mean)_)?kl(_mean|_loss)?")
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
    if results is None and not _theirs(stored):
        missing.append("before and after training: no BeforeAfter, or the run has not ended")
    sets = list(_text_sets(stored, missing))
    if not sets:
        missing.append("texts: neither samples/NAME/step=….jsonl of a GenerationScorer, nor "
                       "before.jsonl, nor texts of another trainer")  # fmt: skip
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
        "texts": [_shown(each, selection, alarm, TEXT_BYTES // len(sets)) for each in sets],
        "phrases": phrases,
    }


# Texts


def _text_sets(stored: StoredRun, missing: list[str]) -> Iterator[TextSet]:
    """Yield the texts of each scorer over the steps, and of the test set before and after."""
    for name, by_step in stored.samples.items():
        columns = [(f"step {step}", step, source) for step, source in sorted(by_step.items())]
        texts = _aligned(name, columns)
        if len(texts.labels) == 1 < len(columns):
            missing.append(f"texts of {name} side by side: its prompts differ between the steps")
        else:
            yield texts
    others = [inner_path("others", each) for each in as_mapping(stored.summary.get("others"))]
    paths = {name: stored.folder / f"{name}.jsonl" for name in ("before", "after", *others)}
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


def _theirs(stored: StoredRun) -> bool:
    """Return whether another trainer stored the texts."""
    return any(not texts.ours for each in stored.samples.values() for texts in each.values())


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
        keys = [key for each in stored.steps for key in each.evidence if "fail_rate" not in key]
        usual = ("eval_reward", "eval_loss", "eval/loss", "val_loss")
        keys += [key for key in usual if key in stored.keys]
        keys.sort(key=lambda key: key not in stored.modes)
        known = ((key, mode) for key in keys if (mode := better_mode(stored, key)))
        if first := next(known, None):
            rules["best"] = BestRule(*first)
            better = "higher" if first[1] == "max" else "lower"
            origin = (f"no rule is recorded: {first[0]} selects, as better when {better}; "
                      "--maximise or --minimise another")  # fmt: skip
    if "alarm" not in rules and (alarm := _default_alarm(stored, rules.get("best"))):
        rules["alarm"] = alarm
        origin += "; alarm of the report, since the run had none"
    if not rules:
        rules["best"] = BestRule("")  # no validations to judge
    return RunRules(**rules), origin


def _default_alarm(stored: StoredRun, best: BestRule | None) -> AlarmRule | None:
    """Return an alarm on the reward against scores outside of it.

    None if no reward was logged, as by supervised training, or if all scores are parts of it, as
    those that other trainers store.
    """
    keys = stored.keys
    proxy = next((key for key in _REWARDS if key in keys), None)
    rewarded = {key.partition("/")[2] for key in keys if key.startswith("reward/")}
    scored = dict.fromkeys(key for each in stored.steps for key in each.evidence)
    held_out = {
        key: mode
        for key in scored
        if (mode := better_mode(stored, key)) is not None
        and key.rpartition("/")[2] not in {*rewarded, "fail_rate"}
        and key not in (proxy, best.monitor if best else None)
    }
    return AlarmRule(proxy, held_out) if proxy and held_out and not _theirs(stored) else None


# Decisions


def _decisions(selection: Selection) -> dict[str, Any]:
    """Return `ctrlreward select --json`, with missed constraints."""
    if not selection.decided:
        return {}
    content, rules = to_json(selection), selection.rules
    for row, each in zip(content["validations"], selection.decided, strict=True):
        row["missed"] = [check.reason for check in each.constraints.values() if not check.met]
    content["keys"] = selection.keys
    content["constraints"] = dict(rules.best.constraints) if rules.best else {}
    return content


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


# Verdict


def _before_after(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rows of the table before / after, scores first and judges below."""
    if not summary.get("before") or not summary.get("after"):
        return None
    intervals, others = summary.get("intervals", {}), summary.get("others", {})
    after, directions = summary["after"], summary.get("directions", {})
    rows = []
    for name, before in summary["before"].items():
        if name != "generations":
            main = summary if name == summary.get("score") else {}
            rows.append({
                "name": name, "judge": False, "mode": directions.get(f"score/{name}"),
                "before": before, "after": after.get(name), "difference": main.get("difference"),
                "others": [each.get("after", each).get(name) for each in others.values()],
                "interval": main.get("difference_ci95"),
            })  # fmt: skip
    for name, judge in (summary.get("judges") or {}).items():
        theirs = judge.get("others") or {}
        rows.append({
            "name": name, "judge": True, "mode": directions.get(f"judges/{name}"),
            **{key: judge.get(key) for key in ("before", "after", "difference")},
            "others": [theirs.get(other, {}).get("value") for other in others],
            "interval": judge.get("difference_ci95"),
        })  # fmt: skip
    for row in rows:
        for side in ("before", "after"):
            row[f"{side}_interval"] = intervals.get(side, {}).get(row["name"])
    last = summary.get("best_checkpoint") == LAST_STEP
    step = summary.get("steps") if last else as_mapping(summary.get("selection")).get("step")
    return {"rows": rows, "others": list(others), "texts": after.get("generations"), "step": step}


def _outcome(row: Mapping[str, Any]) -> int:
    """Return 1 for an improvement beyond its interval, -1 for a decline, 0 if neither is shown."""
    sign = sign_of(row.get("mode"))
    ends = sorted(sign * end for end in row.get("interval") or () if end is not None)
    if len(ends) != 2:
        return 0
    return 1 if ends[0] > 0 else -1 if ends[1] < 0 else 0


class Facts(NamedTuple):
    """What the verdict depends on; `outcome` is 1 for better, -1 for worse, 0 if not shown."""

    validated: bool
    judged: bool  # there are validations, or texts before and after training
    alarm: bool
    selects: bool  # there is a rule that selects
    selected: bool
    before_alarm: bool
    outcome: int
    fallen: bool


_GAMED = "on the reward was probably gamed."
# The first condition that holds is the verdict: its tone and its sentence.
_VERDICTS: Sequence[tuple[Callable[[Facts], bool], str, str]] = (
    (lambda f: not f.judged, "none", "No validation to judge this run by."),
    (lambda f: f.alarm and not f.selected, "bad",
     f"From step {{alarm}} {_GAMED} No checkpoint can be selected."),
    (lambda f: f.alarm and not f.before_alarm, "bad",
     f"From step {{alarm}} {_GAMED} The selected step {{best}} is not from before the alarm. Read "
     "its texts first."),
    (lambda f: f.alarm and f.outcome > 0 and not f.fallen, "warn",
     f"It worked up to step {{best}}, but from step {{alarm}} {_GAMED} {{take}}, from before the "
     "alarm."),
    (lambda f: f.alarm, "bad", f"From step {{alarm}} {_GAMED} {{take}}, from before the alarm."),
    (lambda f: f.validated and not f.selects, "none",
     "No rule selects a checkpoint, and no alarm was raised: --maximise KEY selects."),
    (lambda f: f.validated and not f.selected, "bad", "No checkpoint can be selected: {why}."),
    (lambda f: f.outcome > 0 and f.fallen, "warn",
     "{first} improved, but {fallen} got worse{guard}. {take}."),
    (lambda f: f.outcome > 0, "good", "It worked{guard}. {take}."),
    (lambda f: f.outcome < 0, "bad", "It got worse{guard}. {take}."),
    (lambda f: True, "warn", "No improvement is shown{guard}. {take}."),
)  # fmt: skip


def _verdict(
    selection: Selection,
    alarm: Alarm | None,
    results: Mapping[str, Any] | None,
    phrases: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the verdict in a sentence, its tone, and the evidence."""
    rows = [row for row in (results or {"rows": []})["rows"] if row["interval"]]
    outcome, details = (_outcome(rows[0]) if rows else 0), [_change(row) for row in rows]
    best, rules, steps = selection.best, selection.rules, selection.decided
    if not rows and best is not None and rules.best:
        outcome, details = _selected_change(selection)
    fallen = [row["name"] for row in rows[1:] if _outcome(row) < 0]
    for row in filter(_failed, (results or {"rows": []})["rows"]):
        fallen.append(FAIL_RATE)
        details.append(
            f"{100 * row['before']:.0f} % of the texts before and {100 * row['after']:.0f} % after "
            "training have a score that failed: the difference is over the prompts that both have."
        )
    after = results["step"] if rows and results else None
    if steps and after not in (None, best):
        details.append(f"The texts after training are of step {after}, not of step {best}.")
    if alarm:
        details = [*_moved(selection, alarm, phrases), f"Alarm: {alarm.reason}.", *details]
    watched = rules.alarm or any(key.endswith("guard/alarm") for key in selection.run.keys)
    guard = ", and no alarm was raised" if watched else ", and no held-out score was watched"
    if not watched and any(row["judge"] for row in rows):
        guard = "" if fallen else ", and no judge is shown to be worse"
    missed = sum(any(not c.met for c in each.constraints.values()) for each in steps)
    monitor = rules.best.monitor if rules.best else "the score"
    why = f"a constraint excludes {missed} of" if missed else f"{monitor} is not finite at any of"
    why = f"{why} {counted(len(steps), 'validation')}"
    take = f"Take step {best}" + ("" if selection.checkpoint(best) else ", which is not on disk")
    early = alarm is not None and best is not None and best < alarm.step
    facts = Facts(bool(steps), bool(steps or rows), alarm is not None, selection.selects,
                  best is not None, early, outcome, bool(fallen))  # fmt: skip
    tone, sentence = next((tone, words) for holds, tone, words in _VERDICTS if holds(facts))
    words = {"why": why, "guard": guard, "best": best, "alarm": alarm and alarm.step, "take": take,
             "fallen": ", ".join(fallen), "first": rows[0]["name"] if rows else ""}  # fmt: skip
    if best is None:  # texts before and after training alone
        sentence = sentence.replace(" {take}.", "")
    return {"tone": tone, "sentence": sentence.format(**words), "details": details}


def _moved(
    selection: Selection, alarm: Alarm, phrases: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield by what the reward was gamed."""
    known = {each.validation.step: each.validation.metrics for each in selection.decided}
    then, now = next(iter(known.values()), {}), known.get(alarm.step, {})
    pair = [selection.rules.alarm.proxy if selection.rules.alarm else "", alarm.fell]
    moved = [f"{k} went from {_number(then.get(k))} to {_number(now.get(k))}" for k in pair if k]
    yield ("The policy found texts that the reward likes and a held-out score does not"
           + (f": {', while '.join(moved)}." if moved else "."))  # fmt: skip
    for each in phrases[:1]:
        if each["last"] - each["first"] >= 0.1:
            yield (
                f"The phrase that grew most is “{each['phrase']}”: in {100 * each['first']:.0f} % "
                f"of the texts at {each['since']}, in {100 * each['last']:.0f} % at {each['at']}."
            )


def _change(row: Mapping[str, Any]) -> str:
    low, high = row["interval"]
    ends = f"{_number(low, '+')} to {_number(high, '+')}" if low is not None else "unknown"
    return (
        f"{'judge ' if row['judge'] else ''}{row['name']} went from {_number(row['before'])} to "
        f"{_number(row['after'])} on prompts of neither training nor selection (difference "
        f"{_number(row['difference'], '+')}, 95 % interval {ends})."
    )


def _failed(row: Mapping[str, Any]) -> bool:
    """Return whether a row is the fail rate, and has risen."""
    return row["name"] == FAIL_RATE and (row["after"] or 0.0) > (row["before"] or 0.0) + MORE_FAILED


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
    return int(sign) if difference.distinguishable else 0, [f"{what} ({describe(difference)})."]


def _number(value: Any, sign: str = "") -> str:
    if value is None or not isfinite(value):
        return "–"
    return f"{value:{sign}.3g}" if abs(value) < 1000 else f"{value:{sign},.0f}"


# Curves, texts and phrases of the page


def _charts(selection: Selection) -> list[dict[str, Any]]:
    """Return the curves by subject: reward, held-out scores, KL, and all others."""
    run, rules = selection.run, selection.rules
    bands: dict[str, dict[int, tuple[float, float]]] = {}
    for each in selection.decided:
        for key in each.validation.evidence or {}:
            if ends := interval_of(each, key):
                bands.setdefault(key, {})[each.validation.step] = ends
    scored = dict.fromkeys([*selection.keys, *run.modes, *bands])
    held_out = [key for key in scored if "guard/" not in key]
    bounds = rules.best.constraints if rules.best else {}
    charts = []
    for key in run.keys:
        group = "reward" if key in _REWARDS else "KL" if _KL.fullmatch(key) else ""
        points = [(s.step, _plain(s.metrics[key])) for s in run.steps if key in s.metrics]
        charts.append({
            "key": key, "group": group or ("score" if key in held_out else "other"),
            "mode": run.modes.get(key), "bounds": list(bounds.get(key, ())),
            "points": [(*points[i], *map(_plain, bands.get(key, {}).get(points[i][0], ())))
                       for i in evenly_spaced(len(points), MOST_POINTS)],
        })  # fmt: skip
    return sorted(charts, key=lambda each: each["key"] not in held_out)


def _plain(value: Any) -> float | None:
    """Return a number in four digits, None for NaN."""
    return float(f"{value:.4g}") if value is not None and isfinite(value) else None


def _shown(
    texts: TextSet, selection: Selection, alarm: Alarm | None, budget: int
) -> dict[str, Any]:
    """Return the texts that fit the budget of bytes, with their scores, evenly spaced.

    Columns are the ends, the selected, the alarm, and others evenly spaced.
    """
    marked = (selection.best, alarm.step if alarm else None)
    last, rows = len(texts.labels) - 1, len(texts.columns[0].samples)
    wanted = [0, last, *(i for i, step in enumerate(texts.steps) if step in marked)]
    wanted += evenly_spaced(last + 1, MOST_COLUMNS)
    columns = sorted([*dict.fromkeys(wanted)][:MOST_COLUMNS])
    names = list(dict.fromkeys(name for each in texts.columns for name in each.scores))
    shown = [texts.columns[c] for c in columns]
    size = sum(min(len(text), LONGEST) for each in shown for text in each.samples.texts)
    size += rows * len(columns) * (7 * len(names) + 12)
    prompts = _prompts(texts.columns[0].samples)
    items = [
        {
            "p": _cut(prompts[row][0]), "l": _cut(prompts[row][1]),
            "t": [_cut(each.samples.texts[row]) for each in shown],
            "s": [[_plain(each.scores[k][row]) if k in each.scores else None for k in names]
                  for each in shown],
            "r": [{k: _cut(told[row]) for k, told in each.reasons.items()} for each in shown],
        }
        for row in evenly_spaced(rows, max(1, rows * budget // max(size, 1)))
    ]  # fmt: skip
    best = [i for i, c in enumerate(columns) if texts.steps[c] == selection.best is not None]
    return {
        "name": texts.name, "columns": [texts.labels[c] for c in columns], "components": names,
        "best": best[0] if best else None, "total": rows, "items": items,
    }  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … [cut, {len(text):,} characters]"


def _phrases(texts: TextSet) -> list[dict[str, Any]]:
    """Return the phrases of one to five words whose share of texts grew most since the start."""
    if len(texts.labels) < 2:
        return []
    rows = evenly_spaced(len(texts.columns[0].samples), COUNTED)

    def counts(column: int) -> Counter[tuple[str, ...]]:
        completions = texts.columns[column].samples.completions
        found: Counter[tuple[str, ...]] = Counter()
        for row in rows:
            words = _WORD.findall(completions[row].lower())[:400]
            found.update({tuple(words[i : i + n]) for n in range(1, 6)
                          for i in range(len(words) - n + 1)})  # fmt: skip
        return found

    at = 1 if texts.steps[0] is None else len(texts.labels) - 1  # after, not a text by others
    start, end = counts(0), counts(at)
    grown = {
        gram: count - start[gram]
        for gram, count in end.items()
        if count > start[gram] and count >= max(3, 0.05 * len(rows))
    }
    chosen: list[tuple[str, ...]] = []
    for gram in sorted(grown, key=lambda gram: (-grown[gram], -len(gram), gram)):
        if len(chosen) < 12 and not any(_within(gram, c) or _within(c, gram) for c in chosen):
            chosen.append(gram)
    return [
        {"phrase": " ".join(gram), "first": start[gram] / len(rows), "last": end[gram] / len(rows),
         "since": texts.labels[0], "at": texts.labels[at]}
        for gram in chosen
    ]  # fmt: skip


def _within(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    n = len(part)
    return any(whole[i : i + n] == part for i in range(len(whole) - n + 1))
