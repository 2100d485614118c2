"""CTC's baselines: length, and overlap of words or embeddings with what should support a text."""

from __future__ import annotations

from typing import Unpack

import numpy as np
from torchmetrics.functional.text import rouge_score

from ctrlreward.extras import import_extra
from ctrlreward.recipes.papers.textual_transfer.transfer_bleu import meteor
from ctrlreward.samples import Samples
from ctrlreward.scorers.alignment import Alignment
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.model_scorer import ModelOptions


def word_length(samples: Samples) -> Scores:
    """Return the number of words between white space of each text, shape (n,).

    Examples:
        >>> from ctrlreward import Samples
        >>> word_length(Samples(["i sail , and you ?", ""]))
        array([6., 0.])
    """
    return np.array([float(len(text.split())) for text in samples.texts])


def overlaps(
    samples: Samples, encoder: str = "minilm-l6", **options: Unpack[ModelOptions]
) -> dict[str, Scores]:
    """Return how much of each text is in its source, or in a dialog in its facts.

    Args:
        samples: Texts with `sources` or `contexts`.
        encoder: Encoder of BERTScore.
        options: Device, dtype and token budget of the encoder.

    Returns:
        `bleu` and `chrf` of sacrebleu, the F-measures `rouge1`, `rouge2` and `rougeL` of
        torchmetrics, `meteor`, and `bertscore`, the F-measure of BERTScore without idf weights,
        which is eq. 4 by E; 0 to 100 and shape (n,) each, NaN where `Alignment` fails.

    Raises:
        ImportError: sacrebleu or nltk is not installed.
    """
    sacrebleu = import_extra("sacrebleu", "overlap = true")
    import_extra("nltk", "overlap = true")
    keys = ("rouge1", "rouge2", "rougeL")
    others = samples.sources or samples.contexts or ()
    rows = []
    for text, other in zip(samples.texts, others, strict=True):
        found = rouge_score(text, other, rouge_keys=keys)
        rows.append(
            [
                sacrebleu.sentence_bleu(text, [other]).score,
                sacrebleu.sentence_chrf(text, [other]).score,
                *(100 * float(found[f"{key}_fmeasure"]) for key in keys),
            ]
        )
    pairs = Samples(samples.texts, sources=others)
    score = Alignment(encoder, "preservation", **options).score(pairs)["preservation"]
    scores = dict(zip(("bleu", "chrf", *keys), np.array(rows).T, strict=True))
    return scores | {"meteor": 100 * meteor(samples.texts, others), "bertscore": 100 * score}
