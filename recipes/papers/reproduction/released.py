"""Figures of a study's released outputs, by its protocol.

Several texts for each of PPLM's 35 prefixes with each combination of labels: Distinct of all texts
of a prefix, perplexity as a mean over texts and over all tokens, and the accuracy of classifiers.

    python -m ctrlreward.recipes.papers.reproduction.released multicontrol/generate_prior.txt
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from ctrlreward.command_line.terminal import user_errors
from ctrlreward.functional.means import valid_mean
from ctrlreward.recipes.data_sets import local_file
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.scorers import AttributeClassifier, Distinct, Perplexity

# Attributes and labels in the order of the numbers in MultiCTG's and PriorCTG's outputs.
ATTRIBUTES = {
    "sentiment": ("negative", "positive"),
    "topic": ("world", "sports", "business", "science"),
    "detoxification": ("toxic", "nontoxic"),
}
# PPLM's prefixes of the topics and of sentiment (Dathathri et al. 2020, appendix), without the full
# stop or comma at the end, which some texts lack.
PREFIXES = (
    *("In summary", "This essay discusses", "Views on", "The connection"),
    *("Foundational to this is", "To review", "In brief", "An illustration of", "Furthermore"),
    *("The central theme", "To conclude", "The key aspect", "Prior to this", "Emphasised are"),
    *("To summarise", "The relationship", "More importantly", "It has been shown"),
    *("The issue focused on", "In this essay"),
    *("Once upon a time", "The book", "The chicken", "The city", "The country", "The horse"),
    *("The lake", "The last time", "The movie", "The painting", "The pizza", "The potato"),
    *("The president of the country", "The road", "The year is 1910"),
)


def read_outputs(path: Path) -> Samples:
    """Return texts with their target labels, each in the group of the prefix that it begins with.

    A line is `[[sentiment, topic, detoxification], text]`, with -1 for what is not controlled.
    """
    texts, labels, groups = [], [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        numbers, text = json.loads(line)
        targets = zip(ATTRIBUTES.items(), numbers, strict=True)
        named = {name: known[number] for (name, known), number in targets if number >= 0}
        texts.append(text)
        labels.append(attribute_label(named))
        groups.append(max((each for each in PREFIXES if text.startswith(each)), key=len))
    return Samples(texts, labels=labels, groups=groups)


def figures(
    samples: Samples, perplexity: str, distinct: str, classifiers: Sequence[str] = ()
) -> dict[str, float]:
    """Return the figures by name; each classifier is `ATTRIBUTE=MODEL`.

    Accuracies are means over combinations, `…_deviation` their population standard deviation.
    """
    judge = Perplexity(perplexity)
    found = {
        **Distinct(distinct).corpus(samples),
        "perplexity": valid_mean(judge.score(samples)["perplexity"]),
        "corpus_perplexity": judge.corpus(samples)["perplexity"],
    }
    if classifiers:
        models = dict(each.split("=", 1) for each in classifiers)
        found |= AttributeClassifier(models).corpus(samples)
    return found


@user_errors()
def main(arguments: Sequence[str]) -> None:
    """Print the figures of a file."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("outputs", help="file of outputs in MultiCTG's format")
    parser.add_argument("--perplexity", default="openai-community/gpt2-large", metavar="MODEL")
    parser.add_argument("--distinct", default="openai-community/gpt2", metavar="MODEL")
    parser.add_argument("--classifiers", nargs="+", default=(), metavar="ATTRIBUTE=MODEL")
    given = parser.parse_args(arguments)
    samples = read_outputs(local_file(given.outputs))
    found = figures(samples, given.perplexity, given.distinct, given.classifiers)
    for name, value in found.items():
        print(f"{name:<32}{value:.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
