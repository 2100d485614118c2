"""BLEU, as in Table 6 of Pang & Gimpel (2019), and METEOR against human sentences."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.extras import import_extra
from ctrlreward.models.words import separate_words
from ctrlreward.recipes.text_files import read_lines
from ctrlreward.samples import Samples
from ctrlreward.scorers.base import Scores


class Bleu(NamedTuple):
    """BLEU of a corpus.

    Attributes:
        score: 0 to 100; higher is better.
        signature: Settings and version of sacrebleu.
    """

    score: float
    signature: str


# Replacement of NLTK's WordNet, whose data NLTK downloads apart from the package.
_NO_SYNONYMS = SimpleNamespace(synsets=lambda word: ())


def read_references(files: dict[str, str]) -> Samples:
    """Read sentences to transfer with a human reference each.

    Args:
        files: Style of the sentences → file of `source ⇥ reference` lines. Two styles, each the
            target of the other.

    Returns:
        Samples with empty texts: `sources`, `references`, and the target styles as `labels`.

    Raises:
        ValueError: There are fewer or more than two styles, or a line is not a source and a
            reference.
    """
    if len(files) != 2:
        raise ValueError(f"references must have two styles, got {', '.join(files)}")
    rows: list[tuple[str, str, str]] = []
    for (_, file), target in zip(files.items(), reversed(files), strict=True):
        for number, line in enumerate(read_lines([file]), 1):
            columns = [column.strip() for column in line.split("\t")]
            if len(columns) != 2 or not all(columns):
                raise ValueError(f"{file}:{number} must be source ⇥ reference, got {line!r}")
            rows.append((columns[0], columns[1], target))
    sources, references, labels = zip(*rows, strict=True) if rows else ((), (), ())
    empty = [""] * len(rows)
    return Samples(empty, empty, labels=labels, sources=sources, references=references)


def reference_bleu(samples: Samples) -> Bleu:
    """Return BLEU-4 of texts against one reference each, by sacrebleu; higher is better.

    Table 6 is by multi-bleu.perl, which splits at spaces and smooths nothing; so do `tokenize=none`
    and `smooth_method=none`. Both sides are tokenized like the corpus (`separate_words`): Li et
    al.'s references are not (`food.`, not `food .`). The one row of Table 6 that needs no model is
    the untransferred input: 31.3 with these settings, 31.4 in the paper, 24.8 without separation.

    Args:
        samples: n texts with `references`.

    Raises:
        MissingColumn: The samples do not have references.
        ImportError: sacrebleu is not installed.
    """
    references = samples.require("references", "reference_bleu")
    metrics = import_extra("sacrebleu.metrics", "BLEU")
    # force: otherwise sacrebleu warns about texts that end in a separated full stop.
    bleu = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
    texts, targets = (list(map(separate_words, side)) for side in (samples.texts, references))
    score = bleu.corpus_score(texts, [targets]).score
    return Bleu(float(score), str(bleu.get_signature()))


def reference_meteor(samples: Samples) -> float:
    """Return the mean METEOR of texts against one reference each, 0 to 100; higher is better.

    Args:
        samples: n texts with `references`, 1 or more; see `meteor`.

    Raises:
        MissingColumn: The samples do not have references.
        ImportError: nltk is not installed.
    """
    references = samples.require("references", "reference_meteor")
    return 100 * float(np.mean(meteor(samples.texts, references)))


def meteor(texts: Sequence[str], targets: Sequence[Any]) -> Scores:
    """Return the METEOR of n texts against a sentence each, in [0, 1]; higher is better, (n,).

    By NLTK, with the weights of Banerjee and Lavie (2005): α = 0.9, β = 3, γ = 0.5. Words match
    exactly or by their Porter stems. Synonyms don't count: they are in WordNet, which is a separate
    download of NLTK's, and nothing is downloaded here. METEOR 1.5, with synonyms, paraphrases and
    other weights, has other values. Both sides are tokenized like the corpus; see
    `reference_bleu`. An empty text has 0.
    """
    score = import_extra("nltk.translate.meteor_score", "METEOR").single_meteor_score
    sides = ([separate_words(each).split() for each in side] for side in (targets, texts))
    pairs = zip(*sides, strict=True)
    return np.array([score(*pair, wordnet=_NO_SYNONYMS) for pair in pairs], float)
