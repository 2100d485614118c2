"""Agreement of CTRLEval with known grades on passages about four topics.

    python benchmarks/graded_topics.py [--model smollm2-135m] [--dtype bfloat16]

`ctrlreward.models.passages` has 40 passages that we wrote, ten of each topic of the paper. Each is
damaged by degrees, which are the grades:

- coherence: as written (3); a sentence is replaced by one from another passage of its topic (2), of
  another topic (1); two are replaced by sentences of other topics (0);
- consistency: the prefix with its own remainder (2), with one of another passage of its topic
  (1), of another topic (0);
- attribute relevance: all of it (2), half of it (1), nothing (0) is about the label.

Prints Kendall's τ-b of each score with the grade, over all texts, with and without calibration.
"""

from __future__ import annotations

import argparse
import random

from scipy.stats import kendalltau

from ctrlreward import CTRLEval, Samples
from ctrlreward.models.passages import Passage, passages
from ctrlreward.models.sentences import find_splitter


def sentences_of(passage: Passage) -> list[str]:
    """Return the sentences of the whole text."""
    return find_splitter(None)(passage.text)


def graded(written: list[Passage]) -> dict[str, tuple[Samples, list[int]]]:
    """Return texts and their grades by aspect."""
    draw = random.Random(0)
    coherence, consistency, relevance = [], [], []
    for one in written:
        same = [p for p in written if p.topic == one.topic and p is not one]
        other = [p for p in written if p.topic != one.topic]
        sentences = sentences_of(one)
        place = draw.randrange(1, len(sentences))
        coherence.append((" ".join(sentences), 3))
        for sources, places, grade in (
            (same, [place], 2),
            (other, [place], 1),
            (other, draw.sample(range(1, len(sentences)), 2), 0),
        ):
            changed = list(sentences)
            for i in places:
                changed[i] = draw.choice(sentences_of(draw.choice(sources))[1:])
            coherence.append((" ".join(changed), grade))
        for remainder, grade in (
            (one.remainder, 2),
            (draw.choice(same).remainder, 1),
            (draw.choice(other).remainder, 0),
        ):
            consistency.append((f"{one.prefix} {remainder}", one.prefix, grade))
        stranger = draw.choice(other)
        half = " ".join([*sentences[:2], *sentences_of(stranger)[2:]])
        relevance += [
            (" ".join(sentences), one.topic, 2),
            (half, one.topic, 1),
            (" ".join(sentences_of(stranger)), one.topic, 0),
        ]
    texts, prefixes, fit = map(list, zip(*consistency, strict=True))
    about, labels, share = map(list, zip(*relevance, strict=True))
    damaged, whole = map(list, zip(*coherence, strict=True))
    return {
        "coherence": (Samples(damaged), whole),
        "consistency": (Samples(texts, prefixes=prefixes), fit),
        "attribute_relevance": (Samples(about, labels=labels), share),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="fastest")
    options = parser.parse_args()
    print(f"{'Kendall tau-b':22s}uncalibrated   calibrated")
    for aspect, (samples, grades) in graded(passages()).items():
        found = []
        for calibration in (False, None):
            scorer = CTRLEval(
                options.model, "topic", aspect, calibration=calibration, dtype=options.dtype
            )
            found.append(kendalltau(scorer.score(samples)[aspect], grades).statistic)
        print(f"{aspect:22s}{found[0]:12.3f} {found[1]:12.3f}", flush=True)


if __name__ == "__main__":
    main()
