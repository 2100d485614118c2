from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from ctrlreward.recipes.papers.ctc import generators
from ctrlreward.recipes.papers.ctc.generators import generate_batch
from ctrlreward.recipes.papers.ctc.span_filling import (
    Template,
    load_span_filler,
    whole_text_fillings,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_decoder_only_model_fills_every_blank(tiny_llama: Callable[[str], str]) -> None:
    filler = load_span_filler(tiny_llama("abcdefghijklmnopqrstuvwxyz .!,"), batch_tokens=60)
    templates = [  # blanks follow no letter: random letters would extend the word
        Template(("", " was cold , ", " said sorry ."), (2, 1)),
        Template(("what a view ! ", " !"), (3,)),
    ]
    many = templates * 4
    fillings = filler.fill(many, seed=3)
    assert fillings == filler.fill(many, seed=3)
    assert fillings != filler.fill(many, seed=4)
    filled = [(row, t) for row, t in zip(fillings, many, strict=True) if row is not None]
    assert len(filled) > 1
    for row, template in filled:
        for filling, size in zip(row, template.sizes, strict=True):
            assert 1 <= len(filling.split()) <= size + 1
            assert "\n" not in filling


WHOLE = Template(("The ", " was (too) ", " ."), (1, 2))
KEPT = Template(("we loved the ", " view ."), (1,))


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        (WHOLE, " the old soup was (too)  cold to eat .", ("old soup", "cold to eat")),
        (WHOLE, "A soup was (too) cold .", None),
        (KEPT, "we loved the old view .", ("old",)),
        # It would extend a kept word.
        (KEPT, "we loved theatre view .", None),
        (KEPT, "we loved the overview .", None),
    ],
)
def test_fillings_are_extracted_from_a_text(
    template: Template, text: str, expected: tuple[str, ...] | None
) -> None:
    assert whole_text_fillings(template, text) == expected


def test_a_decoder_only_model_may_not_extend_a_kept_word(
    tiny_llama: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = load_span_filler(tiny_llama("abcdefghijklmnopqrstuvwxyz .!"))
    completions = ["s were", " was", ", so", "never"]
    monkeypatch.setattr(generators, "generate_batch", lambda *_: completions)
    befores = ["the waiter ", "the waiter ", "the waiter ", ""]
    fillings = filler.fill([Template((before, " rude ."), (1,)) for before in befores], seed=0)
    assert fillings[:2] == [None, ("was",)]
    assert fillings[2] in ((",",), (", so",))
    assert fillings[3] == ("never",)


def test_prompts_start_a_document_not_a_chat_turn(
    tiny_causal: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In instruction-tuned models, the bos token may be one that opens a chat turn."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    folder = shutil.copytree(tiny_causal("llama", special), tmp_path / "chat")
    AutoTokenizer.from_pretrained(
        folder, bos_token="<|im_start|>", eos_token="<|im_end|>"
    ).save_pretrained(folder)
    filler: Any = load_span_filler(str(folder))
    prompts: list[tuple[int, ...]] = []

    def record(*arguments: Any) -> list[str]:
        prompts.extend(arguments[2])
        return [" fine"] * len(arguments[2])

    monkeypatch.setattr(generators, "generate_batch", record)
    assert filler.fill([Template(("The food was ", "."), (1,))], seed=0) == [("fine",)]
    assert filler.generator.tokenizer.decode(prompts[0]) == "<|endoftext|>The food was"


@pytest.mark.parametrize("family", ["tiny_llama", "tiny_bart"])
def test_templates_that_are_too_long_are_skipped_and_named(
    family: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    folder, long, limit = request.getfixturevalue(family), "soup " * 90, 64
    if family == "tiny_llama":
        folder, long, limit = folder("abcdefghijklmnopqrstuvwxyz ."), "soup " * 110, 512 - 3
    filler = load_span_filler(folder)
    templates = [Template((long, " was ", " ."), (1, 1)), Template(("", " ."), (1,))] * 2
    with caplog.at_level(logging.WARNING, "ctrlreward"):
        fillings = filler.fill(templates, seed=2)
    assert [row is None for row in fillings[::2]] == [True, True]
    (message,) = caplog.messages
    assert message.endswith(
        f"more than the {limit} that the model can take: it is skipped (and 1 more)"
    )
    assert "soup soup soup" in message


def test_a_bart_fills_its_masks(tiny_bart: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filler = load_span_filler(tiny_bart)
    template = Template(("", " was cold and ", " said sorry."), (2, 1))
    written: list[list[str]] = []

    def recorded(*arguments: Any) -> list[str]:
        written.append(generate_batch(*arguments))
        return written[-1]

    monkeypatch.setattr(generators, "generate_batch", recorded)
    for seed in (1, 1, 2):
        assert filler.fill([template] * 3, seed) == [None] * 3  # random weights never fit
    assert written[0] == written[1] != written[2]
    assert any(written[0])

    inputs = []

    def respond(*arguments: Any) -> list[str]:
        inputs.extend(filler.generator.tokenizer.decode(row) for row in arguments[2])
        return ["All of it was cold and nobody said sorry."] * len(arguments[2])

    monkeypatch.setattr(generators, "generate_batch", respond)
    assert filler.fill([template], seed=1) == [("All of it", "nobody")]
    assert inputs[0].count("<mask>") == 2


def stub(encoder_decoder: bool, generate: Callable[..., torch.Tensor]) -> Any:
    """A model that generates by a function."""
    config = SimpleNamespace(is_encoder_decoder=encoder_decoder)
    return SimpleNamespace(device=torch.device("cpu"), config=config, generate=generate)


def test_unreadable_generations_are_empty(tiny_bart: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bart)
    good = tokenizer("fine food").input_ids
    unknown, mask = tokenizer.unk_token_id, tokenizer.mask_token_id
    rows = [[2, *good, 1], [2, *good[:-1], mask, 2], [2, *good[:-1], unknown, 2]]
    config, calls = GenerationConfig(do_sample=False), []

    def generate(generation_config: GenerationConfig, **_: Any) -> torch.Tensor:
        calls.append((generation_config.max_new_tokens, generation_config.pad_token_id))
        return torch.tensor(rows)

    assert generate_batch(stub(True, generate), tokenizer, [(5,)] * 3, config, 7) == [
        "fine food",
        "",
        "",
    ]
    assert calls == [(7, 1)]
    assert config.max_new_tokens is None


def test_the_leading_space_of_a_completion_is_kept() -> None:
    vocabulary = {"<pad>": 0, "▁the": 1, "▁soup": 2, "s": 3}
    pieces = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="<pad>")
    assert tokenizer.decode([2]) == "soup"

    def generate(input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.cat([input_ids, torch.tensor([[2, 0], [3, 2]])], dim=1)

    found = generate_batch(stub(False, generate), tokenizer, [(1,), (1, 2)], GenerationConfig(), 2)
    assert found == [" soup", "s soup"]
