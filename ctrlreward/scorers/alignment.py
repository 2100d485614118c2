"""CTC (Deng et al., EMNLP 2021) as a scorer: aspects of a text by information alignment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from ctrlreward.arguments import checked_keywords, one_of, some_of
from ctrlreward.engine.sharing import shared_model
from ctrlreward.files import finite_or_none
from ctrlreward.functional.alignment import AGGREGATES, content_tokens, preservation, relevance
from ctrlreward.items import item_logger
from ctrlreward.models.aligner import (
    Aligner,
    EmbeddingAligner,
    TokenAlignment,
    group_shared_texts,
)
from ctrlreward.models.encoder import Encoder
from ctrlreward.models.trained_aligner import RegressionAligner, TokenAligner
from ctrlreward.samples import SampleKeywords, Samples, SamplesLike, as_samples, shortened
from ctrlreward.scorers.base import Scores, ScoreSpec, nonempty
from ctrlreward.scorers.model_scorer import NEIGHBOURS, ModelOptions, ModelScorer
from ctrlreward.text.stop_words import ENGLISH_STOP_WORDS


@dataclass(frozen=True)
class AlignedToken:
    """A token of a text with its alignment.

    Attributes:
        start: Index of its first character in the text.
        end: Index after its last character.
        value: Alignment with the other text; higher is better.
        counted: False if the score leaves the token out, such as a stop word.
    """

    start: int
    end: int
    value: float
    counted: bool


@dataclass(frozen=True)
class AlignedText:
    """A text aligned with another one, token by token.

    Attributes:
        text: Text whose tokens are aligned.
        other: Text that they are aligned with.
        score: Mean or sum of the counted values; NaN if there is nothing to score.
        tokens: Tokens in text order; empty if either text has none.
    """

    text: str
    other: str
    score: float
    tokens: tuple[AlignedToken, ...] = ()


class Aligned(NamedTuple):
    """One direction of an aspect for one sample; without tokens if there is nothing to score.

    Attributes:
        sample: Index of the sample.
        direction: Name of the direction.
        text: Text whose tokens are aligned.
        other: Text that they are aligned with.
        alignment: Spans and values of the tokens.
        counted: Whether each token counts, shape (tokens,).
        score: Score of the text.
    """

    sample: int
    direction: str
    text: str
    other: str
    alignment: TokenAlignment
    counted: npt.NDArray[np.bool_]
    score: float


def to_records(explained: Sequence[Mapping[str, AlignedText]]) -> list[dict[str, Any]]:
    """Convert the result of `Alignment.explain` to one record per sample and direction.

    Args:
        explained: For each sample, its directions by name.

    Returns:
        Records for JSON with `sample` (its index), `direction` and the fields of `AlignedText`;
        the tokens are records too.
    """
    return [
        {
            "sample": index,
            "direction": name,
            **asdict(aligned),
            "score": finite_or_none(aligned.score),
        }
        for index, directions in enumerate(explained)
        for name, aligned in directions.items()
    ]


# Between knowledge and history, as in the training of the published dialog aligners.
_SEPARATOR = "\n\n\n"


class Direction(NamedTuple):
    """A column whose tokens are aligned, and the columns they are aligned with.

    Attributes:
        text: Column of `Samples` whose tokens are aligned.
        others: Columns that they are aligned with; several are joined by three line breaks.
    """

    text: str
    others: tuple[str, ...]


class Aspect(NamedTuple):
    """Definition of an aspect.

    Attributes:
        directions: One or two directions, by the name of the score that each yields.
        aggregate: Aggregation of the tokens of a direction: a key of `AGGREGATES`.
        content_only: True if stop words are left out.
        fold: Function that combines the scores of two directions, in their order.
    """

    directions: Mapping[str, Direction]
    aggregate: str = "mean"
    content_only: bool = False
    fold: Callable[[Scores, Scores], Scores] | None = None


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
        {"groundedness": Direction("texts", ("contexts",))}, "sum", content_only=True
    ),
}


log = item_logger(__name__)

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


@checked_keywords(**NEIGHBOURS)
class Alignment(ModelScorer[Aligner]):
    """Aspects of a text, by the alignment of its tokens with the input it was generated from.

    Deng et al. (2021), https://arxiv.org/abs/2109.06379. With x the source, y the text, r the
    reference, c the context and h the dialog history:

    - `consistency`: mean align(y → x). Needs `sources`.
    - `relevance`: mean align(r → y) × mean align(y → x), and the factors as `relevance_reference`
      and `relevance_output`. Needs `sources` and `references`.
    - `preservation`: harmonic mean of mean align(y → x) and mean align(x → y), and the two means
      as `preservation_output` and `preservation_source`. Needs `sources`.
    - `engagingness`: sum align(y → c and h) without stop words. Needs `contexts`, `histories`.
    - `groundedness`: sum align(y → c) without stop words. Needs `contexts`.

    Higher is better for all. White space around a text is ignored.

    Args:
        model: Local folder, Hugging Face id or short name: an encoder for `"embedding"`, an
            aligner trained for the method otherwise.
        aspects: Score or scores to compute; `"all"` leaves out those whose column is absent.
        method: `"embedding"` (the paper's E), `"discriminative"` (D) or `"regression"` (R), which
            yields one value per text.
        stop_words: Words that engagingness and groundedness leave out: a file with one word per
            line, or a list; `[]` leaves out nothing. None uses `ENGLISH_STOP_WORDS`, the function
            words of English; the paper used NLTK's list. Regression ignores stop words.
        aggregate: Aggregation of every aspect; None uses the paper's for each.
        **options: See `ModelOptions`.

    Raises:
        ValueError: An aspect, `method` or `aggregate` is unknown, or the file of stop words can't
            be read.

    Examples:
        >>> scorer = Alignment("minilm-l6", aspects=["consistency", "groundedness"])
        >>> scores = scorer.score(["The soup was good."], sources="I liked it.", contexts="A menu.")
        >>> {name: values.shape for name, values in scores.items()}
        {'consistency': (1,), 'groundedness': (1,)}
        >>> scorer["groundedness"].spec
        ScoreSpec(higher_is_better=True, range=(-inf, inf))
    """

    def __init__(
        self,
        model: str = "minilm-l6",
        aspects: AspectName | Literal["all"] | Sequence[AspectName] = "preservation",
        method: Method = "embedding",
        stop_words: str | PathLike[str] | Sequence[str] | None = None,
        aggregate: Literal["mean", "sum"] | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        super().__init__(model, **options)
        self._leaves_out = aspects == "all"
        self.aspects = some_of("aspects", aspects, ASPECTS)
        self.method: Method = one_of("method", method, _VALUES)
        self.stop_words = _read_stop_words(stop_words)
        self.aggregate = None if aggregate is None else one_of("aggregate", aggregate, AGGREGATES)

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """Direction and range of the chosen aspects, and of both parts of two-part aspects."""
        ranges: dict[str, tuple[float, float]] = {}
        for name in self.aspects:
            aspect = ASPECTS[name]
            low, high = _VALUES[self.method]
            if (self.aggregate or aspect.aggregate) == "sum":
                low, high = (-np.inf if low < 0 else 0.0), np.inf
            ranges.update(dict.fromkeys(aspect.directions, (low, high)))
            if aspect.fold is not None:
                signed = low < 0 and aspect.fold is not preservation
                ranges[name] = (-high if signed else 0.0, high)
        return {name: ScoreSpec(higher_is_better=True, range=both) for name, both in ranges.items()}

    def required_columns(self, names: Collection[str] | None = None) -> Mapping[str, str]:
        """Columns that the chosen aspects read, or those of them with a score in `names`."""
        directions = [d for a in self._wanted(names) for d in ASPECTS[a].directions.values()]
        columns = dict.fromkeys(c for d in directions for c in (d.text, *d.others))
        return {column: "Alignment" for column in columns if column != "texts"}

    def build_model(self, name: str) -> Aligner:
        """Load the aligner of the method, or share it with the scorers that have loaded it.

        The encoder of `"embedding"` is also shared with `Similarity`.
        """
        settings = (name, self.device, self.dtype, self.batch_tokens)
        if self.method == "embedding":
            return EmbeddingAligner(shared_model(Encoder, *settings))
        if self.method == "discriminative":
            return shared_model(TokenAligner, *settings)
        return shared_model(RegressionAligner, *settings)

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> dict[str, Scores]:
        """Return the chosen aspects and their directions; with `names` only those of these scores.

        NaN, with a warning, if a text that the aspect reads is empty or has no token to average.
        The sum over a text of stop words only is 0: such a text carries no information.
        """
        aspects = self._wanted(names)
        scores = {d: np.empty(len(samples)) for a in aspects for d in ASPECTS[a].directions}
        for aligned in self._align_each(samples, aspects):
            scores[aligned.direction][aligned.sample] = aligned.score
        for name in aspects:
            aspect = ASPECTS[name]
            if aspect.fold is not None:
                scores[name] = aspect.fold(*(scores[direction] for direction in aspect.directions))
        return scores

    def explain(
        self, samples: SamplesLike | None = None, **columns: Unpack[SampleKeywords]
    ) -> list[dict[str, AlignedText]]:
        """Return the alignment of each token behind the scores.

        `plots.highlight.highlight` renders one sample as coloured text;
        `scorers.alignment.to_records` converts the result to plain data.

        Args:
            samples: As in `score`.
            columns: As in `score`.

        Returns:
            For each sample, the directions of the chosen aspects by name, with the same scores as
            `score`.

        Raises:
            ValueError: See `score`.
        """
        samples = as_samples(samples, **columns)
        aspects = self._wanted(self.computable(samples))
        explained = {}
        for found in self._align_each(samples, aspects):
            spans, values = found.alignment
            rows = zip(spans, values.tolist(), found.counted.tolist(), strict=True)
            tokens = tuple(AlignedToken(*span, value, counts) for span, value, counts in rows)
            text = AlignedText(found.text, found.other, found.score, tokens)
            explained[found.sample, found.direction] = text
        directions = [direction for aspect in aspects for direction in ASPECTS[aspect].directions]
        return [
            {direction: explained[i, direction] for direction in directions}
            for i in range(len(samples))
        ]

    def _align_each(self, samples: Samples, aspects: Sequence[str]) -> Iterator[Aligned]:
        """Yield each direction of each sample, in an order that suits the aligner.

        White space around a text is stripped, and empty texts get a warning. A pair of texts is
        aligned once, even if several aspects or samples contain it.
        """
        jobs: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
        for name in aspects:
            columns: dict[str, list[str]] = {}
            for direction, (text, others) in ASPECTS[name].directions.items():
                parts = zip(*(samples.require(other, "Alignment") for other in others), strict=True)
                texts = [item.strip() for item in samples.require(text, "Alignment")]
                joined = [_SEPARATOR.join(map(str.strip, row)).strip() for row in parts]
                columns |= {text: texts, " + ".join(others): joined}
                for i, pair in enumerate(zip(texts, joined, strict=True)):
                    jobs.setdefault(pair, []).append((name, direction, i))
            nonempty(name, **columns)
        pairs = group_shared_texts(pair for pair in jobs if all(pair))
        empty = [(pair, _NO_TOKENS) for pair in jobs if not all(pair)]
        with self.exclusive_model() as aligner:
            for pair, alignment in chain(empty, zip(pairs, aligner.align(pairs), strict=True)):
                for name, direction, i in jobs[pair]:
                    yield self._aligned(ASPECTS[name], direction, i, pair, alignment)

    def _aligned(
        self, aspect: Aspect, direction: str, i: int, pair: tuple[str, str], found: TokenAlignment
    ) -> Aligned:
        """Aggregate the alignment of a pair, with a warning if there is nothing to score."""
        text, other = pair
        spans, values = found
        if spans and not np.isnan(values).any():
            by_word = aspect.content_only and self.method != "regression"
            counted = content_tokens(text, spans, self.stop_words if by_word else ())
            score = AGGREGATES[self.aggregate or aspect.aggregate](values[counted])
        else:
            found, counted, score = _NO_TOKENS, np.zeros(0, np.bool_), np.nan
        if all(pair) and np.isnan(score):
            column = aspect.directions[direction].text
            log.warning(
                "%s[%d] = %s: no token to score, or none to align it with: %s is NaN",
                *(column, i, shortened(text), direction),
            )
        return Aligned(i, direction, text, other, found, counted, score)

    def _wanted(self, names: Collection[str] | None) -> list[str]:
        """Return the aspects with a score in `names`; all for None."""
        return [a for a in self.aspects if names is None or {a, *ASPECTS[a].directions} & {*names}]


def _read_stop_words(given: str | PathLike[str] | Sequence[str] | None) -> frozenset[str]:
    if given is None:
        return ENGLISH_STOP_WORDS
    if isinstance(given, (str, PathLike)):
        try:
            given = Path(given).read_text(encoding="utf-8").split()
        except OSError as error:
            raise ValueError(
                f"stop_words = {str(given)!r} can't be read ({error.strerror}): give the path of "
                "a file with one word per line, or a list of words"
            ) from error
    return frozenset(word.lower() for word in given)
