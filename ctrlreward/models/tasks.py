"""Task types of frozen models, and the scores that answer them.

`Continuation("The soup was", " cold.")` asks a decoder-only model for the log-probabilities of the
tokens of " cold."; `Blank("The ", " was cold.", ("soup", "staff"))` asks an infilling model for
the log-probabilities of each candidate at the blank. Each candidate is answered by one
`TokenScores`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Continuation(NamedTuple):
    """Context and target; the target follows the context character for character.

    An empty context means that the target begins the document.
    """

    context: str
    target: str


class Blank(NamedTuple):
    """A pattern with one blank, and candidate fillings to be scored there.

    Attributes:
        left: The pattern before the blank.
        right: The pattern after the blank.
        targets: Candidate fillings.
        ends: Whether the end token counts as part of each target.
        closing: In a prompt about a text, the part of `right` that completes it (`"."`).
        joined: Whether the targets carry the space that separates them from `left`.
    """

    left: str
    right: str
    targets: tuple[str, ...]
    ends: bool = False
    closing: str | None = None
    joined: bool = False


class TokenScores(NamedTuple):
    """Tokens of a target, int64, and their natural log-probabilities, float64, shape (tokens,)."""

    ids: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float64]
