from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctrlreward.models.tasks import Blank
from ctrlreward.scorers.ctrleval import coherence_blanks, consistency_blanks, relevance_blanks
from ctrlreward.scorers.task import Evaluator


def test_each_sentence_is_blanked_in_turn() -> None:
    assert coherence_blanks(["One.", "Two.", "Three."]) == (
        Blank((" ",), (" Two.", " Three."), ("One.",), ends=True),
        Blank(("One.", " "), (" Three.",), ("Two.",), ends=True),
        Blank(("One.", " Two.", " "), (" ",), ("Three.",), ends=True),
    )
    assert coherence_blanks([]) == ()


def test_remainder_and_prefix_are_blanked_without_the_end_token() -> None:
    assert consistency_blanks("The food was good.", "The food") == (
        Blank(("The food", " "), (), (" was good.",), ends=False, joined=True),
        Blank((), ("  was good.",), ("The food",), ends=False),
    )
    assert consistency_blanks("The food was good.", "The food ") == consistency_blanks(
        "The food was good.", "The food"
    )


def test_each_prompt_has_a_slot_for_the_text() -> None:
    prompts = ["<gen_result> It was <mask_token>.", "Just <mask_token>! <gen_result>"]
    evaluators = [Evaluator(prompts[0], ("good", "bad")), Evaluator(prompts[0], ("nice", "sad"))]
    evaluators.append(Evaluator(prompts[1], ("good", "bad")))
    blanks = relevance_blanks(evaluators)
    slot = "<gen_result>"
    assert blanks == (
        Blank((slot, " It was "), (".",), ("good", "bad", "nice", "sad"), closing="."),
        Blank(("Just ",), ("! ", slot), ("good", "bad"), closing="!"),
    )
    assert [each.about("A meal.") for each in blanks] == [
        Blank(("A meal.", " It was "), (".",), ("good", "bad", "nice", "sad"), closing="."),
        Blank(("Just ",), ("! ", "A meal."), ("good", "bad"), closing="!"),
    ]


@given(
    st.text(st.sampled_from("a ."), max_size=3), st.permutations(["<gen_result>", "<mask_token>"])
)
def test_a_text_may_contain_slot_names(around: str, slots: list[str]) -> None:
    text = around + "".join(slots) + around
    for prompt in ("<gen_result> It was <mask_token>.", "It was <mask_token>. <gen_result>"):
        (blank,) = relevance_blanks([Evaluator(prompt, ("good",))])
        sides = {"".join(side) for side in blank.about(text)[:2]}
        assert sides in ({f"{text} It was ", "."}, {"It was ", f". {text}"})
