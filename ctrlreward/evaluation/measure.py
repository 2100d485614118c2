"""Scores and figures of an evaluation's texts, by combination of labels and over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ctrlreward.arguments import one_of
from ctrlreward.command_line.terminal import number_table, plain_console
from ctrlreward.command_line.typed_options import pairs
from ctrlreward.corpus.parts import consecutive, score_parts
from ctrlreward.evaluation.texts import EvaluatedPrompt
from ctrlreward.extras import import_extra
from ctrlreward.files import JsonLog, finite_or_none, json_text, write_whole
from ctrlreward.functional.means import valid_mean
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.scorers import AttributeClassifier, CTRLEval
from ctrlreward.scorers.attribute import attribute_report
from ctrlreward.scorers.base import DEVIATION, Component, Scorer, Scores, check_samples, score
from ctrlreward.scorers.perplexity import TOKENS, pooled_perplexity
from ctrlreward.scorers.records import sample_table, write_scored_samples
from ctrlreward.serving.fingerprint import digest_of, fingerprint
from ctrlreward.tables.table_writing import encode_rows

# Figures by metric of each combination of labels, and last, by None, over all texts.
Figures: TypeAlias = Mapping[str | None, dict[str, float]]

_TASKS = ("sentiment", "topic")  # of CTRLEval
_PROMPTS_PER_RECORD = 16
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


@dataclass(frozen=True)
class Measures:
    """Scorers of an evaluation, by part: `classifiers`, `perplexity`, `distinct`, `scorers.0`.

    `prompts` has the prompt of each text: texts of a prompt are consecutive, `completions` of them.
    `label_map` is OLD=NEW: labels of the classifiers in place of the prompts' labels.
    """

    scorers: Mapping[str, Scorer]
    prompts: Sequence[EvaluatedPrompt]
    completions: int
    attributes: Sequence[str]
    label_map: Sequence[str] | None

    def check(self, samples: Samples) -> None:
        """Raise unless the scorers can score the samples; loads no weights."""
        planned = self._mapped(samples)
        check_samples(self._components(planned), planned)

    def write(
        self,
        folder: Path,
        samples: Samples,
        ended: Sequence[bool] | None,
        described: Mapping[str, Mapping[str, Any]],
        wandb: str | None,
    ) -> None:
        """Score the texts, continuing where a log ends, and write and print scores and figures.

        `ended` says which texts an end token ended, None if that is not known; `described` are the
        first sections of the card.
        """
        settings = fingerprint(self.scorers, None)
        read = self._mapped(samples)
        components = self._components(read)
        identity = {"texts": digest_of([*read.columns().values()]), "scorers": settings}
        score_log = JsonLog(folder / "scores.jsonl", identity)
        # The completions of a prompt are scored together: `Distinct` needs complete groups.
        parts = consecutive(len(read), _PROMPTS_PER_RECORD * self.completions)
        for scorer in self.scorers.values():  # a model may be missing
            scorer.load()
        scores = score_parts(score_log, parts, lambda rows: score(components, read[rows]))
        distinct = self.scorers["distinct"]
        diverse = {name: distinct[name] for name in distinct.specs}
        of_prefix = read.replace(groups=[prompt.prefix for prompt in self.prompts])
        whole = [list(range(len(read)))]
        distinct_log = JsonLog(folder / "distinct.jsonl", identity)
        by_prefix = score_parts(distinct_log, whole, lambda rows: score(diverse, of_prefix[rows]))
        finished = {} if ended is None else {"finished": np.array(ended, float)}
        found = figures(self.prompts, {**scores, **finished}, self.attributes, by_prefix)
        kept = {name: values for name, values in scores.items() if name != TOKENS}
        write_scored_samples(folder / "texts.jsonl", samples, kept)
        write_whole(folder / "results.csv", to_csv(found))
        card = {
            **described,
            "scorers": {key: value for key, value in settings.items() if value is not None},
            "averages": AVERAGES,
            "files": {
                name: f"sha256:{sha256((folder / name).read_bytes()).hexdigest()}"
                for name in ("texts.jsonl", "results.csv")
            },
        }
        write_whole(folder / "card.json", json_text(card))
        write_whole(folder / "card.md", card_text(card, found, self.attributes))
        _print(found, folder)
        if wandb is not None:
            log_run(wandb, folder, card, found, samples, kept)

    def _components(self, samples: Samples) -> dict[str, Component]:
        """Return all scores of the scorers by name, and the number of tokens of each text."""
        components: dict[str, Component] = {}
        for scorer in self.scorers.values():
            for name in scorer.computable(samples):
                if name in components:
                    raise ValueError(f"scorers has a score {name!r}, which the evaluation computes")
                components[name] = scorer[name]
        return components | {TOKENS: Component(self.scorers["perplexity"], TOKENS)}

    def _mapped(self, samples: Samples) -> Samples:
        """Return the samples with the labels of the classifiers."""
        labels = pairs("label_map", "OLD=NEW, such as negative=LABEL_0", self.label_map)
        mapped = [
            attribute_label({n: labels.get(word, word) for n, word in p.targets.items()})
            for p in self.prompts
        ]
        return samples.replace(labels=mapped)


def attribute_classifier(
    labels: Mapping[str, Sequence[str]],
    given: Sequence[str] | Mapping[str, str | LabelProbabilities] | None,
    device: str,
) -> AttributeClassifier:
    """Return a classifier of each attribute: the given one, else CTRLEval with a built-in task."""
    models: Mapping[str, str | LabelProbabilities] = (
        given
        if isinstance(given, Mapping)
        else pairs("classifiers", "ATTRIBUTE=MODEL, such as sentiment=FOLDER", given)
    )
    for name in models:
        one_of("classifiers", name, labels)
    for name in labels:
        if name not in models and name not in _TASKS:
            raise ValueError(
                f"attribute {name!r} needs a classifier: --classifiers "
                f"{name}=FOLDER; only {' and '.join(_TASKS)} have a default"
            )
    return AttributeClassifier(
        {name: models.get(name) or CTRLEval(task=name, device=device) for name in labels},
        device=device,
    )


def figures(
    prompts: Sequence[EvaluatedPrompt],
    scores: Mapping[str, Scores],
    attributes: Sequence[str],
    by_prefix: Mapping[str, Scores],
) -> Figures:
    """Return the figures of each combination, then the figures over all n texts.

    `scores`, each of shape (n,), include perplexity with log-likelihood and tokens, and
    `AttributeClassifier`'s if there are `attributes`; `by_prefix` is Distinct over all texts of a
    prefix.
    """
    names = np.array([attribute_label(prompt.targets) for prompt in prompts])
    found: dict[str | None, dict[str, float]] = {
        name: _of_texts({key: values[names == name] for key, values in scores.items()})
        for name in dict.fromkeys(names.tolist())
    }
    targets = [prompt.targets for prompt in prompts]
    found[None] = everything = _of_texts({**scores, **by_prefix})
    for score_name in _CLASSIFIED if attributes else ():
        report = attribute_report(targets, scores, attributes, score_name)
        over = {f"{score_name}_{key}": value for key, value in report.attributes.items()}
        for key, value in {score_name: report.average, **over}.items():
            everything[key] = value.mean
            everything[f"{key}{DEVIATION}"] = value.deviation
    return found


def _of_texts(scores: Mapping[str, Scores]) -> dict[str, float]:
    # An attribute that a text does not control is NaN; `accuracy` is NaN only if one failed.
    whole = [v for k, v in scores.items() if k != TOKENS and not k.startswith(_OF_AN_ATTRIBUTE)]
    return {
        **{name: valid_mean(values) for name, values in scores.items() if name != TOKENS},
        "corpus_perplexity": pooled_perplexity(scores["log_likelihood"], scores[TOKENS]),
        "failed": float(np.isnan(whole).any(axis=0).mean()),
    }


def to_csv(found: Figures) -> bytes:
    """Return results.csv, which `ctrlreward compare` reads; NaN is an empty cell."""
    rows = [
        {"study": study, "system": system or "", "metric": metric}
        for system, values in found.items()
        for study in ["overall" if system is None else "combinations"]
        for metric in values
    ]
    numbers = [finite_or_none(value) for values in found.values() for value in values.values()]
    return encode_rows(".csv", rows, {"value": np.array(numbers, np.float64)})


def card_text(
    card: Mapping[str, Mapping[str, Any]], found: Figures, attributes: Sequence[str]
) -> str:
    """Return the evaluation card as Markdown: the figures, and how they were computed."""
    lines = ["# Evaluation card", "", "| figure | all texts | deviation over combinations |"]
    lines += ["|---|---|---|"]
    for name, value in found[None].items():
        if not name.endswith(DEVIATION):
            lines.append(f"| {name} | {value:.4f} | {_deviation(found, name)} |")
    chosen = [f"accuracy_{name}" for name in attributes] + list(_CARD if attributes else _CARD[1:])
    lines += ["", f"| combination | {' | '.join(chosen)} |", "|---" * (len(chosen) + 1) + "|"]
    for system, values in found.items():
        if system is not None:
            shown = system.replace("|", r"\|")
            lines.append(f"| {shown} | {' | '.join(f'{values[m]:.4f}' for m in chosen)} |")
    for section, content in card.items():
        lines += ["", f"## {section}", ""]
        for key, item in content.items():
            shown = ", ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)
            lines.append(f"- {key}: {shown}")
    return "\n".join(lines) + "\n"


def log_run(
    project: str,
    folder: Path,
    card: Mapping[str, Any],
    found: Figures,
    samples: Samples,
    scores: Mapping[str, Scores],
) -> None:
    """Write an evaluation as a run of Weights & Biases, and print where it is.

    The card is its config, and its id follows from the card.
    """
    wandb = import_extra("wandb", "--wandb")
    id_ = sha256((folder / "card.json").read_bytes()).hexdigest()[:16]
    metrics = list(next(iter(found.values())))
    rows = [
        [name, *(finite_or_none(values[metric]) for metric in metrics)]
        for name, values in found.items()
        if name is not None
    ]
    columns, texts = sample_table(samples, scores, _TEXTS)
    with wandb.init(
        project=project,
        name=folder.name,
        id=id_,
        job_type="evaluation",
        config=dict(card),
        dir=folder,
        settings=wandb.Settings(silent=True),
    ) as run:
        run.log(
            {
                "combinations": wandb.Table(columns=["combination", *metrics], data=rows),
                "samples": wandb.Table(columns=columns, data=texts),
            }
        )
        run.summary.update({name: finite_or_none(value) for name, value in found[None].items()})
        place = f"wandb sync {Path(run.dir).parent}" if run.offline else run.url
    print(f"Weights & Biases: {place}")


def _deviation(found: Figures, name: str) -> str:
    value = found[None].get(f"{name}{DEVIATION}")
    return "" if value is None else f"{value:.4f}"


def _print(found: Figures, folder: Path) -> None:
    """Print the figures over all texts, their spread over combinations, and the output folder."""
    headings = ("all", "± over combinations", "lowest", "highest")
    table = number_table(["figure"], headings, box=None, pad_edge=False)
    for name, value in found[None].items():
        if name.startswith(("label_probability", "log_likelihood")) or name.endswith(DEVIATION):
            continue
        each = [values[name] for system, values in found.items() if system is not None]
        ends = f"{np.min(each):.4f}", f"{np.max(each):.4f}"
        table.add_row(name, f"{value:.4f}", _deviation(found, name), *ends)
    plain_console().print(table)
    print(f"{folder}: card.md, texts.jsonl, results.csv (for ctrlreward compare)")
