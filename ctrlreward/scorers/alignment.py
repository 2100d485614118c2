"""CTC (Deng et al., EMNLP 2021) as a scorer: aspects of a text by information alignment."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ctrlreward.functional.alignment import AGGREGATES, preservation
from ctrlreward.models.aligner import Aligner, EmbeddingAligner, TokenAlignment, sharing_order
from ctrlreward.models.trained_aligner import RegressionAligner, TokenAligner
from ctrlreward.samples import Samples, shortened
from ctrlreward.scorers.aligned_text import AlignedText, aligned_text
from ctrlreward.scorers.aspects import ASPECTS, Aspect
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.present import present
from ctrlreward.text.stop_words import ENGLISH_STOP_WORDS

log = logging.getLogger(__name__)

# What a method says of one token; a regression is the output of a linear layer.
_VALUES = {"embedding": (-1.0, 1.0), "discriminative": (0.0, 1.0), "regression": (-np.inf, np.inf)}

_NO_TOKENS = TokenAlignment((), np.zeros(0))


class Alignment(Scorer):
    """Aspects of a text by how well its tokens are aligned with what it was made from.

    Deng et al. (2021), https://arxiv.org/abs/2109.06379. With x the source, y the text, r the
    reference, c the context and h the dialog history:

    - `consistency`: mean align(y → x). Needs `sources`.
    - `relevance`: mean align(r → y) × mean align(y → x), and the two apart, as
      `relevance_reference` and `relevance_output`. Needs `sources` and `references`.
    - `preservation`: the harmonic mean of mean align(y → x) and mean align(x → y), and the two
      apart, as `preservation_output` and `preservation_source`. Needs `sources`.
    - `engagingness`: sum align(y → c and h) without stop words. Needs `contexts`, `histories`.
    - `groundedness`: sum align(y → c) without stop words. Needs `contexts`.

    All are better when higher. White space around a text is left aside.

    Args:
        aspects: Which scores to compute.
        model: Local folder, hub id or short name: an encoder for `"embedding"`, for the other
            methods an aligner that was trained as such.
        method: What aligns: `"embedding"` (the paper's E), `"discriminative"` (D) or
            `"regression"` (R), which gives one value for all of a text.
        stop_words: What engagingness and groundedness leave out: a file with a word a line, or a
            list; `[]` leaves out nothing. None takes `ENGLISH_STOP_WORDS`, the function words of
            English; the paper took NLTK's list. Regression doesn't look at words.
        aggregate: `"mean"` or `"sum"`, for every aspect; None takes the paper's for each.
        device: Where the model runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass; None picks by device.

    Raises:
        ValueError: An aspect, `method` or `aggregate` is unknown, or stop words can't be read.
    """

    def __init__(
        self,
        aspects: Sequence[str] = ("preservation",),
        model: str = "minilm-l6",
        method: str = "embedding",
        stop_words: str | PathLike[str] | Sequence[str] | None = None,
        aggregate: str | None = None,
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        unknown = [aspect for aspect in aspects if aspect not in ASPECTS]
        if unknown or not aspects:
            raise ValueError(f"aspects = {list(aspects)}: give one or more of {', '.join(ASPECTS)}")
        if method not in _VALUES:
            raise ValueError(f"method = {method!r}: give one of {', '.join(_VALUES)}")
        if aggregate is not None and aggregate not in AGGREGATES:
            raise ValueError(f"aggregate = {aggregate!r}: give one of {', '.join(AGGREGATES)}")
        self.aspects = tuple(aspects)
        self.model = model
        self.method = method
        self.stop_words = _words(stop_words)
        self.aggregate = aggregate
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """The chosen aspects; those of two directions also give the directions apart."""
        ranges: dict[str, tuple[float, float]] = {}
        for name in self.aspects:
            aspect = ASPECTS[name]
            low, high = self._range(aspect)
            ranges.update(dict.fromkeys(aspect.directions, (low, high)))
            if aspect.fold is not None:
                signed = low < 0 and aspect.fold is not preservation
                ranges[name] = (-high if signed else 0.0, high)
        return {name: ScoreSpec(higher_is_better=True, range=both) for name, both in ranges.items()}

    @cached_property
    def aligner(self) -> Aligner:
        """The model, loaded at its first use."""
        return load_aligner(self.model, self.method, self.device, self.dtype, self.batch_tokens)

    def score(self, samples: Samples) -> dict[str, Scores]:
        """Scores of the chosen aspects and of their directions, each float64 of shape (n,).

        NaN, with a warning, where a text that the aspect reads is empty or has no token to take
        the mean of. The sum over a text of stop words only is 0: it says nothing.

        Raises:
            ValueError: A column that an aspect needs is absent.
        """
        scores = {direction: np.empty(len(samples)) for direction in self._directions}
        for job, aligned in self._explaining(samples):
            scores[job.direction][job.sample] = aligned.score
        for name in self.aspects:
            aspect = ASPECTS[name]
            if aspect.fold is not None:
                scores[name] = aspect.fold(*(scores[direction] for direction in aspect.directions))
        return scores

    def explain(self, samples: Samples) -> list[dict[str, AlignedText]]:
        """What the scores are made of: the alignment of each token.

        `scorers.highlight.highlight` makes a coloured text of it, `scorers.aligned_text.to_records`
        plain data.

        Returns:
            For each sample the directions of the chosen aspects, by name, each with the score
            that `score` gives.

        Raises:
            ValueError: As `score` does.
        """
        made = {(job.sample, job.direction): aligned for job, aligned in self._explaining(samples)}
        return [
            {direction: made[i, direction] for direction in self._directions}
            for i in range(len(samples))
        ]

    def _explaining(self, samples: Samples) -> Iterator[tuple[_Job, AlignedText]]:
        """Each direction of each sample, one after the other, in an order that suits the aligner.

        Directions of several aspects may be the same, and samples may share their texts.
        """
        jobs: dict[tuple[str, str], list[_Job]] = {}
        for aspect in self.aspects:
            for job in _jobs(aspect, samples):
                jobs.setdefault((job.text, job.other), []).append(job)
        pairs = sharing_order(pair for pair in jobs if all(pair))
        aligned = zip(pairs, self.aligner.align(pairs), strict=True)
        empty = [(pair, _NO_TOKENS) for pair in jobs if not all(pair)]
        for pair, alignment in chain(empty, aligned):
            for job in jobs[pair]:
                yield job, self._aligned(job, alignment)

    def load(self) -> None:
        """Loads the model now."""
        _ = self.aligner

    def to(self, device: str) -> None:
        """Has the model loaded on the device at the next use."""
        self.release()
        self.device = device

    def release(self) -> None:
        """Frees the model; the next `score` loads it again."""
        self.__dict__.pop("aligner", None)

    @property
    def _directions(self) -> list[str]:
        return [direction for aspect in self.aspects for direction in ASPECTS[aspect].directions]

    def _aggregate(self, aspect: Aspect) -> str:
        return self.aggregate or aspect.aggregate

    def _range(self, aspect: Aspect) -> tuple[float, float]:
        """Of a direction."""
        low, high = _VALUES[self.method]
        if self._aggregate(aspect) == "mean":
            return low, high
        return (-np.inf if low < 0 else 0.0), np.inf

    def _aligned(self, job: _Job, alignment: TokenAlignment) -> AlignedText:
        aspect = ASPECTS[job.aspect]
        by_word = aspect.content_only and self.method != "regression"
        stop_words = self.stop_words if by_word else frozenset[str]()
        aligned = aligned_text(job.text, job.other, alignment, stop_words, self._aggregate(aspect))
        if job.text and job.other and np.isnan(aligned.score):
            column = aspect.directions[job.direction].text
            log.warning(
                "%s[%d] = %s: no token counts, or none is there to align with: %s is NaN",
                *(column, job.sample, shortened(job.text), job.direction),
            )
        return aligned


class _Job(NamedTuple):
    """One direction of an aspect for one sample."""

    sample: int
    aspect: str
    direction: str
    text: str
    other: str


def _jobs(aspect: str, samples: Samples) -> list[_Job]:
    """All directions of an aspect for all samples; names those that have an empty text."""
    columns: dict[str, list[str]] = {}
    jobs = []
    for name, direction in ASPECTS[aspect].directions.items():
        sides = direction.columns(samples, "Alignment")
        columns |= sides
        jobs += [
            _Job(i, aspect, name, *row) for i, row in enumerate(zip(*sides.values(), strict=True))
        ]
    present(aspect, **columns)
    return jobs


def load_aligner(
    model: str,
    method: str,
    device: str = "cpu",
    dtype: str | None = None,
    batch_tokens: int | None = None,
) -> Aligner:
    """The aligner of a method.

    Args:
        model: Local folder, hub id or short name.
        method: `"embedding"`, `"discriminative"` or `"regression"`.
        device: Where it runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass, padding included; None picks by device.

    Raises:
        ValueError: The method is unknown, or the model is not one for it.
    """
    if method == "embedding":
        return EmbeddingAligner(model, device, dtype, batch_tokens)
    if method == "discriminative":
        return TokenAligner(model, device, dtype, batch_tokens)
    if method == "regression":
        return RegressionAligner(model, device, dtype, batch_tokens)
    raise ValueError(f"method = {method!r}: give one of {', '.join(_VALUES)}")


def _words(given: str | PathLike[str] | Sequence[str] | None) -> frozenset[str]:
    if given is None:
        return ENGLISH_STOP_WORDS
    if isinstance(given, (str, PathLike)):
        try:
            given = Path(given).read_text(encoding="utf-8").split()
        except OSError as error:
            raise ValueError(
                f"stop_words = {str(given)!r} can't be read ({error.strerror}): give the path of "
                "a file with a word a line, or a list of words"
            ) from error
    return frozenset(word.lower() for word in given)
