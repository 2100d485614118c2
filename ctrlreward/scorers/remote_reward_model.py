"""Reward of a reward model that vLLM serves."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ctrlreward.arguments import not_negative, positive
from ctrlreward.models.chats import prompt_text
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.rendering import PLAIN, Answer, check_template, encode, needs_prompts
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scored, Scorer, ScoreSpec, scatter
from ctrlreward.scorers.model_servers import check_address, connected, in_parallel
from ctrlreward.scorers.reward_model import REWARD, UNBOUNDED, answers_of


class RemoteRewardModel(Scorer):
    """Output of a reward model that vLLM serves: `reward`, higher is better, unbounded.

    `vllm serve MODEL --runner pooling`, version 0.11 or later, is asked by `/classify`. With a
    tokenizer, texts are rendered and tokenized here as by `RewardModel`; without, prompt and
    completion are sent as one string. For `ctrlreward serve` use `RemoteReward`.

    Args:
        address: URL of the server, `"http://127.0.0.1:8000"`.
        model: Name of the model on the server, if it needs one.
        tokenizer: Local folder or Hugging Face id of the model's tokenizer.
        template: As in `RewardModel`; it needs a tokenizer, but for `"plain"`.
        max_tokens: Context of the model on the server, beyond which texts are cut, with a warning;
            None takes the tokenizer's.
        batch_texts: Texts of a request.
        concurrency, timeout, max_retries, key_variable: As in `Judge`.

    Raises:
        ConnectionError: When scoring: the server does not answer, or not with a value for each text
            and output, or rejects each of several texts.
    """

    def __init__(
        self,
        address: str,
        model: str | None = None,
        tokenizer: str | None = None,
        template: str | None = None,
        max_tokens: int | None = None,
        batch_texts: int = 32,
        concurrency: int = 4,
        timeout: float = 60.0,
        max_retries: int = 16,
        key_variable: str | None = None,
    ) -> None:
        self.address = check_address(address, "http://127.0.0.1:8000")
        self.model = model
        self.tokenizer = tokenizer
        self.template = template
        if template is not None:
            check_template(template)
        if tokenizer is None and template not in (None, PLAIN):
            raise ValueError(f"template must be 'plain' without a tokenizer, got {template!r}")
        self.max_tokens = positive("max_tokens", max_tokens)
        self.batch_texts = positive("batch_texts", batch_texts)
        self.concurrency = positive("concurrency", concurrency)
        self.timeout = positive("timeout", timeout)
        self.max_retries = not_negative("max_retries", max_retries)
        self.key_variable = key_variable

    specs: Mapping[str, ScoreSpec] = {REWARD: UNBOUNDED}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return ("prompts",) if needs_prompts(self.template) else ()

    def score_samples(self, samples: Samples) -> Scored:
        """Return all scores; NaN for an empty completion, a value of null and a rejected text."""
        answers, failures = answers_of(samples)
        rows, texts = [*answers], self._sent([*answers.values()])
        size, refused = self.batch_texts, list[str]()
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        with connected(self.address, self.key_variable, self.timeout, self.max_retries) as server:
            found = in_parallel(
                lambda batch: self._values(server, batch, refused), batches, self.concurrency
            )
        if len(refused) == len(texts) > 1:
            raise ConnectionError(f"{self.address} rejects every text: {refused[0]}")
        values = [*chain(*found)]
        for row, value in zip(rows, values, strict=True):
            if np.isnan(value):
                failures.add(row, "the server rejects the text, or has no value of it")
        return Scored({REWARD: scatter(values, rows, len(samples))}, failures)

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        assert self.tokenizer is not None
        return load_tokenizer(self.tokenizer)

    def _sent(self, answers: Sequence[Answer]) -> list[Any]:
        """Return whole texts, or with a tokenizer their token ids."""
        if self.tokenizer is None:
            return [f"{prompt_text(a.prompt or '')}{a.completion}" for a in answers]
        limit = self.max_tokens or self._tokenizer.model_max_length
        options = self.template, None, limit, self.tokenizer
        return [list(ids) for ids in encode(self._tokenizer, answers, *options)]

    def _values(
        self, server: tuple[Any, Mapping[str, Any]], texts: Sequence[Any], refused: list[str]
    ) -> list[float]:
        """Return the value of each text of a request; add why a text is `refused`."""
        import openai

        client, headers = server
        # Without, vLLM replies with a probability. vLLM 0.11 and 0.12 have the second name.
        body: dict[str, Any] = {"input": texts, "use_activation": False, "activation": False}
        if self.model is not None:
            body["model"] = self.model
        try:
            options = {"headers": headers}
            reply = client.post("/classify", cast_to=str, body=body, options=options)
        except openai.BadRequestError as error:
            if len(texts) == 1:  # such as a text that is too long
                refused.append(str(error))
                return [np.nan]
            return [*chain(*(self._values(server, [text], refused) for text in texts))]
        try:
            values = [_number(*row["probs"]) for row in json.loads(reply)["data"]]
        except (KeyError, TypeError, ValueError):
            values = []
        if len(values) != len(texts):
            raise ConnectionError(
                f"{self.address}: the reply of /classify must have one value for each of "
                f"{len(texts)} texts, got {shortened(reply, 200)}"
            )
        return values


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError(value)
    return np.nan if value is None else float(value)
