"""Coloured text of an Alignment explanation, with poorly aligned tokens highlighted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import numpy as np
from rich.style import Style
from rich.text import Text

from ctrlreward.scorers.alignment import AlignedText, AlignedToken


def highlight(directions: Mapping[str, AlignedText], threshold: float = 0.5) -> Text:
    """Return the texts of one sample, an item of `Alignment.explain`, to print with `rich.print`.

    Each direction is one line that starts with its name and score. Tokens below the threshold have
    a red background, darker for lower values, and are in brackets with their value, so that they
    also show without colour (`.plain`). Tokens that the score leaves out are dim. Several tokens
    that are parts of one character appear once, with the lowest of their values. Choose the
    threshold for the model: the range of cosines differs by encoder.
    """
    width = max((len(name) for name in directions), default=0)
    lines = []
    for name, aligned in directions.items():
        score = " nan" if np.isnan(aligned.score) else f"{aligned.score:.2f}"
        lines.append(Text(f"{name:<{width}}  {score}  ") + _marked(aligned, threshold))
    return Text("\n").join(lines)


def _marked(aligned: AlignedText, threshold: float) -> Text:
    result = Text()
    end = 0
    for _, parts in groupby(aligned.tokens, key=lambda token: (token.start, token.end)):
        token = min(parts, key=lambda token: token.value)
        result.append(aligned.text[end : token.start])
        word = aligned.text[token.start : token.end]
        if not token.counted:
            result.append(word, Style(dim=True))
        elif token.value < threshold:
            result.append(f"[{word} {token.value:.2f}]", _red(token, threshold))
        else:
            result.append(word)
        end = token.end
    result.append(aligned.text[end:])
    return result


def _red(token: AlignedToken, threshold: float) -> Style:
    """Return a background from pale red at the threshold to full red 1 below it."""
    depth = min(1.0, threshold - token.value)
    other_channels = round(190 * (1 - depth))
    return Style(color="black", bgcolor=f"rgb(255,{other_channels},{other_channels})")
