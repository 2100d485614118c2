from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from ctrlreward.engine.sharing import run_requests
from ctrlreward.models.causal import CausalLM
from ctrlreward.models.control_tokens import control_tokens, mark
from ctrlreward.models.infill import CausalInfiller, load_infiller
from ctrlreward.models.seq2seq import Seq2SeqInfiller
from ctrlreward.models.tasks import Blank, Continuation, TokenScores
from ctrlreward.scorers.ctrleval import coherence_blanks, consistency_blanks, relevance_blanks
from ctrlreward.scorers.task import Evaluator
from ctrlreward.weights.loading import load_tokenizer


class Recorder:
    """A language model that keeps what it is asked, and scores each with its place."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.asked: list[tuple[str, str]] = []

    def log_probs(self, continuations: Sequence[Continuation]) -> list[TokenScores]:
        self.asked = [tuple(c) for c in continuations]
        return [TokenScores(np.array([i]), np.array([-float(i)])) for i in range(len(self.asked))]


@pytest.fixture
def plain(tiny_causal: Callable[..., str]) -> Recorder:
    return Recorder(AutoTokenizer.from_pretrained(tiny_causal("llama")))


def asked(recorder: Recorder, blanks: Sequence[Blank]) -> list[tuple[str, str]]:
    """Return what is asked about blanks, with the names of control tokens for their marks."""
    run_requests([CausalInfiller(recorder).requests(blanks)])  # type: ignore[arg-type]
    for token, token_id in control_tokens(recorder.tokenizer).items():
        recorder.asked = [(c.replace(mark(token_id), token), t) for c, t in recorder.asked]
    return recorder.asked


@pytest.mark.parametrize(
    ("blank", "expected"),
    [
        # At the end the pattern is continued.
        (Blank("A meal. It was ", "", ("good",)), ("A meal. It was", " good")),
        # A remark on a text goes on to its end.
        (Blank("A meal. Just ", "!", ("good",), closing="!"), ("A meal. Just", " good!")),
        (
            Blank("What ", " news! A cure.", ("good",), closing=" news!"),
            ("A cure.\n\nWhat", " good news!"),
        ),
        # A text of signs alone is a text.
        (Blank("Just ", "! :-)", ("good",), closing="!"), (":-)\n\nJust", " good!")),
        # What goes on from its prefix does so as it stands.
        (Blank("The food ", "", (" was good.",), joined=True), ("The food", " was good.")),
        (Blank("The dog ", "", ("'s fine.",), joined=True), ("The dog", "'s fine.")),
        # A blank that is all there is begins the document.
        (Blank(" ", " ", ("It was good.",), ends=True), ("", "It was good.")),
        # Elsewhere what follows comes first.
        (Blank("It was ", " A meal.", ("good.",)), ("A meal.\n\nIt was", " good.")),
        (Blank("", "  was good.", ("The food",)), ("was good.\n\n", "The food")),
    ],
)
def test_how_a_blank_is_put(plain: Recorder, blank: Blank, expected: tuple[str, str]) -> None:
    assert asked(plain, [blank]) == [expected]


@pytest.mark.parametrize(
    "tokens",
    [
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_fill_in_the_middle_tokens_are_used_where_there_are_any(
    tokens: tuple[str, str, str], tiny_causal: Callable[..., str]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama", ("<|endoftext|>", *tokens)))
    prefix, suffix, middle = tokens
    assert asked(
        Recorder(tokenizer),
        [
            Blank("What ", " news! A cure.", ("good",)),
            Blank("What ", " news! A cure.", ("good",), closing=" news!"),
            Blank("It was ", ".", ("good",), closing="."),
        ],
    ) == [
        (f"{prefix}What{suffix} news! A cure.{middle}", " good"),
        (f"{prefix}What{suffix} A cure.{middle}", " good news!"),
        ("It was", " good."),
    ]
    # Each of them is one token, not spelled out.
    assert len(tokenizer(prefix + suffix + middle).input_ids) == 3


def test_all_targets_of_all_blanks_are_asked_in_one_call(plain: Recorder) -> None:
    blanks = [Blank("a ", "", ("b", "c")), Blank("d ", "", ()), Blank("e ", "", ("f",))]
    (scores,) = run_requests([CausalInfiller(plain).requests(blanks)])  # type: ignore[arg-type]
    assert plain.asked == [("a", " b"), ("a", " c"), ("e", " f")]
    assert [[int(s.ids[0]) for s in targets] for targets in scores] == [[0, 1], [], [2]]


def test_what_the_aspects_of_ctrleval_become(plain: Recorder) -> None:
    assert asked(plain, coherence_blanks(["One.", "Two.", "Three."])) == [
        ("Two. Three.\n\n", "One."),
        ("Three.\n\nOne.", " Two."),
        ("One. Two.", " Three."),
    ]
    assert asked(plain, consistency_blanks("The food was good.", "The food")) == [
        ("The food", " was good."),
        ("was good.\n\n", "The food"),
    ]
    assert asked(plain, consistency_blanks("In short, no.", "In short"))[0] == ("In short", ", no.")
    prompts = ["<gen_result> It was <mask_token>.", "It was <mask_token>. <gen_result>"]
    assert asked(
        plain, relevance_blanks("A meal.", [Evaluator(p, ("good", "bad")) for p in prompts])
    ) == [
        ("A meal. It was", " good."),
        ("A meal. It was", " bad."),
        ("A meal.\n\nIt was", " good."),
        ("A meal.\n\nIt was", " bad."),
    ]


def test_a_conversational_model_remarks_on_the_users_text(
    tiny_causal: Callable[..., str],
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama"))
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompts = ["<gen_result> It was <mask_token>.", "It was <mask_token>. <gen_result>"]
    blanks = relevance_blanks("A {right} meal.", [Evaluator(p, ("good",)) for p in prompts])
    assert asked(Recorder(tokenizer), [*blanks, *consistency_blanks("The food ran.", "The")]) == [
        ("A {right} meal. It was", " good."),
        ("[user]A {right} meal.[assistant]It was", " good."),
        # The filling of these is part of the text, not a remark on it.
        ("The", " food ran."),
        ("food ran.\n\n", "The"),
    ]


TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ANSWER = "{% if add_generation_prompt %}[assistant]{% endif %}"


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
def test_templates_that_can_be_used(
    tiny_causal: Callable[..., str], template: str, context: str
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama"))
    tokenizer.chat_template = template
    blanks = relevance_blanks("Soup.", [Evaluator("It was <mask_token>. <gen_result>", ("good",))])
    assert asked(Recorder(tokenizer), blanks) == [(context, " good.")]


def test_the_turn_of_the_default_model() -> None:
    blanks = relevance_blanks("Soup.", [Evaluator("It was <mask_token>. <gen_result>", ("good",))])
    turn = "<|im_start|>user\nSoup.<|im_end|>\n<|im_start|>assistant\nIt was"
    assert asked(Recorder(load_tokenizer("smollm2-135m")), blanks) == [(turn, " good.")]


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
    tiny_causal: Callable[..., str], template: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama"))
    tokenizer.chat_template = template
    blanks = relevance_blanks("Soup.", [Evaluator("It was <mask_token>. <gen_result>", ("good",))])
    assert asked(Recorder(tokenizer), blanks) == [("Soup.\n\nIt was", " good.")]
    assert f"chat template of {tokenizer.name_or_path} does not render a user's text" in caplog.text


def test_the_scores_are_the_language_models(tiny_causal: Callable[..., str]) -> None:
    folder = tiny_causal("llama")
    infiller = load_infiller(folder)
    assert isinstance(infiller, CausalInfiller)
    (((good, bad),),) = run_requests(
        [infiller.requests([Blank("A meal. It was ", "", ("good", "bad"))])]
    )
    expected = CausalLM(folder).log_probs([Continuation("A meal. It was", " good")])[0]
    np.testing.assert_array_equal(good.ids, expected.ids)
    np.testing.assert_allclose(good.log_probs, expected.log_probs, atol=1e-5)
    assert good.log_probs.mean() != bad.log_probs.mean()


def test_encoder_decoders_are_known_by_their_configuration(tiny_bart: str) -> None:
    infiller = load_infiller(tiny_bart, dtype="bfloat16", batch_tokens=7)
    assert isinstance(infiller, Seq2SeqInfiller)
    assert infiller.batch_tokens == 7
    assert str(infiller.model.dtype) == "torch.bfloat16"
