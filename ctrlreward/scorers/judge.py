"""A language model as a judge: a rubric, a local model or an OpenAI-compatible server."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Unpack

import numpy as np

from ctrlreward.arguments import kind_of, not_negative, positive
from ctrlreward.engine.sharing import shared_model
from ctrlreward.extras import import_extra
from ctrlreward.items import item_logger
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import rendered_chat
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.samples import JSON_KEYS, Samples, is_unicode, shortened
from ctrlreward.scorers.base import Scores, ScoreSpec
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer
from ctrlreward.scorers.model_servers import api_key, check_address, in_parallel, is_local
from ctrlreward.scorers.rubric import (
    Judgement,
    Rubric,
    contexts,
    message,
    read_reply,
    response_format,
)
from ctrlreward.text.chats import prompt_text

log = item_logger(__name__)

_REASONS_KEPT = 20_000  # of the last samples, until they are stored


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


class Judge(ModelScorer[CausalLM]):
    r"""A language model that answers a rubric about each text. Higher is better for all scores.

    - `Rubric.name` (`rating`), in the range of the answers' scores. Of a local model it is the mean
      of the scores, weighted by the probability of each answer after the prompt (Liu et al. 2023,
      G-Eval, eq. 1). With a chat template, the prompt is the user's turn. A server
      writes one reply, at temperature 0: NaN, and counted in a warning, if it names none or several
      of the answers.
    - With criteria each is a score, and `rating` their weighted mean. A server answers all in one
      reply, by a JSON schema.

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
        max_retries: Times that a request is repeated if the server is busy or does not answer,
            after the pauses that it asks for (Retry-After), or else up to 8 seconds.
        **options: See `ModelOptions`.

    Raises:
        ConnectionError: When scoring: the server does not answer, or rejects a request.

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
        max_retries: int = 8,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        if not isinstance(rubric, Rubric | str | PathLike):
            raise TypeError(
                f"rubric is {kind_of(rubric)}, must be a Rubric or the path of a YAML file"
            )
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric.load(rubric)
        if key_variable is not None and address is None:
            raise ValueError("key_variable is for a server, but address is None")
        self.address = address and check_address(address, "http://127.0.0.1:8000/v1")
        self.key_variable = key_variable
        self.concurrency = positive("concurrency", concurrency)
        self.max_tokens = positive("max_tokens", max_tokens) or self.rubric.reply_tokens
        self.timeout = positive("timeout", timeout)
        self.max_retries = not_negative("max_retries", max_retries)
        self._reasons: dict[int, Mapping[str, str]] = {}  # by the hash of the prompt

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; a copy in another process starts without reasons."""
        return {**super().__getstate__(), "_reasons": {}}

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of each score."""
        rubric = self.rubric
        criteria = {name: each.range for name, each in (rubric.criteria or {}).items()}
        ranges = {rubric.name: rubric.range, **criteria}
        return {name: ScoreSpec(higher_is_better=True, range=each) for name, each in ranges.items()}

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

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        """Return the scores of the rubric; NaN, with a warning, for an empty text."""
        prompts, unreadable = self._prompts(samples)
        for why in unreadable.values():
            log.warning("%s: %s is NaN", why, self.rubric.name)
        asked = [*prompts.values()]
        judgements = self._read(asked) if self.address is None else self._ask(asked)
        found = {name: np.full(len(samples), np.nan) for name in self.specs}
        for row, judgement in zip(prompts, judgements, strict=True):
            for name, value in judgement.scores.items():
                found[name][row] = value
            found[self.rubric.name][row] = self.rubric.mean(judgement.scores)
        return found

    def reasons(self, samples: Samples, names: Collection[str]) -> dict[str, list[str]]:
        """Return the reasons of the last samples, if the rubric asks for them; "" for others.

        The weighted mean has the reasons of all criteria.
        """
        rubric = self.rubric
        if not rubric.reason or self.address is None:
            return {}
        told = [dict[str, str]() for _ in range(len(samples))]
        for row, prompt in self._prompts(samples)[0].items():
            told[row] = {**self._reasons.get(hash(prompt), {})}
        if rubric.criteria is not None:
            for each in told:
                each[rubric.name] = "\n".join(f"{name}: {why}" for name, why in each.items())
        return {name: [each.get(name, "") for each in told] for name in names}

    def _prompts(self, samples: Samples) -> tuple[dict[int, str], dict[int, str]]:
        """Return the filled prompt by row, and why some rows have none."""
        rubric = self.rubric
        columns = {name: samples.require(name, "Judge") for name in rubric.columns}
        if "prompts" in columns:
            columns["prompts"] = tuple(map(prompt_text, columns["prompts"]))
        unreadable: dict[int, str] = {}
        for name, column in columns.items():
            for i, text in enumerate(column):
                if name == "texts" and not text.strip():
                    unreadable.setdefault(i, f"{name}[{i}] is empty")
                elif not is_unicode(text):  # only texts are checked before
                    unreadable.setdefault(i, f"{name}[{i}] is not valid Unicode")
        prompts = {
            i: rubric.prompt.format(**{JSON_KEYS[name]: each[i] for name, each in columns.items()})
            for i in range(len(samples))
            if i not in unreadable
        }
        return prompts, dict(sorted(unreadable.items()))

    def _read(self, prompts: Sequence[str]) -> list[Judgement]:
        """Return the judgements by the probabilities of the answers after each prompt."""
        rubric, tokenizer = self.rubric, self.loaded_model.tokenizer
        chat, questions = tokenizer.chat_template is not None, rubric.questions()
        tasks = []
        for prompt in prompts:
            for name, context in contexts(rubric, prompt).items():
                if chat:
                    turn = {"role": "user", "content": context}
                    context = rendered_chat(tokenizer, [turn], {}, add_generation_prompt=True)
                space = "" if context[-1:].isspace() or chat else " "
                targets = tuple(("", f"{space}{answer}") for answer in questions[name])
                tasks.append(Continuation((context,), targets, chat=chat))
        with self.locked_model() as model:
            answered = iter([closed(answers) for answers in model.answer(tasks)])
        worths = {name: np.array([*answers.values()]) for name, answers in questions.items()}
        judgements = []
        for _ in prompts:
            rows = {name: next(answered) for name in questions}
            scores = {name: float(row @ worths[name] / row.sum()) for name, row in rows.items()}
            judgements.append(Judgement(scores, {}))
        return judgements

    def _ask(self, prompts: Sequence[str]) -> list[Judgement]:
        """Return the judgements of a server's replies; NaN where one can't be parsed."""
        openai: Any = import_extra("openai", "a Judge with an address")
        assert self.address is not None
        key = api_key(self.key_variable)
        with openai.OpenAI(
            api_key=key or "none",
            base_url=self.address,
            timeout=self.timeout,
            max_retries=self.max_retries,
            http_client=openai.DefaultHttpxClient(trust_env=not is_local(self.address)),
        ) as client:
            replies = in_parallel(partial(self._reply, client), prompts, self.concurrency)
        judgements = [read_reply(self.rubric, reply) for reply in replies]
        self._warn(replies, judgements)
        if self.rubric.reason:
            for prompt, judgement in zip(prompts, judgements, strict=True):
                self._reasons[hash(prompt)] = judgement.reasons
            for stale in [*self._reasons][:-_REASONS_KEPT]:
                del self._reasons[stale]
        return judgements

    def _reply(self, client: Any, prompt: str) -> str:
        """Return the text of one reply, "" for none."""
        import openai

        try:
            completion = client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": message(self.rubric, prompt)}],
                temperature=0,
                max_tokens=self.max_tokens,
                **response_format(self.rubric),
            )
            text = completion.choices[0].message.content
        except openai.OpenAIError as error:
            raise ConnectionError(f"the judge at {self.address}: {error}") from error
        except (AttributeError, IndexError, TypeError, ValueError):
            raise ConnectionError(f"{self.address} is not an OpenAI-compatible server") from None
        return text if isinstance(text, str) else ""

    def _warn(self, replies: Sequence[str], judgements: Sequence[Judgement]) -> None:
        """Warn once of the replies that are NaN."""
        rubric, pairs = self.rubric, zip(replies, judgements, strict=True)
        unread = [(reply, each.scores) for reply, each in pairs if not each.whole]
        if not unread:
            return
        if rubric.structured:
            lacking = Counter(n for _, scores in unread for n in scores if math.isnan(scores[n]))
            of_each = ", ".join(f"{name} {n}" for name, n in lacking.items())
            fault = f"lack a valid score, and are NaN there ({of_each})"
        else:
            fault = f"name none or several of {', '.join(rubric.scores)}, and are NaN"
        log.warning(
            "%d of %d replies of the judge %s: %s. A reply that is cut off needs more than "
            "max_tokens = %d.",
            *(len(unread), len(replies), fault, shortened(unread[0][0], 200), self.max_tokens),
        )
