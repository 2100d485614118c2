"""Paraphrases: the same said in other words."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import AutoModelForSeq2SeqLM

from ctrlreward.models.tokenization import max_tokens
from ctrlreward.recipes.alignment.generation import searched, write_answers
from ctrlreward.weights.loading import load_frozen, load_tokenizer


class Paraphraser:
    """Says each text in other words, with an encoder-decoder that was trained to.

    Args:
        model: Local folder or hub id.
        prompt: What the model reads; `{text}` stands for the text.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one batch's texts.
        beams: Width of the search; nothing is drawn.

    Raises:
        ValueError: The prompt has no place for the text.
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
            raise ValueError(f"prompt = {prompt!r}: it must hold {{text}}")
        self.name = model
        self.prompt = prompt
        self.model = load_frozen(AutoModelForSeq2SeqLM, model, device, dtype)
        self.tokenizer = load_tokenizer(model)
        self.batch_tokens = batch_tokens
        self.limit = max_tokens(self.tokenizer, self.model.config)
        self.search = searched(self.model, beams)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """One paraphrase a text, in the given order; "" where the model writes none.

        Texts longer than the model reads have none, with a warning.
        """
        prompts = [self.prompt.replace("{text}", text) for text in texts]
        found = write_answers(
            self.model,
            self.tokenizer,
            texts,
            [tuple(self.tokenizer(prompt, verbose=False).input_ids) for prompt in prompts],
            self.limit,
            self.batch_tokens,
            self.search,
            self.name,
        )
        return [found.get(i, "").strip() for i in range(len(texts))]
