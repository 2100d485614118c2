"""`ctrlreward meta-eval li2018`: preservation and GM on rated style transfers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal, Unpack

import numpy as np

from ctrlreward.functional.transfer import GM_THRESHOLDS, adjusted_gm
from ctrlreward.recipes.papers.ctc.ablations import ablate, print_ablations
from ctrlreward.recipes.papers.li2018.gm_fits import (
    fit_held_out,
    fits_record,
    judge_learned,
    learned_record,
    print_fits,
    print_learned,
)
from ctrlreward.recipes.papers.li2018.metric_validity import print_validity, validity_record
from ctrlreward.recipes.papers.li2018.preferences import Thresholds
from ctrlreward.recipes.papers.li2018.system_outputs import tokenized
from ctrlreward.recipes.papers.li2018.transfer_systems import (
    baselines,
    print_systems,
    score_systems,
    systems_record,
)
from ctrlreward.recipes.papers.meta_eval.rated_files import read_li2018
from ctrlreward.recipes.papers.meta_eval.rated_report import (
    Outputs,
    PublishedModels,
    report_correlations,
    score_rated,
    write_record,
)
from ctrlreward.samples import Samples
from ctrlreward.scorers.accuracy import Accuracy
from ctrlreward.scorers.alignment import Alignment, Method
from ctrlreward.scorers.base import Scores
from ctrlreward.scorers.components import name_components
from ctrlreward.scorers.model_scorer import ModelOptions
from ctrlreward.scorers.perplexity import Perplexity
from ctrlreward.scorers.similarity import Similarity
from ctrlreward.scorers.transfer import TransferQuality

# Sentences of the constant baseline by target style.
_CONSTANTS = {"negative": "the food was terrible .", "positive": "the food was great ."}

# A sentence's accuracy as an input of GM, by the name of its score.
_ACCURACY = {"decision": "accuracy", "probability": "label_probability"}


def li2018(
    data: Path,
    classifier: str | None = None,
    model: str = "smollm2-135m",
    similarity: str = "minilm-l6",
    accuracy: Literal["decision", "probability"] = "probability",
    thresholds: Thresholds | None = None,
    words: Literal["as_written", "separated"] = "as_written",
    score_end: bool = False,
    fit_gm: bool = False,
    margin: float = 0.0,
    constants: dict[str, str] = _CONSTANTS,
    aligner: str = "minilm-l6",
    method: Method = "embedding",
    output: Path | None = None,
    scores: Path | None = None,
    plot: Path | None = None,
    resamples: int = 1000,
    seed: int = 0,
    published: PublishedModels = "best",
    **options: Unpack[ModelOptions],
) -> None:
    """Evaluate preservation and GM on the rated style transfers of Li et al. (2018).

    Args:
        data: Their rated sentences, human_ratings_yelp.csv.
        classifier: Style classifier with the labels positive and negative: a local folder or
            Hugging Face id. Without one, only preservation is evaluated.
        model: Language model for the perplexity; a folder of one trained on such sentences suits
            them better than a general one.
        similarity: Model for the similarity: a sentence encoder, or word vectors.
        accuracy: A sentence's accuracy in GM: the classifier's decision, 0 or 1, or its
            probability of the target style. A corpus has its share of decisions either way.
        thresholds: t1 to t4 of GM, [63,71,97,-37] in the paper and by default.
        words: How GM's judges read texts: as they are written, or lower-cased with punctuation
            and contractions separated, as in the corpora of such judges. Half of the human
            references are not written so.
        score_end: Whether the perplexity counts the end of a sentence, as the perplexity of a
            language model of sentences does.
        fit_gm: Also fit GM's thresholds to the preferences of every other item, and compare them
            with the paper's on the rest, and both with aggregates that `fit_aggregate` learns.
        margin: Mean ratings that differ by no more than this express no preference for the fit.
        constants: The constant baseline's sentence for each target style.
        aligner: Model for preservation: an encoder, or an aligner trained for the method.
        method: Alignment method: embedding, discriminative or regression.
        output: JSON file for the correlations.
        scores: File for the scores of each row: .jsonl, .csv or .parquet.
        plot: PNG file for scatter plots.
        resamples: Bootstrap resamples for the 95 % intervals.
        seed: Seed of the bootstrap, and of the search for thresholds.
        published: Figures of CTC's paper to print: best for its best model of the same method, or
            all for all in the package, with a line on those that it lacks.
        options: Device, dtype and token budget of the models.
    """
    if classifier is None and (fit_gm or thresholds is not None):
        name = "--fit-gm" if fit_gm else "--thresholds"
        raise ValueError(f"{name} needs GM. Pass a --classifier.")
    outputs = Outputs(output, scores, plot, resamples, seed, published)
    preservation = Alignment(aligner, "preservation", method, **options)
    file = read_li2018(data)
    unrated = baselines(file, constants)
    judge = None
    if classifier is not None:
        judge = SentenceTransfer(
            Accuracy(classifier, **options),
            Similarity(similarity, **options),
            Perplexity(model, score_end=score_end, **options),
            thresholds or GM_THRESHOLDS,
        )
        judge.inputs = (_ACCURACY[accuracy], "similarity", "perplexity")
        judge.separate = words == "separated"
    components = name_components([preservation, *filter(None, [judge])], None)
    components.pop("log_likelihood", None)  # not an input of GM
    values = score_rated(file, components, outputs)
    kind = f"CTC {method[0].upper()}"
    record = report_correlations(file, values, components, outputs, kind)
    record["ablations"] = ablate(file, values)
    print_ablations(record["ablations"], file.file)
    if judge is None:
        write_record(record, outputs)
        return
    record["table_5"] = validity_record(file, values, record)
    print_validity(record["table_5"])
    columns = {"paper" if thresholds is None else "given": judge.thresholds}
    write_record(record, outputs)
    if fit_gm:
        inputs = np.stack([values[name] for name in judge.inputs], axis=1)
        fits = fit_held_out(file, inputs, thresholds, margin, seed)
        record["gm"] = {"accuracy": accuracy, "margin": margin, **fits_record(fits)}
        print_fits(fits)
        read = {name: values[name] for name in (*judge.inputs, "preservation")}
        learned = judge_learned(file, read, judge.inputs, fits, margin, seed)
        record["learned"] = learned_record(*learned)
        print_learned(*learned)
        columns = {name: fit.thresholds for name, fit in fits.judged.items()}
    rows = score_systems(file, judge, unrated, columns)
    record["systems"] = systems_record(rows)
    print_systems(rows)
    write_record(record, outputs)


class SentenceTransfer(TransferQuality):
    """Transfer quality of sentences that may be read as in tokenized corpora.

    Attributes:
        inputs: Names of the scores of accuracy, similarity and perplexity in `gm`. The accuracy of
            a sentence is the classifier's decision or its probability.
        separate: Read samples as `tokenized` writes them.
    """

    inputs: tuple[str, str, str] = ("label_probability", "similarity", "perplexity")
    separate: bool = False

    def score_samples(
        self, samples: Samples, names: Collection[str] | None = None
    ) -> dict[str, Scores]:
        """Compute all scores, float64 of shape (n,); `gm` is NaN where an input is NaN."""
        scores = super().score_samples(tokenized(samples) if self.separate else samples, names)
        accuracy, similarity, perplexity = (scores[name] for name in self.inputs)
        return {**scores, "gm": adjusted_gm(accuracy, similarity, perplexity, self.thresholds)}
