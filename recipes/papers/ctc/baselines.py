"""CTC's baselines without a model: length, and overlap of words with what should support a text."""

from __future__ import annotations

import numpy as np
from torchmetrics.functional.text import rouge_score

from ctrlreward.extras import import_extra
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


def word_length(samples: Samples) -> Scores:
    """Return the number of words between white space of each text, shape (n,).

    Examples:
        >>> word_length(Samples(["i sail , and you ?", ""]))
        array([6., 0.])
    """
    return np.array([float(len(text.split())) for text in samples.texts])


def overlaps(samples: Samples) -> dict[str, Scores]:
    """Return how much of each text is in its source, or in a dialog in its facts.

    Args:
        samples: Texts with `sources` or `contexts`.

    Returns:
        `bleu` and `chrf` of sacrebleu, and the F-measures `rouge1`, `rouge2` and `rougeL` of
        torchmetrics; 0 to 100 and shape (n,) each.

    Raises:
        ImportError: sacrebleu is not installed.
    """
    sacrebleu = import_extra("sacrebleu", "overlap = true")
    keys = ("rouge1", "rouge2", "rougeL")
    rows = []
    for text, other in zip(samples.texts, samples.sources or samples.contexts or (), strict=True):
        found = rouge_score(text, other, rouge_keys=keys)
        rows.append(
            [
                sacrebleu.sentence_bleu(text, [other]).score,
                sacrebleu.sentence_chrf(text, [other]).score,
                *(100 * float(found[f"{key}_fmeasure"]) for key in keys),
            ]
        )
    return dict(zip(("bleu", "chrf", *keys), np.array(rows).T, strict=True))
