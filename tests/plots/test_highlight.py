from __future__ import annotations

import io

import numpy as np
from rich.color import Color
from rich.console import Console

from ctrlreward.plots.highlight import highlight
from ctrlreward.scorers.alignment import AlignedText, AlignedToken

OUTPUT = AlignedText(
    "the cold  soup!",
    "the hot soup!",
    0.4,
    (
        AlignedToken(0, 3, 0.1, False),
        AlignedToken(4, 8, 0.2, True),
        AlignedToken(10, 14, 0.9, True),
        AlignedToken(14, 15, 0.45, True),
    ),
)
EMPTY = AlignedText("", "[hot] soup", np.nan)


def red_of(background: Color | None) -> tuple[int, int]:
    assert background is not None
    red, green, blue = background.get_truecolor()
    assert green == blue
    return red, green


def test_low_tokens_stand_out_without_colours_too() -> None:
    plain = highlight({"preservation_output": OUTPUT, "other": EMPTY}).plain
    assert plain == (
        "preservation_output  0.40  the [cold 0.20]  soup[! 0.45]\nother                 nan  "
    )


def test_the_lower_the_redder() -> None:
    text = highlight({"x": OUTPUT})
    styles = {text.plain[s.start : s.end]: s.style for s in text.spans}
    assert set(styles) == {"the", "[cold 0.20]", "[! 0.45]"}
    cold, mark = styles["[cold 0.20]"], styles["[! 0.45]"]
    assert not isinstance(cold, str)
    assert not isinstance(mark, str)
    assert red_of(cold.bgcolor)[0] == red_of(mark.bgcolor)[0] == 255
    assert red_of(cold.bgcolor)[1] < red_of(mark.bgcolor)[1]
    assert str(styles["the"]) == "dim"


def test_parts_of_a_character_stand_there_once() -> None:
    values = (0.3, 0.1, 0.9, 0.2)
    spans = ((0, 4), (5, 6), (5, 6), (6, 7))
    tokens = tuple(AlignedToken(*s, v, True) for s, v in zip(spans, values, strict=True))
    aligned = AlignedText("soup 🙂!", "soup", 0.4, tokens)
    assert highlight({"x": aligned}).plain == "x  0.40  [soup 0.30] [🙂 0.10][! 0.20]"
    tokens = (tokens[0], *tokens[2:0:-1], tokens[3])
    assert "[🙂 0.10]" in highlight({"x": AlignedText("soup 🙂!", "soup", 0.4, tokens)}).plain


def test_the_threshold_decides() -> None:
    assert highlight({"x": OUTPUT}, threshold=0.0).plain == "x  0.40  the cold  soup!"
    assert "[soup 0.90]" in highlight({"x": OUTPUT}, threshold=0.95).plain


def test_brackets_of_a_text_are_no_markup() -> None:
    file = io.StringIO()
    aligned = AlignedText("[red]food", "food", 1.0, (AlignedToken(5, 9, 1.0, True),))
    Console(file=file, width=80).print(highlight({"x": aligned}))
    assert file.getvalue() == "x  1.00  [red]food\n"


def test_nothing_to_show() -> None:
    assert highlight({}).plain == ""
