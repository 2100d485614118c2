"""Scores and figures of `ctrlreward evaluate`: by combination of labels, and over all of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ctrlreward.evaluation.texts import EvaluatedPrompt
from ctrlreward.extras import import_extra
from ctrlreward.files import finite_or_none
from ctrlreward.functional.means import valid_mean
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.scorers.attribute import attribute_report
from ctrlreward.scorers.base import DEVIATION, Scores
from ctrlreward.scorers.perplexity import TOKENS, pooled_perplexity
from ctrlreward.scorers.records import sample_table
from ctrlreward.tables.parsing import csv_header, formula_free

COMBINATIONS, OVERALL = "combinations", "overall"
_TEXTS = 64  # in a table of Weights & Biases
_CLASSIFIED = ("accuracy", "label_probability")
_OF_AN_ATTRIBUTE = tuple(f"{name}_" for name in _CLASSIFIED)
_CARD = ("accuracy", "perplexity", "distinct_1", "distinct_2", "distinct_3")

# Populations of the averages in the card, by figure; others are means over texts, then
# combinations.
AVERAGES = {
    "accuracy_ATTRIBUTE": "share of a combination's texts that the attribute's classifier assigns "
    "to the target label; overall, mean and population standard deviation over combinations",
    "accuracy": "mean over the attributes of a combination; overall, mean and population standard "
    "deviation over combinations",
    "label_probability…": "the same of the probability of the target label",
    "perplexity": "mean over the texts of exp(mean negative log-probability of the text's tokens), "
    "prefix included, after a start token: mean_perplexity of the evaluate library",
    "corpus_perplexity": "exp(mean negative log-probability) over the tokens of all texts",
    "distinct_N": "unique n-grams over tokens, prefix included, of all texts of one prefix, of all "
    "combinations together; mean over prefixes. For a combination: over the texts of both",
    "finished": "share of completions that an end token ended, before the limit of tokens",
    "failed": "share of texts with a score that could not be computed; the means leave it out",
    "overall": "means over all texts, except where combinations are named",
}


class Figure(NamedTuple):
    """A row of results.csv; the system is a combination of labels, "" overall."""

    study: str
    system: str
    metric: str
    value: float


def figures(
    prompts: Sequence[EvaluatedPrompt],
    scores: Mapping[str, Scores],
    attributes: Sequence[str],
    by_prefix: Mapping[str, Scores],
) -> list[Figure]:
    """Return the figures of each combination, then the figures over all n texts.

    `scores`, each of shape (n,), include perplexity with log-likelihood and tokens, and
    `AttributeClassifier`'s if there are `attributes`; `by_prefix` is Distinct over all texts of a
    prefix.
    """
    names = np.array([attribute_label(prompt.targets) for prompt in prompts])
    found = []
    for name in dict.fromkeys(names.tolist()):
        own = _of_texts({key: values[names == name] for key, values in scores.items()})
        found += [Figure(COMBINATIONS, name, *item) for item in own.items()]
    targets = [prompt.targets for prompt in prompts]
    everything = _of_texts({**scores, **by_prefix})
    for score_name in _CLASSIFIED if attributes else ():
        report = attribute_report(targets, scores, attributes, score_name)
        over = {f"{score_name}_{key}": value for key, value in report.attributes.items()}
        for key, value in {score_name: report.average, **over}.items():
            everything[key] = value.mean
            everything[f"{key}{DEVIATION}"] = value.deviation
    return found + [Figure(OVERALL, "", *item) for item in everything.items()]


def _of_texts(scores: Mapping[str, Scores]) -> dict[str, float]:
    # An attribute that a text does not control is NaN; `accuracy` is NaN only if one failed.
    whole = [v for k, v in scores.items() if k != TOKENS and not k.startswith(_OF_AN_ATTRIBUTE)]
    return {
        **{name: valid_mean(values) for name, values in scores.items() if name != TOKENS},
        "corpus_perplexity": pooled_perplexity(scores["log_likelihood"], scores[TOKENS]),
        "failed": float(np.isnan(whole).any(axis=0).mean()),
    }


def to_csv(found: Sequence[Figure]) -> str:
    """Return results.csv, which `ctrlreward compare` reads; NaN is an empty cell."""
    text = io.StringIO(newline="")
    rows = csv.writer(text, lineterminator="\n")
    text.write(csv_header(Figure._fields))
    for figure in found:
        number = finite_or_none(figure.value)
        rows.writerow([*map(formula_free, figure[:3]), "" if number is None else repr(number)])
    return text.getvalue()


def card_text(
    card: Mapping[str, Mapping[str, Any]], found: Sequence[Figure], attributes: Sequence[str]
) -> str:
    """Return the evaluation card as Markdown: the figures, and how they were computed."""
    overall = {each.metric: each.value for each in found if each.study == OVERALL}
    lines = ["# Evaluation card", "", "| figure | all texts | deviation over combinations |"]
    lines += ["|---|---|---|"]
    for name, value in overall.items():
        if not name.endswith(DEVIATION):
            deviation = overall.get(f"{name}{DEVIATION}")
            shown = "" if deviation is None else f"{deviation:.4f}"
            lines.append(f"| {name} | {value:.4f} | {shown} |")
    chosen = [f"accuracy_{name}" for name in attributes] + list(_CARD if attributes else _CARD[1:])
    lines += ["", f"| combination | {' | '.join(chosen)} |", "|---" * (len(chosen) + 1) + "|"]
    values = {(each.system, each.metric): each.value for each in found}
    for name in dict.fromkeys(each.system for each in found if each.study == COMBINATIONS):
        shown = name.replace("|", r"\|")
        lines.append(f"| {shown} | {' | '.join(f'{values[name, m]:.4f}' for m in chosen)} |")
    for section, content in card.items():
        lines += ["", f"## {section}", ""]
        lines += [f"- {key}: {_shown(value)}" for key, value in content.items()]
    return "\n".join(lines) + "\n"


def log_run(
    project: str,
    folder: Path,
    card: Mapping[str, Any],
    found: Sequence[Figure],
    samples: Samples,
    scores: Mapping[str, Scores],
) -> None:
    """Write an evaluation as a run of Weights & Biases, and print where it is.

    The card is its config, and its id follows from the card.
    """
    wandb = import_extra("wandb", "--wandb")
    id_ = sha256((folder / "card.json").read_bytes()).hexdigest()[:16]
    by_system: dict[str, dict[str, float | None]] = {}
    for each in found:
        by_system.setdefault(each.system, {})[each.metric] = finite_or_none(each.value)
    overall = by_system.pop("")
    metrics = list(next(iter(by_system.values())))
    rows = [[name, *(values[metric] for metric in metrics)] for name, values in by_system.items()]
    columns, texts = sample_table(samples, scores, _TEXTS)
    with wandb.init(
        **{"project": project, "name": folder.name, "id": id_, "job_type": "evaluation"},
        **{"config": dict(card), "dir": folder, "settings": wandb.Settings(silent=True)},
    ) as run:
        run.log(
            {
                "combinations": wandb.Table(columns=["combination", *metrics], data=rows),
                "samples": wandb.Table(columns=columns, data=texts),
            }
        )
        run.summary.update(overall)
        place = f"wandb sync {Path(run.dir).parent}" if run.offline else run.url
    print(f"Weights & Biases: {place}")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
