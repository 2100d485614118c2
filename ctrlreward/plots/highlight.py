"""An explanation of `Alignment` as text whose badly aligned tokens stand out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import numpy as np
from rich.style import Style
from rich.text import Text

from ctrlreward.scorers.alignment_explanation import AlignedText, AlignedToken


def highlight(directions: Mapping[str, AlignedText], threshold: float = 0.5) -> Text:
    """One sample's texts, to be printed with `rich.print`.

    A line for each direction, its name and score in front. Tokens whose alignment is below the
    threshold stand on red, the deeper the lower it is, and in brackets with their value, so that
    they can be told in print too. Tokens that the score leaves out are dim. Tokens that are parts
    of one character stand there once, with the lowest of their values.

    Args:
        directions: One item of what `Alignment.explain` gives.
        threshold: Below it a token is marked. What is low depends on the model: probabilities
            have a middle, cosines of one encoder are all higher than those of another.

    Returns:
        Rich text; `.plain` is it without colours.
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
    """From pale at the threshold to full red 1 below it."""
    depth = min(1.0, threshold - token.value)
    rest = round(190 * (1 - depth))
    return Style(color="black", bgcolor=f"rgb(255,{rest},{rest})")
