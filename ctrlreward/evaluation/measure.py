"""Scores and figures of an evaluation's texts, and its card, written into one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ctrlreward.arguments import one_of
from ctrlreward.command_line.terminal import plain_console
from ctrlreward.corpus.shard_store import in_chunks, score_parts
from ctrlreward.evaluation.figures import (
    AVERAGES,
    COMBINATIONS,
    OVERALL,
    Figure,
    card_text,
    figures,
    log_run,
    to_csv,
)
from ctrlreward.evaluation.texts import EvaluatedPrompt
from ctrlreward.files import JsonLog, write_whole
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.scorers import AttributeClassifier, CTRLEval
from ctrlreward.scorers.base import DEVIATION, Component, Scorer, check_samples, score
from ctrlreward.scorers.perplexity import TOKENS
from ctrlreward.scorers.records import write_scored_samples
from ctrlreward.serving.fingerprint import digest_of, fingerprint

_TASKS = ("sentiment", "topic")  # of CTRLEval
_PROMPTS_PER_RECORD = 16


class Measures:
    """Scorers of an evaluation, by part: `classifiers`, `perplexity`, `distinct`, `scorers.0`.

    `prompts` has the prompt of each text: texts of a prompt are consecutive, `completions` of them.
    `label_map` is OLD=NEW: labels of the classifiers in place of the prompts' labels.
    """

    def __init__(
        self,
        scorers: Mapping[str, Scorer],
        prompts: Sequence[EvaluatedPrompt],
        completions: int,
        attributes: Sequence[str],
        label_map: Sequence[str] | None,
    ) -> None:
        self.scorers, self.prompts, self.completions = scorers, prompts, completions
        self.attributes = tuple(attributes)
        self.labels = pairs("label_map", "OLD=NEW, negative=LABEL_0", label_map)

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
        parts = list(in_chunks(range(len(read)), _PROMPTS_PER_RECORD * self.completions))
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
        write_whole(folder / "card.json", json.dumps(card, indent=2, ensure_ascii=False) + "\n")
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
        mapped = [
            attribute_label({n: self.labels.get(word, word) for n, word in p.targets.items()})
            for p in self.prompts
        ]
        return samples.replace(labels=mapped)


def attribute_classifier(
    labels: Mapping[str, Sequence[str]],
    given: Sequence[str] | Mapping[str, str | LabelProbabilities] | None,
    device: str,
) -> AttributeClassifier:
    """Return a classifier of each attribute: the given one, else CTRLEval with a built-in task."""
    models: dict[str, str | LabelProbabilities] = {}
    if not isinstance(given, Mapping):
        given = pairs("classifiers", "ATTRIBUTE=MODEL, sentiment=FOLDER", given)
    models |= given
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


def pairs(option: str, form: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return the pairs of an option, each NAME=VALUE; `form` shows one."""
    pairs = [pair.partition("=") for pair in given or ()]
    for pair in pairs:
        if not all(pair):
            raise ValueError(f"{option} = {''.join(pair)!r} must be {form}")
    return {name: value for name, _, value in pairs}


def _print(found: Sequence[Figure], folder: Path) -> None:
    """Print the figures over all texts, their spread over combinations, and the output folder."""
    values = {f.metric: f.value for f in found if f.study == OVERALL}
    table = Table(box=None, pad_edge=False)
    table.add_column("figure", overflow="fold")
    for heading in ("all", "± over combinations", "lowest", "highest"):
        table.add_column(heading, justify="right")
    for name, value in values.items():
        if name.startswith(("label_probability", "log_likelihood")) or name.endswith(DEVIATION):
            continue
        each = [f.value for f in found if (f.study, f.metric) == (COMBINATIONS, name)]
        deviation = values.get(f"{name}{DEVIATION}")
        spread = "" if deviation is None else f"{deviation:.4f}"
        low, high = np.min(each), np.max(each)
        table.add_row(name, f"{value:.4f}", spread, f"{low:.4f}", f"{high:.4f}")
    plain_console().print(table)
    print(f"{folder}: card.md, texts.jsonl, results.csv (for ctrlreward compare)")
