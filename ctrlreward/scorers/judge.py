"""A language model as a judge: a rubric, a local model or an OpenAI-compatible server."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from string import Formatter
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import tenacity

from ctrlreward.arguments import checked_keywords, positive
from ctrlreward.engine.batching import windows
from ctrlreward.engine.sharing import shared_model
from ctrlreward.files import read_yaml
from ctrlreward.items import item_logger
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import rendered_chat
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.samples import COLUMN_OF, JSON_KEYS, Samples, is_unicode, shortened
from ctrlreward.scorers.base import Scores, ScoreSpec, nonempty
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.scorers.model_servers import (
    ModelServer,
    check_address,
    connected,
    in_parallel,
)
from ctrlreward.text.chats import prompt_text

log = item_logger(__name__)

# Answer of a comparison → score of the first text.
_SIDES = {"first": 1.0, "second": 0.0, "tie": 0.5}
_PAIR = {"first", "second"}

_TRIES = 4  # of a request that the server rejects temporarily


@dataclass(frozen=True)
class Rubric:
    r"""The question for a judge, and the scores of its answers.

    Args:
        prompt: The question, with columns of the sample in braces: `{text}`, `{source}`, `{label}`,
            …. With `{first}` and `{second}` it compares the text with its reference.
        answers: Answer → score, higher is better; a list of numbers maps each to itself. In a
            comparison answer → `first`, `second` or `tie`.
        name: Name of the score; `preference` in a comparison.

    Raises:
        ValueError: The prompt or an answer is invalid.

    Examples:
        >>> Rubric("Is this polite? {text}\nAnswer yes or no.", {"yes": 1, "no": 0}).range
        (0.0, 1.0)
        >>> prompt = "Which is more polite?\nA: {first}\nB: {second}"
        >>> Rubric(prompt, {"A": "first", "B": "second"}).compares
        True
    """

    prompt: str
    answers: Mapping[str, float | str] | Sequence[float]
    name: str = "rating"

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            raise ValueError(f"prompt = {shortened(self.prompt)} must be a string")
        try:
            slots = set(self._slots)
        except ValueError as error:
            raise ValueError(f"prompt: {error}. Write {{{{ and }}}} for braces.") from None
        known = _PAIR | {key for key in JSON_KEYS.values() if key != "group"}
        for slot in slots:
            if slot not in known:
                raise ValueError(
                    f"prompt has {{{slot}}}, must be one of {', '.join(sorted(known))}. Write "
                    "{{ and }} for braces."
                )
        if self.compares and (not slots >= _PAIR or slots & {"text", "reference"}):
            raise ValueError(
                "prompt must have {first} and {second}, for text and reference in either order, "
                "and neither {text} nor {reference}"
            )
        if not self.compares and "text" not in slots:
            raise ValueError("prompt must have {text}, or {first} and {second} to compare")
        object.__setattr__(self, "answers", _read_answers(self.answers, self.compares))
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name = {self.name!r} must be a string")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of `Samples` that the prompt shows."""
        names = [COLUMN_OF[slot] for slot in self._slots if slot not in _PAIR]
        return tuple(dict.fromkeys(["texts", *(["references"] * self.compares), *names]))

    @cached_property
    def compares(self) -> bool:
        """Whether it compares the text with its reference."""
        return bool(_PAIR & {*self._slots})

    @cached_property
    def _slots(self) -> list[str]:
        """Names in braces, in the order of the prompt; doubled braces are text."""
        return [name for _, name, _, _ in Formatter().parse(self.prompt) if name is not None]

    @property
    def scores(self) -> dict[str, float]:
        """Score of each answer; in a comparison of the first text."""
        answers: Any = self.answers
        return dict(answers)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest score."""
        return min(self.scores.values()), max(self.scores.values())

    @staticmethod
    def load(path: str | PathLike[str]) -> Rubric:
        """Read a YAML file with `prompt`, `answers` and optionally `name`.

        Raises:
            ValueError: A key is absent or unknown, or a value is wrong.
            OSError: The file does not exist.
        """
        file = Path(path).expanduser()
        if not file.is_file():
            raise OSError(
                f"the rubric {path} does not exist. Pass the path of a YAML file, or a Rubric."
            )
        content = read_yaml(file)
        keys = set(content) if isinstance(content, dict) else set()
        if not {"prompt", "answers"} <= keys <= {"prompt", "answers", "name"}:
            raise ValueError(
                f"{path} must have the keys prompt and answers, and may have name; got "
                f"{', '.join(map(str, sorted(keys, key=str))) or 'none'}"
            )
        try:
            return Rubric(**content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _read_answers(given: object, compares: bool) -> dict[str, float]:
    """Return the score of each answer."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = {item: item for item in given}
    if not isinstance(given, Mapping) or len(given) < 2:
        raise ValueError(f"answers = {shortened(given)} must be two or more: {{yes: 1, no: 0}}")
    answers = {}
    for answer, worth in given.items():
        if isinstance(answer, bool) or not str(answer).strip():
            raise ValueError(f"answers: {answer!r} is not text. Write it in quotes.")
        if compares:
            # A Rubric built from another already has numbers.
            value = _SIDES.get(worth, worth) if isinstance(worth, str) else worth
            allowed = value in _SIDES.values()
        else:
            value = worth
            allowed = isinstance(worth, int | float) and not isinstance(worth, bool)
        if not allowed:
            wanted = "first, second or tie" if compares else "a number"
            raise ValueError(f"answers: {answer} = {worth!r} must be {wanted}")
        answers[str(answer).strip()] = float(value)
    if len(set(answers.values())) < 2:
        raise ValueError("answers all have the same score, must have at least two different scores")
    return answers


