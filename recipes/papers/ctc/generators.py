"""Batched generation with frozen pretrained models."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ctrlreward.extras import import_extra
from ctrlreward.models.batching import Ids, pad_rows, run_batched
from ctrlreward.models.loading import load_frozen, load_tokenizer
from ctrlreward.models.tokenization import max_tokens, start_token
from ctrlreward.samples import shortened

log = logging.getLogger(__name__)


class Generator:
    """A frozen model with its tokenizer and options of generation.

    Args:
        model: Local folder, hub id or short name.
        device: Device name as in torch.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one batch of inputs, padding included.
        options: Of transformers' `GenerationConfig`; they override the model's own.
    """

    auto_class: Any

    def __init__(
        self,
        model: str,
        device: str,
        dtype: str | None,
        batch_tokens: int,
        options: Mapping[str, Any],
    ) -> None:
        self.name = model
        self.model = load_frozen(self.auto_class, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = batch_tokens
        self.limit = max_tokens(self.tokenizer, self.model.config)
        self.config = copy.deepcopy(self.model.generation_config)
        self.config.update(**options)

    def _generate(
        self, texts: Sequence[str], rows: Sequence[Ids], limit: int, new_tokens: Sequence[int]
    ) -> list[list[str]]:
        """Generate for each row that fits into `limit` tokens; none for the others.

        Args:
            texts: Names of the rows in the warning about the ones that do not fit.
            rows: Token ids of each input.
            limit: Largest number of tokens of an input.
            new_tokens: Largest number of tokens to generate for each row. A batch takes the
                largest of its rows.

        Returns:
            For each row the sequences that the options ask for, one or more.
        """
        fitting = [i for i, row in enumerate(rows) if len(row) <= limit]
        long = [i for i, row in enumerate(rows) if len(row) > limit]
        if long:
            others = f" (and {len(long) - 1} more)" if len(long) > 1 else ""
            log.warning(
                "%s has %d tokens, more than the %d that the model can take: it is skipped%s",
                *(shortened(texts[long[0]]), len(rows[long[0]]), limit, others),
            )
        each = self.config.num_return_sequences or 1

        def forward(batch: list[int]) -> list[list[str]]:
            indices = [fitting[k] for k in batch]
            inputs, most = [rows[i] for i in indices], max(new_tokens[i] for i in indices)
            texts = generate_batch(self.model, self.tokenizer, inputs, self.config, most)
            return [texts[k * each : (k + 1) * each] for k in range(len(indices))]

        sizes = [len(rows[i]) for i in fitting]
        generated = run_batched(sizes, self.batch_tokens, forward)
        by_index = dict(zip(fitting, generated, strict=True))
        return [by_index.get(i, []) for i in range(len(rows))]


class CausalGenerator(Generator):
    """A frozen decoder-only model that continues prompts; see `Generator`."""

    auto_class = AutoModelForCausalLM

    def complete(self, prompts: Sequence[str], new_tokens: Sequence[int]) -> list[str]:
        """Continue each prompt, which is read as the start of a document.

        Args:
            prompts: Any number. Prompts too long for the longest completion get "", with
                one warning for all.
            new_tokens: Largest number of tokens to generate for each prompt; prompts of one batch
                share the largest.

        Returns:
            One completion per prompt, in the given order.
        """
        start = start_token(self.tokenizer)
        rows = [
            (*start, *self.tokenizer(prompt, add_special_tokens=False, verbose=False).input_ids)
            for prompt in prompts
        ]
        limit = self.limit - max(new_tokens, default=0)
        generated = self._generate(prompts, rows, limit, new_tokens)
        return [texts[0] if texts else "" for texts in generated]


class Seq2SeqGenerator(Generator):
    """A frozen encoder-decoder that generates an output text for an input; see `Generator`."""

    auto_class = AutoModelForSeq2SeqLM

    def candidates(
        self, inputs: Sequence[str], names: Sequence[str] | None = None
    ) -> list[list[str]]:
        """Generate as many outputs per input, in the given order, as the options ask for.

        Outputs are at most twice as long as the longest input of their batch.

        Args:
            inputs: Any number. Inputs that are longer than the model reads get none, with one
                warning for all.
            names: Texts that name the inputs in that warning; None names them by themselves.
        """
        rows = [tuple(self.tokenizer(text, verbose=False).input_ids) for text in inputs]
        new_tokens = [min(self.limit, 2 * len(row)) for row in rows]
        return self._generate(inputs if names is None else names, rows, self.limit, new_tokens)


def generate_batch(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Ids],
    config: GenerationConfig,
    max_new_tokens: int,
) -> list[str]:
    """Generate text for one batch of token ids.

    Args:
        model: A decoder-only model, which continues the rows, or an encoder-decoder.
        tokenizer: The model's own.
        rows: Token ids of each input.
        config: Options of the generation.
        max_new_tokens: Largest number of tokens to generate per row.

    Returns:
        The generated text of each row, without special tokens. A text in which a mask or unknown
        token was generated is "", since its words are not known.
    """
    pad = tokenizer.pad_token_id or 0
    ids, mask = pad_rows(rows, pad, model.device)
    if not model.config.is_encoder_decoder:  # completions need the padding on the left
        width = ids.shape[1]
        shifts = torch.tensor([width - len(row) for row in rows], device=model.device)
        columns = (torch.arange(width, device=model.device) - shifts[:, None]) % width
        ids, mask = ids.gather(1, columns), mask.gather(1, columns)
    config = copy.deepcopy(config)
    config.update(max_new_tokens=max_new_tokens, pad_token_id=pad)
    outputs = model.generate(  # type: ignore[operator]  # the type says Tensor | Module
        input_ids=ids, attention_mask=mask, generation_config=config
    )
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    decode = _decoder(tokenizer, special)
    if model.config.is_encoder_decoder:
        return [decode((), row) for row in outputs.tolist()]
    new = outputs[:, ids.shape[1] :].tolist()
    return [decode(row, completion) for row, completion in zip(rows, new, strict=True)]


def _decoder(
    tokenizer: PreTrainedTokenizerBase, special: Collection[int]
) -> Callable[[Ids, Sequence[int]], str]:
    """Return a function from (prompt ids, new ids) to the text of the new ids.

    The new tokens are decoded together with the prompt: alone, some tokenizers drop their first
    space.
    """
    ends = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    unreadable = {tokenizer.mask_token_id, tokenizer.unk_token_id} - ends

    def text(ids: Iterable[int]) -> str:
        return str(tokenizer.decode([i for i in ids if i not in special]))

    def decode(prompt: Ids, new: Sequence[int]) -> str:
        if unreadable.intersection(new):
            return ""
        return text([*prompt, *new])[len(text(prompt)) :]

    return decode


class Paraphraser:
    """Paraphrases texts by beam search with an encoder-decoder that was trained for it.

    Args:
        model: Local folder or hub id.
        prompt: Input of the model, in which `{text}` is replaced by the text.
        device: Device name as in torch.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one batch of inputs, padding included.
        beams: Number of beams.
        candidates: Number of paraphrases to choose from, 10 in the paper; the one farthest from
            the text in edit distance over words.

    Raises:
        ValueError: The prompt does not contain `{text}`.
    """

    def __init__(
        self,
        model: str,
        prompt: str = "{text}",
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int = 2048,
        beams: int = 4,
        candidates: int = 1,
    ) -> None:
        if "{text}" not in prompt:
            raise ValueError(f"prompt = {prompt!r}: include {{text}}")
        self.prompt = prompt
        options = {"do_sample": False, "num_beams": max(beams, candidates)}
        options["num_return_sequences"] = candidates
        self.generator = Seq2SeqGenerator(model, device, dtype, batch_tokens, options)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Return one paraphrase per text, in the given order; "" where the model generates none.

        Texts that are longer than the model reads get "", with one warning for all.
        """
        prompts = [self.prompt.replace("{text}", text) for text in texts]
        written = self.generator.candidates(prompts, names=texts)
        return [
            farthest(text, [paraphrase.strip() for paraphrase in paraphrases])
            for text, paraphrases in zip(texts, written, strict=True)
        ]


def farthest(text: str, paraphrases: Sequence[str]) -> str:
    """Return the paraphrase with the largest edit distance from a text, over words; "" of none."""
    if len(paraphrases) < 2:
        return "".join(paraphrases)
    distance = import_extra("nltk.metrics.distance", "edit distance").edit_distance
    return max(paraphrases, key=lambda paraphrase: distance(text.split(), paraphrase.split()))
