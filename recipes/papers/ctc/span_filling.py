"""Filling the blanks of a text with words sampled from a pretrained model."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from ctrlreward.models.loading import load_config
from ctrlreward.recipes.papers.ctc.generators import CausalGenerator, Seq2SeqGenerator


class Template(NamedTuple):
    """A text with blanks.

    Attributes:
        parts: Text before, between and after the blanks; one part more than there are blanks.
        sizes: Number of words that each blank replaced.
    """

    parts: tuple[str, ...]
    sizes: tuple[int, ...]


Fillings = tuple[str, ...]

# A position that is not between two letters of one word.
_WORD_BREAK = r"(?!(?<=\w)\w)"


class SpanFiller(Protocol):
    """A frozen model that fills blanks without having seen the words they replaced."""

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        """Return one filling per blank for each template; None where the model gave none that fits.

        Templates that are longer than the model reads get None, with one warning for all. Equal
        arguments give equal fillings.
        """


def load_span_filler(
    model: str,
    temperature: float = 1.0,
    top_p: float = 0.95,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int = 2048,
) -> SpanFiller:
    """Load a pretrained model as a `SpanFiller`.

    Args:
        model: Local folder, hub id or short name of a decoder-only model or a BART.
        temperature: Sampling temperature, above 0.
        top_p: Total probability of the most likely tokens to sample from.
        device: See `Generator`.
        dtype: See `Generator`.
        batch_tokens: See `Generator`.

    Raises:
        ValueError: The model is an encoder-decoder of another family.
    """
    config, sampling = load_config(model), {"do_sample": True, "num_beams": 1, "top_k": 0}
    options = {**sampling, "temperature": temperature, "top_p": top_p}
    if not config.is_encoder_decoder:
        return CausalSpanFiller(CausalGenerator(model, device, dtype, batch_tokens, options))
    if config.model_type != "bart":
        raise ValueError(
            f"model = {model!r} must be a BART or a decoder-only model, got {config.model_type}"
        )
    return BartSpanFiller(Seq2SeqGenerator(model, device, dtype, batch_tokens, options))


class CausalSpanFiller:
    """Fills blanks with a decoder-only model.

    As in `CausalInfiller`, the text after the blank comes first in the prompt, and the text before
    it is continued. Such a model does not know where to stop, so the filling is cut to the number
    of words that the blank replaced, give or take one. Blanks are filled from left to right; each
    sees the fillings before it.

    Args:
        generator: The model, with options for sampling.
    """

    def __init__(self, generator: CausalGenerator) -> None:
        self.generator = generator

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        """See `SpanFiller.fill`."""
        lengths = random.Random(seed)
        filled: list[list[str]] = [[] for _ in templates]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for blank in range(max((len(t.sizes) for t in templates), default=0)):
                unfinished = [
                    i for i, t in enumerate(templates) if len(t.sizes) > blank and all(filled[i])
                ]
                sizes = [
                    max(1, templates[i].sizes[blank] + lengths.choice((-1, 0, 0, 1)))
                    for i in unfinished
                ]
                prompts = [_prompt(templates[i], filled[i]) for i in unfinished]
                for i, filling in zip(unfinished, self._continue(prompts, sizes), strict=True):
                    filled[i].append(filling)
        return [tuple(row) if all(row) else None for row in filled]

    def _continue(self, prompts: list[str], sizes: list[int]) -> list[str]:
        """Return up to `sizes[i]` words that continue each prompt; "" where there are none."""
        # Enough tokens for most runs of as many words.
        completions = self.generator.complete(prompts, [3 * size // 2 + 2 for size in sizes])
        return [
            _first_words(prompt, completion, size)
            for prompt, completion, size in zip(prompts, completions, sizes, strict=True)
        ]


class BartSpanFiller:
    """Fills blanks with a BART, which was pretrained on that task.

    It generates the whole text again, and decides how long the fillings are. They are None where it
    changed the rest of the text.

    Args:
        generator: The model, with options for sampling.
    """

    def __init__(self, generator: Seq2SeqGenerator) -> None:
        self.generator = generator

    def fill(self, templates: Sequence[Template], seed: int) -> list[Fillings | None]:
        """See `SpanFiller.fill`."""
        inputs = ["<mask>".join(template.parts) for template in templates]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            outputs = self.generator.candidates(inputs)
        return [
            whole_text_fillings(template, output[0] if output else "")
            for template, output in zip(templates, outputs, strict=True)
        ]


def whole_text_fillings(template: Template, text: str) -> Fillings | None:
    """Extract the fillings from a text that was generated as a whole; None if the rest changed.

    A filling that extends a kept word (`theatre` where `the` was kept) changes the rest.
    """
    kept = [r"\s+".join(re.escape(word) for word in part.split()) for part in template.parts]
    pattern = rf"\s*{_WORD_BREAK}(\S.*?){_WORD_BREAK}\s*".join(kept)
    match = re.fullmatch(pattern, text.strip(), flags=re.IGNORECASE | re.DOTALL)
    return tuple(filling.strip() for filling in match.groups()) if match else None


def _prompt(template: Template, filled: Sequence[str]) -> str:
    """Return the text up to the first unfilled blank, after the text that follows that blank.

    The text that follows reaches to the next blank.
    """
    blank = len(filled)
    left = template.parts[0]
    for filling, part in zip(filled, template.parts[1:], strict=False):
        left += filling + part
    right = template.parts[blank + 1].strip()
    context = f"{right}\n\n" if re.search(r"\w", right) else ""
    return context + left.rstrip()


def _first_words(prompt: str, completion: str, count: int) -> str:
    """Return the first words of the completion's first line; "" if it extends a word of the prompt.

    Args:
        prompt: Text before the completion.
        completion: Generated text.
        count: Largest number of words.
    """
    if re.fullmatch(r"\w\w", prompt[-1:] + completion[:1]):
        return ""
    line = completion.lstrip(" ").split("\n", 1)[0]
    return " ".join(line.split()[:count])
