"""Semantic similarity of text and source under a frozen sentence encoder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Unpack

import numpy as np

from ctrlreward.models.encoder import Encoder, SentenceEncoder
from ctrlreward.models.sharing import shared_model
from ctrlreward.models.word_vectors import WordVectors, vector_folder
from ctrlreward.samples import Samples, empty_items
from ctrlreward.scorers.base import Scored, ScoreSpec, scatter
from ctrlreward.scorers.model_scorer import ModelOptions, ModelScorer, check_loaded


class Similarity(ModelScorer[SentenceEncoder]):
    """Cosine of the sentence embeddings of text and source: how much content the text keeps.

    - `similarity`: -1 to 1; higher is better. Needs `sources`. Unrelated texts have about 0.1 to
      0.2 under MiniLM, 0.8 under word vectors.

    Args:
        model: Local folder, Hugging Face id or short name of a sentence encoder; a folder written
            by `WordVectors.save`, or `"glove-6b-50d"`; or an object with an `embed` method.
        **options: See `ModelOptions`.
    """

    specs = dict.fromkeys(("similarity",), ScoreSpec(True, (-1.0, 1.0)))

    def __init__(
        self, model: str | SentenceEncoder = "minilm-l6", **options: Unpack[ModelOptions]
    ) -> None:
        check_loaded(model, "embed")
        super().__init__(model, **options)

    def required_columns(self, names: Collection[str] | None = None) -> Sequence[str]:
        return ("sources",)

    def build_model(self, name: str) -> SentenceEncoder:
        if vector_folder(name) is not None:
            return shared_model(WordVectors.load, name)
        # None is the last layer, as in `Alignment`.
        return shared_model(Encoder, name, self.device, self.dtype, self.batch_tokens, None)

    def score_samples(self, samples: Samples) -> Scored:
        sources = samples.require("sources", "Similarity")
        failures = empty_items("sources", sources)
        kept = [i for i in range(len(samples)) if i not in failures]
        texts = [column[i] for column in (samples.texts, sources) for i in kept]
        with self.locked_model() as encoder:
            vectors = encoder.embed(texts)
        text_vectors, source_vectors = vectors[: len(kept)], vectors[len(kept) :]
        cosines = (text_vectors * source_vectors).sum(axis=1)
        # Rounding would rank copies at random, and push some just above 1.
        cosines[(text_vectors == source_vectors).all(axis=1)] = 1.0
        for place in np.flatnonzero(np.isnan(cosines)).tolist():
            failures.add(kept[place], "the text or its source has no word that the model knows")
        scores = scatter(cosines.clip(-1.0, 1.0), kept, len(samples))
        return Scored({"similarity": scores}, failures)
