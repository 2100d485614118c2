"""Training data of aligners, built from plain texts without any annotation.

As Deng et al. (2021) do, https://arxiv.org/abs/2109.06379, sec. 3.2: a text is paraphrased where
there is a paraphraser, spans of the paraphrase are masked and filled anew by a model that has not
seen the text, and what it wrote is labelled as not borne out by the text. They mask constituents
of a parse tree; here runs of words are drawn, which needs no parser.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from ctrlreward.recipes.alignment.span_filling import Fillings, Template
from ctrlreward.recipes.text_files import WORD

Span = tuple[int, int]

_JOINT = re.compile(r"\s*(?:,\s*(?:and|but)\b|,|\b(?:and|but)\b)\s+")
_LIGHT = {"a", "an", "the", "very", "really", "so", "just", "also", "too", "quite"}


class AlignmentPair(NamedTuple):
    """Two texts, and what of a is not borne out by b.

    Attributes:
        source: Place of the text that both were made from.
        a: The text whose tokens are labelled.
        b: The text that they are held against.
        hallucinated: Characters of a that b does not bear out: first, and one after the last.
    """

    source: int
    a: str
    b: str
    hallucinated: tuple[Span, ...]


def mask_spans(
    text: str, random_: random.Random, share: tuple[float, float], max_spans: int
) -> tuple[Span, ...]:
    """Runs of words to be masked, in their order, with at least one word between them.

    Args:
        text: Of two words or more, else nothing is masked.
        random_: Where chance comes from.
        share: Smallest and largest share of the words, drawn evenly between them; at least one
            word is masked and at least one kept.
        max_spans: Most runs; their number is drawn evenly.
    """
    words = [match.span() for match in WORD.finditer(text)]
    masked = min(len(words) - 1, max(1, round(random_.uniform(*share) * len(words))))
    if masked < 1:
        return ()
    runs = min(random_.randint(1, max_spans), masked, len(words) - masked + 1)
    cuts = sorted(random_.sample(range(1, masked), runs - 1))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, masked], strict=True)]
    # Kept words in front of each run: distinct places among the kept ones leave a word between.
    places = sorted(random_.sample(range(len(words) - masked + 1), runs))
    spans, before = [], 0
    for place, size in zip(places, sizes, strict=True):
        first = place + before
        spans.append((words[first][0], words[first + size - 1][1]))
        before += size
    return tuple(spans)


def as_template(text: str, spans: Sequence[Span]) -> Template:
    """The text without the spans."""
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    parts = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return Template(parts, tuple(len(WORD.findall(text[s:e])) for s, e in spans))


def refill(text: str, spans: Sequence[Span], fillings: Fillings) -> tuple[str, tuple[Span, ...]]:
    """The text with other words in the spans, and where these stand in it."""
    parts = as_template(text, spans).parts
    whole, places = parts[0], []
    for filling, part in zip(fillings, parts[1:], strict=True):
        places.append((len(whole), len(whole) + len(filling)))
        whole += filling + part
    return whole, tuple(places)


def not_in(text: str, spans: Sequence[Span], others: Sequence[str]) -> tuple[Span, ...]:
    """The words of the text's spans that what each is held against does not hold.

    A filling may say again what was masked. Whether b bears a word out is a fact of the pair, not
    of how it came about, so such a word counts as aligned.
    """
    lacking = []
    for (start, end), other in zip(spans, others, strict=True):
        known = {word.lower() for word in WORD.findall(other)}
        for match in WORD.finditer(text, start, end):
            if match.group().lower() not in known:
                lacking.append(match.span())
    return tuple(lacking)


def edit_lightly(text: str, random_: random.Random) -> str:
    """Another form of the text that says the same, where there is no paraphraser.

    The sides of a joint ("and", "but", a comma) change places, and words of little meaning are
    dropped, each by chance. No word is replaced: what an aligner knows of synonyms is then what
    its encoder brought along.
    """
    joints = list(_JOINT.finditer(text))
    if joints and random_.random() < 0.5:
        joint = random_.choice(joints)
        body = text.rstrip(" .!?")
        left, right = text[: joint.start()], body[joint.end() :]
        if left and right:
            text = right + joint.group() + left + text[len(body) :]
    words = text.split(" ")
    kept = [word for word in words if word.lower() not in _LIGHT or random_.random() < 0.5]
    return " ".join(kept)


def make_pairs(
    source: int, texts: tuple[str, str, str], spans: Sequence[Span], fillings: Fillings | None
) -> list[AlignmentPair]:
    """All that one text gives.

    1. The paraphrase, all of it borne out by the text.
    2. The refilled paraphrase against the text: the paper's pair.
    3. The paraphrase against the refilled one: what was masked is not borne out. Without it an
       aligner could look for the style of the infiller, and not at b.
    4. The paraphrase against itself without the masked spans, for texts that leave things out.
    5. The text against one that has nothing to do with it.

    Args:
        source: Place of the text.
        texts: The text, its paraphrase and an unrelated text.
        spans: What is masked of the paraphrase.
        fillings: One a span; None leaves out 2 and 3.
    """
    text, other, stranger = texts
    pairs = [AlignmentPair(source, other, text, ())]
    masked = [other[start:end] for start, end in spans]
    if fillings is not None:
        refilled, places = refill(other, spans, fillings)
        wrong, lost = not_in(refilled, places, masked), not_in(other, spans, fillings)
        pairs.append(AlignmentPair(source, refilled, text, wrong))
        pairs.append(AlignmentPair(source, other, refilled, lost))
    shorter = " ".join("".join(as_template(other, spans).parts).split())
    left_out = not_in(other, spans, [shorter] * len(spans))
    pairs.append(AlignmentPair(source, other, shorter, left_out))
    nothing_shared = not_in(text, [(0, len(text))], [stranger])
    pairs.append(AlignmentPair(source, text, stranger, nothing_shared))
    return pairs
