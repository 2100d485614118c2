"""`ctrlreward meta-eval ctc`: alignment on the rated files of CTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack

from ctrlreward.recipes.papers.ctc.ablations import (
    ablate,
    correlate_ratings,
    print_ablations,
    print_ratings,
)
from ctrlreward.recipes.papers.ctc.baselines import overlaps, word_length
from ctrlreward.recipes.papers.meta_eval.rated_files import Rated, read_ctc
from ctrlreward.recipes.papers.meta_eval.rated_report import (
    Outputs,
    PublishedModels,
    report_correlations,
    score_rated,
    write_record,
)
from ctrlreward.scorers.alignment import ASPECTS as DIRECTIONS
from ctrlreward.scorers.alignment import Alignment, AspectName, Method
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.model_scorer import ModelOptions

# Rating of CTC's files → the aspect that it judges.
ASPECTS: Mapping[str, AspectName] = {
    "engaging": "engagingness",
    "uses_knowledge": "groundedness",
    "preservation": "preservation",
    "consistency": "consistency",
    "relevance": "relevance",
}

# The paper's ablations of dialog have the D and R that are trained on the file's own task.
_TRAINED_ON = {"persona_chat": "(?!.*TopicalChat)", "topical_chat": "(?!.*PersonaChat)"}


def ctc(
    data: Path,
    model: str | dict[str, str] = "minilm-l6",
    method: Method = "embedding",
    stop_words: str | None = None,
    references: int | None = None,
    aggregate: Literal["mean", "sum"] | None = None,
    output: Path | None = None,
    scores: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    published: PublishedModels = "best",
    log: Path | None = None,
    overlap: bool = False,
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate CTC on its rated files (dialog responses, style transfers or summaries).

    Engagingness and groundedness of responses are evaluated as sums over tokens, as in the paper,
    and also as means over tokens (`engagingness_mean`), unless `--aggregate` is given. Below the
    correlations are the paper's ablations of the file's aspects (Tables 1, 2, 3 and F.5), unless
    `--aggregate` is given, and for dialogs the correlations with every rating (Table F.6).

    Args:
        data: JSON list: persona_chat.json, topical_chat.json, yelp.json, qags_cnndm.json,
            qags_xsum.json or summeval.json, or a file of their format.
        model: Encoder, or aligner trained for the method: a local folder, Hugging Face id or short
            name. Or an aligner for each direction, and the aspects that have all of theirs:
            {relevance_reference: summary_to_reference, relevance_output: document}.
        method: Alignment method: embedding, discriminative or regression.
        stop_words: File of words that engagingness and groundedness ignore, one per line.
        references: Number of references that relevance is judged by, the first of each text; by
            default all. The paper has 1 and 11.
        aggregate: mean or sum over tokens; by default the paper's choice for each aspect.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap.
        published: Figures of the paper to print: best for its best model of the same method, or
            all for all in the package, with a line on those that it lacks.
        log: File of the scores so far, from which a repeated call continues.
        overlap: Also evaluate BLEU, chrF, ROUGE, METEOR and BERTScore (by the model, if that is an
            encoder) of the text with its source, or of a response with its facts. The number of
            words, a baseline of the paper, is always there.
        options: Device, dtype and token budget of the model.
    """
    outputs = Outputs(output, scores, resamples, seed, published)
    file = read_ctc(data)
    aspects = tuple(aspect for rating, aspect in ASPECTS.items() if rating in file.ratings)
    if isinstance(model, dict):
        # `Alignment` raises for unknown names and for a direction without a model.
        given = tuple(a for a in aspects if {*DIRECTIONS[a].directions} <= {*model})
        aspects = given or aspects
    kind = f"CTC {method[0].upper()}"
    suffix = _TRAINED_ON.get(data.stem, "")
    if "relevance" in aspects:
        file = _with_references(file, references)
        suffix = f".*, {len((file.references or ((),))[0])} reference"
        kind += f"(?:{suffix}|(?!.*reference))"

    def alignment(fold: Literal["mean", "sum"] | None) -> Alignment:
        return Alignment(model, aspects, method, stop_words, fold, **options)

    components = name_components([alignment(aggregate)], None)
    dialog = "engagingness" in aspects
    if dialog and aggregate is None:
        means = name_components([alignment("mean")], None)
        components |= {f"{name}_mean": component for name, component in means.items()}
    encoder = model if isinstance(model, str) and method == "embedding" else "minilm-l6"
    # Before the scores: a package or the encoder may be missing.
    overlapped = overlaps(file.samples, encoder, **options) if overlap else {}
    values = score_rated(file, components, outputs, log)
    values |= {"word_length": word_length(file.samples), **overlapped}
    judged = {name: file.ratings[name] for name, aspect in ASPECTS.items() if aspect in aspects}
    record = report_correlations(replace(file, ratings=judged), values, components, outputs, kind)
    record["ablations"] = ablate(file, values, suffix) if aggregate is None else []
    print_ablations(record["ablations"], file.file)
    if dialog:
        record["ratings"] = correlate_ratings(file, values)
        print_ratings(record["ratings"])
    write_record(record, outputs)


def _with_references(file: Rated, count: int | None) -> Rated:
    """Keep the first references of each text, all for None."""
    if file.references is None:
        raise ValueError(f"{file.file} has the rating relevance, but no references")
    given = len(file.references[0])
    if count is not None and not 1 <= count <= given:
        raise ValueError(f"references = {count} must be 1 to {given}, the references of each text")
    kept = tuple(row[:count] for row in file.references)
    return replace(file, samples=file.samples.replace(references=kept), references=kept)
