from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PegasusConfig, PegasusForConditionalGeneration

from ctrlreward.models.span_filling import (
    Template,
    load_span_filler,
    sentinel_fillings,
    whole_text_fillings,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_decoder_only_model_fills_every_blank_anew(tiny_llama: Callable[[str], str]) -> None:
    filler = load_span_filler(tiny_llama("abcdefghijklmnopqrstuvwxyz .!"), batch_tokens=60)
    templates = [
        Template(("", " was cold and ", " said sorry ."), (2, 1)),
        Template(("we loved the ", " !"), (3,)),
    ]
    many = templates * 4
    made = filler.fill(many, seed=3)
    assert made == filler.fill(many, seed=3)
    assert made != filler.fill(many, seed=4)
    written = [(row, template) for row, template in zip(made, many, strict=True) if row is not None]
    assert written
    for row, template in written:
        for filling, size in zip(row, template.sizes, strict=True):
            assert 1 <= len(filling.split()) <= size + 1
            assert "\n" not in filling


def test_fillings_are_read_from_a_text_that_was_written_anew() -> None:
    template = Template(("The ", " was (too) ", " ."), (1, 2))
    fitting = " the old soup was (too)  cold to eat."
    assert whole_text_fillings(template, fitting.replace("eat.", "eat .")) == (
        "old soup",
        "cold to eat",
    )
    assert whole_text_fillings(template, "A soup was (too) cold .") is None


def test_fillings_are_read_behind_sentinels() -> None:
    template = Template(("", " was ", " ."), (1, 2))
    assert sentinel_fillings(template, "<extra_id_0> it <extra_id_1> my own <extra_id_2>") == (
        "it",
        "my own",
    )
    assert sentinel_fillings(template, "<extra_id_0> it <extra_id_2> more") is None


@pytest.mark.parametrize("family", ["tiny_bart", "tiny_t5"])
def test_an_encoder_decoder_is_asked_at_its_masks(
    family: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = load_span_filler(request.getfixturevalue(family))
    masks = ["<mask>"] * 2 if family == "tiny_bart" else ["<extra_id_0>", "<extra_id_1>"]
    answers = {
        "tiny_bart": "All of it was cold and nobody said sorry.",
        "tiny_t5": "<extra_id_0> All of it <extra_id_1> nobody <extra_id_2>",
    }
    template = Template(("", " was cold and ", " said sorry."), (2, 1))
    made = filler.fill([template] * 3, seed=1)
    assert made == filler.fill([template] * 3, seed=1)
    assert made == [None] * 3  # what random weights write fits nowhere

    asked = []

    def answer(model: object, tokenizer: object, rows: list[list[int]], *_: object) -> list[str]:
        asked.extend(filler.tokenizer.decode(row) for row in rows)
        return [answers[family]] * len(rows)

    monkeypatch.setattr("ctrlreward.models.span_filling.write", answer)
    assert filler.fill([template], seed=1) == [("All of it", "nobody")]
    assert [mask in asked[0] for mask in masks] == [True, True]
    assert asked[0].count("<mask>") + asked[0].count("<extra_id_") == 2


def test_another_family_is_refused(tmp_path: Path, tiny_bart: str) -> None:
    config = PegasusConfig(
        vocab_size=20,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    PegasusForConditionalGeneration(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(tiny_bart) / name).read_bytes())
    with pytest.raises(ValueError, match="is a pegasus, which has no known way of filling blanks"):
        load_span_filler(str(tmp_path))
