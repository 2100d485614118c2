"""An evaluation of `ctrlreward evaluate`: texts, scores, figures and the card in one folder."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Literal

from ctrlreward.arguments import positive
from ctrlreward.evaluation.measure import Measures, attribute_classifier
from ctrlreward.evaluation.texts import (
    TextLog,
    build_prompts,
    find_model,
    read_labels,
    read_prefixes,
)
from ctrlreward.extras import import_extra
from ctrlreward.files import hold
from ctrlreward.models.classifier import LabelProbabilities
from ctrlreward.policy.rollouts import Generation
from ctrlreward.runs.folder import LOCK
from ctrlreward.scorers import Distinct, Perplexity
from ctrlreward.scorers.base import Scorer
from ctrlreward.serving.fingerprint import digest_of
from ctrlreward.weights.dtypes import Dtype


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
    used = {
        "classifiers": attribute_classifier(by_attribute, classifiers, device),
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
    measures = Measures(used, log.prompts, completions, [*by_attribute], label_map)
    measures.check(log.samples())  # before hours of generation
    for scorer in used.values():  # a model may be missing
        scorer.load()
        scorer.release()
    described = {
        "generator": {"model": model, **generator.identity},
        "protocol": {
            "labels": [f"{name}={label}" for name, each in by_attribute.items() for label in each],
            "template": template,
            "prefixes": f"{prefixes}, {len(beginnings)} of them",
            "prefixes_digest": f"sha256:{digest_of(beginnings)}",
            "combinations": prod(map(len, by_attribute.values())),
            "completions": f"{completions} per prefix and combination, {len(log.prompts)} texts",
            "text": "prefix + completion" if continues else "completion",
            "unfinished": f"{unfinished} the last sentence of a completion that was cut off",
            "seed": seed,
            **{key: value for key, value in log.sampling.items() if value is not None},
        },
    }
    with hold(folder / LOCK, folder, "Wait for it, or use another folder."):
        completed, ended = log.complete(generator, device, dtype, batch_size)
        measures.write(folder, log.samples(completed, ended), ended, described, wandb)
