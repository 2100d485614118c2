from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from asked_models import blank
from transformers import AutoTokenizer

from ctrlreward.models.causal import BlankOrders, CausalLM
from ctrlreward.models.loading import load_tokenizer
from ctrlreward.models.tasks import Blank, Patterns
from ctrlreward.models.tokenization import characters
from ctrlreward.scorers.ctrleval import consistency_blanks, relevance_blanks
from ctrlreward.scorers.task import Evaluator

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ANSWER = "{% if add_generation_prompt %}[assistant]{% endif %}"
BEFORE = relevance_blanks([Evaluator("It was <mask_token>. <gen_result>", ("good",))])


@pytest.fixture
def plain(tiny_causal: Callable[..., str]) -> Any:
    return AutoTokenizer.from_pretrained(tiny_causal("llama"))


def asked(tokenizer: Any, blanks: Sequence[Blank], text: str = "") -> list[tuple[str, str]]:
    """Return context and target of each filling, with the names of control tokens."""
    pairs: dict[int, tuple[str, str]] = {}
    for (context, targets, _), places in BlankOrders(tokenizer).of(Patterns(tuple(blanks), text)):
        for (read, scored), place in zip(targets, places, strict=True):
            before = characters(tokenizer, (*context, *read))
            pairs[place] = before, characters(tokenizer, scored)
    return [pairs[place] for place in sorted(pairs)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # At the end the pattern is continued.
        (blank("A meal. It was ", "", ("good",)), ("A meal. It was", " good")),
        # A remark on a text goes on to its end.
        (blank("A meal. Just ", "!", ("good",), closing="!"), ("A meal. Just", " good!")),
        (
            blank("What ", " news! A cure.", ("good",), closing=" news!"),
            ("A cure.\n\nWhat", " good news!"),
        ),
        # A text of signs alone is a text.
        (blank("Just ", "! :-)", ("good",), closing="!"), (":-)\n\nJust", " good!")),
        # What goes on from its prefix does so as it stands.
        (blank("The food ", "", (" was good.",), joined=True), ("The food", " was good.")),
        (blank("The dog ", "", ("'s fine.",), joined=True), ("The dog", "'s fine.")),
        # A blank that is all there is begins the document.
        (blank(" ", " ", ("It was good.",), ends=True), ("", "It was good.")),
        # Elsewhere what follows comes first.
        (blank("It was ", " A meal.", ("good.",)), ("A meal.\n\nIt was", " good.")),
        (blank("One. ", " Three.", ("Two.",), ends=True), ("Three.\n\nOne.", " Two.")),
        (blank("", "  was good.", ("The food",)), ("was good.\n\n", "The food")),
    ],
)
def test_how_a_blank_is_put(plain: Any, given: Blank, expected: tuple[str, str]) -> None:
    assert asked(plain, [given]) == [expected]


@pytest.mark.parametrize(
    "tokens",
    [
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_fill_in_the_middle_tokens_are_used_where_there_are_any(
    tokens: tuple[str, str, str], tiny_causal: Callable[..., str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama", ("<|endoftext|>", *tokens)))
    prefix, suffix, middle = tokens
    assert asked(
        tokenizer,
        [
            blank("What ", " news! A cure.", ("good",)),
            blank("What ", " news! A cure.", ("good",), closing=" news!"),
            blank("It was ", ".", ("good",), closing="."),
        ],
    ) == [
        (f"{prefix}What{suffix} news! A cure.{middle}", " good"),
        (f"{prefix}What{suffix} A cure.{middle}", " good news!"),
        ("It was", " good."),
    ]
    # Each of them is one token, not spelled out.
    assert len(tokenizer(prefix + suffix + middle).input_ids) == 3


def test_a_conversational_model_remarks_on_the_users_text(plain: Any) -> None:
    plain.chat_template = TURNS + ANSWER
    prompts = ["<gen_result> It was <mask_token>.", "It was <mask_token>. <gen_result>"]
    blanks = relevance_blanks([Evaluator(p, ("good",)) for p in prompts])
    assert asked(plain, blanks, "A {right} meal.") == [
        ("A {right} meal. It was", " good."),
        ("[user]A {right} meal.[assistant]It was", " good."),
    ]
    # The filling of these is part of the text, not a remark on it.
    assert asked(plain, consistency_blanks("The food ran.", "The")) == [
        ("The", " food ran."),
        ("food ran.\n\n", "The"),
    ]


@pytest.mark.parametrize(
    ("template", "context"),
    [
        (TURNS + ANSWER, "[user]Soup.[assistant]It was"),
        # Nothing of what stands before the first turn.
        ("[system]On {{ strftime_now('%d') }}." + TURNS + ANSWER, "[user]Soup.[assistant]It was"),
        # The token that begins each text anyway is not there twice.
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ eos_token }}[{{ m.content }}]"
            "{% else %}{{ m.content }}{% endif %}{% endfor %}",
            "[Soup.]It was",
        ),
    ],
)
def test_templates_that_can_be_used(plain: Any, template: str, context: str) -> None:
    plain.chat_template = template
    assert asked(plain, BEFORE, "Soup.") == [(context, " good.")]


def test_the_turn_of_the_default_model() -> None:
    turn = "<|im_start|>user\nSoup.<|im_end|>\n<|im_start|>assistant\nIt was"
    assert asked(load_tokenizer("smollm2-135m"), BEFORE, "Soup.") == [(turn, " good.")]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[-1].content[0].text }}",
        TURNS + "{{ messages[-1].content }}",
        "{{ raise_exception('begin with a system turn') }}",
        {"tool_use": TURNS},
    ],
)
def test_templates_that_cannot_be_used_are_named_and_left_aside(
    plain: Any, template: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plain.chat_template = template
    assert asked(plain, BEFORE, "Soup.") == [("Soup.\n\nIt was", " good.")]
    assert plain.name_or_path in caplog.text


@pytest.mark.parametrize("text", ["A meal.", " A meal.  ", "12", "A\n\n", "ness", "a ☕"])
def test_a_text_in_its_slot_is_part_of_the_pattern(
    text: str, tiny_causal: Callable[..., str]
) -> None:
    lm = CausalLM(tiny_causal("llama"))
    prompts = [
        "<gen_result> It was <mask_token>.",
        "It was <mask_token>. <gen_result>",
        "<gen_result><mask_token>!",
    ]
    blanks = relevance_blanks([Evaluator(p, ("good", "bad")) for p in prompts])
    (found,) = lm.answer([Patterns(blanks, text)])
    whole = [
        each._replace(left=("".join(each.left),), right=("".join(each.right),))
        for each in (each.about(text) for each in blanks)
    ]
    (expected,) = lm.answer([Patterns(tuple(whole))])
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.sizes, expected.sizes)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-5)
