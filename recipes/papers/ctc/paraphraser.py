"""Paraphrasing with an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlreward.recipes.papers.ctc.generators import Seq2SeqGenerator, beam_search


class Paraphraser:
    """Paraphrases texts by beam search with an encoder-decoder that was trained for it.

    Args:
        model: Local folder or hub id.
        prompt: Input of the model, in which `{text}` is replaced by the text.
        device: Device name as in torch.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one batch of inputs, padding included.
        beams: Number of beams.

    Raises:
        ValueError: The prompt has no `{text}`.
    """

    def __init__(
        self,
        model: str,
        prompt: str = "{text}",
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int = 2048,
        beams: int = 4,
    ) -> None:
        if "{text}" not in prompt:
            raise ValueError(f"prompt = {prompt!r}: include {{text}}")
        self.prompt = prompt
        self.generator = Seq2SeqGenerator(model, device, dtype, batch_tokens, beam_search(beams))

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Return one paraphrase per text, in the given order; "" where the model generates none.

        Texts that are longer than the model reads get "", with one warning for all.
        """
        prompts = [self.prompt.replace("{text}", text) for text in texts]
        return [paraphrase.strip() for paraphrase in self.generator.rewrite(prompts, names=texts)]
