"""Labelled training pairs for aligners, built from plain texts without annotation.

As in Deng et al. (2021), https://arxiv.org/abs/2109.06379, section 3.5 and appendix A: a text is
paraphrased, spans of the paraphrase are masked and filled by a model that has not seen the text,
and the words that the model filled in are labelled as hallucinated. The paper masks constituents
of a parse tree (`constituents.py`); runs of words need no parser.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from ctrlreward.recipes.papers.ctc.span_filling import Fillings, Template
from ctrlreward.recipes.text_files import WORD

# First character of a span, and the one after its last.
Span = tuple[int, int]

Labels: TypeAlias = Literal["words", "fillings"]

_CONJUNCTION = re.compile(r"\s*(?:,\s*(?:and|but)\b|,|\b(?:and|but)\b)\s+")
_LIGHT_WORDS = {"a", "an", "the", "very", "really", "so", "just", "also", "too", "quite"}


class AlignmentPair(NamedTuple):
    """A pair of texts (a, b), labelled with the spans of a that b does not support.

    Attributes:
        source: Index of the text that the pair was made from.
        a: Text whose tokens are labelled.
        b: Text that a is compared with.
        hallucinated: Character spans of a that b does not support.
        unknown: Character spans of a without a label; the rest is aligned.
    """

    source: int
    a: str
    b: str
    hallucinated: tuple[Span, ...]
    unknown: tuple[Span, ...] = ()


def mask_spans(
    text: str, random_: random.Random, share: tuple[float, float], max_spans: int
) -> tuple[Span, ...]:
    """Draw runs of words to mask, in order, with at least one word between them.

    Args:
        text: Text to mask. Nothing is masked in a text of fewer than two words.
        random_: Source of randomness.
        share: Smallest and largest share of the words to mask, from which the share is drawn
            uniformly. At least one word is masked and at least one is kept.
        max_spans: Largest number of runs; the number is drawn uniformly.
    """
    words = [match.span() for match in WORD.finditer(text)]
    masked = min(len(words) - 1, max(1, round(random_.uniform(*share) * len(words))))
    if masked < 1:
        return ()
    runs = min(random_.randint(1, max_spans), masked, len(words) - masked + 1)
    cuts = sorted(random_.sample(range(1, masked), runs - 1))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, masked], strict=True)]
    # Kept words before each run. The numbers differ, so that a word lies between two runs.
    kept_before = sorted(random_.sample(range(len(words) - masked + 1), runs))
    spans, masked_before = [], 0
    for kept, size in zip(kept_before, sizes, strict=True):
        first = kept + masked_before
        spans.append((words[first][0], words[first + size - 1][1]))
        masked_before += size
    return tuple(spans)


def as_template(text: str, spans: Sequence[Span]) -> Template:
    """Return the text with the spans as blanks."""
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    parts = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return Template(parts, tuple(len(WORD.findall(text[s:e])) for s, e in spans))


def refill(text: str, spans: Sequence[Span], fillings: Fillings) -> tuple[str, tuple[Span, ...]]:
    """Return the text with the fillings in place of the spans, and the spans of the fillings."""
    parts = as_template(text, spans).parts
    refilled, filled_spans = parts[0], []
    for filling, part in zip(fillings, parts[1:], strict=True):
        filled_spans.append((len(refilled), len(refilled) + len(filling)))
        refilled += filling + part
    return refilled, tuple(filled_spans)


def missing_words(text: str, spans: Sequence[Span], others: Sequence[str]) -> tuple[Span, ...]:
    """Return the spans of the words inside `spans` that the other text of each span lacks.

    A filling may repeat a masked word. Whether b supports a word depends on the two texts, not on
    how they were made, so such a word counts as aligned.

    Args:
        text: Text of the spans.
        spans: Character spans of it.
        others: One text per span.
    """
    missing = []
    for (start, end), other in zip(spans, others, strict=True):
        known = {word.lower() for word in WORD.findall(other)}
        for match in WORD.finditer(text, start, end):
            if match.group().lower() not in known:
                missing.append(match.span())
    return tuple(missing)


def edit_lightly(text: str, random_: random.Random) -> str:
    """Return a random variant of the text with the same meaning, for use without a paraphraser.

    The two sides of a conjunction ("and", "but", a comma) are swapped with probability 0.5, and
    each light word ("a", "the", "very") is dropped with probability 0.5. No word is replaced, so an
    aligner knows only the synonyms that its encoder learned in pretraining.
    """
    conjunctions = list(_CONJUNCTION.finditer(text))
    if conjunctions and random_.random() < 0.5:
        conjunction = random_.choice(conjunctions)
        body = text.rstrip(" .!?")
        left, right = text[: conjunction.start()], body[conjunction.end() :]
        if left and right:
            text = right + conjunction.group() + left + text[len(body) :]
    words = text.split(" ")
    kept = [word for word in words if word.lower() not in _LIGHT_WORDS or random_.random() < 0.5]
    return " ".join(kept)


def make_pairs(
    source: int,
    texts: tuple[str, str, str, str],
    spans: Sequence[Span],
    fillings: Fillings | None,
    labels: Labels = "words",
    extra_pairs: bool = True,
) -> list[AlignmentPair]:
    """Return all training pairs that are made from one text.

    1. (paraphrase, context): all of it supported.
    2. (refilled paraphrase, context): the pair of the paper.
    3. (paraphrase, refilled paraphrase): the masked words are hallucinated. Without this pair an
       aligner could detect the style of the infiller and ignore b.
    4. (paraphrase, paraphrase without the masked spans): for texts that leave something out.
    5. (text, unrelated context).

    Args:
        source: Index of the text.
        texts: The text, its context, its paraphrase and an unrelated context.
        spans: Masked spans of the paraphrase.
        fillings: One per span; None leaves out pairs 2 and 3.
        labels: What is labelled in pair 2: the `"words"` of a filling, where the words that it
            replaced are aligned, or the `"fillings"` as a whole, as in the paper.
        extra_pairs: Whether to make the pairs that the paper lacks, all but 2.
    """
    text, context, paraphrase, unrelated = texts
    masked = [paraphrase[start:end] for start, end in spans]
    pairs = [AlignmentPair(source, paraphrase, context, ())] if extra_pairs else []
    if fillings is not None:
        refilled, filled_spans = refill(paraphrase, spans, fillings)
        if labels == "words":
            wrong = missing_words(refilled, filled_spans, masked)
        else:  # all of a filling that differs from what it replaced
            rows = zip(filled_spans, fillings, masked, strict=True)
            wrong = tuple(s for s, new, old in rows if new.strip().lower() != old.strip().lower())
        pairs.append(AlignmentPair(source, refilled, context, wrong))
        if extra_pairs:
            lost = missing_words(paraphrase, spans, fillings)
            pairs.append(AlignmentPair(source, paraphrase, refilled, lost))
    if not extra_pairs:
        return pairs
    shorter = " ".join("".join(as_template(paraphrase, spans).parts).split())
    left_out = missing_words(paraphrase, spans, [shorter] * len(spans))
    pairs.append(AlignmentPair(source, paraphrase, shorter, left_out))
    not_shared = missing_words(text, [(0, len(text))], [unrelated])
    pairs.append(AlignmentPair(source, text, unrelated, not_shared))
    return pairs
