"""Rules of `ctrlreward.selection` as options of a command, and their replay over a stored run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import yaml

from ctrlreward.arguments import Mode, did_you_mean
from ctrlreward.run_folder import StoredStep
from ctrlreward.selection import AlarmRule, BestRule, ParetoRule, StopRule
from ctrlreward.selection.alarm import HeldOutMode
from ctrlreward.selection.best import Bounds

_CONDITION = re.compile(r"\s*(?P<key>[^<>=\s]+)\s*(?P<sign>[<>]=?|=)\s*(?P<value>\S+)\s*")
_STOP = ("patience", "min_delta", "min_steps", "stopping_threshold", "divergence_threshold")
_STOP_FLAGS = ("check_finite", "decline", "futility")

AnyRule: TypeAlias = BestRule | ParetoRule | StopRule | AlarmRule
Kind: TypeAlias = Literal["best", "front", "stop", "alarm"]


@dataclass(frozen=True)
class NamedRule:
    """A rule, and what it is called in a table.

    Attributes:
        kind: `"best"`, `"front"`, `"stop"` or `"alarm"`.
        rule: The rule.
        keys: Keys of which a validation must have a new value.
        others: Keys of which the last value counts.
    """

    kind: Kind
    rule: AnyRule
    keys: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What is decided, by which keys."""
        words = {"best": "best", "front": "Pareto front", "stop": "stop", "alarm": "alarm"}
        return f"{words[self.kind]} by {', '.join(self.keys)}"


@dataclass(frozen=True)
class Replay:
    """What a rule decides over a stored run.

    Attributes:
        step: Selected step, first step of a stop or an alarm, None without one.
        steps: Steps of the front; of other rules, those of `step`.
        reason: Explanation in words.
    """

    step: int | None
    steps: tuple[int, ...]
    reason: str


def conditions(options: Iterable[str]) -> dict[str, Bounds]:
    """Return key → lowest and highest value of `KEY>=VALUE` and `KEY<=VALUE`.

    Raises:
        ValueError: A condition is neither.

    Examples:
        >>> conditions(["score/distinct_2>=0.8", "policy/kl<=0.5", "score/distinct_2<=0.95"])
        {'score/distinct_2': (0.8, 0.95), 'policy/kl': (None, 0.5)}
    """
    bounds: dict[str, Bounds] = {}
    for option in options:
        found = _CONDITION.fullmatch(option)
        value = _number(found["value"]) if found else None
        if found is None or value is None or found["sign"] not in (">=", "<="):
            raise ValueError(f"--subject_to must be 'KEY>=VALUE' or 'KEY<=VALUE', got {option!r}")
        low, high = bounds.get(found["key"], (None, None))
        bounds[found["key"]] = (value, high) if found["sign"] == ">=" else (low, value)
    return bounds


def stop_options(text: str) -> dict[str, Any]:
    """Return the arguments of `StopRule` in `patience=3,decline=true`.

    Raises:
        ValueError: There is no such argument, or it has another type.

    Examples:
        >>> stop_options("patience=3,min_delta=noise,decline=true")
        {'patience': 3, 'min_delta': 'noise', 'decline': True}
    """
    options: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, given = (word.strip() for word in part.partition("="))
        known = (*_STOP, *_STOP_FLAGS)
        if name not in known:
            raise ValueError(f"--stop has no {name!r}{did_you_mean(name, known)}")
        value = yaml.safe_load(given) if equals else None
        flag = isinstance(value, bool)
        if value is None or (name in _STOP_FLAGS) != flag:
            kind = "true or false" if name in _STOP_FLAGS else "a number"
            raise ValueError(f"--stop must have {name}=VALUE with {kind}, got {part!r}")
        options[name] = value
    return options


