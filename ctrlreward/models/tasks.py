"""Task types of frozen models, and the scores that answer them.

`Continuation(("The soup was",), (((), (" cold.",)), ((), (" hot.",))))` asks a decoder-only model
for the log-probabilities of " cold." and of " hot."; `Patterns((Blank(("The ",), (" was cold.",),
("soup", "staff")),))` asks any model that fills blanks for each candidate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from ctrlreward.models.control_tokens import Pieces

TEXT_SLOT = "<gen_result>"
"""Piece of a pattern that stands for the text of the task."""


Target: TypeAlias = tuple[Pieces, Pieces]
"""Continuation of a context: a beginning that is only read, then the scored part."""


class Continuation(NamedTuple):
    """A context, in pieces, and targets of which each follows it character for character.

    An empty context means that the targets begin a document. A context of a `chat` is the whole of
    what its template writes: no start token comes before it, and only the template's own
    special tokens are in it.
    """

    context: Pieces
    targets: tuple[Target, ...]
    chat: bool = False

    @property
    def size(self) -> int:
        """Number of characters; a control token counts as one."""
        parts = (part for target in self.targets for part in target)
        return sum(
            len(piece) if isinstance(piece, str) else 1
            for part in (self.context, *parts)
            for piece in part
        )


class Blank(NamedTuple):
    """A pattern with one blank, in pieces before and after it, and candidate fillings.

    With `ends` the end token counts as part of each target, `joined` ones carry the space that
    separates them from `left`. `closing` is the part of `right` that completes a prompt (`"."`).
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    targets: tuple[str, ...]
    ends: bool = False
    closing: str | None = None
    joined: bool = False

    def about(self, text: str) -> Blank:
        """Return the blank with a text in place of `TEXT_SLOT`; unchanged for no text."""
        if not text:
            return self
        left, right = (
            tuple(text if piece == TEXT_SLOT else piece for piece in pieces)
            for pieces in (self.left, self.right)
        )
        return self._replace(left=left, right=right)


class Patterns(NamedTuple):
    """Blanks that are filled for one text; `TEXT_SLOT` in them stands for it."""

    blanks: tuple[Blank, ...]
    text: str = ""

    @property
    def size(self) -> int:
        """Number of characters of the text, or of the patterns."""
        if self.text:
            return len(self.text)
        return sum(len(p) for blank in self.blanks for p in (*blank.left, *blank.right))


class TokenScores(NamedTuple):
    """Tokens of the targets of a task, one target after the other, and their log-probabilities.

    `ids` and `log_probs` (natural logarithms) have shape (tokens,), `sizes` (targets,).
    """

    ids: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float64]
    sizes: npt.NDArray[np.int64]

    @property
    def means(self) -> npt.NDArray[np.float64]:
        """Mean log-probability of the tokens of each target, shape (targets,)."""
        places = np.repeat(np.arange(len(self.sizes)), self.sizes)
        sums = np.bincount(places, self.log_probs, minlength=len(self.sizes))
        return np.divide(sums, self.sizes, out=np.full(len(sums), np.nan), where=self.sizes > 0)

    @property
    def tokens(self) -> list[npt.NDArray[np.int64]]:
        return np.split(self.ids, np.cumsum(self.sizes)[:-1]) if len(self.sizes) else []

    def split(self, counts: Sequence[int]) -> list[TokenScores]:
        """Return the scores of the first targets, of the next ones, and so on."""
        edges = np.cumsum([0, *counts])
        ends = np.concatenate([[0], np.cumsum(self.sizes)])[edges].tolist()
        spans = zip(pairwise(ends), pairwise(edges.tolist()), strict=True)
        return [
            TokenScores(self.ids[i:j], self.log_probs[i:j], self.sizes[k:n])
            for (i, j), (k, n) in spans
        ]


class Infiller(Protocol):
    """Frozen model that scores fillings of blanks."""

    tokenizer: PreTrainedTokenizerBase

    def answer(self, tasks: Sequence[Patterns], /) -> list[TokenScores]:
        """Return the scores of the targets of each task, blank by blank."""
