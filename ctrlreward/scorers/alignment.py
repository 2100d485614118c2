"""CTC (Deng et al., EMNLP 2021) as a scorer: aspects of a text by information alignment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from os import PathLike
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import one_of, some_of
from ctrlreward.failures import Failures
from ctrlreward.functional.alignment import AGGREGATES, content_tokens, preservation, relevance
from ctrlreward.models.aligner import (
    Aligner,
    EmbeddingAligner,
    RegressionAligner,
    TokenAligner,
    TokenAlignment,
    group_shared_texts,
)
from ctrlreward.models.encoder import Encoder, token_layer
from ctrlreward.models.sharing import locked, shared_model
from ctrlreward.models.stop_words import read_stop_words
from ctrlreward.samples import Samples, SamplesLike, as_samples
from ctrlreward.scorers.base import Scored, Scores, ScoreSpec, computable
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer


@dataclass(frozen=True)
class AlignedToken:
    """A token of a text, from `start` to before `end`, with its alignment; higher is better.

    `counted` is False if the score leaves the token out, such as a stop word.
    """

    start: int
    end: int
    value: float
    counted: bool


@dataclass(frozen=True)
class AlignedText:
    """A text aligned with another; the score is NaN, and there are no tokens, if one has none."""

    text: str
    other: str
    score: float
    tokens: tuple[AlignedToken, ...] = ()


class Aligned(NamedTuple):
    """One direction of an aspect for one sample; without tokens if there is nothing to score."""

    sample: int
    direction: str
    part: int  # index of the reference; 0 for other directions
    pair: tuple[str, str]
    alignment: TokenAlignment
    counted: npt.NDArray[np.bool_]  # whether each token counts, shape (tokens,)
    score: float

    def explained(self) -> AlignedText:
        spans, values = self.alignment
        rows = zip(spans, values.tolist(), self.counted.tolist(), strict=True)
        tokens = tuple(AlignedToken(*span, value, counts) for span, value, counts in rows)
        return AlignedText(*self.pair, self.score, tokens)


# Between knowledge and history, as in the training of the published dialog aligners.
SEPARATOR = "\n\n\n"


class Direction(NamedTuple):
    """A column whose tokens are aligned, and columns with which they are, joined if several."""

    text: str
    others: tuple[str, ...]


class Aspect(NamedTuple):
    """Directions of an aspect by the names of their scores, and the fold of two of them."""

    directions: Mapping[str, Direction]
    aggregate: str = "mean"  # of the tokens of a direction, a key of `AGGREGATES`
    content_only: bool = False  # stop words are left out
    fold: Callable[[Scores, Scores], Scores] | None = None
    above_chance: bool = False  # only the part of a cosine above the encoder's `chance` counts


_OUTPUT = Direction("texts", ("sources",))

ASPECTS: Mapping[str, Aspect] = {
    "consistency": Aspect({"consistency": _OUTPUT}),
    "relevance": Aspect(
        {
            "relevance_reference": Direction("references", ("texts",)),
            "relevance_output": _OUTPUT,
        },
        fold=relevance,
    ),
    "preservation": Aspect(
        {
            "preservation_output": _OUTPUT,
            "preservation_source": Direction("sources", ("texts",)),
        },
        fold=preservation,
    ),
    "engagingness": Aspect(
        {"engagingness": Direction("texts", ("contexts", "histories"))}, "sum", content_only=True
    ),
    "groundedness": Aspect(
        {"groundedness": Direction("texts", ("contexts",))},
        "sum",
        content_only=True,
        above_chance=True,
    ),
}


AspectName: TypeAlias = Literal[
    "consistency", "relevance", "preservation", "engagingness", "groundedness"
]
Method: TypeAlias = Literal["embedding", "discriminative", "regression"]

# Range of a token's value by method; a regression is the output of a linear layer.
_VALUES: dict[Method, tuple[float, float]] = {
    "embedding": (-1.0, 1.0),
    "discriminative": (0.0, 1.0),
    "regression": (-np.inf, np.inf),
}

_NO_TOKENS = TokenAlignment((), np.zeros(0))

# Aspect, direction, sample and part of a pair of texts.
_Job: TypeAlias = tuple[str, str, int, int]


class Alignment(ModelScorer[Aligner | Mapping[str, Aligner]]):
    """Aspects of a text, by the alignment of its tokens with the input it was generated from.

    Deng et al. (2021), https://arxiv.org/abs/2109.06379. With x the source, y the text, r the
    reference, c the context and h the dialog history:

    - `consistency`: mean align(y → x). Needs `sources`.
    - `relevance`: mean align(r → y) × mean align(y → x), and the factors as `relevance_reference`,
      the mean over several references, and `relevance_output`. Needs `sources` and `references`.
    - `preservation`: harmonic mean of mean align(y → x) and mean align(x → y), and the two means
      as `preservation_output` and `preservation_source`. Needs `sources`.
    - `engagingness`: sum align(y → c and h) without stop words. Needs `contexts`, `histories`.
    - `groundedness`: sum align(y → c) without stop words. Needs `contexts`. With `calibration`, an
      embedding's value of a token is what it has above chance, max(0, align(y → c) - chance).

    Higher is better for all. White space around a text is ignored.

    Args:
        model: Local folder, Hugging Face id or short name: an encoder for `"embedding"`, an
            aligner trained for the method otherwise. Or direction → model:
            `{"relevance_reference": "summary", "relevance_output": "document"}`.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        method: `"embedding"` (the paper's E), `"discriminative"` (D) or `"regression"` (R), which
            yields one value per text; a model of natural language inference is one of R.
        stop_words: Words that engagingness and groundedness leave out, not with a regression: a
            file with one word per line, or a list, `[]` for none. None uses `ENGLISH_STOP_WORDS`;
            the paper used NLTK's list.
        layer: Layer whose embeddings are compared, 0 for those that go into the first; only for
            `"embedding"`. None uses the published layer (`models.encoder.TOKEN_LAYERS`) or the
            last one.
        calibration: Whether groundedness by `"embedding"` counts a token above chance only, which
            the paper doesn't (docs/alignment.md).
        **options: See `ModelOptions`.
    """

    def __init__(
        self,
        model: str | Mapping[str, str] = "minilm-l6",
        aspects: AspectName | Literal["all"] | Sequence[AspectName] = "preservation",
        method: Method = "embedding",
        stop_words: str | PathLike[str] | Sequence[str] | None = None,
        layer: int | None = None,
        calibration: bool = True,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__("" if isinstance(model, Mapping) else model, **options)
        self.optional = aspects == "all"
        self.aspects = some_of("aspects", aspects, ASPECTS)
        self.method: Method = one_of("method", method, _VALUES)
        self.stop_words = read_stop_words(stop_words)
        if layer is not None and method != "embedding":
            raise ValueError(f"layer must be None but for method 'embedding', got {layer}")
        self.layer = layer
        self.calibration = calibration and self.method == "embedding"
        # Model of each direction; empty if one model has all.
        self.models = {**model} if isinstance(model, Mapping) else {}
        directions = [d for name in self.aspects for d in ASPECTS[name].directions]
        if isinstance(model, Mapping) and {*model} != {*directions}:
            raise ValueError(f"model must have {', '.join(directions)}, got {', '.join(model)}")

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        ranges: dict[str, tuple[float, float]] = {}
        for name in self.aspects:
            aspect = ASPECTS[name]
            low, high = _VALUES[self.method]
            if aspect.above_chance and self.calibration:
                low = 0.0
            if aspect.aggregate == "sum":
                low, high = (-np.inf if low < 0 else 0.0), np.inf
            ranges.update(dict.fromkeys(aspect.directions, (low, high)))
            if aspect.fold is not None:
                signed = low < 0 and aspect.fold is not preservation
                ranges[name] = (-high if signed else 0.0, high)
        return {name: ScoreSpec(higher_is_better=True, range=both) for name, both in ranges.items()}

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        directions = [d for a in self._wanted(names) for d in ASPECTS[a].directions.values()]
        columns = dict.fromkeys(c for d in directions for c in (d.text, *d.others))
        return [column for column in columns if column != "texts"]

    @cached_property
    def loaded_model(self) -> Aligner | Mapping[str, Aligner]:
        if not self.models:
            return super().loaded_model
        return {direction: self.build_model(name) for direction, name in self.models.items()}

    def build_model(self, name: str) -> Aligner:
        settings = (name, self.device, self.dtype, self.batch_tokens)
        if self.method == "embedding":
            layer = token_layer(name) if self.layer is None else self.layer
            return EmbeddingAligner(shared_model(Encoder, *settings, layer))
        if self.method == "discriminative":
            return shared_model(TokenAligner, *settings)
        return shared_model(RegressionAligner, *settings)

    def score_samples(self, samples: Samples, names: Collection[str] | None = None) -> Scored:
        n, aspects = len(samples), self._wanted(names)
        directions = [direction for name in aspects for direction in ASPECTS[name].directions]
        parts: dict[str, list[list[float]]] = {d: [[] for _ in range(n)] for d in directions}
        failures = Failures()
        for found in self._align_each(samples, aspects):
            parts[found.direction][found.sample].append(found.score)
            if np.isnan(found.score):
                what = "no token to score, or none to align it with"
                failures.add(found.sample, f"{found.direction}: {what}")
        scores = {d: np.array([np.mean(values) for values in rows]) for d, rows in parts.items()}
        for name in aspects:
            aspect = ASPECTS[name]
            if aspect.fold is not None:
                scores[name] = aspect.fold(*(scores[direction] for direction in aspect.directions))
        return Scored(scores, failures)

    def explain(
        self, samples: SamplesLike | None = None, **columns: Any
    ) -> list[dict[str, AlignedText]]:
        """Return the alignment of each token behind the scores, by direction, for each sample.

        Several references are `relevance_reference[0]`, `[1]`, ….
        """
        samples, _ = as_samples(samples, **columns).answers()
        aspects = self._wanted(computable(self, samples))
        parts: dict[tuple[int, str], dict[int, AlignedText]] = defaultdict(dict)
        for found in self._align_each(samples, aspects):
            parts[found.sample, found.direction][found.part] = found.explained()
        directions = [direction for aspect in aspects for direction in ASPECTS[aspect].directions]
        return [
            {
                direction if len(parts[i, direction]) == 1 else f"{direction}[{part}]": text
                for direction in directions
                for part, text in sorted(parts[i, direction].items())
            }
            for i in range(len(samples))
        ]

    def _align_each(self, samples: Samples, aspects: Sequence[str]) -> list[Aligned]:
        loaded = self.loaded_model
        # Jobs of each aligner, by its pairs of texts.
        work: dict[int, tuple[Aligner, dict[tuple[str, str], list[_Job]]]] = {}
        for name in aspects:
            for direction, (text, others) in ASPECTS[name].directions.items():
                aligner = loaded[direction] if isinstance(loaded, Mapping) else loaded
                _, jobs = work.setdefault(id(aligner), (aligner, {}))
                rows = [samples.require(other, "Alignment") for other in others]
                joined = [
                    SEPARATOR.join(map(str.strip, row)).strip() for row in zip(*rows, strict=True)
                ]
                if text == "references":
                    given = samples.require_references("Alignment")
                else:
                    given = tuple((item,) for item in samples.require(text, "Alignment"))
                texts = [[*map(str.strip, row)] for row in given]
                for i, (row, other) in enumerate(zip(texts, joined, strict=True)):
                    for part, item in enumerate(row):
                        jobs.setdefault((item, other), []).append((name, direction, i, part))
        found: list[Aligned] = []
        for aligner, jobs in work.values():
            pairs = group_shared_texts(pair for pair in jobs if all(pair))
            empty = [(pair, _NO_TOKENS) for pair in jobs if not all(pair)]
            with locked(aligner):
                aligned = zip(pairs, aligner.align(pairs), strict=True)
                for pair, alignment in chain(empty, aligned):
                    found += [self._aligned(job, pair, alignment, aligner) for job in jobs[pair]]
        return found

    def _aligned(
        self, job: _Job, pair: tuple[str, str], found: TokenAlignment, aligner: Aligner
    ) -> Aligned:
        name, direction, i, part = job
        aspect, (spans, values) = ASPECTS[name], found
        if aspect.above_chance and self.calibration and isinstance(aligner, EmbeddingAligner):
            values = np.maximum(values - aligner.chance, 0.0)
            found = TokenAlignment(spans, values)
        if spans and not np.isnan(values).any():
            by_word = aspect.content_only and self.method != "regression"
            counted = content_tokens(pair[0], spans, self.stop_words if by_word else ())
            score = AGGREGATES[aspect.aggregate](values[counted])
        else:
            found, counted, score = _NO_TOKENS, np.zeros(0, np.bool_), np.nan
        return Aligned(i, direction, part, pair, found, counted, score)

    def _wanted(self, names: Collection[str] | None) -> list[str]:
        return [a for a in self.aspects if names is None or {a, *ASPECTS[a].directions} & {*names}]
