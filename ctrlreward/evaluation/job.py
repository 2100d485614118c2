"""An evaluation of `ctrlreward evaluate`: texts, scores, figures and the card in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from rich.table import Table

from ctrlreward.arguments import one_of, positive
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
from ctrlreward.evaluation.texts import (
    EvaluatedPrompt,
    TextLog,
    build_prompts,
    find_model,
    read_labels,
    read_prefixes,
)
from ctrlreward.extras import import_extra
from ctrlreward.files import JsonLog, hold, write_whole
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.policy.rollouts import Generation
from ctrlreward.runs.folder import LOCK
from ctrlreward.samples import Samples, attribute_label
from ctrlreward.scorers import AttributeClassifier, CTRLEval, Distinct, Perplexity
from ctrlreward.scorers.base import DEVIATION, Component, Scorer, check_samples, score
from ctrlreward.scorers.perplexity import TOKENS
from ctrlreward.scorers.records import write_scored_samples
from ctrlreward.serving.fingerprint import digest_of, fingerprint
from ctrlreward.weights.dtypes import Dtype

_TASKS = ("sentiment", "topic")  # of CTRLEval
_PROMPTS_PER_RECORD = 16


def evaluate_generator(
    model: str,
    *,
    output: str,
    labels: list[str] | dict[str, list[str]],
    template: str,
    prefixes: str = "pplm",
    completions: int = 5,
    max_tokens: int = 80,
    unfinished: Literal["drop", "keep"] = "drop",
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    chat: bool = False,
    seed: int = 0,
    classifiers: list[str] | dict[str, str | LabelProbabilities] | None = None,
    label_map: list[str] | None = None,
    perplexity: str = "smollm2-135m",
    distinct: str = "smollm2-135m",
    scorers: list[Scorer] | None = None,
    base: str | None = None,
    batch_size: int = 64,
    device: str = "cpu",
    dtype: Dtype | None = None,
    wandb: str | None = None,
) -> None:
    """Generate and score texts, and print the figures.

    Args:
        model: The generator: Hugging Face id, short name, local folder, folder of a LoRA adapter
            (`PolicyTuner.export_adapter`), or a run's folder, for its selected adapter.
        output: Folder for texts, scores, figures and the card. An interrupted run continues
            there.
        labels: Labels of each attribute, of which all combinations are evaluated: `--labels
            sentiment=negative,positive topic=world,sports`.
        template: Prompt of the model, with `{prefix}` and each attribute in braces: `'A
            {sentiment} review: {prefix}'`. It ends in the prefix, which the text continues, except
            for chats and encoder-decoders, whose output is the whole text.
        prefixes: File with a prefix per line, or with a column prefix, prompt or text; `pplm` are
            the 35 prefixes of PPLM.
        completions: Completions of each prefix with each combination.
        max_tokens: Most new tokens of a completion.
        unfinished: Whether the last sentence of a completion that reached `max_tokens` is dropped
            if it has no final mark. A completion without a complete sentence is kept.
        temperature: Sampling temperature; 0 decodes greedily.
        top_k: Sample from the k likeliest tokens; 0 for all.
        top_p: Sample from the likeliest tokens whose probabilities sum to this.
        chat: Whether the model reads the template as a user's message.
        seed: Seed. The random numbers of a completion depend only on seed, prompt and
            number.
        classifiers: Classifier of each attribute: `--classifiers sentiment=FOLDER`; in a YAML file
            also an object, `topic: {class_path: ctrlreward.LabelDescriptions, init_args: ...}`. For
            sentiment and topic, CTRLEval with its built-in task by default.
        label_map: Labels of the classifiers in place of those in `labels`: `--label-map
            negative=LABEL_0 positive=LABEL_1`.
        perplexity: Model of the perplexity.
        distinct: Model whose tokens Distinct counts.
        scorers: Further scorers, as for `ctrlreward score`.
        base: Base model of an adapter, if it has moved.
        batch_size: Completions that are sampled and saved together. They depend on it by
            rounding only.
        device: Device of all models.
        dtype: Data type of the generator's weights; null picks one by device.
        wandb: Project of Weights & Biases for the card, the figures and some texts. A repeated
            command writes the same run; `WANDB_MODE=offline` writes it into the folder only.
    """
    if wandb is not None:
        import_extra("wandb", "--wandb")
    positive("completions", completions)
    positive("max_tokens", max_tokens)
    positive("batch_size", batch_size)
    by_attribute, generator = read_labels(labels), find_model(model, base)
    mapped = _pairs("label_map", "OLD=NEW, negative=LABEL_0", label_map)
    used = {
        "classifiers": _classifier(by_attribute, classifiers, device),
        "perplexity": Perplexity(perplexity, device=device),
        "distinct": Distinct(distinct),
        **{f"scorers.{i}": scorer for i, scorer in enumerate(scorers or ())},
    }
    continues = not (chat or generator.has_encoder)
    beginnings = read_prefixes(prefixes)
    prompts = build_prompts(beginnings, by_attribute, template, continues)
    options = Generation(
        max_completion_length=max_tokens,
        temperature=temperature or 1.0,
        eval_temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        chat=chat,
    )
    folder = Path(output)
    log = TextLog(
        *(folder / "generations.jsonl", prompts, completions, options, seed),
        {"model": generator.identity, "dtype": dtype},
        *(continues, unfinished == "drop"),
    )
    planned = _mapped(log.samples(), log.prompts, mapped)
    components = _components(used, planned)
    check_samples(components, planned)  # before hours of generation
    with hold(folder / LOCK, folder, "Wait for it, or use another folder."):
        completed, ended = log.complete(generator, device, dtype, batch_size)
        samples = log.samples(completed, ended)
        settings = fingerprint(used, None)
        read = _mapped(samples, log.prompts, mapped)
        identity = {"texts": digest_of([*read.columns().values()]), "scorers": settings}
        score_log = JsonLog(folder / "scores.jsonl", identity)
        # The completions of a prompt are scored together: `Distinct` needs complete groups.
        parts = list(in_chunks(range(len(read)), _PROMPTS_PER_RECORD * completions))
        scores = score_parts(score_log, parts, lambda rows: score(components, read[rows]))
        diverse = {name: used["distinct"][name] for name in used["distinct"].specs}
        of_prefix = read.replace(groups=[prompt.prefix for prompt in log.prompts])
        whole = [list(range(len(read)))]
        distinct_log = JsonLog(folder / "distinct.jsonl", identity)
        by_prefix = score_parts(distinct_log, whole, lambda rows: score(diverse, of_prefix[rows]))
        found = figures(log.prompts, scores, ended, tuple(by_attribute), by_prefix)
        kept = {name: values for name, values in scores.items() if name != TOKENS}
        write_scored_samples(folder / "texts.jsonl", samples, kept)
        write_whole(folder / "results.csv", to_csv(found))
        card = {
            "generator": {"model": model, **generator.identity},
            "protocol": {
                "labels": [
                    f"{name}={label}" for name, each in by_attribute.items() for label in each
                ],
                "template": template,
                "prefixes": f"{prefixes}, {len(beginnings)} of them",
                "prefixes_digest": f"sha256:{digest_of(beginnings)}",
                "combinations": prod(map(len, by_attribute.values())),
                "completions": f"{completions} per prefix and combination, {len(samples)} texts",
                "text": "prefix + completion" if continues else "completion",
                "unfinished": f"{unfinished} the last sentence of a completion that was cut off",
                "seed": seed,
                **{key: value for key, value in log.sampling.items() if value is not None},
            },
            "scorers": {key: value for key, value in settings.items() if value is not None},
            "averages": AVERAGES,
            "files": {
                name: f"sha256:{sha256((folder / name).read_bytes()).hexdigest()}"
                for name in ("texts.jsonl", "results.csv")
            },
        }
        write_whole(folder / "card.json", json.dumps(card, indent=2, ensure_ascii=False) + "\n")
        write_whole(folder / "card.md", card_text(card, found, tuple(by_attribute)))
    _print(found, folder)
    if wandb is not None:
        log_run(wandb, folder, card, found, samples, kept)


def _classifier(
    labels: Mapping[str, Sequence[str]],
    given: Sequence[str] | Mapping[str, str | LabelProbabilities] | None,
    device: str,
) -> AttributeClassifier:
    """Return a classifier of each attribute: the given one, else CTRLEval with a built-in task."""
    models: dict[str, str | LabelProbabilities] = {}
    if isinstance(given, Mapping):
        models |= given
    else:
        models |= _pairs("classifiers", "ATTRIBUTE=MODEL, sentiment=FOLDER", given)
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


def _pairs(option: str, form: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return the pairs of an option, each NAME=VALUE; `form` shows one."""
    pairs = [pair.partition("=") for pair in given or ()]
    for pair in pairs:
        if not all(pair):
            raise ValueError(f"{option} = {''.join(pair)!r} must be {form}")
    return {name: value for name, _, value in pairs}


def _components(scorers: Mapping[str, Scorer], samples: Samples) -> dict[str, Component]:
    """Return all scores of the scorers by name, and the number of tokens of each text."""
    components: dict[str, Component] = {}
    for scorer in scorers.values():
        for name in scorer.computable(samples):
            if name in components:
                raise ValueError(f"scorers has a score {name!r}, which the evaluation computes")
            components[name] = scorer[name]
    return components | {TOKENS: Component(scorers["perplexity"], TOKENS)}


def _mapped(
    samples: Samples, prompts: Sequence[EvaluatedPrompt], labels: Mapping[str, str]
) -> Samples:
    """Return the samples with the labels of the classifiers."""
    mapped = [
        attribute_label({name: labels.get(word, word) for name, word in prompt.targets.items()})
        for prompt in prompts
    ]
    return Samples(**{**samples.columns(), "labels": mapped})


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
        ends = (f"{end:.4f}" for end in (np.min(each), np.max(each)))
        table.add_row(name, f"{value:.4f}", spread, *ends)
    plain_console().print(table)
    print(f"{folder}: card.md, texts.jsonl, results.csv (for ctrlreward compare)")
