"""Patterns of CTRLEval (Ke et al., ACL 2022): each aspect of a text as blanks to fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from ctrlreward.engine.batching import windows
from ctrlreward.engine.requests import Requests
from ctrlreward.models.infill import Infiller
from ctrlreward.models.tasks import Blank, TokenScores
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.task import TEXT_SLOT, WORD_SLOT, Evaluator


def coherence_blanks(sentences: Sequence[str]) -> list[Blank]:
    """Return one blank per sentence, to be filled given all other sentences."""
    return [
        Blank(
            " ".join(sentences[:i]) + " ",
            " " + " ".join(sentences[i + 1 :]),
            (sentence,),
            ends=True,
        )
        for i, sentence in enumerate(sentences)
    ]


def consistency_blanks(text: str, prefix: str) -> list[Blank]:
    """Return two blanks: the remainder given the prefix, and the prefix given the remainder.

    The remainder keeps its leading space, as in the published implementation.
    """
    remainder = text[len(prefix) :]
    return [
        Blank(prefix + " ", "", (remainder,), joined=True),
        Blank("", " " + remainder, (prefix,)),
    ]


def relevance_blanks(text: str, prompts: Sequence[str], words: Sequence[str]) -> list[Blank]:
    """Return one blank per prompt that contains the text; every label word is a candidate."""
    blanks = []
    for prompt in prompts:
        # Split before inserting the text, which may itself contain the names of the slots.
        left, right = prompt.split(WORD_SLOT, 1)
        blanks.append(
            Blank(
                left.replace(TEXT_SLOT, text),
                right.replace(TEXT_SLOT, text),
                tuple(words),
                closing=right.partition(TEXT_SLOT)[0].rstrip(),
            )
        )
    return blanks


def evaluator_blanks(text: str, evaluators: Sequence[Evaluator]) -> list[Blank]:
    """Return one blank per prompt, with the words of all its verbalizers in a row.

    Args:
        text: Text to be put into the prompts; none has a blank if it is empty.
        evaluators: Prompts with their verbalizers, grouped by prompt.
    """
    if not text.strip():
        return []
    blanks = []
    for prompt, group in groupby(evaluators, key=lambda e: e.prompt):
        words = [word for evaluator in group for word in evaluator.words]
        blanks += relevance_blanks(text, [prompt], words)
    return blanks


def aspect_blanks(
    aspect: str,
    text: str,
    prefix: str,
    split: Callable[[str], list[str]],
    evaluators: Sequence[Evaluator],
) -> list[Blank]:
    """Return the patterns of a text for an aspect, none if there is nothing to score.

    Args:
        aspect: `"coherence"`, `"consistency"` or `"attribute_relevance"`.
        text: Text that begins with the prefix.
        prefix: Prefix; only consistency reads it.
        split: Sentence splitter; only coherence calls it.
        evaluators: Prompts with their verbalizers; only attribute relevance reads them.
    """
    if aspect == "coherence":
        return coherence_blanks([s for s in split(text) if s.strip()])
    if aspect == "attribute_relevance":
        return evaluator_blanks(text, evaluators)
    if prefix.strip() and text[len(prefix) :].strip():
        return consistency_blanks(text, prefix)
    return []


def score_words(
    infiller: Infiller, texts: Sequence[str], evaluators: Sequence[Evaluator]
) -> Requests[Scores]:
    """Return the log-probability of each word after each text.

    Args:
        infiller: Model that is asked.
        texts: Texts, none of them empty.
        evaluators: Prompts with their verbalizers, grouped by prompt.

    Returns:
        Mean over the word's tokens, in nats, shape (texts, evaluators, labels).
    """
    labels = len(evaluators[0].words)
    rows = []
    for window in windows(texts):
        groups = [evaluator_blanks(texts[i], evaluators) for i in window]
        flat = [blank for group in groups for blank in group]
        scored = iter((yield from infiller.requests(flat)))
        rows += [word_log_probs([next(scored) for _ in group], labels) for group in groups]
    return np.array(rows).reshape(-1, len(evaluators), labels)


def word_log_probs(token_scores: Sequence[Sequence[TokenScores]], labels: int) -> Scores:
    """Return the mean log-probability of each evaluator's words, shape (evaluators, labels).

    Args:
        token_scores: Scores of the words of each of `evaluator_blanks`.
        labels: Number of labels.
    """
    means = [word.log_probs.mean() for words in token_scores for word in words]
    return np.array(means).reshape(-1, labels)


def reason_for_nan(aspect: str, text: str, prefix: str) -> str:
    """Return why a sample has no pattern, for the warning."""
    if not text.strip():
        return "is empty"
    if aspect == "coherence":
        return "has no sentences"
    return "has nothing beyond its prefix" if prefix.strip() else "has no prefix"
