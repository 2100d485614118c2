"""Questions to a judge, and the reading of its replies."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from ctrlreward.files import read_yaml
from ctrlreward.samples import COLUMN_OF, JSON_KEYS

_ANSWER_TOKENS, _KEY_TOKENS, _REASON_TOKENS = 16, 32, 256  # a key is with its score


@dataclass(frozen=True)
class Criterion:
    """One question of a rubric that has several.

    Args:
        question: The question, "Is the reply polite?"; braces in it are text.
        answers: Answer → score, higher is better; a list of numbers maps each to itself.
        weight: Weight in the mean of all criteria, positive.
    """

    question: str
    answers: Mapping[str, float] | Sequence[float]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not str(self.question).strip():
            raise ValueError("question must have text")
        object.__setattr__(self, "answers", _read_answers(self.answers))
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight must be a positive number, got {self.weight!r}")

    @property
    def scores(self) -> dict[str, float]:
        answers: Any = self.answers
        return dict(answers)

    @property
    def range(self) -> tuple[float, float]:
        return min(self.scores.values()), max(self.scores.values())


class Judgement(NamedTuple):
    """Scores of one reply by name, NaN where it has none, and their reasons."""

    scores: Mapping[str, float]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class Rubric:
    r"""The question for a judge, and the scores of its answers.

    Args:
        prompt: The question, with columns of the sample in braces: `{text}`, `{source}`, `{label}`,
            ….
        answers: Answer → score, higher is better; a list of numbers maps each to itself.
        name: Name of the score, with criteria of their weighted mean.
        criteria: Name → `Criterion`, in place of `answers`: several questions about each text,
            which a server answers in one reply. Each is a score. They are added to the prompt.
        reason: Ask a server for a reason before each score, which is stored with the sample.
    """

    prompt: str
    answers: Mapping[str, float] | Sequence[float] = ()
    name: str = "rating"
    criteria: Mapping[str, Criterion] | None = None
    reason: bool = False

    def __post_init__(self) -> None:
        known = {*JSON_KEYS.values()} - {"group", "answer_after", "unfinished"}
        if not {"text"} <= {*self._slots} <= known:
            raise ValueError(
                f"prompt must have {{text}}, and may have {', '.join(sorted(known))} in braces, "
                f"{{{{ and }}}} for others, got {self.prompt!r}"
            )
        if self.criteria is None:
            object.__setattr__(self, "answers", _read_answers(self.answers))
        elif self.answers:
            raise ValueError("criteria have the answers themselves, so answers must be left out")
        else:
            object.__setattr__(self, "criteria", _read_criteria(self.criteria, self.name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of `Samples` that the prompt shows."""
        return tuple(dict.fromkeys(["texts", *(COLUMN_OF[slot] for slot in self._slots)]))

    @cached_property
    def _slots(self) -> list[str]:
        """Names in braces, in the order of the prompt; doubled braces are text."""
        return [name for _, name, _, _ in Formatter().parse(self.prompt) if name is not None]

    @property
    def range(self) -> tuple[float, float]:
        worths = {name: answers.values() for name, answers in self.questions().items()}
        low, high = ({name: end(worth) for name, worth in worths.items()} for end in (min, max))
        return self.mean(low), self.mean(high)

    def mean(self, scores: Mapping[str, float]) -> float:
        """Return the weighted mean of the scores of all criteria, or the only score; may be NaN."""
        criteria = self.criteria or {}
        weights = {name: each.weight for name, each in criteria.items()} or {self.name: 1.0}
        total = sum(weight * scores[name] for name, weight in weights.items())
        return total / sum(weights.values())

    def questions(self) -> dict[str, dict[str, float]]:
        """Return the scores of the answers to each question."""
        if self.criteria is None:
            return {self.name: dict(self.answers)}  # type: ignore[arg-type]
        return {name: criterion.scores for name, criterion in self.criteria.items()}

    @property
    def structured(self) -> bool:
        """Whether a server replies in JSON."""
        return self.reason or self.criteria is not None

    @property
    def reply_tokens(self) -> int:
        """Tokens that are enough for a reply without thinking."""
        if not self.structured:
            # A token is a byte or more.
            (answers,) = self.questions().values()
            return max(_ANSWER_TOKENS, *(len(answer.encode()) + 4 for answer in answers))
        one = _KEY_TOKENS + _REASON_TOKENS * self.reason
        return 4 * _KEY_TOKENS + len(self.questions()) * one

    @staticmethod
    def load(path: str | PathLike[str]) -> Rubric:
        """Read a YAML file with the arguments of a rubric; each of `criteria` is a mapping."""
        file = Path(path).expanduser()
        if not file.is_file():
            raise OSError(f"rubric must be a Rubric or the path of a YAML file, got {str(path)!r}")
        try:
            return Rubric(**read_yaml(file))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None


def _read_criteria(given: Any, mean: str) -> dict[str, Criterion]:
    if not given or mean in given:
        raise ValueError(f"criteria must be one or more, by names other than {mean!r}")
    criteria = {}
    for name, each in given.items():
        try:
            criteria[str(name)] = each if isinstance(each, Criterion) else Criterion(**each)
        except (TypeError, ValueError) as error:
            raise ValueError(f"criteria[{name!r}]: {error}") from None
    return criteria


