"""Writing new words into the blanks of a text, by sampling from a pretrained model."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from ctrlreward.models.tokenization import max_tokens
from ctrlreward.recipes.alignment.generation import sampled, write, write_answers, write_readable
from ctrlreward.weights.loading import load_config, load_frozen, load_tokenizer


class Template(NamedTuple):
    """A text with blanks.

    Attributes:
        parts: What stands before, between and behind the blanks: one part more than blanks.
        sizes: Words that stood in each blank.
    """

    parts: tuple[str, ...]
    sizes: tuple[int, ...]


Fillings = tuple[str, ...]

# Where no word goes on: no letter between two letters.
_WORDS_PART = r"(?!(?<=\w)\w)"


class SpanFiller(Protocol):
    """A frozen model that fills blanks without having seen what stood there."""

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        """For each template a filling per blank; None where the model wrote none that fits.

        Templates longer than the model reads are passed over, with a warning. Equal arguments give
        equal fillings.
        """


def load_span_filler(
    model: str,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int = 2048,
    temperature: float = 1.0,
    top_p: float = 0.95,
) -> SpanFiller:
    """A `SpanFiller` over a pretrained model.

    Args:
        model: Local folder, hub id or short name of a decoder-only model, a BART or a T5.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one batch's prompts.
        temperature: Of sampling, above 0.
        top_p: Sampling is among the likeliest tokens of this total probability.

    Raises:
        ValueError: An encoder-decoder of another family.
    """
    if load_config(model).is_encoder_decoder:
        return Seq2SeqSpanFiller(model, device, dtype, batch_tokens, temperature, top_p)
    return CausalSpanFiller(model, device, dtype, batch_tokens, temperature, top_p)


class CausalSpanFiller:
    """Fills blanks with a decoder-only model.

    What follows the blank is put first and what precedes it is continued, as `CausalInfiller`
    does. Such a model does not know where to stop, so the filling is cut to the number of words
    that stood in the blank, give or take one. Blanks are filled from left to right; each sees the
    fillings before it.
    """

    def __init__(
        self,
        model: str,
        device: str,
        dtype: str | None,
        batch_tokens: int,
        temperature: float,
        top_p: float,
    ) -> None:
        self.name = model
        self.model = load_frozen(AutoModelForCausalLM, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = batch_tokens
        self.limit = max_tokens(self.tokenizer, self.model.config)
        self.sampling = sampled(self.model, temperature, top_p)

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        """See `SpanFiller.fill`."""
        lengths = random.Random(seed)
        filled: list[list[str]] = [[] for _ in templates]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for blank in range(max((len(t.sizes) for t in templates), default=0)):
                open_ones = [
                    i for i, t in enumerate(templates) if len(t.sizes) > blank and all(filled[i])
                ]
                sizes = [
                    max(1, templates[i].sizes[blank] + lengths.choice((-1, 0, 0, 1)))
                    for i in open_ones
                ]
                prompts = [_prompt(templates[i], filled[i]) for i in open_ones]
                for i, filling in zip(open_ones, self._continue(prompts, sizes), strict=True):
                    filled[i].append(filling)
        return [tuple(row) if all(row) else None for row in filled]

    def _continue(self, prompts: list[str], sizes: list[int]) -> list[str]:
        """So many words behind each prompt; "" where there are none."""
        start = self.tokenizer.bos_token or self.tokenizer.eos_token or ""
        encoded = [
            tuple(self.tokenizer(start + prompt, add_special_tokens=False, verbose=False).input_ids)
            for prompt in prompts
        ]
        room = _tokens_for(max(sizes, default=0))

        def forward(places: list[int]) -> list[str]:
            longest = _tokens_for(max(sizes[i] for i in places))
            chosen = [encoded[i] for i in places]
            texts = write(self.model, self.tokenizer, chosen, self.sampling, longest)
            return [_words(prompts[i], t, sizes[i]) for t, i in zip(texts, places, strict=True)]

        limit = self.limit - room
        budget = self.batch_tokens
        found = write_readable(prompts, encoded, limit, budget, forward, self.name, "blanks")
        return [found.get(i, "") for i in range(len(prompts))]


class Seq2SeqSpanFiller:
    """Fills blanks with a BART or a T5, which were pretrained to.

    BART writes the whole text again, T5 the fillings; both decide how long these are. A filling
    is None where BART did not keep to the text, or T5 left one out.

    Raises:
        ValueError: A model of another family.
    """

    def __init__(
        self,
        model: str,
        device: str,
        dtype: str | None,
        batch_tokens: int,
        temperature: float,
        top_p: float,
    ) -> None:
        self.name = model
        self.model = load_frozen(AutoModelForSeq2SeqLM, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = batch_tokens
        self.limit = max_tokens(self.tokenizer, self.model.config)
        self.sampling = sampled(self.model, temperature, top_p)
        family = self.model.config.model_type
        families: dict[str, tuple[Callable[[int], str], Callable[[Template, str], Fillings | None]]]
        families = {
            "bart": (lambda blank: "<mask>", whole_text_fillings),
            "t5": ("<extra_id_{}>".format, sentinel_fillings),
        }
        if family not in families:
            raise ValueError(
                f"model = {model!r} is a {family}, which has no known way of filling blanks: give "
                f"an encoder-decoder of {', '.join(families)}, or a decoder-only model"
            )
        self._mask, self._read = families[family]

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        """See `SpanFiller.fill`."""
        sources = [
            "".join(
                part + (self._mask(blank) if blank < len(template.sizes) else "")
                for blank, part in enumerate(template.parts)
            )
            for template in templates
        ]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found = write_answers(
                self.model,
                self.tokenizer,
                sources,
                [tuple(self.tokenizer(source, verbose=False).input_ids) for source in sources],
                self.limit,
                self.batch_tokens,
                self.sampling,
                self.name,
            )
        return [
            self._read(template, found[i]) if i in found else None
            for i, template in enumerate(templates)
        ]


def whole_text_fillings(template: Template, text: str) -> Fillings | None:
    """What stands at the blanks of a text that was written anew; None where it was changed.

    A filling that goes on with a kept word (`theatre` where `the` was kept) changes it.
    """
    kept = [r"\s+".join(re.escape(word) for word in part.split()) for part in template.parts]
    pattern = rf"\s*{_WORDS_PART}(\S.*?){_WORDS_PART}\s*".join(kept)
    match = re.fullmatch(pattern, text.strip(), flags=re.IGNORECASE | re.DOTALL)
    return tuple(filling.strip() for filling in match.groups()) if match else None


def sentinel_fillings(template: Template, text: str) -> Fillings | None:
    """What follows the sentinels, in their order; None where one is missing or opens nothing."""
    found = re.split(r"<extra_id_(\d+)>", text)[1:]
    written = {
        int(number): words.strip() for number, words in zip(found[::2], found[1::2], strict=True)
    }
    fillings = tuple(written.get(blank, "") for blank in range(len(template.sizes)))
    return fillings if all(fillings) else None


def _prompt(template: Template, filled: Sequence[str]) -> str:
    """The text up to the blank behind the one that follows it, up to the next blank."""
    blank = len(filled)
    left = template.parts[0]
    for filling, part in zip(filled, template.parts[1:], strict=False):
        left += filling + part
    right = template.parts[blank + 1].strip()
    context = f"{right}\n\n" if re.search(r"\w", right) else ""
    return context + left.rstrip()


def _tokens_for(words: int) -> int:
    return 3 * words // 2 + 2


def _words(before: str, text: str, count: int) -> str:
    """The first so many words of the text's first line; "" where it goes on with a word before."""
    if re.fullmatch(r"\w\w", before[-1:] + text[:1]):
        return ""
    line = text.lstrip(" ").split("\n", 1)[0]
    return " ".join(line.split()[:count])