def closed(answers: TokenScores) -> npt.NDArray[np.float64]:
    """Return the log-probability of each answer, not continued to another one, shape (answers,).

    log(p - Σ p of the answers that directly continue it).

    Examples:
        >>> from ctrlreward.models.tasks import TokenScores
        >>> from ctrlreward.scorers.judge import closed
        >>> ids, chances = np.array([7, 7, 3]), [0.5, 0.5, 0.75]  # "1" and "10"
        >>> np.exp(closed(TokenScores(ids, np.log(chances), np.array([1, 2]))))
        array([0.125, 0.375])
    """
    tokens = [tuple(ids.tolist()) for ids in answers.tokens]
    sums = answers.means * answers.sizes
    left = sums.copy()
    for i, longer in enumerate(tokens):
        begun = [
            j for j, each in enumerate(tokens) if each != longer and each == longer[: len(each)]
        ]
        if begun:
            shorter = max(begun, key=lambda j: len(tokens[j]))
            # Rounding can leave a bit less than nothing.
            rest = max(0.0, np.exp(left[shorter] - sums[shorter]) - np.exp(sums[i] - sums[shorter]))
            left[shorter] = sums[shorter] + (np.log(rest) if rest else -np.inf)
    return left


@checked_keywords(**NEIGHBOURS)
class Judge(ModelScorer[CausalLM]):
    r"""A language model that answers a rubric about each text.

    Measure its agreement with human ratings by `ctrlreward meta-eval` before you trust it. Nothing
    in the library uses a judge by default.

    With `Rubric.name` (`rating`), in the range of the answers' scores; higher is better:

    - A local model is scored, not sampled: the rating is the mean of the answers' scores, weighted
      by the probability of each answer after the prompt (Liu et al. 2023, G-Eval, eq. 1). The
      probability of "1" is without its continuations that are answers, such as "10".
    - A server writes one reply, at temperature 0, which must name one of the answers. The rating is
      NaN, and counted in a warning, if it names none or several.

    In a comparison of each text with its reference, in both orders:

    - `preference`: 1 if the text is better in both orders, 0 if the reference is, else 0.5. A
      choice that changes with the order is a tie, and counted in a warning.
    - `consistent`: 1 if both orders have the same winner, else 0; its mean shows how reliable
      the judge is. Both are NaN if a reply names none of the answers.

    Args:
        model: The judge: local folder, Hugging Face id or short name; with an address the name of
            a model on that server.
        rubric: A `Rubric`, or a YAML file with its arguments.
        address: Address of an OpenAI-compatible server, `"http://127.0.0.1:8000/v1"`, to which
            the texts are sent. None loads the model here.
        key_variable: Environment variable with the server's API key, so that it is not in a YAML
            file.
        concurrency: Requests to the server at the same time.
        max_tokens: Tokens of a reply.
        timeout: Seconds to wait for a reply.
        **options: See `ModelOptions`.

    Raises:
        ValueError: A number is out of range, or the address or the rubric is wrong.
        OSError: The rubric does not exist.

    Examples:
        >>> polite = Rubric("Is this polite: {text}\nAnswer yes or no:", {"yes": 1, "no": 0})
        >>> rating = Judge("smollm2-135m", polite)["rating"](["Could you help me?", "Go away!"])
        >>> rating.shape
        (2,)
    """

    def __init__(
        self,
        model: str,
        rubric: str | PathLike[str] | Rubric,
        address: str | None = None,
        key_variable: str | None = None,
        concurrency: int = 8,
        max_tokens: int = 16,
        timeout: float = 120.0,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        if not isinstance(rubric, Rubric | str | PathLike):
            raise TypeError(
                f"rubric is a {type(rubric).__name__}, must be a Rubric or the path of a YAML file"
            )
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric.load(rubric)
        if key_variable is not None and address is None:
            raise ValueError("key_variable is for a server, but address is None")
        self.address = address and check_address(address, "http://127.0.0.1:8000/v1")
        self.key_variable = key_variable
        self.concurrency = positive("concurrency", concurrency)
        self.max_tokens = positive("max_tokens", max_tokens)
        if not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
        self.timeout = timeout

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of the rating, or of preference and consistency."""
        if self.rubric.compares:
            spec = ScoreSpec(higher_is_better=True, range=(0.0, 1.0))
            return {"preference": spec, "consistent": spec}
        return {self.rubric.name: ScoreSpec(higher_is_better=True, range=self.rubric.range)}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that the rubric shows."""
        return {name: "Judge" for name in self.rubric.columns if name != "texts"}

    def build_model(self, name: str) -> CausalLM:
        """Load the judge, or share it with other scorers."""
        return shared_model(CausalLM, name, self.device, self.dtype, self.batch_tokens)

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of a local judge."""
        return super().devices if self.address is None else ()

    def load(self) -> None:
        """Load a local judge now instead of at the first `score`."""
        if self.address is None:
            super().load()

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> dict[str, Scores]:
        """Return the scores of the rubric; NaN, with a warning, for an empty text."""
        rubric = self.rubric
        columns = {
            name: samples.texts if name == "texts" else samples.require(name, "Judge")
            for name in rubric.columns
        }
        read = {"texts": columns["texts"]}
        if rubric.compares:
            read["references"] = columns["references"]
        score, kept = next(iter(self.specs)), []
        prompts: list[str] = []
        for i in nonempty(score, **read):
            cells = {JSON_KEYS[name]: column[i] for name, column in columns.items()}
            if "prompt" in cells:
                cells["prompt"] = prompt_text(cells["prompt"])
            # Texts are checked before; only a judge reads labels and prompts as text.
            if invalid := [name for name, column in columns.items() if not is_unicode(column[i])]:
                log.warning("%s[%d] is not valid Unicode: %s is NaN", invalid[0], i, score)
                continue
            kept.append(i)
            sides = [(cells["text"], cells.get("reference", ""))]
            for first, second in [*sides, *((b, a) for a, b in sides if rubric.compares)]:
                prompts.append(rubric.prompt.format(**cells, first=first, second=second))
        answered = self._read(prompts) if self.address is None else self._ask(prompts)
        return self._scores(answered, kept, len(samples))

    def _scores(self, answered: Sequence[float], kept: Sequence[int], n: int) -> dict[str, Scores]:
        """Return the scores of n samples by the score of each answer."""
        found = {name: np.full(n, np.nan) for name in self.specs}
        if not self.rubric.compares:
            found[self.rubric.name][kept] = answered
            return found
        text, reference = np.reshape(answered, (len(kept), 2)).T
        reference = 1.0 - reference  # the text's score in the second position
        valid = ~np.isnan(text + reference)
        consistent = np.where(valid, text == reference, np.nan)
        found["consistent"][kept] = consistent
        found["preference"][kept] = np.where(valid, np.where(text == reference, text, 0.5), np.nan)
        changed = int((consistent == 0).sum())
        if changed:
            log.warning(
                "%d of %d comparisons change with the order: the preference is a tie",
                *(changed, int(valid.sum())),
            )
        return found

    def _read(self, prompts: Sequence[str]) -> list[float]:
        """Return the score that a local model gives to each prompt."""
        worth = np.array([*self.rubric.scores.values()])
        tokenizer = self.loaded_model.tokenizer
        chat = tokenizer.chat_template is not None
        tasks, scores = [], []
        for context in prompts:
            if chat:
                message = {"role": "user", "content": context}
                context = rendered_chat(tokenizer, [message], {}, add_generation_prompt=True)
            space = "" if context[-1:].isspace() or chat else " "
            targets = tuple(("", f"{space}{answer}") for answer in self.rubric.scores)
            tasks.append(Continuation((context,), targets))
        with self.locked_model() as model:
            found = model.answer(tasks)
        for answers in found:
            row = closed(answers)
            chances = np.exp(row - row.max())
            if self.rubric.compares:
                scores.append(float(worth[row.argmax()]))
            else:
                scores.append(float(chances @ worth / chances.sum()))
        return scores

    def _ask(self, prompts: Sequence[str]) -> list[float]:
        """Return the score of a server's reply to each prompt; NaN if it can't be parsed."""
        assert self.address is not None
        stop = tenacity.stop_after_attempt(_TRIES)
        with connected("the judge", self.address, self.key_variable, self.timeout, stop) as server:
            replies: list[str] = []
            for window in windows([len(prompt) for prompt in prompts]):
                some = prompts[window.start : window.stop]
                replies += in_parallel(partial(self._reply, server), some, self.concurrency)
        scores = [read_answer(reply, self.rubric.scores) for reply in replies]
        unread = [reply for reply, score in zip(replies, scores, strict=True) if np.isnan(score)]
        if unread:
            log.warning(
                "%d of %d replies of the judge name none or several of %s, and are NaN: %s",
                *(len(unread), len(replies), ", ".join(self.rubric.scores), shortened(unread[0])),
            )
        return scores

    def _reply(self, server: ModelServer, prompt: str) -> str:
        """Return the text of one reply."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        reply = server.post("/chat/completions", body)
        try:
            content = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise ConnectionError(
                f"{server.address} is not an OpenAI-compatible server: {shortened(reply)}"
            ) from None
        return content if isinstance(content, str) else ""


def read_answer(reply: str, scores: Mapping[str, float]) -> float:
    """Return the score of the only answer in a reply, as a word; NaN for none or several.

    Case counts only if answers differ by it.

    Examples:
        >>> read_answer("**Yes**.", {"yes": 1.0, "no": 0.0}), read_answer("4/5", {"4": 4, "5": 5})
        (1.0, nan)
    """
    folded = {answer.casefold(): score for answer, score in scores.items()}
    if len(folded) == len(scores):
        reply, scores = reply.casefold(), folded
    # Longer answers first: "very good" is not "good".
    words = "|".join(re.escape(word) for word in sorted(scores, key=len, reverse=True))
    named = set(re.findall(rf"(?<![\w.-])(?:{words})(?![\w-]|\.\w)", reply))
    return float(scores[named.pop()]) if len(named) == 1 else float("nan")
