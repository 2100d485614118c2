"""Reward of a reward model that vLLM serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tenacity
from transformers import PreTrainedTokenizerBase

from ctrlreward.arguments import one_of, positive
from ctrlreward.items import item_logger
from ctrlreward.models.rendering import PLAIN, Answer, Side, check_template, encode, needs_prompts
from ctrlreward.models.reward_head import REWARD
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec, scatter
from ctrlreward.scorers.model_servers import ModelServer, check_address, connected, in_parallel
from ctrlreward.scorers.reward_model import fold_outputs, readable_answers
from ctrlreward.text.chats import prompt_text
from ctrlreward.weights.loading import load_tokenizer

log = item_logger(__name__)

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
        patience: Seconds to repeat a request that the server is too busy for or does not answer.
        key_variable: Environment variable with the server's API key.

    Raises:
        ConnectionError: When scoring: the server does not answer for `patience` seconds, or not
            with a value for each text and output.

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
        patience: float = 120.0,
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
        if not patience >= 0:
            raise ValueError(f"patience must be 0 seconds or more, got {patience}")
        self.patience = patience
        self.key_variable = key_variable

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of `reward`, or of each output."""
        return dict.fromkeys(self.outputs if self.weights is None else (REWARD,), _ANY)

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """`prompts` if the template needs them."""
        return {"prompts": type(self).__name__} if needs_prompts(self.template) else {}

    def score_samples(self, samples: Samples) -> dict[str, Scores]:
        """Return all scores; NaN, with a warning, for an empty text and for a value of null."""
        kept, answers = readable_answers(samples, next(iter(self.specs)))
        if not kept:
            return {name: np.full(len(samples), np.nan) for name in self.specs}
        texts = self._sent(answers)
        batches = [slice(i, i + self.batch_texts) for i in range(0, len(kept), self.batch_texts)]
        # Before it, since a server may ask for a longer wait than there is patience.
        stop = tenacity.stop_before_delay(self.patience)
        options = self.address, self.key_variable, self.timeout, stop
        with connected("the reward model", *options) as server:
            values = np.concatenate(
                in_parallel(
                    lambda batch: self._values(server, texts[batch]), batches, self.concurrency
                )
            )
        for row in np.flatnonzero(~np.isfinite(values).all(axis=1)):
            log.warning("texts[%d] got no value of %s, it is NaN", kept[row], self.address)
        columns = fold_outputs(self.outputs, values, self.weights)
        return {name: scatter(column, kept, len(samples)) for name, column in columns.items()}

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

    def _values(self, server: ModelServer, texts: Sequence[Any]) -> Scores:
        """Return the values of a request, float64 of shape (texts, outputs)."""
        # Without, vLLM replies with a probability. vLLM 0.11 and 0.12 have the second name.
        body: dict[str, Any] = {"input": texts, "use_activation": False, "activation": False}
        if self.model is not None:
            body["model"] = self.model
        reply = server.retrying(server.post, "/classify", body)
        try:
            rows = [[_number(value) for value in row["probs"]] for row in reply["data"]]
        except (KeyError, TypeError):
            raise ConnectionError(
                f"{server.name}: the reply is not one of vLLM's /classify: {shortened(reply)}"
            ) from None
        sizes = {len(row) for row in rows}
        if len(rows) != len(texts) or sizes != {len(self.outputs)}:
            raise ConnectionError(
                f"{server.name}: the reply has {len(rows)} rows of {sorted(sizes)} values, must be "
                f"{len(texts)} rows of {len(self.outputs)}, the outputs {', '.join(self.outputs)}"
            )
        return np.array(rows, dtype=np.float64)


def _number(value: Any) -> float:
    if isinstance(value, bool | str):
        raise TypeError(value)
    return np.nan if value is None else float(value)
