"""Semantic similarity of text and source under a frozen sentence encoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ctrlreward.models.encoder import Encoder, SentenceEncoder
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scorer, Scores, ScoreSpec
from ctrlreward.scorers.present import present, spread


class Similarity(Scorer):
    """How much of the source's content a text keeps: the cosine of their sentence embeddings.

    - `similarity`: -1 to 1, in practice seldom below 0; higher is better. Needs `sources`.

    Args:
        model: Local folder, hub id or short name of a sentence encoder; or whatever has `embed`,
            as the `WordVectors` of Pang & Gimpel (2019) do.
        device: Where a model that is named runs.
        dtype: `"float32"`, `"bfloat16"`, `"float16"`; None picks by device.
        batch_tokens: Token budget of one forward pass; None picks by device.
    """

    def __init__(
        self,
        model: str | SentenceEncoder = "minilm-l6",
        device: str = "cpu",
        dtype: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.model = model
        self.device = device
        self.dtype = dtype
        self.batch_tokens = batch_tokens

    @property
    def specs(self) -> Mapping[str, ScoreSpec]:
        """The cosine."""
        return {"similarity": ScoreSpec(higher_is_better=True, range=(-1.0, 1.0))}

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The model, loaded at its first use where it was named."""
        if not isinstance(self.model, str):
            return self.model
        return Encoder(self.model, self.device, self.dtype, self.batch_tokens)

    def score(self, samples: Samples) -> dict[str, Scores]:
        """Cosines, float64 of shape (n,).

        NaN, with a warning, where text or source is empty or the model has no vector for it.

        Raises:
            ValueError: The column `sources` is absent.
        """
        sources = samples.require("sources", "Similarity")
        kept = present("similarity", texts=samples.texts, sources=sources)
        columns = {"texts": samples.texts, "sources": sources}
        items = [(name, i, column[i]) for name, column in columns.items() for i in kept]

        def item_name(place: int) -> str:
            column, i, _ = items[place]
            return f"{column}[{i}]"

        vectors = self.encoder.embed([item for _, _, item in items], item_name)
        texts, originals = vectors[: len(kept)], vectors[len(kept) :]
        # Rounding can leave the cosine of equal texts above 1 by a last digit.
        cosines = (texts * originals).sum(axis=1).clip(-1.0, 1.0)
        return {"similarity": spread(cosines, kept, len(samples))}

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of a model that is named; where a given object runs is not known."""
        return (self.device,) if isinstance(self.model, str) else ()

    def load(self) -> None:
        """Loads the model now."""
        _ = self.encoder

    def to(self, device: str) -> None:
        """Has the model loaded on the device at the next use; a given object stays where it is."""
        self.release()
        self.device = device

    def release(self) -> None:
        """Frees the model; the next `score` loads it again."""
        self.__dict__.pop("encoder", None)
