"""Released outputs of a controlled generator, measured under the protocol of a published study."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ctrlreward.data import local_file
from ctrlreward.evaluation.measure import Measures, attribute_classifier
from ctrlreward.evaluation.texts import PPLM, EvaluatedPrompt, read_prefixes
from ctrlreward.extras import import_extra
from ctrlreward.files import hold, parse_json
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.runs.folder import LOCK
from ctrlreward.samples import Samples, attribute_label, shortened
from ctrlreward.scorers import Distinct, Perplexity
from ctrlreward.scorers.base import Scorer
from ctrlreward.tables.parsing import decode_utf8

# Attributes and labels in the order of the numbers in MultiCTG's and PriorCTG's outputs.
ATTRIBUTES = {
    "sentiment": ("negative", "positive"),
    "topic": ("world", "sports", "business", "science"),
    "detoxification": ("toxic", "nontoxic"),
}


def evaluate_outputs(
    outputs: str,
    *,
    output: str,
    protocol: Literal["lorandi"],
    classifiers: list[str] | dict[str, str | LabelProbabilities] | None = None,
    label_map: list[str] | None = None,
    perplexity: str = "openai-community/gpt2-large",
    distinct: str = "openai-community/gpt2",
    scorers: list[Scorer] | None = None,
    device: str = "cpu",
    wandb: str | None = None,
) -> None:
    """Score texts that were released with a study, and print the figures.

    The protocol of Lorandi and Belz's reproduction of MultiCTG and PriorCTG: several texts for each
    of PPLM's 35 prefixes with each combination of labels; Distinct of all texts of a prefix;
    perplexity as a mean over texts and over all tokens.

    Args:
        outputs: File in MultiCTG's format, `[[sentiment, topic, detoxification], text]` per line
            with -1 for what is not controlled: `multicontrol/generate_prior.txt`.
        output: Folder for scores, figures and the card. An interrupted run continues there.
        protocol: The study: lorandi.
        classifiers: Classifier of each attribute: `--classifiers sentiment=FOLDER topic=FOLDER
            detoxification=FOLDER`. Without any, there are no accuracies: the weights of the study's
            classifiers are not on the hub.
        label_map: Labels of the classifiers in place of negative, positive, world, sports,
            business, science, toxic and nontoxic: `--label-map toxic=LABEL_0`.
        perplexity: Model of the perplexity.
        distinct: Model whose tokens Distinct counts.
        scorers: Further scorers, as for `ctrlreward score`.
        device: Device of all models.
        wandb: Project of Weights & Biases for the card, the figures and some texts.
    """
    if wandb is not None:
        import_extra("wandb", "--wandb")
    path = local_file(outputs)
    texts, prompts = zip(*read_outputs(path), strict=True)
    labels = {
        name: [label for label in known if any(p.targets.get(name) == label for p in prompts)]
        for name, known in ATTRIBUTES.items()
    }
    controlled = {name: each for name, each in labels.items() if each} if classifiers else {}
    used: dict[str, Scorer] = {
        "perplexity": Perplexity(perplexity, device=device),
        "distinct": Distinct(distinct),
        **{f"scorers.{i}": scorer for i, scorer in enumerate(scorers or ())},
    }
    if controlled:
        used["classifiers"] = attribute_classifier(controlled, classifiers, device)
    names = [attribute_label(prompt.targets) for prompt in prompts]
    samples = Samples(
        texts=texts,
        labels=names,
        groups=[f"{n}\n{p.prefix}" for n, p in zip(names, prompts, strict=True)],
    )
    per_prompt = len(samples) // len(set(samples.groups or ()))
    measures = Measures(used, prompts, per_prompt, [*controlled], label_map)
    measures.check(samples)
    described: dict[str, dict[str, Any]] = {
        "outputs": {"file": outputs, "sha256": sha256(path.read_bytes()).hexdigest()},
        "protocol": {
            "name": protocol,
            "prefixes": f"{PPLM}, {len({prompt.prefix for prompt in prompts})} of them",
            "combinations": len(set(names)),
            "completions": f"{per_prompt} per prefix and combination, {len(samples)} texts",
            "text": "as released, prefix included",
        },
    }
    folder = Path(output)
    with hold(folder / LOCK, folder, "Wait for it, or use another folder."):
        measures.write(folder, samples, None, described, wandb)


def read_outputs(path: Path) -> list[tuple[str, EvaluatedPrompt]]:
    """Return the texts of a file; texts of one prefix and combination are consecutive.

    The prefix of a text is the longest of PPLM's that it begins with.

    Raises:
        ValueError: A line is not `[[sentiment, topic, detoxification], text]`, its text begins with
            none of the prefixes, or prefixes and combinations differ in their number of texts.
    """
    # Some texts lack the full stop or comma at the end of the prefix.
    prefixes = [prefix.rstrip(".,") for prefix in read_prefixes(PPLM)]
    by_place: dict[tuple[str, str], list[tuple[str, EvaluatedPrompt]]] = {}
    for number, line in enumerate(decode_utf8(path.read_bytes(), path).splitlines(), 1):
        place = f"{path}:{number}"
        match parse_json(line, Path(place)):
            case [[int() as sentiment, int() as topic, int() as detoxification], str() as text]:
                numbers = (sentiment, topic, detoxification)
            case other:
                raise ValueError(
                    f"{place} must be [[sentiment, topic, detoxification], text], "
                    f"got {shortened(other, 80)}"
                )
        targets = {}
        for (name, labels), label in zip(ATTRIBUTES.items(), numbers, strict=True):
            if not -1 <= label < len(labels):
                raise ValueError(
                    f"{place}: {name} must be -1, not controlled, or 0 to {len(labels) - 1}, "
                    f"got {label}"
                )
            if label >= 0:
                targets[name] = labels[label]
        begun = [prefix for prefix in prefixes if text.startswith(prefix)]
        if not begun:
            raise ValueError(f"{place} begins with none of PPLM's prefixes: {shortened(text, 80)}")
        prefix = max(begun, key=len)
        output = (text, EvaluatedPrompt(prefix, prefix, targets))
        by_place.setdefault((attribute_label(targets), prefix), []).append(output)
    if not by_place:
        raise ValueError(f"{path} has no texts")
    counts = {place: len(found) for place, found in by_place.items()}
    most, fewest = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] > counts[fewest]:
        raise ValueError(
            f"{path} must have as many texts of each prefix and combination, got {counts[most]} of "
            f"{' '.join(most)!r} and {counts[fewest]} of {' '.join(fewest)!r}"
        )
    return [output for found in by_place.values() for output in found]
