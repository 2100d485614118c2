"""Reward of a reward model that vLLM serves."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ctrlreward.arguments import not_negative, one_of, positive
from ctrlreward.models.chats import prompt_text
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.rendering import PLAIN, Answer, Side, check_template, encode, needs_prompts
from ctrlreward.models.reward_head import REWARD
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scored, Scorer, Scores, ScoreSpec, scatter
from ctrlreward.scorers.model_servers import check_address, connected, in_parallel
from ctrlreward.scorers.reward_model import answers_of, fold_outputs

_ANY = ScoreSpec(higher_is_better=True, range=(-np.inf, np.inf))


class RemoteRewardModel(Scorer):
    """Output of a reward model on a server, for each text: `reward`, higher is better, unbounded.

    The server is vLLM's, version 0.11 or later (`vllm serve MODEL --runner pooling`), which is
    asked by `/classify`. For a reward that `ctrlreward serve` serves use `RemoteReward`.

    With a tokenizer, texts are rendered and tokenized here as by `RewardModel`. Without, prompt and
    completion are sent as one string.

    Args:
        address: URL of the server, `"http://127.0.0.1:8000"`.
        model: Name of the model on the server, if it needs one.
        tokenizer: Local folder or Hugging Face id of the model's tokenizer.
        template: As in `RewardModel`; it needs a tokenizer, but for `"plain"`.
        max_tokens: Context of the model on the server, beyond which texts are cut, with a warning;
            None takes the tokenizer's.
        truncation_side: Side at which they are cut; None takes the tokenizer's.
        outputs: Names of the values of a text, in order.
        weights: Output → weight; the score is then `reward`, their weighted sum.
        batch_texts: Texts of a request.
        concurrency: Requests at the same time.
        timeout: Seconds to wait for a reply.
        max_retries: Times that a request is repeated if the server is busy or does not answer,
            after the pauses that it asks for (Retry-After), or else up to 8 seconds.
        key_variable: Environment variable with the server's API key.

    Raises:
        ConnectionError: When scoring: the server does not answer, or not with a value for each text
            and output.

    Examples:
        >>> remote = RemoteRewardModel("http://127.0.0.1:8000", model="my-reward-model")
        >>> remote.specs["reward"].higher_is_better
        True
    """

    def __init__(
        self,
        address: str,
        model: str | None = None,
        tokenizer: str | None = None,
        template: str | None = None,
        max_tokens: int | None = None,
        truncation_side: Side | None = None,
        outputs: Sequence[str] = (REWARD,),
        weights: Mapping[str, float] | None = None,
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
            raise ValueError(
                f"template = {template!r} is rendered by the model's tokenizer, but tokenizer is "
                "None. Set it to the folder or id of the model."
            )
        self.max_tokens = positive("max_tokens", max_tokens)
        if truncation_side is not None:
            one_of("truncation_side", truncation_side, ("left", "right"))
        self.truncation_side: Side | None = truncation_side
        self.outputs = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        if not self.outputs or len(set(self.outputs)) < len(self.outputs):
            raise ValueError(f"outputs must be one or more distinct names, got {self.outputs}")
        for name in weights or ():
            one_of("each key of weights", name, self.outputs)
        self.weights = None if weights is None else {k: float(w) for k, w in weights.items()}
        self.batch_texts = positive("batch_texts", batch_texts)
        self.concurrency = positive("concurrency", concurrency)
        self.timeout = positive("timeout", timeout)
        self.max_retries = not_negative("max_retries", max_retries)
        self.key_variable = key_variable

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of `reward`, or of each output."""
        return dict.fromkeys(self.outputs if self.weights is None else (REWARD,), _ANY)

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """`prompts` if the template needs them."""
        return {"prompts": type(self).__name__} if needs_prompts(self.template) else {}

    def score_samples(self, samples: Samples) -> Scored:
        """Return all scores; NaN for an empty completion, a value of null and a rejected text."""
        answers, failures = answers_of(samples)
        rows, texts = [*answers], self._sent([*answers.values()])
        size = self.batch_texts
        batches = [texts[i : i + size] for i in range(0, len(texts), size)]
        with connected(self.address, self.key_variable, self.timeout, self.max_retries) as server:
            found = in_parallel(
                lambda batch: self._values(server, batch), batches, self.concurrency
            )
        values = np.concatenate([np.zeros((0, len(self.outputs))), *found])
        for place in np.flatnonzero(np.isnan(values).any(axis=1)).tolist():
            failures.add(rows[place], "the server rejects the text, or has no value of it")
        columns = fold_outputs(self.outputs, values, self.weights)
        scores = {name: scatter(column, rows, len(samples)) for name, column in columns.items()}
        return Scored(scores, failures)

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        assert self.tokenizer is not None
        return load_tokenizer(self.tokenizer)

    def _sent(self, answers: Sequence[Answer]) -> list[Any]:
        """Return whole texts, or with a tokenizer their token ids."""
        if self.tokenizer is None:
            return [f"{prompt_text(a.prompt or '')}{a.completion}" for a in answers]
        limit = self.max_tokens or self._tokenizer.model_max_length
        options = self.template, self.truncation_side, limit, self.tokenizer
        return [list(ids) for ids in encode(self._tokenizer, answers, *options)]

    def _values(self, server: tuple[Any, Mapping[str, Any]], texts: Sequence[Any]) -> Scores:
        """Return the values of a request, float64 of shape (texts, outputs)."""
        import openai

        client, headers = server
        # Without, vLLM replies with a probability. vLLM 0.11 and 0.12 have the second name.
        body: dict[str, Any] = {"input": texts, "use_activation": False, "activation": False}
        if self.model is not None:
            body["model"] = self.model
        try:
            options = {"headers": headers}
            reply = client.post("/classify", cast_to=str, body=body, options=options)
        except openai.BadRequestError:
            if len(texts) == 1:  # such as a text that is too long
                return np.full((1, len(self.outputs)), np.nan)
            return np.concatenate([self._values(server, [text]) for text in texts])
        try:
            rows = [[_number(value) for value in row["probs"]] for row in json.loads(reply)["data"]]
        except (KeyError, TypeError, ValueError):
            raise ConnectionError(
                f"{self.address}: the reply is not one of vLLM's /classify: {shortened(reply, 200)}"
            ) from None
        sizes = {len(row) for row in rows}
        if len(rows) != len(texts) or sizes != {len(self.outputs)}:
            raise ConnectionError(
                f"{self.address}: the reply has {len(rows)} rows of {sorted(sizes)} values, must "
                f"be {len(texts)} rows of {len(self.outputs)}: {', '.join(self.outputs)}"
            )
        return np.array(rows, dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError(value)
    return np.nan if value is None else float(value)