def directed_keys(text: str, option: str) -> dict[str, str | None]:
    """Return key → direction, None without one, of `a:max,b:min,c`."""
    pairs = [part.strip().rpartition(":") for part in text.split(",") if part.strip()]
    named = [(key, end) if key and end in ("max", "min", "drift") else (f"{key}{colon}{end}", None)
             for key, colon, end in pairs]  # fmt: skip
    if not named:
        raise ValueError(f"{option} must name keys, got {text!r}")
    return dict(named)


def replay(named: NamedRule, steps: Sequence[StoredStep]) -> Replay:
    """Return what a rule decides over all validations of a run; a stop ends it.

    A validation is a step that logged all `keys` of the rule. Other keys keep their last value, as
    in training, unless they are a score of held-out prompts.

    Raises:
        ValueError: A key is not logged; lists those that are.
    """
    scored = {key for each in steps for key in each.evidence}
    state: Any = named.rule.start()
    rule: Any = named.rule
    last: dict[str, float] = {}
    first: tuple[int, str] | None = None
    validations = 0
    logged = {key for each in steps for key in each.metrics}
    for key in (*named.keys, *named.others):
        if key not in logged:
            raise ValueError(f"{key!r} is not logged: choose one of {sorted(logged)}")
    for each in steps:
        last |= each.metrics
        if not set(named.keys) <= set(each.metrics) or not set(named.others) <= set(last):
            continue
        validations += 1
        stale = scored - set(each.metrics)
        evidence = () if named.kind == "front" else (each.evidence,)
        state, decision = rule.update(state, each.step, last, stale, *evidence)
        decided = getattr(decision, "stop", False) or getattr(decision, "alarm", False)
        if decided and first is None:
            first = each.step, decision.reason
        if decided and named.kind == "stop":
            break
    if named.kind == "best":
        step = rule.best(state)
        return Replay(step, () if step is None else (step,), rule.explain(state))
    if named.kind == "front":
        return Replay(rule.best(state), tuple(state.kept), f"{len(state.kept)} on the front")
    if first is not None:
        return Replay(first[0], (first[0],), first[1])
    return Replay(None, (), f"none in {validations} validations")


def rule_of_best(key: str, mode: Mode, bounds: Mapping[str, Bounds]) -> NamedRule:
    """Return the selection of one checkpoint."""
    others = tuple(each for each in bounds if each != key)
    return NamedRule("best", BestRule(key, mode, constraints=dict(bounds)), (key,), others)


def rule_of_alarm(text: str, modes: Mapping[str, Mode], option: str = "--guard") -> NamedRule:
    """Return the alarm of `PROXY:HELD_OUT`, or `PROXY:HELD_OUT:max`."""
    parts = text.split(":")
    proxy_end = parts[1] if len(parts) > 2 and parts[1] in get_args(Mode) else None
    proxy, rest = parts[0], parts[2:] if proxy_end else parts[1:]
    if not rest or not proxy:
        raise ValueError(f"{option} must be PROXY:HELD_OUT, got {text!r}")
    held_out: dict[str, HeldOutMode] = {}
    for key, end in directed_keys(":".join(rest), option).items():
        held_out[key] = end or mode_of(key, modes, f"{option} {text}:max")  # type: ignore[assignment]
    proxy_mode: Any = proxy_end or modes.get(proxy, "max")
    return NamedRule("alarm", AlarmRule(proxy, held_out, proxy_mode), tuple(held_out), (proxy,))


def rule_of_front(text: str, modes: Mapping[str, Mode]) -> NamedRule:
    """Return the Pareto front of `a:max,b:min`."""
    directed = directed_keys(text, "--pareto")
    metrics: dict[str, Any] = {
        key: end or mode_of(key, modes, f"--pareto {key}:max") for key, end in directed.items()
    }
    return NamedRule("front", ParetoRule(metrics), tuple(metrics))


def mode_of(key: str, modes: Mapping[str, Mode], example: str) -> Mode:
    """Return the better direction of a key that a score declares.

    Raises:
        ValueError: Nothing declares it.
    """
    if key not in modes:
        raise ValueError(f"the better direction of {key!r} is unknown: give it, {example}")
    return modes[key]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