def _read_answers(given: Any) -> dict[str, float]:
    scores = given if isinstance(given, Mapping) else {item: item for item in given}
    answers = {}
    for answer, worth in scores.items():
        if isinstance(answer, bool):  # YAML's yes and no
            raise ValueError(f"answers: {answer!r} is not text. Write it in quotes.")
        try:
            answers[str(answer).strip()] = float(worth)
        except (TypeError, ValueError):
            raise ValueError(f"answers: {answer} = {worth!r} must be a number") from None
    if len(set(answers.values())) < 2 or not all(map(math.isfinite, answers.values())):
        raise ValueError(f"answers must have two or more different finite scores, got {scores}")
    return answers


# What is asked


def contexts(rubric: Rubric, shown: str) -> dict[str, str]:
    """Return what a local judge continues with an answer; `shown` is the filled prompt."""
    if rubric.criteria is None:
        return {rubric.name: shown}
    return {
        name: f"{shown}\n\n{each.question}\nAnswer with one of {', '.join(each.scores)}:"
        for name, each in rubric.criteria.items()
    }


def message(rubric: Rubric, shown: str) -> str:
    """Return the message to a server; `shown` is the filled prompt."""
    if not rubric.structured:
        return shown
    lines = [shown, ""]
    answers = ""
    if rubric.criteria is None:
        answers = f", one of {', '.join(rubric.questions()[rubric.name])}"
    else:
        lines.append("Criteria:")
        for name, each in rubric.criteria.items():
            lines.append(f"- {name}: {each.question} One of {', '.join(each.scores)}.")
        lines.append("")
    why = '"reason": "…", ' if rubric.reason else ""
    parts = [f'{json.dumps(name)}: {{{why}"score": …}}' for name in rubric.questions()]
    example = f"{{{', '.join(parts)}}}"
    lines.append(f"Reply with a JSON object alone, {example}: score is your answer{answers}.")
    if rubric.reason:
        lines.append("First write the reason, in one or two sentences.")
    return "\n".join(lines)


def response_format(rubric: Rubric) -> dict[str, Any]:
    """Return OpenAI's `response_format` with the JSON schema of a reply; none for plain text."""
    if not rubric.structured:
        return {}
    parts = {}
    for name, answers in rubric.questions().items():
        whole = all(re.fullmatch(r"-?\d+", answer) for answer in answers)
        kind = {"type": "integer" if whole else "string"}
        score = {**kind, "enum": [*map(int, answers)] if whole else [*answers]}
        why = {"reason": {"type": "string"}} if rubric.reason else {}
        parts[name] = _object({**why, "score": score})
    named = {"name": "judgement", "strict": True, "schema": _object(parts)}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


# What is replied


# A template may open the thought, so that the reply has its end alone.
_THOUGHT = re.compile(r"\A(?:.*</think>|\s*<think>.*\Z)", re.DOTALL)


def read_reply(rubric: Rubric, reply: str) -> Judgement:
    """Return the scores of a server's reply, NaN for those that are absent or not an answer."""
    reply = _THOUGHT.sub("", reply)  # of a model that thinks, on a server that does not remove it
    if not rubric.structured:
        return Judgement({rubric.name: read_answer(reply, rubric.questions()[rubric.name])}, {})
    try:
        content = json.loads(reply[reply.find("{") : reply.rfind("}") + 1])  # in a code block
    except (ValueError, RecursionError):
        content = {}
    questions = rubric.questions()
    found = {name: content.get(name) for name in questions}
    parts = {name: part if isinstance(part, dict) else {} for name, part in found.items()}
    scores = {n: read_answer(part.get("score"), questions[n]) for n, part in parts.items()}
    reasons = {name: part.get("reason") for name, part in parts.items()}
    told = {name: why.strip() for name, why in reasons.items() if isinstance(why, str)}
    return Judgement(scores, told)


def read_answer(reply: object, scores: Mapping[str, float]) -> float:
    """Return the score of the only answer in a reply, as a word; NaN for none or several.

    The reply is a text, or a value of JSON. Case counts only if answers differ by it: "**Yes**." is
    yes. "4.0" is 4, and so is "4/5" if 5 is the largest answer.
    """
    if isinstance(reply, bool) or not isinstance(reply, str | int | float):
        return math.nan
    whole = isinstance(reply, float) and reply.is_integer()
    text = str(int(reply) if whole else reply)
    folded = {answer.casefold(): score for answer, score in scores.items()}
    if len(folded) == len(scores):
        text, scores = text.casefold(), folded
    # Longer answers first: "very good" is not "good".
    words = "|".join(re.escape(word) for word in sorted(scores, key=len, reverse=True))
    numbers = [int(answer) for answer in scores if answer.isdecimal()]
    if len(numbers) == len(scores):
        text = re.sub(rf"(?<=\d) ?/ ?{max(numbers)}(?!\d)", "", text)
    named = set(re.findall(rf"(?<![\w.-])({words})(?:(?<=\d)\.0+)?(?![\w-]|\.\w| ?/ ?\d)", text))
    return float(scores[named.pop()]) if len(named) == 1 else math.nan
