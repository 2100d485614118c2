"""A language model as a judge: a rubric, a local model or an OpenAI-compatible server."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple, TypeAlias, Unpack, get_args

import numpy as np

from ctrlreward.arguments import checked_keywords, kind_of, not_negative, one_of, positive
from ctrlreward.engine.sharing import shared_model
from ctrlreward.items import item_logger
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import rendered_chat
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.samples import JSON_KEYS, Samples, is_unicode, shortened
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.judge_requests import JudgeUsage, Meter, Outage, OutageChoice, ReplyCache
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.scorers.model_servers import (
    Busy,
    ModelServer,
    Rejected,
    check_address,
    connected,
    in_parallel,
)
from ctrlreward.scorers.rubric import (
    CONSISTENT,
    PREFERENCE,
    RANK,
    Judgement,
    Rubric,
    contexts,
    message,
    places,
    read_reply,
    response_format,
)
from ctrlreward.text.chats import prompt_text

log = item_logger(__name__)

_REASONS_KEPT = 20_000  # of the last samples, until they are stored

Columns: TypeAlias = Mapping[str, tuple[str, ...]]  # that a rubric shows, with prompts as texts


class Question(NamedTuple):
    """The filled prompt of a rubric about one row, or about the rows of a group."""

    rows: Sequence[int]
    prompt: str


def closed(answers: TokenScores) -> Scores:
    """Return the probability of each answer, not continued to another one, over the largest one.

    p - Σ p of the answers that directly continue it, shape (answers,).

    Examples:
        >>> from ctrlreward.models.tasks import TokenScores
        >>> ids, chances = np.array([7, 7, 3]), [0.5, 0.5, 0.75]  # "1" and "10"
        >>> closed(TokenScores(ids, np.log(chances), np.array([1, 2])))
        array([0.25, 0.75])
    """
    tokens = [tuple(ids.tolist()) for ids in answers.tokens]
    sums = answers.means * answers.sizes
    chances = np.exp(sums - sums.max())
    left = chances.copy()
    for i, longer in enumerate(tokens):
        begun = [
            j for j, each in enumerate(tokens) if each != longer and each == longer[: len(each)]
        ]
        if begun:
            left[max(begun, key=lambda j: len(tokens[j]))] -= chances[i]
    return left.clip(0.0)  # rounding can leave a bit less than nothing


@checked_keywords(**NEIGHBOURS)
class Judge(ModelScorer[CausalLM]):
    r"""A language model that answers a rubric about each text. Higher is better for all scores.

    - `Rubric.name` (`rating`), in the range of the answers' scores. Of a local model it is the mean
      of the scores, weighted by the probability of each answer after the prompt (Liu et al. 2023,
      G-Eval, eq. 1). With a chat template, the prompt is the user's turn. A server
      writes one reply, at temperature 0: NaN, and counted in a warning, if it names none or several
      of the answers.
    - With criteria each is a score, and `rating` their weighted mean. A server answers all in one
      reply, by a JSON schema.
    - A comparison with the reference, in both orders, has `preference`: 1 if the text is better in
      both, 0 if the reference is, else 0.5; and `consistent`: 1 if both orders have one winner.
    - A ranking of the texts of each of `groups`, as given and in reverse, has `rank`: from 1 for
      the best of the group to 0 for the worst, the mean of both orders; and `consistent`: share of
      the pairs that both orders rank alike. NaN for a group of 1. A local model ranks by the
      probability of each number as the best.

    Args:
        model: The judge: local folder, Hugging Face id or short name; with an address the name of
            a model on that server.
        rubric: A `Rubric`, or a YAML file with its arguments.
        address: Address of an OpenAI-compatible server, `"http://127.0.0.1:8000/v1"`, to which
            the texts are sent. None loads the model here.
        key_variable: Environment variable with the server's API key.
        concurrency: Requests to the server at the same time.
        max_tokens: Tokens of a reply; None takes enough for the answers and reasons of the rubric.
            A model that thinks first needs more.
        timeout: Seconds to wait for a reply.
        requests_per_minute: Most requests that begin in any 60 seconds, in each process.
        tokens_per_minute: Most tokens of these, prompts and replies.
        prompt_cost: Price of a million tokens of prompts, for `usage`.
        completion_cost: Price of a million tokens of replies.
        cache: Folder in which valid replies are kept by the content of their request.
        outage: If the server does not answer, or is busy: `"raise"` a `ConnectionError` after four
            tries, `"wait"` until it answers, or `"nan"`: after four tries the sample is NaN and
            counted, also if the server rejects its text. Its limit (429) is always waited for.
        outage_budget: Seconds of an outage after which nothing is repeated: `"wait"` and `"raise"`
            raise, and with `"nan"` the rest of the batch is NaN.
        **options: See `ModelOptions`.

    Examples:
        >>> from ctrlreward import Rubric
        >>> polite = Rubric("Is this polite: {text}\nAnswer yes or no:", {"yes": 1, "no": 0})
        >>> Judge("smollm2-135m", polite)["rating"](["Could you help me?", "Go away!"]).shape
        (2,)
    """

    def __init__(
        self,
        model: str,
        rubric: str | PathLike[str] | Rubric,
        address: str | None = None,
        key_variable: str | None = None,
        concurrency: int = 8,
        max_tokens: int | None = None,
        timeout: float = 120.0,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        prompt_cost: float = 0.0,
        completion_cost: float = 0.0,
        cache: str | PathLike[str] | None = None,
        outage: OutageChoice = "raise",
        outage_budget: float = 600.0,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        if not isinstance(rubric, Rubric | str | PathLike):
            raise TypeError(
                f"rubric is {kind_of(rubric)}, must be a Rubric or the path of a YAML file"
            )
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric.load(rubric)
        self.pointwise = not self.rubric.ranks
        for name, given in {"key_variable": key_variable, "cache": cache}.items():
            if given is not None and address is None:
                raise ValueError(f"{name} is for a server, but address is None")
        self.address = address and check_address(address, "http://127.0.0.1:8000/v1")
        self.key_variable = key_variable
        self.concurrency = positive("concurrency", concurrency)
        self.max_tokens = positive("max_tokens", max_tokens) or self.rubric.reply_tokens
        self.timeout = positive("timeout", timeout)
        self._meter = Meter(
            positive("requests_per_minute", requests_per_minute),
            positive("tokens_per_minute", tokens_per_minute),
            not_negative("prompt_cost", prompt_cost),
            not_negative("completion_cost", completion_cost),
        )
        self._replies = None if cache is None else ReplyCache(os.fspath(cache))
        self.outage = one_of("outage", outage, get_args(OutageChoice))
        self.outage_budget = not_negative("outage_budget", outage_budget)
        self._reasons: dict[int, Mapping[str, str]] = {}  # by the hash of the prompt

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; a copy in another process starts without reasons."""
        return {**super().__getstate__(), "_reasons": {}}

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score."""
        rubric = self.rubric
        if rubric.ranks or rubric.compares:
            names = (RANK if rubric.ranks else PREFERENCE, CONSISTENT)
            return dict.fromkeys(names, ScoreSpec(higher_is_better=True, range=(0.0, 1.0)))
        criteria = {name: each.range for name, each in (rubric.criteria or {}).items()}
        ranges = {rubric.name: rubric.range, **criteria}
        return {name: ScoreSpec(higher_is_better=True, range=each) for name, each in ranges.items()}

    @property
    def usage(self) -> JudgeUsage:
        """Requests, tokens and cost so far, in this process."""
        return self._meter.usage

    @property
    def counters(self) -> Mapping[str, float]:
        """Requests, tokens and cost of a judge on a server, which rewards log."""
        if self.address is None:
            return {}
        used = self.usage
        return {
            "judge/requests": used.requests,
            "judge/tokens": used.prompt_tokens + used.completion_tokens,
            "judge/cost": used.cost,
        }

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that the rubric shows, and the groups of a ranking."""
        columns = [*self.rubric.columns, *(["groups"] * self.rubric.ranks)]
        return {name: "Judge" for name in columns if name != "texts"}

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

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        """Return the scores of the rubric; NaN, with a warning, for an empty text."""
        rubric, (questions, unreadable) = self.rubric, self._questions(samples)
        for why in unreadable.values():
            log.warning("%s: %s is NaN", why, next(iter(self.specs)))
        judgements = self._read(questions) if self.address is None else self._ask(questions)
        found = {name: np.full(len(samples), np.nan) for name in self.specs}
        if rubric.ranks:
            kept = len(samples) - len(unreadable)
            if alone := kept - sum(len(question.rows) for question in questions[::2]):
                log.warning("%d of %d texts are alone in their group: rank is NaN", alone, kept)
            pairs = zip(questions[::2], judgements[::2], judgements[1::2], strict=True)
            for (rows, _), given, reverse in pairs:
                found[RANK][rows], found[CONSISTENT][rows] = _ranked(given, reverse)
        elif rubric.compares:
            answered = [judgement.scores[rubric.name] for judgement in judgements]
            rows = [i for question in questions[::2] for i in question.rows]
            found[PREFERENCE][rows], found[CONSISTENT][rows] = _preferred(answered)
        else:
            for (rows, _), judgement in zip(questions, judgements, strict=True):
                for name, value in judgement.scores.items():
                    found[name][rows] = value
                found[rubric.name][rows] = rubric.mean(judgement.scores)
        return found

    def reasons(self, samples: Samples, names: Collection[str]) -> dict[str, list[str]]:
        """Return the reasons of the last samples, if the rubric asks for them; "" for others.

        The weighted mean has the reasons of all criteria, a ranking has its first order's.
        """
        rubric = self.rubric
        if not rubric.reason or self.address is None:
            return {}
        questions, _ = self._questions(samples)
        told = [dict[str, str]() for _ in range(len(samples))]
        for rows, prompt in questions[::2] if rubric.ranks else questions:
            for i in rows:
                told[i] = {**self._reasons.get(hash(prompt), {})}
        if rubric.criteria is not None:
            for each in told:
                each[rubric.name] = "\n".join(f"{name}: {why}" for name, why in each.items())
        return {n: [each.get(n, "") for each in told] for n in names if n != CONSISTENT}

    # What is asked

    def _questions(self, samples: Samples) -> tuple[list[Question], dict[int, str]]:
        """Return the questions about the samples, and why there is none about some rows.

        In a comparison or a ranking, two follow each other, one for each order.
        """
        rubric = self.rubric
        columns = {name: samples.require(name, "Judge") for name in rubric.columns}
        if "prompts" in columns:
            columns["prompts"] = tuple(map(prompt_text, columns["prompts"]))
        unreadable: dict[int, str] = {}
        for name, column in columns.items():
            needed = name == "texts" or (name == "references" and rubric.compares)
            for i, text in enumerate(column):
                if needed and not text.strip():
                    unreadable.setdefault(i, f"{name}[{i}] is empty")
                elif not is_unicode(text):  # only texts are checked before
                    unreadable.setdefault(i, f"{name}[{i}] is not valid Unicode")
        kept = [i for i in range(len(samples)) if i not in unreadable]

        def question(rows: Sequence[int], swapped: bool = False) -> Question:
            cells = {JSON_KEYS[name]: column[rows[0]] for name, column in columns.items()}
            sides = [cells["text"], cells.get("reference", "")]
            first, second = sides[::-1] if swapped else sides
            numbered = (f"[{number}]\n{columns['texts'][i]}" for number, i in enumerate(rows, 1))
            texts = "\n\n".join(numbered)
            prompt = rubric.prompt.format(**cells, first=first, second=second, texts=texts)
            return Question(rows, prompt)

        if rubric.ranks:
            groups = _groups(samples.require("groups", "Judge"), columns, kept)
            questions = [question(order) for rows in groups for order in (rows, rows[::-1])]
        else:
            swaps = (False, True) if rubric.compares else (False,)
            questions = [question([i], swapped) for i in kept for swapped in swaps]
        return questions, dict(sorted(unreadable.items()))

    # A local model

    def _read(self, questions: Sequence[Question]) -> list[Judgement]:
        """Return the judgements by the probabilities of the answers after each prompt."""
        rubric, tokenizer = self.rubric, self.loaded_model.tokenizer
        chat = tokenizer.chat_template is not None
        tasks = []
        for rows, prompt in questions:
            wanted = rubric.questions(len(rows))
            for name, context in contexts(rubric, prompt, len(rows)).items():
                if chat:
                    turn = {"role": "user", "content": context}
                    context = rendered_chat(tokenizer, [turn], {}, add_generation_prompt=True)
                space = "" if context[-1:].isspace() or chat else " "
                targets = tuple(("", f"{space}{answer}") for answer in wanted[name])
                tasks.append(Continuation((context,), targets, chat=chat))
        with self.locked_model() as model:
            answered = iter([closed(answers) for answers in model.answer(tasks)])
        found = [
            {name: next(answered) for name in rubric.questions(len(q.rows))} for q in questions
        ]
        return [Judgement(_scores(rubric, each), {}) for each in found]

    # A server

    def _ask(self, questions: Sequence[Question]) -> list[Judgement]:
        """Return the judgements of a server's replies; NaN where one can't be parsed."""
        assert self.address is not None
        outage = Outage(self.outage, self.outage_budget)
        options = self.address, self.key_variable, self.timeout, outage.stop
        with connected("the judge", *options) as server:
            ask = partial(self._reply, server, outage)
            replies = in_parallel(ask, questions, self.concurrency)
        judgements = [
            read_reply(self.rubric, reply or "", len(question.rows))
            for question, reply in zip(questions, replies, strict=True)
        ]
        pairs = zip(replies, judgements, strict=True)
        self._warn([(reply, each) for reply, each in pairs if reply is not None])
        if outage.errors:
            log.warning(
                "%d of %d requests to the judge have no reply, and are NaN: %s",
                *(len(outage.errors), len(questions), outage.errors[0]),
            )
        if self.rubric.reason:
            for question, judgement in zip(questions, judgements, strict=True):
                self._reasons[hash(question.prompt)] = judgement.reasons
            for key in [*self._reasons][:-_REASONS_KEPT]:
                del self._reasons[key]
        return judgements

    def _warn(self, replied: Sequence[tuple[str, Judgement]]) -> None:
        """Warn once of the replies that are NaN."""
        rubric = self.rubric
        unread = [(reply, each.scores) for reply, each in replied if not each.whole]
        if not unread:
            return
        if rubric.structured:
            lacking = Counter(
                name
                for _, scores in unread
                for name in ([RANK] if rubric.ranks else scores)
                if rubric.ranks or math.isnan(scores[name])
            )
            of_each = ", ".join(f"{name} {n}" for name, n in lacking.items())
            fault = f"lack a valid score, and are NaN there ({of_each})"
        else:
            fault = f"name none or several of {', '.join(rubric.scores)}, and are NaN"
        log.warning(
            "%d of %d replies of the judge %s: %s. A reply that is cut off needs more than "
            "max_tokens = %d.",
            *(len(unread), len(replied), fault, shortened(unread[0][0], 200), self.max_tokens),
        )

    def _reply(self, server: ModelServer, outage: Outage, question: Question) -> str | None:
        """Return the text of one reply; None without one, if outages are NaN."""
        size = len(question.rows)
        content = message(self.rubric, question.prompt, size)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": self.max_tokens,
            **response_format(self.rubric, size),
        }
        key = ReplyCache.key(body)
        if self._replies is not None and (stored := self._replies.get(key)) is not None:
            self._meter.count("cached")
            return stored
        try:
            if outage.over_budget and outage.errors:
                raise Busy(str(outage.errors[-1]))
            reply = server.retrying(self._send, server, body)
        except (Busy, Rejected) as error:
            if self.outage != "nan":
                raise
            outage.errors.append(error)
            self._meter.count("failed")
            return None
        outage.answered()
        try:
            text = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise ConnectionError(
                f"{server.address} is not an OpenAI-compatible server: {shortened(reply)}"
            ) from None
        text = text if isinstance(text, str) else ""
        if self._replies is not None and read_reply(self.rubric, text, size).whole:
            self._replies.put(key, text)
        return text

    def _send(self, server: ModelServer, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the reply to one request, within the limits."""
        sent = self._meter.begin(body)
        reply = server.post("/chat/completions", body)
        self._meter.end(sent, reply)
        return reply


def _groups(names: Sequence[str], columns: Columns, kept: Sequence[int]) -> list[list[int]]:
    """Return the rows of each group of two or more texts, which share what a prompt shows."""
    groups: dict[str, list[int]] = {}
    for i in kept:
        groups.setdefault(names[i], []).append(i)
    for group, (first, *others) in groups.items():
        for name, column in columns.items():
            for i in others if name != "texts" else ():
                if column[i] != column[first]:
                    raise ValueError(
                        f"{name}[{i}] = {shortened(column[i])} must be the same as {name}"
                        f"[{first}] = {shortened(column[first])} to rank group {group!r}"
                    )
    return [rows for rows in groups.values() if len(rows) > 1]


def _preferred(answered: Sequence[float]) -> tuple[Scores, Scores]:
    """Return preference and consistency of comparisons, by the answers in both orders of each."""
    text, reference = np.reshape(answered, (-1, 2)).T
    reference = 1.0 - reference  # the text's score in the second position
    valid, alike = ~np.isnan(text + reference), text == reference
    if changed := int((valid & ~alike).sum()):
        log.warning(
            "%d of %d comparisons change with the order: the preference is a tie",
            *(changed, int(valid.sum())),
        )
    return np.where(valid, np.where(alike, text, 0.5), np.nan), np.where(valid, alike, np.nan)


def _ranked(given: Judgement, reverse: Judgement) -> tuple[Scores, float]:
    """Return the ranks of a group, and the share of its pairs that both orders rank alike."""
    ranks = np.array([[*given.scores.values()], [*reverse.scores.values()][::-1]])
    first, second = np.triu_indices(ranks.shape[1], 1)
    signs = np.sign(ranks[:, first] - ranks[:, second])
    consistent = (signs[0] == signs[1]).mean() if not np.isnan(ranks).any() else np.nan
    return ranks.mean(axis=0), float(consistent)


def _scores(rubric: Rubric, rows: Mapping[str, Scores]) -> dict[str, float]:
    """Return the scores by the probabilities of the answers to each question."""
    if rubric.ranks:
        (row,) = rows.values()
        order = (np.argsort(-row, kind="stable") + 1).tolist()
        return places(order, len(order))
    scores, questions = {}, rubric.questions()
    for name, row in rows.items():
        worth = np.array([*questions[name].values()])
        scores[name] = float(worth[row.argmax()] if rubric.compares else row @ worth / row.sum())
    return scores
