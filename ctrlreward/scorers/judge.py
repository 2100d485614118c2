"""A language model as a judge: a rubric, a local model or an OpenAI-compatible server."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import Any, Unpack

import numpy as np

from ctrlreward.arguments import not_negative, positive
from ctrlreward.failures import Failures
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.chats import prompt_text
from ctrlreward.models.control_tokens import chat_pieces
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.tasks import Continuation, TokenScores
from ctrlreward.samples import JSON_KEYS, Samples, shortened
from ctrlreward.scorers.base import Scored, Scores, ScoreSpec
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer
from ctrlreward.scorers.model_servers import check_address, connected, in_parallel
from ctrlreward.scorers.rubric import (
    Judgement,
    Rubric,
    contexts,
    message,
    read_reply,
    response_format,
)


def closed(answers: TokenScores) -> Scores:
    """Return the probability of each answer, not continued to another one, over the largest one.

    p - Σ p of the answers that directly continue it ("1" and "10"), shape (answers,).
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
      G-Eval, eq. 1). A server writes one reply, at temperature 0 if the model takes it: NaN if it
      names none or several of the answers, or the server rejects the text.
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
            after the pauses that it asks for (Retry-After).
        **options: See `ModelOptions`.

    Raises:
        ConnectionError: When scoring: the server does not answer, is not one of this kind, or
            rejects each of several texts.
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
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric.load(rubric)
        self.address = address and check_address(address, "http://127.0.0.1:8000/v1")
        self.key_variable = key_variable
        self.concurrency = positive("concurrency", concurrency)
        self.max_tokens = positive("max_tokens", max_tokens) or self.rubric.reply_tokens
        self.timeout = positive("timeout", timeout)
        self.max_retries = not_negative("max_retries", max_retries)

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        rubric = self.rubric
        criteria = {name: each.range for name, each in (rubric.criteria or {}).items()}
        ranges = {rubric.name: rubric.range, **criteria}
        return {name: ScoreSpec(higher_is_better=True, range=each) for name, each in ranges.items()}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return [name for name in self.rubric.columns if name != "texts"]

    def build_model(self, name: str) -> CausalLM:
        return shared_model(CausalLM, name, self.device, self.dtype, self.batch_tokens)

    @property
    def devices(self) -> tuple[str, ...]:
        return super().devices if self.address is None else ()

    def load(self) -> None:
        if self.address is None:
            super().load()

    def score_samples(self, samples: Samples) -> Scored:
        """Return the scores of the rubric, and the reasons if it asks for them.

        The weighted mean has the reasons of all criteria.
        """
        rubric = self.rubric
        columns = {name: samples.require(name, "Judge") for name in rubric.columns}
        if "prompts" in columns:
            columns["prompts"] = tuple(map(prompt_text, columns["prompts"]))
        keys = [JSON_KEYS[name] for name in columns]
        rows = zip(*columns.values(), strict=True)
        prompts = [rubric.prompt.format(**dict(zip(keys, row, strict=True))) for row in rows]
        judge = self._read if self.address is None else self._ask
        judgements, failures = judge(prompts)
        scores = {name: [each.scores[name] for each in judgements] for name in rubric.questions()}
        scores[rubric.name] = [rubric.mean(each.scores) for each in judgements]
        reasons = {name: [each.reasons.get(name, "") for each in judgements] for name in scores}
        if rubric.criteria is not None:
            told = [each.reasons.items() for each in judgements]
            reasons[rubric.name] = ["\n".join(f"{n}: {why}" for n, why in each) for each in told]
        return Scored(scores, failures, reasons)

    def _read(self, prompts: Sequence[str]) -> tuple[list[Judgement], Failures]:
        """Return the judgements by the probabilities of the answers after each prompt."""
        rubric, tokenizer = self.rubric, self.loaded_model.tokenizer
        chat, questions = tokenizer.chat_template is not None, rubric.questions()
        tasks = []
        for prompt in prompts:
            for name, question in contexts(rubric, prompt).items():
                turn = {"role": "user", "content": question}
                context = chat_pieces(tokenizer, [turn], {}, True) if chat else (question,)
                space = "" if question[-1:].isspace() or chat else " "
                targets = tuple(((), (f"{space}{answer}",)) for answer in questions[name])
                tasks.append(Continuation(context, targets, chat=chat))
        with self.locked_model() as model:
            answered = iter([closed(answers) for answers in model.answer(tasks)])
        worths = {name: np.array([*answers.values()]) for name, answers in questions.items()}
        judgements = []
        for _ in prompts:
            rows = {name: next(answered) for name in questions}
            scores = {name: float(row @ worths[name] / row.sum()) for name, row in rows.items()}
            judgements.append(Judgement(scores, {}))
        return judgements, Failures()

    def _ask(self, prompts: Sequence[str]) -> tuple[list[Judgement], Failures]:
        """Return the judgements of a server's replies; NaN where one can't be read."""
        assert self.address is not None
        with connected(self.address, self.key_variable, self.timeout, self.max_retries) as server:
            replies = in_parallel(
                lambda prompt: self._reply(server, prompt), prompts, self.concurrency
            )
        if len(prompts) > 1 and all(text is None for text, _ in replies):
            raise ConnectionError(f"{self.address}, for every text: {replies[0][1]}")
        judgements = [read_reply(self.rubric, text or "") for text, _ in replies]
        failures = Failures()
        for i, ((text, problem), (scores, _)) in enumerate(zip(replies, judgements, strict=True)):
            lacking = ", ".join(name for name, score in scores.items() if math.isnan(score))
            if lacking:
                lacks = f"the reply has no valid score of {lacking} in {shortened(text, 200)}"
                failures.add(i, problem or lacks)
        return judgements, failures

    def _reply(self, server: tuple[Any, Mapping[str, Any]], prompt: str) -> tuple[str | None, str]:
        """Return the text of one reply, None if refused, and why it can't be read, if known."""
        import openai

        client, headers = server
        options = {"temperature": 0, "max_tokens": self.max_tokens, **response_format(self.rubric)}
        while True:
            try:
                completion = client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": message(self.rubric, prompt)}],
                    extra_headers=headers,
                    **options,
                )
                choice = completion.choices[0]
                text = choice.message.content
                break
            except openai.BadRequestError as error:
                if error.param not in options.keys() & {"temperature", "max_tokens"}:
                    return None, f"the judge rejects the text: {error}"
                value = options.pop(error.param)  # which OpenAI's models that think do not take
                if error.param == "max_tokens":
                    options["max_completion_tokens"] = value
            except (AttributeError, IndexError, TypeError, ValueError):
                raise ConnectionError(
                    f"{self.address} is not an OpenAI-compatible server"
                ) from None
        cut = getattr(choice, "finish_reason", None) == "length"
        problem = f"the reply is cut off at max_tokens = {self.max_tokens}" if cut else ""
        return (text if isinstance(text, str) else ""), problem
